//! Decodes the BPF maps. The counterpart of `bpf/layout.h`.

use memgauge_trace::{DeviceId, Owner, Pid};

/// Bytes of an account's key and an owner's facts.
pub(super) const KEY_BYTES: usize = 16;
pub(super) const FACTS_BYTES: usize = 48;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    field.map_or(0, u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    field.map_or(0, u64::from_ne_bytes)
}

/// Bytes and operations in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes handed to the device or taken from it.
    pub bytes: u64,
    /// Requests to a disk, packets of the network stack.
    pub operations: u64,
    /// Packets on the wire; 0 for disks.
    pub segments: u64,
    /// Further headers on the wire of packets that are segmented by the device.
    pub header_bytes: u64,
}

impl Flow {
    fn at(bytes: &[u8], at: usize) -> Flow {
        Flow {
            bytes: u64_at(bytes, at),
            operations: u64_at(bytes, at + 8),
            segments: u64_at(bytes, at + 16),
            header_bytes: u64_at(bytes, at + 24),
        }
    }

    /// The sum of both.
    pub fn plus(self, other: Flow) -> Flow {
        self.each(other, u64::wrapping_add)
    }

    /// Difference to an earlier state of the same account.
    pub fn since(self, earlier: Flow) -> Flow {
        self.each(earlier, u64::saturating_sub)
    }

    fn each(self, other: Flow, f: fn(u64, u64) -> u64) -> Flow {
        Flow {
            bytes: f(self.bytes, other.bytes),
            operations: f(self.operations, other.operations),
            segments: f(self.segments, other.segments),
            header_bytes: f(self.header_bytes, other.header_bytes),
        }
    }
}

/// Bytes in both directions, seen from the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Read or received: the device writes memory.
    pub input: Flow,
    /// Written or sent: the device reads memory.
    pub output: Flow,
}

impl Account {
    /// Sums the values of all CPUs.
    pub(super) fn sum_over_cpus(values: &[Vec<u8>]) -> Account {
        values
            .iter()
            .fold(Account::default(), |sum, bytes| Account {
                input: sum.input.plus(Flow::at(bytes, 0)),
                output: sum.output.plus(Flow::at(bytes, 32)),
            })
    }

    /// The sum of both.
    pub fn plus(self, other: Account) -> Account {
        Account {
            input: self.input.plus(other.input),
            output: self.output.plus(other.output),
        }
    }

    /// Difference to an earlier state of the same account.
    pub fn since(self, earlier: Account) -> Account {
        Account {
            input: self.input.since(earlier.input),
            output: self.output.since(earlier.output),
        }
    }
}

/// Owner and device of an account.
pub(super) fn key(bytes: &[u8]) -> (Owner, DeviceId) {
    (
        owner(bytes),
        DeviceId {
            netns: u32_at(bytes, 8),
            number: u32_at(bytes, 12),
        },
    )
}

/// The key of an account.
pub(super) fn key_bytes((owner, device): (Owner, DeviceId)) -> [u8; KEY_BYTES] {
    let mut bytes = [0; KEY_BYTES];
    bytes[..8].copy_from_slice(&owner.0.to_ne_bytes());
    bytes[8..12].copy_from_slice(&device.netns.to_ne_bytes());
    bytes[12..].copy_from_slice(&device.number.to_ne_bytes());
    bytes
}

/// Sum of a counter over all CPUs.
pub(super) fn counter_sum(values: &[Vec<u8>]) -> u64 {
    values.iter().map(|bytes| u64_at(bytes, 0)).sum()
}

/// A process and its start time.
pub(super) fn owner(bytes: &[u8]) -> Owner {
    Owner(u64_at(bytes, 0))
}

/// Rates of a process in the last interval (`struct io_rate`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessRate {
    /// Process and its start time.
    pub owner: Owner,
    /// End of the interval on CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Actual length of the interval.
    pub interval_ns: u64,
    /// Bytes in, bytes out, and the memory traffic of both. Memory traffic counts hardware devices
    /// only.
    pub bytes: [u64; 3],
    /// Bytes in and out since the start of accounting.
    pub total_bytes: [u64; 2],
}

impl ProcessRate {
    fn per_s(&self, bytes: u64) -> u64 {
        let bytes = u128::from(bytes) * 1_000_000_000;
        (bytes / u128::from(self.interval_ns.max(1))) as u64
    }

    /// The map's value.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let [input, output, memory] = self.bytes.map(|bytes| self.per_s(bytes));
        let [total_in, total_out] = self.total_bytes;
        let times = [self.owner.0, self.time_ns, self.interval_ns];
        let fields = times
            .into_iter()
            .chain([input, output, memory, total_in, total_out]);
        fields.flat_map(u64::to_ne_bytes).collect()
    }
}

/// Facts that the programs recorded about a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerFacts {
    /// Process ID.
    pub pid: Pid,
    /// Name of the program it executed last.
    pub command: String,
    /// User ID.
    pub uid: u32,
    /// ID of its control group (version 2).
    pub cgroup: u64,
    /// True for a kernel thread.
    pub kernel: bool,
    /// PID of the process. With accounting by thread, the process that the thread belongs to.
    pub process: u32,
}

/// Decodes an owner's facts.
pub(super) fn facts(owner: Owner, bytes: &[u8]) -> OwnerFacts {
    let name = bytes.get(32..FACTS_BYTES).unwrap_or_default();
    let name = name.split(|&b| b == 0).next().unwrap_or_default();
    OwnerFacts {
        pid: owner.pid(),
        command: String::from_utf8_lossy(name).into_owned(),
        uid: u32_at(bytes, 16),
        cgroup: u64_at(bytes, 0),
        kernel: u32_at(bytes, 20) != 0,
        process: u32_at(bytes, 24),
    }
}

/// Names and meanings of `enum loss` in its order.
pub(super) const LOSSES: [(&str, &str); 9] = [
    (
        "accounts_full",
        "bytes dropped because the tables of processes and of control groups were full",
    ),
    (
        "owners_full",
        "processes whose name, user and group are not known, because their table was full",
    ),
    (
        "writer_unknown",
        "bytes written back by the kernel from pages that became dirty before accounting began, \
        or too long ago",
    ),
    (
        "socket_untracked",
        "bytes of packets of sockets that could not be tracked, because the kernel had no memory \
        for it",
    ),
    (
        "devices_mixed",
        "packets of sockets whose devices changed too often to keep the order of packets",
    ),
    (
        "writers_mixed",
        "times that a socket had more writers at once than can be distinguished",
    ),
    (
        "pages_unread",
        "bytes of requests whose pages could not be read",
    ),
    (
        "sender_unknown",
        "bytes sent by processes that are not known",
    ),
    (
        "never_read",
        "bytes received by sockets that were closed before any process read from them",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A key as the programs write it: process 7 started at 5 units, disk 8:16.
    #[test]
    fn an_account_is_read_as_it_is_laid_out() {
        let mut bytes = Vec::new();
        bytes.extend((7u64 << 32 | 5).to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend((8u32 << 20 | 16).to_ne_bytes());
        assert_eq!(bytes.len(), KEY_BYTES);
        let (owner, device) = key(&bytes);
        assert_eq!(key_bytes((owner, device)).as_slice(), bytes);
        assert_eq!((owner.pid(), owner.start()), (Pid(7), 5));
        assert_eq!(device.disk(), Some((8, 16)));

        let cpu: Vec<u8> = (1..=8u64).flat_map(u64::to_ne_bytes).collect();
        assert_eq!(cpu.len(), 64);
        let sum = Account::sum_over_cpus(&[cpu.clone(), cpu]);
        let expected = Flow {
            bytes: 10,
            operations: 12,
            segments: 14,
            header_bytes: 16,
        };
        assert_eq!(sum.output, expected);
        assert_eq!(sum.since(sum), Account::default());
    }

    #[test]
    fn rates_are_bytes_per_second_in_eight_words() {
        let rate = ProcessRate {
            owner: Owner(7),
            time_ns: 9,
            interval_ns: 100_000_000,
            bytes: [1000, 20, 30],
            total_bytes: [5, 6],
        };
        let bytes = rate.to_bytes();
        let words: Vec<u64> = bytes.chunks(8).map(|b| u64_at(b, 0)).collect();
        assert_eq!(words, [7, 9, 100_000_000, 10_000, 200, 300, 5, 6]);
    }

    #[test]
    fn facts_are_read_as_they_are_laid_out() {
        let mut bytes = Vec::new();
        bytes.extend(77u64.to_ne_bytes());
        bytes.extend(3u64.to_ne_bytes());
        bytes.extend([1000u32, 1, 41, 0].into_iter().flat_map(u32::to_ne_bytes));
        bytes.extend(*b"kswapd0\0\0\0\0\0\0\0\0\0");
        assert_eq!(bytes.len(), FACTS_BYTES);
        let expected = OwnerFacts {
            pid: Pid(42),
            command: "kswapd0".to_owned(),
            uid: 1000,
            cgroup: 77,
            kernel: true,
            process: 41,
        };
        assert_eq!(facts(Owner(42 << 32), &bytes), expected);
    }

    #[test]
    fn facts_that_are_cut_short_do_not_panic() {
        assert_eq!(facts(Owner(9 << 32), &[1, 2, 3]).pid, Pid(9));
    }
}
