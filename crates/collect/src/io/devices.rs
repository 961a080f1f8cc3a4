//! Devices: what they are, what lies below them, what they counted themselves.
//!
//! Disks are described by sysfs. Network devices of other namespaces are seen by a
//! thread that enters the namespace; the namespace is looked for among the processes
//! each time, as a descriptor kept open would keep it alive.

use std::collections::BTreeMap;
use std::fs::{File, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memgauge_trace::{DeviceId, IoDevice};

use crate::sys::netns::{self, NetDevice};

/// Header of Ethernet: address, address, type.
const ETHERNET_BYTES: u64 = 14;

/// What a device counted: [in, out], of packets without the link's headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Bytes.
    pub bytes: [u64; 2],
    /// Requests or packets.
    pub operations: [u64; 2],
}

/// A device with what it counted so far.
#[derive(Clone, Debug, Default)]
pub struct Device {
    /// What it is.
    pub facts: IoDevice,
    /// What it counted.
    pub counted: Counted,
}

/// Disks and this namespace's network devices, and those of the other namespaces that
/// are `wanted`.
pub fn present(wanted: Option<&dyn Fn(u32) -> bool>) -> BTreeMap<DeviceId, Device> {
    let mut all = disks();
    let Some(own) = inode(Path::new("/proc/self/ns/net")) else {
        return all;
    };
    add_network(
        &mut all,
        own,
        netns::devices_here().unwrap_or_default(),
        true,
    );
    let Some(wanted) = wanted else { return all };
    let others = namespaces().into_iter();
    for (namespace, path) in others.filter(|(n, _)| *n != own && wanted(*n)) {
        // One that is gone by now has no devices any more.
        let devices = File::open(path).and_then(netns::devices_in);
        add_network(&mut all, namespace, devices.unwrap_or_default(), false);
    }
    all
}

fn add_network(
    all: &mut BTreeMap<DeviceId, Device>,
    netns: u32,
    devices: Vec<NetDevice>,
    own: bool,
) {
    for device in devices {
        let id = DeviceId {
            netns,
            number: device.index,
        };
        all.insert(id, network_device(id, &device, own));
    }
}

fn inode(path: &Path) -> Option<u32> {
    std::fs::metadata(path).ok().map(|m| m.ino() as u32)
}

/// Network namespaces by inode, with a file of each: named ones, and processes'.
fn namespaces() -> BTreeMap<u32, PathBuf> {
    let entries = |folder: &str| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries("/run/netns").map(|e| e.path());
    let of_processes = entries("/proc").map(|e| e.path().join("ns/net"));
    let paths = named.chain(of_processes);
    paths
        .filter_map(|path| Some((inode(&path)?, path)))
        .collect()
}

// ---------------------------------------------------------------------- disks

fn disks() -> BTreeMap<DeviceId, Device> {
    let names = std::fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten();
    names
        .filter_map(|entry| disk(&entry.path()))
        .map(|d| (d.facts.device, d))
        .collect()
}

/// A disk; none for one that has never moved a byte, as most loop devices.
fn disk(folder: &Path) -> Option<Device> {
    let counted = disk_counted(&read_to_string(folder.join("stat")).ok()?)?;
    if counted.operations == [0, 0] {
        return None;
    }
    let number = read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = number.trim().split_once(':')?;
    let facts = IoDevice {
        device: DeviceId::of_disk(major.parse().ok()?, minor.parse().ok()?),
        ..disk_facts(folder)?
    };
    Some(Device { facts, counted })
}

/// Fields of /sys/block/…/stat: requests, merges, sectors of 512 bytes, time; for
/// reads, then for writes.
fn disk_counted(stat: &str) -> Option<Counted> {
    let fields: Vec<u64> = stat
        .split_whitespace()
        .map_while(|f| f.parse().ok())
        .collect();
    Some(Counted {
        bytes: [fields.get(2)? * 512, fields.get(6)? * 512],
        operations: [*fields.first()?, *fields.get(4)?],
    })
}

fn disk_facts(folder: &Path) -> Option<IoDevice> {
    let name = folder.file_name()?.to_string_lossy().into_owned();
    let real = folder.canonicalize().ok()?;
    let hardware = folder.join("device").exists();
    let subsystem = std::fs::read_link(folder.join("device/subsystem")).ok();
    let subsystem = subsystem.and_then(|s| Some(s.file_name()?.to_string_lossy().into_owned()));
    let family = name
        .trim_end_matches(|c: char| c.is_ascii_digit())
        .trim_end_matches('-');
    let pci = pci_of(&real);
    Some(IoDevice {
        kind: subsystem.unwrap_or_else(|| family.to_owned()),
        numa_node: pci.as_deref().and_then(numa_node),
        link_bytes_per_s: pci.as_deref().and_then(pci_link),
        pci: pci.as_deref().map_or_else(String::new, last_part),
        below: disks_below(folder).join(" "),
        is_virtual: !hardware,
        name,
        ..IoDevice::default()
    })
}

fn last_part(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn disks_below(folder: &Path) -> Vec<String> {
    let slaves = std::fs::read_dir(folder.join("slaves"))
        .into_iter()
        .flatten()
        .flatten();
    let mut below: Vec<String> = slaves
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    below.extend(backing_disk(folder));
    below.sort();
    below
}

/// The disk that has a loop device's file.
fn backing_disk(folder: &Path) -> Option<String> {
    let file = read_to_string(folder.join("loop/backing_file")).ok()?;
    let number = std::fs::metadata(file.trim_end()).ok()?.dev();
    let place = format!(
        "/sys/dev/block/{}:{}",
        libc::major(number),
        libc::minor(number)
    );
    Some(last_part(&Path::new(&place).canonicalize().ok()?))
}

// ------------------------------------------------------------------------- PCI

/// The nearest PCI function above a device: the last part of its path in sysfs that
/// looks like `0000:3b:00.0`.
fn pci_of(real: &Path) -> Option<PathBuf> {
    real.ancestors()
        .find(|path| is_pci_address(&last_part(path)))
        .map(Path::to_path_buf)
}

fn is_pci_address(name: &str) -> bool {
    let form = "hhhh:hh:hh.h";
    name.len() == form.len()
        && name.chars().zip(form.chars()).all(|(c, f)| match f {
            'h' => c.is_ascii_hexdigit(),
            _ => c == f,
        })
}

/// The kernel says -1 where the firmware does not tell.
fn numa_node(pci: &Path) -> Option<u32> {
    read_to_string(pci.join("numa_node"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn pci_link(pci: &Path) -> Option<u64> {
    let speed = read_to_string(pci.join("current_link_speed")).ok()?;
    let width = read_to_string(pci.join("current_link_width")).ok()?;
    pci_bytes_per_s(&speed, width.trim().parse().ok()?)
}

/// Bytes per second of a link such as `8.0 GT/s PCIe` with so many lanes, after the
/// line code: 8 of 10 bits up to 5 GT/s, 128 of 130 above.
fn pci_bytes_per_s(speed: &str, lanes: u64) -> Option<u64> {
    let transfers: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let code = if transfers <= 5.0 { 0.8 } else { 128.0 / 130.0 };
    let bytes = transfers * 1e9 * code / 8.0 * lanes as f64;
    (bytes > 0.0).then_some(bytes as u64)
}

// --------------------------------------------------------------------- network

fn network_device(id: DeviceId, device: &NetDevice, own: bool) -> Device {
    let folder = Path::new("/sys/class/net").join(&device.name);
    let mut facts = if own {
        network_facts(&folder)
    } else {
        IoDevice::default()
    };
    if device.name == "lo" {
        facts.kind = "loopback".to_owned();
    } else if !device.driver.is_empty() {
        facts.kind = device.driver.clone();
    }
    facts.is_virtual = if own {
        facts.is_virtual
    } else {
        is_virtual_kind(&facts.kind)
    };
    facts.device = id;
    facts.name = device.name.clone();
    Device {
        counted: network_counted(device),
        facts,
    }
}

/// Kinds that move no bytes through hardware, for namespaces whose sysfs is elsewhere.
fn is_virtual_kind(kind: &str) -> bool {
    [
        "loopback",
        "veth",
        "bridge",
        "bonding",
        "tun",
        "dummy",
        "802.1Q VLAN Support",
        "macvlan",
        "",
    ]
    .contains(&kind)
}

fn network_counted(device: &NetDevice) -> Counted {
    let [received, packets_in, sent, packets_out] = device.counted;
    let header = if device.ethernet { ETHERNET_BYTES } else { 0 };
    let without = |bytes: u64, packets: u64| bytes.saturating_sub(packets * header);
    Counted {
        bytes: [without(received, packets_in), without(sent, packets_out)],
        operations: [packets_in, packets_out],
    }
}

fn network_facts(folder: &Path) -> IoDevice {
    let real = folder.canonicalize().unwrap_or_default();
    let pci = pci_of(&real);
    let megabits = read_to_string(folder.join("speed")).ok();
    let megabits = megabits.and_then(|s| s.trim().parse::<u64>().ok());
    IoDevice {
        numa_node: pci.as_deref().and_then(numa_node),
        link_bytes_per_s: megabits.map(|m| m * 1_000_000 / 8),
        pci: pci.as_deref().map_or_else(String::new, last_part),
        below: networks_below(folder).join(" "),
        is_virtual: real.starts_with("/sys/devices/virtual"),
        ..IoDevice::default()
    }
}

/// Devices under a bond, bridge or VLAN: links `lower_NAME`.
fn networks_below(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut below: Vec<String> = entries
        .filter_map(|e| Some(e.file_name().to_str()?.strip_prefix("lower_")?.to_owned()))
        .collect();
    below.sort();
    below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pci_function_is_found_above_its_disk() {
        let path = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/nvme/nvme0/nvme0n1";
        let found = pci_of(Path::new(path)).map(|p| last_part(&p));
        assert_eq!(found.as_deref(), Some("0000:3b:00.0"));
        assert_eq!(pci_of(Path::new("/sys/devices/virtual/block/loop0")), None);
    }

    #[test]
    fn a_link_moves_what_its_line_code_leaves() {
        assert_eq!(pci_bytes_per_s("2.5 GT/s PCIe", 1), Some(250_000_000));
        assert_eq!(pci_bytes_per_s("8.0 GT/s PCIe", 4), Some(3_938_461_538));
        assert_eq!(pci_bytes_per_s("Unknown", 4), None);
    }

    #[test]
    fn sectors_are_512_bytes() {
        let counted = disk_counted("3 1 8 9 5 0 16 7 0 0 0").unwrap();
        assert_eq!((counted.bytes, counted.operations), ([4096, 8192], [3, 5]));
        assert_eq!(disk_counted("3 1"), None);
    }
}
