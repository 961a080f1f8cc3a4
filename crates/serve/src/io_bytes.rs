//! Bytes of I/O by command and device, as metrics with a bounded number of labels.
//!
//! A machine starts any number of processes, under any number of names. A series is therefore for a
//! command rather than a process, and only for commands that have moved [`MIN_SERIES_BYTES`]. The
//! rest of a device is one series, `(others)`. A counter must never decrease, so the series of a
//! command starts at 0 and the bytes it moved before stay in `(others)`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::metrics::{Families, MetricDefinition};

/// Bytes that a command must move through a device to get a series of its own.
const MIN_SERIES_BYTES: u64 = 1 << 20;
/// Maximum number of command series. Further commands count as others.
const MAX_SERIES: usize = 256;
/// Maximum number of devices. Further ones are counted together.
const MAX_DEVICES: usize = 64;
/// Maximum number of remembered commands without a series.
const MAX_PENDING_COMMANDS: usize = 4096;
/// Label of everything without its own series.
const OTHERS: &str = "(others)";

/// Minimum time between two reads of the accounts, however often metrics are requested.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time between two reads, so that the accounts of ended processes do not fill the kernel's
/// tables.
const MAX_INTERVAL: Duration = Duration::from_secs(10);

/// Bytes moved since the last read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoTransfer {
    /// Name of the process. `None` for the device's own count.
    pub command: Option<String>,
    /// Name of the device.
    pub device: String,
    /// Bytes from the device to memory, and from memory to the device.
    pub bytes: [u64; 2],
}

/// Source of I/O accounts.
pub trait IoSource: Send {
    /// Returns the bytes moved since the last call, or since the start.
    ///
    /// # Errors
    /// The reason why the accounts cannot be read.
    fn transfers(&mut self) -> Result<Vec<IoTransfer>, String>;

    /// Requests and packets that could not be accounted since the start, by kind.
    fn losses(&mut self) -> Vec<(String, u64)>;
}

type IoByteSeries = BTreeMap<(String, String), [u64; 2]>;

/// Sums since the start.
#[derive(Debug, Default)]
struct ByteSums {
    /// By device and command.
    commands: IoByteSeries,
    /// Bytes of commands without a series, by device and command.
    pending: BTreeMap<(String, String), u64>,
    devices: BTreeMap<String, [u64; 2]>,
}

impl ByteSums {
    fn add(&mut self, transfer: IoTransfer) {
        let device = match self.devices.contains_key(&transfer.device) {
            false if self.devices.len() >= MAX_DEVICES => OTHERS.to_owned(),
            _ => transfer.device,
        };
        let sums = self.devices.entry(device.clone()).or_default();
        let Some(command) = transfer.command else {
            return add(sums, transfer.bytes);
        };
        let key = self.series_of(device, command, transfer.bytes);
        add(self.commands.entry(key).or_default(), transfer.bytes);
    }

    /// Returns the series that counts these bytes.
    fn series_of(&mut self, device: String, command: String, bytes: [u64; 2]) -> (String, String) {
        let others = (device.clone(), OTHERS.to_owned());
        let key = (device, command);
        if self.commands.contains_key(&key) {
            return key;
        }
        if self.commands.len() >= MAX_SERIES {
            return others;
        }
        if self.pending.len() >= MAX_PENDING_COMMANDS {
            self.pending.clear();
        }
        let moved = self.pending.entry(key.clone()).or_default();
        *moved = moved.saturating_add(bytes[0]).saturating_add(bytes[1]);
        if *moved < MIN_SERIES_BYTES {
            return others;
        }
        self.pending.remove(&key);
        key
    }
}

fn add(sums: &mut [u64; 2], bytes: [u64; 2]) {
    for (sum, more) in sums.iter_mut().zip(bytes) {
        *sum = sum.saturating_add(more);
    }
}

/// I/O accounting of the running service.
pub(crate) struct IoBytes {
    source: Box<dyn IoSource>,
    sums: ByteSums,
    last_read: Instant,
    failures: u64,
}

impl IoBytes {
    pub(crate) fn new(source: Box<dyn IoSource>) -> IoBytes {
        IoBytes {
            source,
            sums: ByteSums::default(),
            last_read: Instant::now(),
            failures: 0,
        }
    }

    fn read_accounts(&mut self, every: Duration) {
        if self.last_read.elapsed() < every {
            return;
        }
        self.last_read = Instant::now();
        match self.source.transfers() {
            Ok(transfer) => transfer
                .into_iter()
                .for_each(|transfer| self.sums.add(transfer)),
            Err(_) => self.failures += 1,
        }
    }

    /// Reads the accounts if the last read was long ago.
    pub(crate) fn read_if_old(&mut self) {
        self.read_accounts(MAX_INTERVAL);
    }

    /// Adds the metrics of I/O.
    pub(crate) fn add_metrics(&mut self, families: &mut Families) {
        self.read_accounts(MIN_INTERVAL);
        let both = |labels: Vec<(&'static str, String)>, bytes: [u64; 2]| {
            ["in", "out"].into_iter().zip(bytes).map(move |(way, sum)| {
                let mut labels = labels.clone();
                labels.push(("direction", way.to_owned()));
                (labels, sum)
            })
        };
        let commands = self.sums.commands.iter().flat_map(|(key, bytes)| {
            let (device, command) = key.clone();
            both(vec![("command", command), ("device", device)], *bytes)
        });
        let help = "Bytes that processes of a command moved through a device.";
        families.add(
            MetricDefinition::counter("memgauge_io_bytes", help),
            commands,
        );
        let devices = self.sums.devices.iter();
        let devices =
            devices.flat_map(|(device, bytes)| both(vec![("device", device.clone())], *bytes));
        let help = "Bytes that a device moved, by its own count.";
        families.add(
            MetricDefinition::counter("memgauge_io_device_bytes", help),
            devices,
        );
        let losses = self.source.losses().into_iter();
        let losses = losses.map(|(kind, count)| (vec![("kind", kind)], count));
        let help = "Requests and packets of no known process, by kind.";
        families.add(
            MetricDefinition::counter("memgauge_io_losses", help),
            losses,
        );
        let help = "Times the accounts of I/O could not be read.";
        families.add_single(
            MetricDefinition::counter("memgauge_io_failures", help),
            self.failures,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(command: &str, device: &str, bytes: [u64; 2]) -> IoTransfer {
        IoTransfer {
            command: (!command.is_empty()).then(|| command.to_owned()),
            device: device.to_owned(),
            bytes,
        }
    }

    fn of(sums: &ByteSums, device: &str, command: &str) -> [u64; 2] {
        let key = (device.to_owned(), command.to_owned());
        sums.commands.get(&key).copied().unwrap_or_default()
    }

    #[test]
    fn command_gets_a_series_after_enough_bytes_and_no_byte_is_lost() {
        let mut sums = ByteSums::default();
        sums.add(transfer("dd", "vda", [MIN_SERIES_BYTES - 1, 0]));
        sums.add(transfer("", "vda", [MIN_SERIES_BYTES - 1, 0]));
        assert_eq!(of(&sums, "vda", "dd"), [0, 0]);
        assert_eq!(of(&sums, "vda", OTHERS), [MIN_SERIES_BYTES - 1, 0]);
        sums.add(transfer("dd", "vda", [1, 7]));
        assert_eq!(of(&sums, "vda", "dd"), [1, 7]);
        assert_eq!(of(&sums, "vda", OTHERS), [MIN_SERIES_BYTES - 1, 0]);
        assert_eq!(sums.devices["vda"], [MIN_SERIES_BYTES - 1, 0]);
    }

    #[test]
    fn number_of_series_is_bounded_and_sums_never_fall() {
        let mut sums = ByteSums::default();
        let (mut all, mut moved) = (0, IoByteSeries::new());
        for n in 0..10_000u64 {
            let bytes = [n % 3 * MIN_SERIES_BYTES, 1];
            all += bytes[0] + bytes[1];
            let device = format!("veth{}", n % 100);
            sums.add(transfer("", &device, [0, 0]));
            sums.add(transfer(&format!("c{n}"), &device, bytes));
            for (key, was) in &moved {
                let now = sums.commands[key];
                assert!(now[0] >= was[0] && now[1] >= was[1], "{key:?}");
            }
            if n % 100 == 0 {
                moved = sums.commands.clone();
            }
        }
        assert!(sums.commands.len() <= MAX_SERIES + MAX_DEVICES + 1);
        assert!(
            sums.devices.len() <= MAX_DEVICES + 1 && sums.pending.len() <= MAX_PENDING_COMMANDS
        );
        let sum: u64 = sums.commands.values().flatten().sum();
        assert_eq!(sum, all);
    }
}
