//! Bytes of I/O by command and device, with an end to the number of labels.
//!
//! A machine starts processes without end, and their names can be without end too. So a
//! series is of a command, not of a process, and only of one that has moved [`WORTH_BYTES`];
//! the rest of a device is one series, `(others)`. No series ever falls: a command's begins at
//! what it moves after it became one, the bytes before stay among the others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::metrics::{Families, Kind};

/// Bytes that a command moves through a device before it has a series of its own.
const WORTH_BYTES: u64 = 1 << 20;
/// Series of commands; later ones are among the others.
const MOST_SERIES: usize = 256;
/// Devices; later ones are one together.
const MOST_DEVICES: usize = 64;
/// Commands that have not yet moved enough, remembered.
const MOST_SMALL: usize = 4096;
/// Label of all that have no series of their own.
const OTHERS: &str = "(others)";

/// Between two looks, however often one asks.
const SHORTEST: Duration = Duration::from_millis(500);
/// Between two looks where nobody asks: what ended processes moved must not fill the
/// kernel's tables.
const LONGEST: Duration = Duration::from_secs(10);

/// Bytes that moved since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Name of the process that moved them. Without one it is the device's own count.
    pub command: Option<String>,
    /// The device's name.
    pub device: String,
    /// From the device to memory, and from memory to the device.
    pub bytes: [u64; 2],
}

/// What accounts for I/O.
pub trait IoSource: Send {
    /// Moved since the last call, or since the start.
    ///
    /// # Errors
    /// When the accounts cannot be read, in words.
    fn moved(&mut self) -> Result<Vec<Moved>, String>;

    /// Requests and packets that could not be accounted, since the start, by kind.
    fn losses(&mut self) -> Vec<(String, u64)>;
}

type Series = BTreeMap<(String, String), [u64; 2]>;

/// Sums since the start.
#[derive(Debug, Default)]
struct Sums {
    /// By device and command.
    commands: Series,
    /// What commands moved that have no series: by device and command.
    small: BTreeMap<(String, String), u64>,
    devices: BTreeMap<String, [u64; 2]>,
}

impl Sums {
    fn add(&mut self, moved: Moved) {
        let device = match self.devices.contains_key(&moved.device) {
            false if self.devices.len() >= MOST_DEVICES => OTHERS.to_owned(),
            _ => moved.device,
        };
        let sums = self.devices.entry(device.clone()).or_default();
        let Some(command) = moved.command else {
            return add(sums, moved.bytes);
        };
        let key = self.series_of(device, command, moved.bytes);
        add(self.commands.entry(key).or_default(), moved.bytes);
    }

    /// The series that these bytes count in.
    fn series_of(&mut self, device: String, command: String, bytes: [u64; 2]) -> (String, String) {
        let others = (device.clone(), OTHERS.to_owned());
        let key = (device, command);
        if self.commands.contains_key(&key) {
            return key;
        }
        if self.commands.len() >= MOST_SERIES {
            return others;
        }
        if self.small.len() >= MOST_SMALL {
            self.small.clear();
        }
        let before = self.small.entry(key.clone()).or_default();
        *before = before.saturating_add(bytes[0]).saturating_add(bytes[1]);
        if *before < WORTH_BYTES {
            return others;
        }
        self.small.remove(&key);
        key
    }
}

fn add(sums: &mut [u64; 2], bytes: [u64; 2]) {
    for (sum, gained) in sums.iter_mut().zip(bytes) {
        *sum = sum.saturating_add(gained);
    }
}

/// Accounting for as long as the service runs.
pub(crate) struct IoBytes {
    source: Box<dyn IoSource>,
    sums: Sums,
    looked: Instant,
    failures: u64,
}

impl IoBytes {
    pub(crate) fn new(source: Box<dyn IoSource>) -> IoBytes {
        IoBytes {
            source,
            sums: Sums::default(),
            looked: Instant::now(),
            failures: 0,
        }
    }

    fn look(&mut self, every: Duration) {
        if self.looked.elapsed() < every {
            return;
        }
        self.looked = Instant::now();
        match self.source.moved() {
            Ok(moved) => moved.into_iter().for_each(|moved| self.sums.add(moved)),
            Err(_) => self.failures += 1,
        }
    }

    /// Looks if it is long since the last time.
    pub(crate) fn tend(&mut self) {
        self.look(LONGEST);
    }

    /// Adds its metrics.
    pub(crate) fn add_to(&mut self, families: &mut Families) {
        self.look(SHORTEST);
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
        families.add(("memgauge_io_bytes", Kind::Counter), help, commands);
        let devices = self.sums.devices.iter();
        let devices =
            devices.flat_map(|(device, bytes)| both(vec![("device", device.clone())], *bytes));
        let help = "Bytes that a device moved, by its own count.";
        families.add(("memgauge_io_device_bytes", Kind::Counter), help, devices);
        let losses = self.source.losses().into_iter();
        let losses = losses.map(|(kind, count)| (vec![("kind", kind)], count));
        let help = "Requests and packets of no known process, by kind.";
        families.add(("memgauge_io_losses", Kind::Counter), help, losses);
        let help = "Times the accounts of I/O could not be read.";
        families.one(("memgauge_io_failures", Kind::Counter), help, self.failures);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(command: &str, device: &str, bytes: [u64; 2]) -> Moved {
        Moved {
            command: (!command.is_empty()).then(|| command.to_owned()),
            device: device.to_owned(),
            bytes,
        }
    }

    fn of(sums: &Sums, device: &str, command: &str) -> [u64; 2] {
        let key = (device.to_owned(), command.to_owned());
        sums.commands.get(&key).copied().unwrap_or_default()
    }

    #[test]
    fn a_command_has_a_series_once_it_has_moved_enough_and_no_byte_is_lost() {
        let mut sums = Sums::default();
        sums.add(moved("dd", "vda", [WORTH_BYTES - 1, 0]));
        sums.add(moved("", "vda", [WORTH_BYTES - 1, 0]));
        assert_eq!(of(&sums, "vda", "dd"), [0, 0]);
        assert_eq!(of(&sums, "vda", OTHERS), [WORTH_BYTES - 1, 0]);
        sums.add(moved("dd", "vda", [1, 7]));
        assert_eq!(of(&sums, "vda", "dd"), [1, 7]);
        assert_eq!(of(&sums, "vda", OTHERS), [WORTH_BYTES - 1, 0]);
        assert_eq!(sums.devices["vda"], [WORTH_BYTES - 1, 0]);
    }

    #[test]
    fn names_without_end_make_no_series_without_end_and_sums_never_fall() {
        let mut sums = Sums::default();
        let (mut all, mut before) = (0, Series::new());
        for n in 0..10_000u64 {
            let bytes = [n % 3 * WORTH_BYTES, 1];
            all += bytes[0] + bytes[1];
            let device = format!("veth{}", n % 100);
            sums.add(moved("", &device, [0, 0]));
            sums.add(moved(&format!("c{n}"), &device, bytes));
            for (key, was) in &before {
                let now = sums.commands[key];
                assert!(now[0] >= was[0] && now[1] >= was[1], "{key:?}");
            }
            if n % 100 == 0 {
                before = sums.commands.clone();
            }
        }
        assert!(sums.commands.len() <= MOST_SERIES + MOST_DEVICES + 1);
        assert!(sums.devices.len() <= MOST_DEVICES + 1 && sums.small.len() <= MOST_SMALL);
        let told: u64 = sums.commands.values().flatten().sum();
        assert_eq!(told, all);
    }
}
