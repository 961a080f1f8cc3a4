//! Epochs: clear the accessed bits, count used pages at growing ages, repeat.
//!
//! The schedule keeps two costs at a share of one processor (`Settings::budget`): that of reading,
//! by the number of ages, and that of clearing, by the pause before the next epoch. Clearing also
//! costs the target time, because the processor sets the bit of each page again.

use std::time::{Duration, Instant};

use memgauge_host::sys::process::own_usage;
use memgauge_mrc::{Epoch, HeatColumn, PageHistory, SLICES, WindowUse};

use crate::process::{Gone, ObservedProcess, tracks_soft_dirty};
use crate::rollup::MemoryUse;
use crate::source::AccessedBitSource;

/// How to observe.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Duration of the whole observation.
    pub duration: Duration,
    /// Longest age.
    pub max_age: Duration,
    /// Share of a processor that reading and clearing may each take.
    pub budget: f64,
}

/// Youngest age. Scheduling delays make shorter ones inexact.
const MIN_AGE: Duration = Duration::from_millis(20);

/// Smallest ratio of two ages. A smaller one gives the curve no further detail.
const MIN_RATIO: f64 = 1.2;

/// Minimum number of ages. With fewer ones, the curve would be too coarse to be of use.
const MIN_AGES: f64 = 10.0;

/// Time that a target loses when it uses a page for the first time after a clear, in seconds: the
/// processor walks the page table and sets the bit. Measured: 0.24 µs.
const USE_AGAIN_S: f64 = 0.25e-6;

/// Share of the resident memory from which on an epoch has nothing more to show.
const SATURATED_SHARE: f64 = 0.995;

/// Share of the resident memory that must lose its accessed bits before an epoch counts as disturbed.
const DISTURBED_SHARE: f64 = 0.01;

/// Longest sleep before interrupts are looked at.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// How the observation of a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It still runs.
    Running,
    /// It ended.
    Ended,
    /// It executed another program.
    Executed,
}

/// A process with what it used.
#[derive(Debug)]
pub struct Observed {
    /// The process.
    pub target: ObservedProcess,
    /// Its epochs.
    pub epochs: Vec<Epoch>,
    /// Its memory at the last reading.
    pub memory: MemoryUse,
    /// Use of its pages one by one. Empty if the source cannot list pages.
    pub pages: PageHistory,
    /// How its observation ended.
    pub end: End,
}

/// Result of a session.
#[derive(Debug, Default)]
pub struct Observation {
    /// Each process.
    pub processes: Vec<Observed>,
    /// All processes together.
    pub epochs: Vec<Epoch>,
    /// Their memory at the last reading, added up.
    pub memory: MemoryUse,
    /// Epochs left out because a process was stopped.
    pub stopped_epochs: usize,
    /// Epochs in which something else cleared accessed bits as well: reclaim, DAMON, or another tool.
    pub disturbed_epochs: usize,
    /// Duration.
    pub elapsed_s: f64,
    /// Processor time of memgauge.
    pub own_cpu_s: f64,
    /// Number of times that the accessed bits were cleared.
    pub clears: usize,
    /// Time for all clears.
    pub clear_s: f64,
    /// Number of times that used pages were counted.
    pub reads: usize,
    /// Time for all counts.
    pub read_s: f64,
    /// Whether the TLB was flushed after each clear.
    pub flushed: bool,
    /// Parts of the page tables that could not be read, in all readings.
    pub unread_tables: u64,
    /// Page tables that found no room in the list of pages, in all lists.
    pub unlisted_tables: u64,
    /// Whether reading costs more than the budget even with the fewest ages.
    pub over_budget: bool,
}

/// Observes processes until the time is over, all have ended, or `interrupted` says so.
pub fn observe(
    targets: Vec<ObservedProcess>,
    source: &mut AccessedBitSource,
    settings: &Settings,
    interrupted: &dyn Fn() -> bool,
) -> Observation {
    let start = Instant::now();
    let own_start = own_usage().cpu;
    let mut session = Session {
        start,
        end: start + settings.duration,
        source,
        settings,
        interrupted,
        observation: Observation {
            // A flush would clear the soft-dirty bits, and a checkpoint made meanwhile would miss
            // memory that has changed.
            flushed: !tracks_soft_dirty(),
            ..Observation::default()
        },
    };
    let processes = targets.into_iter().map(|target| Observed {
        target,
        epochs: Vec::new(),
        memory: MemoryUse::default(),
        pages: PageHistory::default(),
        end: End::Running,
    });
    session.observation.processes = processes.collect();
    session.run();
    session.refresh_sums();
    let mut observation = session.observation;
    observation.elapsed_s = start.elapsed().as_secs_f64();
    observation.own_cpu_s = (own_usage().cpu - own_start).as_secs_f64();
    observation
}

struct Session<'a> {
    start: Instant,
    end: Instant,
    source: &'a mut AccessedBitSource,
    settings: &'a Settings,
    interrupted: &'a dyn Fn() -> bool,
    observation: Observation,
}

impl Session<'_> {
    fn run(&mut self) {
        // The first reading finds out what a reading costs. A busy machine makes it last longer,
        // so the processor time counts.
        let before = own_usage().cpu;
        self.read();
        let ages = self.ages((own_usage().cpu - before).as_secs_f64());
        let mut epoch_start = None;
        while self.may_go_on() {
            if let Some(start) = epoch_start.take() {
                self.list_pages(start);
            }
            let clear_start = Instant::now();
            self.clear();
            let clear_s = clear_start.elapsed().as_secs_f64();
            let zero = clear_start + clear_start.elapsed() / 2;
            let was_stopped = self.is_any_stopped();
            let used_bytes = self.observe_epoch(zero, &ages);
            if was_stopped || self.is_any_stopped() {
                self.drop_last_epoch();
            } else {
                epoch_start = Some(zero);
            }
            let page_bytes = memgauge_host::sys::pages::page_bytes() as f64;
            let cost_s = clear_s + USE_AGAIN_S * used_bytes / page_bytes;
            let next = clear_start + Duration::from_secs_f64(cost_s / self.settings.budget);
            if next >= self.end || !self.sleep_until(next) {
                break;
            }
        }
        if let Some(start) = epoch_start {
            self.list_pages(start);
        }
    }

    /// Notes which pages were used in the epoch that began at `start` and ends now.
    fn list_pages(&mut self, start: Instant) {
        let now_s = self.start.elapsed().as_secs_f64();
        let column = HeatColumn {
            start_s: (start - self.start).as_secs_f64(),
            end_s: now_s,
        };
        let part = now_s / self.settings.duration.as_secs_f64();
        let slice = ((part * SLICES as f64) as usize).min(SLICES - 1);
        for observed in running(&mut self.observation.processes) {
            if let Some(list) = observed.target.list(self.source) {
                self.observation.unlisted_tables += list.unlisted;
                let mappings = observed.target.mappings();
                observed.pages.push(slice, column, list.tables, mappings);
            }
        }
    }

    /// Reads the sums that page tables do not contain once more: the memory may have changed since
    /// the start.
    fn refresh_sums(&mut self) {
        if matches!(self.source, AccessedBitSource::Rollup) {
            return;
        }
        let mut all = MemoryUse::default();
        for observed in &mut self.observation.processes {
            if let Ok(sums) = observed.target.read_rollup() {
                observed.memory = MemoryUse {
                    resident_bytes: observed.memory.resident_bytes,
                    used_bytes: observed.memory.used_bytes,
                    first_resident_bytes: observed.memory.first_resident_bytes,
                    first_used_bytes: observed.memory.first_used_bytes,
                    huge_bytes: observed.memory.huge_bytes,
                    ..sums
                };
            }
            all.add(&observed.memory);
        }
        self.observation.memory = all;
    }

    /// Ages with a fixed ratio, as many as the budget allows.
    fn ages(&mut self, read_s: f64) -> Vec<Duration> {
        let read_s = read_s.max(f64::MIN_POSITIVE);
        // A reading takes a moment, and the first one should not span half of its age.
        let min_s = MIN_AGE.as_secs_f64().max(2.0 * read_s);
        let max_s = self.settings.max_age.as_secs_f64().max(2.0 * min_s);
        let log_range = (max_s / min_s).ln();
        let affordable = self.settings.budget * max_s / read_s;
        self.observation.over_budget = affordable < MIN_AGES;
        let count = affordable
            .max(MIN_AGES)
            .min(log_range / MIN_RATIO.ln())
            .ceil();
        let age = |n: u32| min_s * (log_range * f64::from(n) / count).exp();
        (0..=count as u32)
            .map(|n| Duration::from_secs_f64(age(n)))
            .collect()
    }

    /// Reads at all ages. Returns the bytes used in the whole epoch.
    fn observe_epoch(&mut self, zero: Instant, ages: &[Duration]) -> f64 {
        for observed in running(&mut self.observation.processes) {
            observed.epochs.push(Epoch::default());
        }
        self.observation.epochs.push(Epoch::default());
        let mut used_bytes = 0;
        let mut previous: Vec<MemoryUse> = Vec::new();
        let mut lost_bytes = 0;
        for &age in ages {
            if !self.sleep_until(zero + age) {
                break;
            }
            let read_start = Instant::now();
            if !self.read() {
                break;
            }
            let middle = read_start + read_start.elapsed() / 2;
            let age_s = (middle - zero).as_secs_f64();
            self.push(age_s);
            let processes = &self.observation.processes;
            let now: Vec<MemoryUse> = processes.iter().map(|observed| observed.memory).collect();
            lost_bytes += previous
                .iter()
                .zip(&now)
                .map(|(before, now)| lost_use(before, now))
                .sum::<u64>();
            previous = now;
            let memory = self.observation.memory;
            used_bytes = memory.used_bytes;
            if used_bytes as f64 >= SATURATED_SHARE * memory.resident_bytes as f64 {
                break;
            }
        }
        let resident_bytes = self.observation.memory.resident_bytes as f64;
        if lost_bytes as f64 > DISTURBED_SHARE * resident_bytes {
            self.observation.disturbed_epochs += 1;
        }
        used_bytes as f64
    }

    fn push(&mut self, age_s: f64) {
        let reading = |memory: &MemoryUse| WindowUse {
            age_s,
            used_bytes: memory.used_bytes as f64,
            resident_bytes: memory.resident_bytes as f64,
        };
        for observed in running(&mut self.observation.processes) {
            if let Some(epoch) = observed.epochs.last_mut() {
                epoch.readings.push(reading(&observed.memory));
            }
        }
        let all = reading(&self.observation.memory);
        if let Some(epoch) = self.observation.epochs.last_mut() {
            epoch.readings.push(all);
        }
    }

    fn drop_last_epoch(&mut self) {
        self.observation.stopped_epochs += 1;
        self.observation.epochs.pop();
        for observed in running(&mut self.observation.processes) {
            observed.epochs.pop();
        }
    }

    fn clear(&mut self) {
        let start = Instant::now();
        let flush = self.observation.flushed;
        for observed in running(&mut self.observation.processes) {
            // A process that is gone shows when it is read.
            let _ = observed.target.clear(flush);
        }
        self.observation.clear_s += start.elapsed().as_secs_f64();
        self.observation.clears += 1;
    }

    /// Reads all processes. Returns whether any is left.
    fn read(&mut self) -> bool {
        let start = Instant::now();
        let mut all = MemoryUse::default();
        let mut is_any_left = false;
        self.source.begin_reading();
        for observed in running(&mut self.observation.processes) {
            match observed.target.read(self.source) {
                Ok(memory) => {
                    observed.memory = memory;
                    self.observation.unread_tables += memory.unread_tables;
                    all.add(&memory);
                    is_any_left = true;
                }
                Err(_) => {
                    observed.end = match observed.target.gone() {
                        Gone::Ended => End::Ended,
                        Gone::Executed => End::Executed,
                    };
                }
            }
        }
        self.observation.read_s += start.elapsed().as_secs_f64();
        self.observation.reads += 1;
        if is_any_left {
            self.observation.memory = all;
        }
        is_any_left
    }

    fn is_any_stopped(&mut self) -> bool {
        running(&mut self.observation.processes).any(|observed| observed.target.is_stopped())
    }

    fn may_go_on(&mut self) -> bool {
        let is_any_left = running(&mut self.observation.processes).next().is_some();
        is_any_left && Instant::now() < self.end && !(self.interrupted)()
    }

    /// Sleeps. Returns false if the observation is over before `moment`.
    fn sleep_until(&self, moment: Instant) -> bool {
        while let Some(left) = moment.checked_duration_since(Instant::now()) {
            if (self.interrupted)() || Instant::now() >= self.end {
                return false;
            }
            std::thread::sleep(left.min(MAX_SLEEP));
            if left.is_zero() {
                break;
            }
        }
        moment < self.end
    }
}

/// Bytes that were used and no longer have an accessed bit, between two readings of an epoch. Pages
/// that the process gave back take their bits with them.
fn lost_use(before: &MemoryUse, now: &MemoryUse) -> u64 {
    let given_back = before.resident_bytes.saturating_sub(now.resident_bytes);
    let fewer = before.used_bytes.saturating_sub(now.used_bytes);
    fewer.saturating_sub(given_back)
}

fn running(processes: &mut [Observed]) -> impl Iterator<Item = &mut Observed> {
    processes
        .iter_mut()
        .filter(|observed| observed.end == End::Running)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_lost_only_if_the_page_is_still_resident() {
        let memory = |resident_bytes, used_bytes| MemoryUse {
            resident_bytes,
            used_bytes,
            ..MemoryUse::default()
        };
        for (before, now, lost) in [
            ((100, 50), (100, 60), 0),
            ((100, 50), (100, 20), 30),
            ((100, 50), (80, 30), 0),
            ((100, 50), (90, 10), 30),
            ((100, 50), (150, 40), 10),
        ] {
            let found = lost_use(&memory(before.0, before.1), &memory(now.0, now.1));
            assert_eq!(found, lost, "{before:?} {now:?}");
        }
    }
}
