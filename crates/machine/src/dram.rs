//! Memory: a rate that all cores share.
//!
//! Cores run ahead of each other in virtual time, because their feeds arrive at
//! different moments. A single queue would make the one behind wait for the one ahead.
//! So capacity is reserved by *window* of virtual time. A transfer takes room in the
//! window of its own moment, or in the first later one with room.

/// Length of a window: 2^18 millicycles, about 260 cycles. No stretch of time gets
/// more than one window's lines above the rate.
const WINDOW_SHIFT: u32 = 18;
/// Windows remembered: about 270 million cycles, a tenth of a second. A core is behind
/// by the content of the threads' rings, some milliseconds.
const WINDOWS: usize = 1 << 20;

/// Bits of a window's lines, below its number.
const LINES_BITS: u32 = 20;

pub(crate) struct Dram {
    /// The number of each window and, in the lower bits, the lines reserved in it.
    windows: Vec<u64>,
    /// Millicycles that a line takes.
    line: u64,
}

impl Dram {
    pub(crate) fn new(line_millicycles: u64) -> Self {
        Dram {
            windows: vec![0; WINDOWS],
            line: line_millicycles,
        }
    }

    /// Lines that fit a window: as many as begin in it if they follow one another from
    /// time zero. So the rate is exact over many windows.
    fn capacity(&self, number: u64) -> u64 {
        let begun_before = |number: u64| {
            let start = number.checked_mul(1 << WINDOW_SHIFT);
            start.unwrap_or(u64::MAX).div_ceil(self.line)
        };
        begun_before(number + 1) - begun_before(number)
    }

    /// Books the transfer of a line at `now`; when it can start, in millicycles.
    ///
    /// A transfer further back than is remembered starts at once: what else
    /// happened at that time is not known any more.
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
