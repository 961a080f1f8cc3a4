//! Memory traffic of devices, and its attribution to processes.
//!
//! Totals come from counters outside the cores, converted to bytes of a few terms
//! (`uncore.io_read_misses` and so on). The available terms select the formula, independent of the
//! processor:
//!
//! - by misses: with `R_io` and `W_io` the bytes that devices read and wrote past all caches, `RW`
//!   all misses and `WB` the modified lines written back, memory traffic is `R_io + (R_io + W_io) /
//!   RW · WB`. Lines that devices miss evict others in proportion to their share of all misses, if
//!   addresses are spread evenly over the cache. If nothing counts `RW` or `WB`, the bytes read by
//!   the memory controllers plus `W_io` replace the former, and the bytes written by them the latter.
//! - by fabric: the bytes that devices read and wrote through it, limited by those of the memory
//!   controllers.
//!
//! A device's share of the traffic is its share of the bytes that all hardware devices moved, by
//! direction. A process's share is its share of the device's. Both are estimates. Scaling the bytes
//! of processes by one factor was rejected, since it mixes the directions: a line that is read
//! misses at once, a written one only when it is evicted.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::io::moved::{IoDeviceLine, IoLine};

/// Prefix of the counters' event names.
const PREFIX: &str = "uncore.";

/// Sums of counters, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounterSums {
    bytes: BTreeMap<String, u64>,
}

impl MemoryCounterSums {
    /// True if the event is one of these counters.
    pub fn knows(name: &str) -> bool {
        name.starts_with(PREFIX)
    }

    /// Adds an increment. Ignores unknown counters.
    pub fn add(&mut self, name: &str, bytes: u64) {
        if let Some(term) = name.strip_prefix(PREFIX) {
            let sum = self.bytes.entry(term.to_owned()).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }

    /// Clears the counts, for the next interval of a live view.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Adds the sums of another.
    pub fn merge(&mut self, other: &MemoryCounterSums) {
        for (term, bytes) in &other.bytes {
            self.add(&format!("{PREFIX}{term}"), *bytes);
        }
    }

    fn term(&self, name: &str) -> Option<f64> {
        self.bytes.get(name).map(|&bytes| bytes as f64)
    }

    /// The traffic, if the terms are sufficient.
    fn traffic(&self) -> Option<DeviceTraffic> {
        self.by_misses().or_else(|| self.by_fabric())
    }

    fn by_misses(&self) -> Option<DeviceTraffic> {
        let (read, written) = (self.term("io_read_misses")?, self.term("io_write_misses")?);
        let (misses, all) = match self.term("misses") {
            Some(misses) => (misses, "misses"),
            None => (
                self.term("memory_reads")? + written,
                "(memory_reads + W_io)",
            ),
        };
        let (written_back, back) = match self.term("writebacks") {
            Some(bytes) => (bytes, "writebacks"),
            None => (self.term("memory_writes")?, "memory_writes"),
        };
        // Boxes are read one after the other. Keep the share at most 1.
        let misses = misses.max(read + written);
        let pushed = |bytes: f64| {
            if misses > 0.0 {
                bytes / misses * written_back
            } else {
                0.0
            }
        };
        Some(DeviceTraffic {
            formula: format!("R_io + (R_io + W_io) / {all} × {back}"),
            input: pushed(written),
            output: read + pushed(read),
        })
    }

    fn by_fabric(&self) -> Option<DeviceTraffic> {
        let most = |name: &str| self.term(name).unwrap_or(f64::INFINITY);
        Some(DeviceTraffic {
            formula: "min(device_reads, memory_reads) + min(device_writes, memory_writes)"
                .to_owned(),
            input: self.term("device_writes")?.min(most("memory_writes")),
            output: self.term("device_reads")?.min(most("memory_reads")),
        })
    }

    /// Bytes of the devices at each stack of ports, in and out, by bus.
    fn stacks(&self) -> BTreeMap<String, [u64; 2]> {
        let mut stacks: BTreeMap<String, [u64; 2]> = BTreeMap::new();
        for port in self.ports() {
            let sums = stacks.entry(port.bus).or_default();
            sums[0] += port.in_bytes;
            sums[1] += port.out_bytes;
        }
        stacks
    }

    fn ports(&self) -> Vec<IoPort> {
        let mut ports: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
        for (term, bytes) in &self.bytes {
            let (way, port) = match term.split_once('/') {
                Some(("port_in", port)) => (0, port),
                Some(("port_out", port)) => (1, port),
                _ => continue,
            };
            ports.entry(port).or_default()[way] += bytes;
        }
        let port = |(place, [input, output]): (&str, [u64; 2])| {
            let (bus, number) = place.rsplit_once('/').unwrap_or((place, "0"));
            IoPort {
                bus: bus.to_owned(),
                port: number.parse().unwrap_or(0),
                in_bytes: input,
                out_bytes: output,
            }
        };
        ports.into_iter().map(port).collect()
    }
}

/// Memory traffic of devices in bytes: by writing memory, by reading it.
struct DeviceTraffic {
    formula: String,
    input: f64,
    output: f64,
}

/// Memory traffic of I/O.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IoMemory {
    /// Origin of the counters, or empty.
    pub source: String,
    /// Why there are no counters, or empty.
    pub without: String,
    /// Formula for the traffic, or empty if the terms are not sufficient.
    pub formula: String,
    /// Sums of the counters.
    pub terms: Vec<IoTerm>,
    /// Traffic of devices that write memory. Null if unknown.
    pub in_bytes: Option<u64>,
    /// Traffic of devices that read memory. Null if unknown.
    pub out_bytes: Option<u64>,
    /// Maximum traffic: bytes that hardware devices moved, in and out.
    pub at_most_bytes: [u64; 2],
    /// Bytes of devices by port, if the processor counts them.
    pub ports: Vec<IoPort>,
}

/// A sum of counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IoTerm {
    /// Name as defined in docs/io.md.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
}

/// Bytes of the devices at a PCIe port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IoPort {
    /// Root bus of its stack, or the counter's name if unknown.
    pub bus: String,
    /// Number in the stack.
    pub port: u32,
    /// Written to memory by the devices.
    pub in_bytes: u64,
    /// Read from memory by the devices.
    pub out_bytes: u64,
}

/// Computes the traffic, and distributes it over devices and processes.
pub(crate) fn share_out(
    counters: &MemoryCounterSums,
    devices: &mut [IoDeviceLine],
    lines: &mut [IoLine],
) -> IoMemory {
    let traffic = counters.traffic();
    if let Some(traffic) = &traffic {
        give(traffic, &counters.stacks(), devices, lines);
    }
    let hardware = || devices.iter().filter(|d| !d.is_virtual);
    IoMemory {
        formula: traffic
            .as_ref()
            .map_or_else(String::new, |t| t.formula.clone()),
        in_bytes: traffic.as_ref().map(|t| t.input.round() as u64),
        out_bytes: traffic.as_ref().map(|t| t.output.round() as u64),
        at_most_bytes: [
            hardware().map(IoDeviceLine::most_in).sum(),
            hardware().map(IoDeviceLine::most_out).sum(),
        ],
        terms: terms(counters),
        ports: counters.ports(),
        ..IoMemory::default()
    }
}

fn give(
    traffic: &DeviceTraffic,
    stacks: &BTreeMap<String, [u64; 2]>,
    devices: &mut [IoDeviceLine],
    lines: &mut [IoLine],
) {
    let moved: Vec<[f64; 2]> = devices.iter().map(|d| moved(d, devices, stacks)).collect();
    let all = [0, 1].map(|way: usize| moved.iter().map(|m| m[way]).sum::<f64>());
    for (device, moved) in devices.iter_mut().zip(&moved) {
        if device.is_virtual {
            continue;
        }
        let input = part(moved[0], all[0], traffic.input);
        let output = part(moved[1], all[1], traffic.output);
        device.memory_bytes = Some((input + output).round() as u64);
        let (own_in, own_out) = (device.most_in() as f64, device.most_out() as f64);
        for line in lines.iter_mut().filter(|l| l.is_at(device)) {
            let input = part(line.moved.r#in.bytes as f64, own_in, input);
            let output = part(line.moved.out.bytes as f64, own_out, output);
            line.memory_bytes = Some((input + output).round() as u64);
        }
    }
}

/// `bytes` in the proportion of `own` to `all`.
fn part(own: f64, all: f64, bytes: f64) -> f64 {
    if all > 0.0 { own / all * bytes } else { 0.0 }
}

fn terms(counters: &MemoryCounterSums) -> Vec<IoTerm> {
    let sums = counters
        .bytes
        .iter()
        .filter(|(name, _)| !name.contains('/'));
    let term = |(name, bytes): (&String, &u64)| IoTerm {
        name: name.clone(),
        bytes: *bytes,
    };
    sums.map(term).collect()
}

/// Bytes that a device moved in and out. If the ports of its stack are counted, the bytes come from
/// the ports, and the device's own counters only divide them among the devices of the stack.
fn moved(
    device: &IoDeviceLine,
    all: &[IoDeviceLine],
    stacks: &BTreeMap<String, [u64; 2]>,
) -> [f64; 2] {
    if device.is_virtual {
        return [0.0; 2];
    }
    let own = [device.most_in() as f64, device.most_out() as f64];
    let Some(ports) = stacks
        .get(&device.pci_root)
        .filter(|_| !device.pci_root.is_empty())
    else {
        return own;
    };
    let neighbours = || {
        all.iter()
            .filter(|d| !d.is_virtual && d.pci_root == device.pci_root)
    };
    let sums = [
        neighbours().map(IoDeviceLine::most_in).sum::<u64>(),
        neighbours().map(IoDeviceLine::most_out).sum::<u64>(),
    ];
    [0, 1].map(|way| match (ports[way], sums[way]) {
        // Some processors count only one direction.
        (0, _) | (_, 0) => own[way],
        (bytes, sum) => bytes as f64 * own[way] / sum as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::moved::{BothWays, Moved};
    use memgauge_trace::DeviceId;
    use proptest::prelude::*;

    fn counters(terms: &[(&str, u64)]) -> MemoryCounterSums {
        let mut counters = MemoryCounterSums::default();
        for (name, bytes) in terms {
            counters.add(&format!("uncore.{name}"), *bytes);
        }
        counters
    }

    fn both(input: u64, output: u64) -> BothWays {
        let way = |bytes| Moved {
            bytes,
            ..Moved::default()
        };
        BothWays {
            r#in: way(input),
            out: way(output),
        }
    }

    fn device(number: u32, bus: &str, input: u64, output: u64) -> IoDeviceLine {
        IoDeviceLine {
            number,
            pci_root: bus.to_owned(),
            counted: both(input, output),
            is_virtual: bus.is_empty(),
            ..IoDeviceLine::default()
        }
    }

    fn line(number: u32, input: u64, output: u64) -> IoLine {
        IoLine {
            id: DeviceId { netns: 0, number },
            moved: both(input, output),
            ..IoLine::default()
        }
    }

    fn total(terms: &[(&str, u64)]) -> (Option<u64>, Option<u64>, String) {
        let memory = share_out(&counters(terms), &mut [], &mut []);
        (memory.in_bytes, memory.out_bytes, memory.formula)
    }

    /// R_io 100, W_io 300, all misses 1000, written back 500: each missed line pushes
    /// out half a line. So reading gives 100 + 0.5 · 100 and writing 0.5 · 300. The sum
    /// is R_io + (W_io + R_io) / (W + R) · WB = 100 + 0.4 · 500 = 300.
    #[test]
    fn misses_push_out_their_share_of_lines() {
        let terms = [
            ("io_read_misses", 100),
            ("io_write_misses", 300),
            ("misses", 1000),
            ("writebacks", 500),
        ];
        let (input, output, formula) = total(&terms);
        assert_eq!((input, output), (Some(150), Some(150)));
        assert_eq!(formula, "R_io + (R_io + W_io) / misses × writebacks");
    }

    #[test]
    fn memory_controllers_stand_for_what_the_cache_does_not_count() {
        let terms = [
            ("io_read_misses", 100),
            ("io_write_misses", 300),
            ("memory_reads", 700),
            ("memory_writes", 500),
        ];
        let (input, output, formula) = total(&terms);
        assert_eq!((input, output), (Some(150), Some(150)));
        assert_eq!(
            formula,
            "R_io + (R_io + W_io) / (memory_reads + W_io) × memory_writes"
        );
    }

    #[test]
    fn a_fabric_moves_no_more_than_the_memory() {
        let terms = [
            ("device_reads", 100),
            ("device_writes", 300),
            ("memory_reads", 700),
            ("memory_writes", 200),
        ];
        let (input, output, _) = total(&terms);
        assert_eq!((input, output), (Some(200), Some(100)));
    }

    #[test]
    fn without_terms_only_the_bound_is_told() {
        let mut devices = [device(1, "0000:17", 30, 4), device(2, "", 99, 99)];
        let mut lines = [line(1, 30, 4)];
        let memory = share_out(&counters(&[("memory_reads", 5)]), &mut devices, &mut lines);
        assert_eq!((memory.in_bytes, memory.out_bytes), (None, None));
        assert_eq!(memory.at_most_bytes, [30, 4]);
        assert_eq!(
            (devices[0].memory_bytes, lines[0].memory_bytes),
            (None, None)
        );
    }

    /// By their own counters, two devices at one stack moved 300 and 100 bytes. The ports counted
    /// 800. A third device elsewhere moved 200. The incoming traffic of 1000 is divided into 600, 200
    /// and 200.
    #[test]
    fn ports_are_taken_where_they_are_counted() {
        let terms = [
            ("device_reads", 0),
            ("device_writes", 1000),
            ("port_in/0000:17/0", 500),
            ("port_in/0000:17/2", 300),
        ];
        let mut devices = [
            device(1, "0000:17", 300, 0),
            device(2, "0000:17", 100, 0),
            device(3, "0000:5d", 200, 0),
        ];
        let mut lines = [line(1, 150, 0), line(3, 50, 0)];
        let memory = share_out(&counters(&terms), &mut devices, &mut lines);
        let shares: Vec<Option<u64>> = devices.iter().map(|d| d.memory_bytes).collect();
        assert_eq!(shares, [Some(600), Some(200), Some(200)]);
        let lines: Vec<Option<u64>> = lines.iter().map(|l| l.memory_bytes).collect();
        assert_eq!(lines, [Some(300), Some(50)]);
        let ports: Vec<(u32, u64)> = memory.ports.iter().map(|p| (p.port, p.in_bytes)).collect();
        assert_eq!(ports, [(0, 500), (2, 300)]);
    }

    proptest! {
        #[test]
        fn shares_add_up_to_the_traffic(
            terms in proptest::array::uniform4(0u64..1 << 40),
            moved in proptest::collection::vec((1u64..1 << 30, 1u64..1 << 30), 1..6),
        ) {
            let names = ["io_read_misses", "io_write_misses", "misses", "writebacks"];
            let pairs: Vec<(&str, u64)> = names.into_iter().zip(terms).collect();
            let mut devices: Vec<IoDeviceLine> = moved
                .iter()
                .zip(1..)
                .map(|(&(i, o), n)| device(n, "0000:00", i, o))
                .collect();
            let mut lines: Vec<IoLine> =
                moved.iter().zip(1..).map(|(&(i, o), n)| line(n, i, o)).collect();
            let memory = share_out(&counters(&pairs), &mut devices, &mut lines);
            let all = memory.in_bytes.unwrap() + memory.out_bytes.unwrap();
            let of_devices: u64 = devices.iter().filter_map(|d| d.memory_bytes).sum();
            let of_lines: u64 = lines.iter().filter_map(|l| l.memory_bytes).sum();
            let rounding = 8;
            prop_assert!(of_devices.abs_diff(all) <= rounding, "{} of {}", of_devices, all);
            prop_assert!(of_lines.abs_diff(all) <= rounding, "{} of {}", of_lines, all);
            prop_assert!(all <= terms[0] + terms[3] + 1);
        }
    }
}
