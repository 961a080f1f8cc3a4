//! Bytes in both directions, of a process through a device, and of a device.

use memgauge_trace::{DeviceId, Direction, IoRow};
use serde::Serialize;

/// Bytes and operations in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Bytes handed to the device or taken from it.
    pub bytes: u64,
    /// Requests to a disk, packets of the network stack.
    pub operations: u64,
    /// Packets on the wire. 0 for disks.
    pub segments: u64,
    /// Bytes of additional headers on the wire, for packets that the device divides or joins.
    pub header_bytes: u64,
}

impl Moved {
    pub(crate) fn add(&mut self, other: &Moved) {
        self.bytes += other.bytes;
        self.operations += other.operations;
        self.segments += other.segments;
        self.header_bytes += other.header_bytes;
    }
}

/// Both directions, seen from the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BothWays {
    /// Read or received: the device wrote memory.
    pub r#in: Moved,
    /// Written or sent: the device read memory.
    pub out: Moved,
}

impl BothWays {
    pub(crate) fn add(&mut self, other: &BothWays) {
        self.r#in.add(&other.r#in);
        self.out.add(&other.out);
    }

    pub(crate) fn add_row(&mut self, row: &IoRow) {
        let way = match row.direction {
            Direction::Out => &mut self.out,
            Direction::In | Direction::Unknown => &mut self.r#in,
        };
        way.add(&Moved {
            bytes: row.bytes,
            operations: row.operations,
            segments: row.segments,
            header_bytes: row.header_bytes,
        });
    }

    /// Sum of both directions.
    pub fn bytes(&self) -> u64 {
        self.r#in.bytes + self.out.bytes
    }
}

/// Bytes of a process through a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IoLine {
    /// Process ID, or 0 for a line of several processes.
    pub pid: u32,
    /// Thread ID with accounting by thread.
    pub tid: Option<u32>,
    /// Processes (or threads) that the line sums up.
    pub processes: u32,
    /// Process (or thread) and its start time, which distinguishes reused IDs. 0 for a line of
    /// several processes.
    pub owner: u64,
    /// Program that it executed last.
    pub command: String,
    /// User.
    pub user: String,
    /// Control group.
    pub cgroup: String,
    /// True for a kernel thread.
    pub kernel: bool,
    /// Name of the device.
    pub device: String,
    /// The device.
    #[serde(skip)]
    pub id: DeviceId,
    /// Bytes moved.
    #[serde(flatten)]
    pub moved: BothWays,
    /// Upper bound of the memory traffic: a hardware device reads or writes each byte in memory at
    /// most once.
    pub memory_bytes_at_most: u64,
    /// Estimated memory traffic. Null without counters and for devices without hardware.
    pub memory_bytes: Option<u64>,
}

impl IoLine {
    /// Clears the fields that differ between the merged lines.
    pub(crate) fn keep_common(&mut self, other: &IoLine) {
        for (ours, others) in [
            (&mut self.command, &other.command),
            (&mut self.user, &other.user),
            (&mut self.cgroup, &other.cgroup),
        ] {
            if ours != others {
                ours.clear();
            }
        }
    }
}

impl IoLine {
    /// Adds another line. Clears the fields that differ.
    pub(crate) fn add(&mut self, other: &IoLine) {
        let keep = |own: &mut String, other: &String| {
            if own != other {
                own.clear();
            }
        };
        keep(&mut self.command, &other.command);
        keep(&mut self.user, &other.user);
        keep(&mut self.cgroup, &other.cgroup);
        self.kernel &= other.kernel;
        self.processes += other.processes;
        self.moved.add(&other.moved);
        self.memory_bytes_at_most += other.memory_bytes_at_most;
        self.memory_bytes = match (self.memory_bytes, other.memory_bytes) {
            (Some(own), Some(other)) => Some(own + other),
            (own, other) => own.or(other),
        };
    }

    /// True if the line is about this device.
    pub(crate) fn is_at(&self, device: &IoDeviceLine) -> bool {
        (self.id.netns, self.id.number) == (device.netns, device.number)
    }
}

/// Bytes of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IoDeviceLine {
    /// Name.
    pub name: String,
    /// Inode of its network namespace, or 0 for disks.
    pub netns: u32,
    /// Number within the namespace.
    pub number: u32,
    /// Driver or kind.
    pub kind: String,
    /// PCI address of its hardware, or empty.
    pub pci: String,
    /// Its PCI slot, or empty.
    pub slot: String,
    /// Root bus of its PCI tree, or empty.
    pub pci_root: String,
    /// The other end of a veth pair, or empty.
    pub peer: String,
    /// NUMA node that it is attached to.
    pub numa_node: Option<u32>,
    /// Bytes per second of its link, each way.
    pub link_bytes_per_s: Option<u64>,
    /// Names of the devices below it.
    pub below: String,
    /// True if no hardware moves its bytes.
    pub is_virtual: bool,
    /// The device's own count.
    pub counted: BothWays,
    /// Sum over processes.
    pub attributed: BothWays,
    /// Bytes in that belong to no known process (with a filter: to others).
    pub unattributed_in_bytes: u64,
    /// Bytes out that belong to no known process (with a filter: to others).
    pub unattributed_out_bytes: u64,
    /// Its estimated part of the memory traffic in bytes. Null without counters, and for devices
    /// without hardware.
    pub memory_bytes: Option<u64>,
}

impl IoDeviceLine {
    /// Bytes in, by the device's own count or by that of processes, whichever is larger. A device
    /// that was never seen has no count of its own.
    pub(crate) fn most_in(&self) -> u64 {
        self.counted.r#in.bytes.max(self.attributed.r#in.bytes)
    }

    /// Bytes out, likewise.
    pub(crate) fn most_out(&self) -> u64 {
        self.counted.out.bytes.max(self.attributed.out.bytes)
    }
}
