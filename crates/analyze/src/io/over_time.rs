//! I/O over time: bytes of each device, and of each process through it, in each bin.

use std::collections::BTreeMap;

use memgauge_recording::{Recording, Result, Selection};
use memgauge_trace::{DeviceId, Direction, EventId, IoRow, Owner, Pid, SeriesRow, Tid};

use crate::Analysis;
use crate::io::IoSummary;
use crate::io::curves::{IoCurve, IoOverTime};
use crate::time::series::{Curves, Series};

/// Number of bins of each curve.
const BINS: usize = 2048;
/// Maximum number of processes with a curve, by falling bytes.
const MAX_LINES: usize = 100;
const IN: EventId = EventId(0);
const OUT: EventId = EventId(1);

/// Curves over time of the lines and devices of `summary`.
pub(crate) fn over_time(recording: &Recording, summary: &IoSummary) -> Result<IoOverTime> {
    let mut accounts = IoTimes::new();
    // The sums were read from the same table and reported its damaged parts.
    let mut reported = Vec::new();
    let all = Selection::all();
    recording
        .for_each_intact_batch(&all, &mut reported, |rows: &[IoRow]| accounts.observe(rows))?;
    Ok(accounts.finish(summary))
}

/// Curves by owner and device. Each pair takes the place of a process in [`Series`], which spreads
/// rows over bins.
struct IoTimes {
    numbers: BTreeMap<(Owner, DeviceId), u32>,
    series: Series,
}

impl IoTimes {
    fn new() -> Self {
        IoTimes {
            numbers: BTreeMap::new(),
            series: Series::growing(BINS).per_thread(),
        }
    }

    fn observe(&mut self, rows: &[IoRow]) {
        for row in rows {
            let next = self.numbers.len() as u32;
            let number = *self.numbers.entry((row.owner, row.device)).or_insert(next);
            let event = match row.direction {
                Direction::Out => OUT,
                Direction::In | Direction::Unknown => IN,
            };
            self.series.observe(&[SeriesRow {
                time_ns: row.time_ns,
                cpu: None,
                pid: Pid(number),
                tid: Tid(0),
                event,
                value: row.bytes,
                interval_ns: row.interval_ns,
            }]);
        }
    }

    fn finish(self, summary: &IoSummary) -> IoOverTime {
        let curves = self.series.finish();
        let count = curves.duration_ns.div_ceil(curves.bin_ns) as usize;
        let of = |pairs: &[(Owner, DeviceId)], event| {
            let mut sum = vec![0u64; count];
            for number in pairs.iter().filter_map(|pair| self.numbers.get(pair)) {
                add(&mut sum, &curves, *number, event);
            }
            sum
        };
        let curve = |index, pairs: &[(Owner, DeviceId)]| IoCurve {
            index,
            in_bytes: of(pairs, IN),
            out_bytes: of(pairs, OUT),
        };
        let devices = summary.devices.iter().enumerate().map(|(index, device)| {
            let here = |id: &DeviceId| (id.netns, id.number) == (device.netns, device.number);
            let at = self.numbers.keys().filter(|(_, id)| here(id));
            let (own, others): (Vec<_>, Vec<_>) =
                at.partition(|(owner, _)| *owner == Owner::DEVICE);
            curve(index, if own.is_empty() { &others } else { &own })
        });
        let lines = summary.lines.iter().take(MAX_LINES).enumerate();
        let lines = lines.map(|(index, line)| curve(index, &[(Owner(line.owner), line.id)]));
        IoOverTime {
            bin_ns: curves.bin_ns,
            duration_ns: curves.duration_ns,
            devices: devices.collect(),
            lines: lines.collect(),
        }
    }
}

fn add(sum: &mut [u64], curves: &Curves, number: u32, event: EventId) {
    let thread = Some((Pid(number), Tid(0)));
    for curve in &curves.curves {
        if curve.event == event && curve.thread == thread {
            for (sum, value) in sum.iter_mut().zip(&curve.values) {
                *sum = sum.saturating_add(*value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::IoAccounts;

    fn row(time_ns: u64, owner: Owner, direction: Direction, bytes: u64) -> IoRow {
        IoRow {
            time_ns,
            interval_ns: 1000,
            owner,
            direction,
            bytes,
            ..IoRow::default()
        }
    }

    #[test]
    fn curves_have_the_lines_bytes_at_their_times() {
        let rows = [
            row(1000, Owner(5), Direction::In, 10),
            row(2000, Owner(5), Direction::Out, 7),
            row(3000, Owner(6), Direction::In, 90),
            row(3000, Owner::DEVICE, Direction::In, 120),
        ];
        let mut accounts = IoAccounts::default();
        accounts.observe(&rows);
        let summary = accounts.summary(3000);
        let mut times = IoTimes::new();
        times.observe(&rows);
        let over_time = times.finish(&summary);
        assert_eq!(over_time.bin_ns, 1000);
        assert_eq!(over_time.lines[0].in_bytes, [0, 0, 90]);
        assert_eq!(over_time.lines[1].in_bytes, [10, 0, 0]);
        assert_eq!(over_time.lines[1].out_bytes, [0, 7, 0]);
        assert_eq!(over_time.devices[0].in_bytes, [0, 0, 120]);
    }

    #[test]
    fn a_device_that_counted_nothing_itself_has_what_processes_have() {
        let rows = [row(1000, Owner(5), Direction::In, 10)];
        let mut accounts = IoAccounts::default();
        accounts.observe(&rows);
        let mut times = IoTimes::new();
        times.observe(&rows);
        let over_time = times.finish(&accounts.summary(1000));
        assert_eq!(over_time.devices[0].in_bytes, [10]);
    }
}
