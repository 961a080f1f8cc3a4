//! Memory: a rate that all cores share.
//!
//! Cores run ahead of each other in virtual time, because their feeds arrive
//! when they arrive; a single queue would make the one behind wait for the one
//! ahead. So capacity is booked by *window* of virtual time: a transfer takes
//! room in the window of its own moment, or in the first later one with room.

/// Length of a window: 2^22 millicycles, about 4200 cycles.
const WINDOW_SHIFT: u32 = 22;
/// Windows remembered: about 17 million cycles.
const WINDOWS: usize = 4096;

#[derive(Clone, Copy, Default)]
struct Window {
    number: u64,
    lines: u64,
}

pub(crate) struct Dram {
    windows: Vec<Window>,
    /// Lines that fit a window.
    capacity: u64,
}

impl Dram {
    pub(crate) fn new(line_millicycles: u64) -> Self {
        Dram {
            windows: vec![Window::default(); WINDOWS],
            capacity: ((1 << WINDOW_SHIFT) / line_millicycles).max(1),
        }
    }

    /// Books the transfer of a line at `now`; when it can start, in millicycles.
    ///
    /// A transfer further back than is remembered starts at once: what else
    /// happened at that time is not known any more.
    pub(crate) fn book(&mut self, now: u64) -> u64 {
        let first = now >> WINDOW_SHIFT;
        for number in first..first + WINDOWS as u64 {
            let window = &mut self.windows[number as usize % WINDOWS];
            if window.number > number {
                return now;
            }
            if window.number < number {
                *window = Window { number, lines: 0 };
            }
            if window.lines < self.capacity {
                window.lines += 1;
                return now.max(number << WINDOW_SHIFT);
            }
        }
        now
    }
}
