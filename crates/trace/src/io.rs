//! Rows of I/O accounting: how many bytes each process moved through each device.

use crate::Pid;

/// A process that did I/O. The upper half is its ID. The lower half is its start time in units of
/// 2²⁰ ns of the boot clock, so a reused process ID is another owner. 0 is the device itself, for
/// its own counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u64);

impl Owner {
    /// The device itself.
    pub const DEVICE: Owner = Owner(0);

    /// Returns the process ID.
    pub fn pid(self) -> Pid {
        Pid((self.0 >> 32) as u32)
    }

    /// Returns the start time in units of 2²⁰ ns of the boot clock, modulo 2³².
    pub fn start(self) -> u32 {
        self.0 as u32
    }
}

/// A device. Disks have `netns` 0 and the kernel's device number. Network devices have the inode of
/// their namespace and their index in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    /// Inode of the network namespace; 0 for disks.
    pub netns: u32,
    /// Index of a network device; `major << 20 \| minor` of a disk.
    pub number: u32,
}

impl DeviceId {
    /// Creates the ID of a disk from its major and minor number.
    pub fn of_disk(major: u32, minor: u32) -> DeviceId {
        DeviceId {
            netns: 0,
            number: major << 20 | minor,
        }
    }

    /// Returns major and minor number of a disk.
    pub fn disk(self) -> Option<(u32, u32)> {
        (self.netns == 0).then_some((self.number >> 20, self.number & 0xf_ffff))
    }
}

/// Direction in which bytes went, from the program's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Direction {
    /// The source does not report it.
    #[default]
    Unknown = 0,
    /// Read or received: the device writes memory.
    In = 1,
    /// Written or sent: the device reads memory.
    Out = 2,
}

impl Direction {
    /// Returns the value for a code in a recording; `Unknown` for a code of a later version.
    pub fn from_code(code: u64) -> Self {
        match code {
            1 => Direction::In,
            2 => Direction::Out,
            _ => Direction::Unknown,
        }
    }
}

/// Bytes that an owner moved through a device in one direction in one interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoRow {
    /// End of the interval, in nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// Actual length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// Owner; [`Owner::DEVICE`] for the device's own count.
    pub owner: Owner,
    /// Device.
    pub device: DeviceId,
    /// Direction.
    pub direction: Direction,
    /// Bytes handed to the device or taken from it.
    pub bytes: u64,
    /// Disk requests, or packets of the network stack.
    pub operations: u64,
    /// Packets on the wire; 0 for disks.
    pub segments: u64,
    /// Bytes of additional headers on the wire, for packets that the device segments.
    pub header_bytes: u64,
}

/// Data about an owner. Later rows replace earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoOwner {
    /// Time at which it was read, in nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// Owner.
    pub owner: Owner,
    /// Its program, as named by the kernel.
    pub command: String,
    /// User ID.
    pub uid: u32,
    /// User name; the user ID if it has none.
    pub user: String,
    /// Path of its control group; the ID if the group is gone.
    pub cgroup: String,
    /// True for a kernel thread.
    pub kernel: bool,
    /// Process of a thread, if threads are accounted individually.
    pub process: Option<u32>,
}

/// Data about a device. Later rows replace earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoDevice {
    /// Time at which it was read, in nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// Device.
    pub device: DeviceId,
    /// Name, as in `/sys/block` or `ip link`.
    pub name: String,
    /// Kind of device: `nvme`, `scsi`, `virtio`, `loop`, `dm`, `ethernet`, `veth` …
    pub kind: String,
    /// PCI address of its hardware, if there is one.
    pub pci: String,
    /// Slot number, if the firmware reports it.
    pub slot: String,
    /// Root bus of its PCI tree, such as `0000:17`.
    pub pci_root: String,
    /// Other end of a device pair, as `NAME` or `NAME@NAMESPACE`.
    pub peer: String,
    /// NUMA node, if the system reports it.
    pub numa_node: Option<u32>,
    /// Link speed in bytes per second and direction, if the system reports it.
    pub link_bytes_per_s: Option<u64>,
    /// Names of the devices below it, separated by spaces.
    pub below: String,
    /// True if no hardware moves its bytes.
    pub is_virtual: bool,
}
