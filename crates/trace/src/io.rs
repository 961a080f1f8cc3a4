//! Rows of I/O accounting: who moved how much through which device.

use crate::Pid;

/// A process that did I/O. Its id is in the upper half; the time when it started is in
/// the lower one, in units of 2²⁰ ns of the boot clock. A process id that is used again
/// is another owner. 0 stands for the device itself and its own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u64);

impl Owner {
    /// The device itself.
    pub const DEVICE: Owner = Owner(0);

    /// The process's id.
    pub fn pid(self) -> Pid {
        Pid((self.0 >> 32) as u32)
    }

    /// When it started, in units of 2²⁰ ns of the boot clock, modulo 2³².
    pub fn start(self) -> u32 {
        self.0 as u32
    }
}

/// A device: disks have `netns` 0 and the kernel's device number, network devices
/// the inode of their namespace and their index there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    /// Inode of the network namespace; 0 for disks.
    pub netns: u32,
    /// Index of a network device; of a disk major << 20 | minor.
    pub number: u32,
}

impl DeviceId {
    /// A disk by its major and minor number.
    pub fn of_disk(major: u32, minor: u32) -> DeviceId {
        DeviceId {
            netns: 0,
            number: major << 20 | minor,
        }
    }

    /// Major and minor number of a disk.
    pub fn disk(self) -> Option<(u32, u32)> {
        (self.netns == 0).then_some((self.number >> 20, self.number & 0xf_ffff))
    }
}

/// Which way bytes went, from the program's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Direction {
    /// The source could not tell.
    #[default]
    Unknown = 0,
    /// Read or received: the device writes memory.
    In = 1,
    /// Written or sent: the device reads memory.
    Out = 2,
}

impl Direction {
    /// The value a recording keeps as this number; `Unknown` for a number of
    /// a later version.
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
    /// End of the interval, nanoseconds since the recording began.
    pub time_ns: u64,
    /// True length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// Who; [`Owner::DEVICE`] for what the device itself counted.
    pub owner: Owner,
    /// Through which device.
    pub device: DeviceId,
    /// Which way.
    pub direction: Direction,
    /// Bytes handed to the device or taken from it.
    pub bytes: u64,
    /// Requests to a disk, packets of the network stack.
    pub operations: u64,
    /// Packets on the wire; 0 for disks.
    pub segments: u64,
    /// Further headers on the wire of packets that the device segments.
    pub header_bytes: u64,
}

/// Facts about an owner. Later rows of an owner replace earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoOwner {
    /// When it was noted, nanoseconds since the recording began.
    pub time_ns: u64,
    /// Who.
    pub owner: Owner,
    /// The program it runs, as the kernel names it.
    pub command: String,
    /// User id.
    pub uid: u32,
    /// User name; the id where it has none.
    pub user: String,
    /// Path of its control group; the id where it is gone.
    pub cgroup: String,
    /// Whether it is a thread of the kernel.
    pub kernel: bool,
    /// Process that a thread is of, where threads are accounted one by one.
    pub process: Option<u32>,
}

/// Facts about a device. Later rows of a device replace earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoDevice {
    /// When it was noted, nanoseconds since the recording began.
    pub time_ns: u64,
    /// Which.
    pub device: DeviceId,
    /// Name, as in `/sys/block` or `ip link`.
    pub name: String,
    /// Kind of device: `nvme`, `scsi`, `virtio`, `loop`, `dm`, `ethernet`, `veth` …
    pub kind: String,
    /// PCI address of its hardware, where there is one.
    pub pci: String,
    /// Number of the slot it is in, where the firmware tells.
    pub slot: String,
    /// Root bus of its PCI tree, as `0000:17`.
    pub pci_root: String,
    /// The other end of a pair of devices, as `NAME` or `NAME@NAMESPACE`.
    pub peer: String,
    /// Node of memory it is attached to, where the system tells.
    pub numa_node: Option<u32>,
    /// Bytes per second of its link, each way, where the system tells.
    pub link_bytes_per_s: Option<u64>,
    /// Names of the devices below it, separated by blanks.
    pub below: String,
    /// Whether no hardware moves its bytes.
    pub is_virtual: bool,
}
