//! Memory: a rate that all cores share.
//!
//! Cores run ahead of each other in virtual time, because their words arrive at different times. In
//! a single queue, a core that is behind would wait for one that is ahead. Capacity is therefore
//! reserved by *window* of virtual time. A transfer uses the window of its own time, or the first
//! later one with room.

/// Length of a window: 2^18 millicycles, about 260 cycles. In any interval, at most one window's
/// lines exceed the rate.
const WINDOW_SHIFT: u32 = 18;
/// Number of windows in memory: about 270 million cycles, a tenth of a second. Cores are at most
/// the content of the threads' rings apart, which is some milliseconds.
const WINDOWS: usize = 1 << 20;

/// Number of bits for the lines of a window, below its number.
const LINES_BITS: u32 = 20;

pub(crate) struct Dram {
    /// Number of each window, with its reserved lines in the lower bits.
    windows: Vec<u64>,
    /// Millicycles per line.
    line: u64,
}

impl Dram {
    pub(crate) fn new(line_millicycles: u64) -> Self {
        Dram {
            windows: vec![0; WINDOWS],
            line: line_millicycles,
        }
    }

    /// Returns the number of lines of a window: as many as begin in it if lines follow one another
    /// from time zero. The rate is therefore exact over many windows.
    fn capacity(&self, number: u64) -> u64 {
        let begun_before = |number: u64| {
            let start = number.checked_mul(1 << WINDOW_SHIFT);
            start.unwrap_or(u64::MAX).div_ceil(self.line)
        };
        begun_before(number + 1) - begun_before(number)
    }

    /// Reserves the transfer of a line at `now`. Returns its start in millicycles.
    ///
    /// A transfer before the oldest known window starts at once, because the other transfers of
    /// that time are forgotten.
    pub(crate) fn reserve(&mut self, now: u64) -> u64 {
        let first = now >> WINDOW_SHIFT;
        for number in first..first + WINDOWS as u64 {
            let capacity = self.capacity(number);
            let window = &mut self.windows[number as usize % WINDOWS];
            let (found, lines) = (*window >> LINES_BITS, *window % (1 << LINES_BITS));
            if found > number {
                return now;
            }
            let lines = if found == number { lines } else { 0 };
            if lines < capacity {
                *window = number << LINES_BITS | (lines + 1);
                return now.max(number << WINDOW_SHIFT);
            }
        }
        now
    }
}
