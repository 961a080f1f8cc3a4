//! Disks and network devices: their facts, the devices below them, and their own counters.
//!
//! Disks are described by sysfs. Network devices of another namespace are read by a thread that
//! enters it. The namespace is found through a process each time, since an open descriptor would
//! keep it alive.

use std::collections::BTreeMap;
use std::fs::{File, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use memgauge_trace::{DeviceId, IoDevice};

use crate::sys::{self as netns, NetDevice};

/// Ethernet header: two addresses and a type.
const ETHERNET_BYTES: u64 = 14;

/// Counters of a device, [in, out]. Packets are counted without link headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Bytes.
    pub bytes: [u64; 2],
    /// Requests or packets.
    pub operations: [u64; 2],
}

/// A device with its counters.
#[derive(Clone, Debug, Default)]
pub struct Device {
    /// Description of the device.
    pub facts: IoDevice,
    /// Its own counters.
    pub counted: DeviceCounters,
    /// Link header bytes that the device counts for each packet. They are subtracted.
    pub header_bytes: u64,
    /// True if the device is in another network namespace than this process.
    pub in_other_namespace: bool,
}

/// Disks and network devices of this namespace. With a predicate, also network devices of other
/// namespaces for which it is true.
pub fn list_devices(wanted: Option<&dyn Fn(u32) -> bool>) -> BTreeMap<DeviceId, Device> {
    let mut all = disks();
    let Some(own) = inode(Path::new("/proc/self/ns/net")) else {
        return all;
    };
    let mut networks = vec![Network {
        netns: own,
        name: String::new(),
        devices: netns::list_net_devices().unwrap_or_default(),
    }];
    if let Some(wanted) = wanted {
        networks.extend(other_namespaces(own, wanted));
    }
    for network in &networks {
        for device in &network.devices {
            let id = DeviceId {
                netns: network.netns,
                number: device.index,
            };
            let mut found = network_device(id, device, network.netns == own);
            found.facts.peer = peer(&networks, network, device).unwrap_or_default();
            all.insert(id, found);
        }
    }
    all
}

/// Wanted namespaces other than this process's own.
fn other_namespaces(own: u32, wanted: &dyn Fn(u32) -> bool) -> Vec<Network> {
    let other_namespaces = namespaces().into_iter();
    let other_namespaces = other_namespaces.filter(|(netns, _)| *netns != own && wanted(*netns));
    let network = |(netns, path): (u32, PathBuf)| Network {
        netns,
        name: name_of(netns, &path),
        // A namespace that has disappeared has no devices.
        devices: File::open(&path)
            .and_then(netns::list_net_devices_in)
            .unwrap_or_default(),
    };
    other_namespaces.map(network).collect()
}

/// Devices of a network namespace.
struct Network {
    netns: u32,
    /// Empty for this process's own namespace.
    name: String,
    devices: Vec<NetDevice>,
}

/// Name of a namespace, or its inode if it has no name.
fn name_of(netns: u32, path: &Path) -> String {
    match path.starts_with("/run/netns") {
        true => file_name(path),
        false => netns.to_string(),
    }
}

/// The other end of a veth pair. `None` if two devices match.
fn peer(networks: &[Network], here: &Network, device: &NetDevice) -> Option<String> {
    let is_peer = |there: &Network, other: &NetDevice| {
        let itself = there.netns == here.netns && other.index == device.index;
        !itself && other.index == device.peer && other.peer == device.index
    };
    let all = networks
        .iter()
        .flat_map(|n| n.devices.iter().map(move |d| (n, d)));
    let mut found = all
        .filter(|_| device.peer != 0)
        .filter(|(n, d)| is_peer(n, d));
    let (there, other) = found.next()?;
    if found.next().is_some() {
        return None;
    }
    Some(match (there.netns == here.netns, there.name.as_str()) {
        (true, _) => other.name.clone(),
        (false, "") => format!("{}@{}", other.name, there.netns),
        (false, name) => format!("{}@{name}", other.name),
    })
}

fn inode(path: &Path) -> Option<u32> {
    std::fs::metadata(path).ok().map(|m| m.ino() as u32)
}

/// Network namespaces by inode, each with a file that refers to it.
fn namespaces() -> BTreeMap<u32, PathBuf> {
    let entries = |folder: &str| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries("/run/netns").map(|e| e.path());
    let of_processes = entries("/proc").map(|e| e.path().join("ns/net"));
    // A named file replaces that of a process.
    let paths = of_processes.chain(named);
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

/// A disk. `None` if it has never moved a byte, as most loop devices.
fn disk(folder: &Path) -> Option<Device> {
    let counted = parse_disk_stat(&read_to_string(folder.join("stat")).ok()?)?;
    if counted.operations == [0, 0] {
        return None;
    }
    let number = read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = number.trim().split_once(':')?;
    let facts = IoDevice {
        device: DeviceId::of_disk(major.parse().ok()?, minor.parse().ok()?),
        ..disk_facts(folder)?
    };
    Some(Device {
        facts,
        counted,
        ..Device::default()
    })
}

/// Fields of /sys/block/…/stat, for reads and then for writes: requests, merges, sectors of 512
/// bytes, time.
pub(super) fn parse_disk_stat(stat: &str) -> Option<DeviceCounters> {
    let fields: Vec<u64> = stat
        .split_whitespace()
        .map_while(|f| f.parse().ok())
        .collect();
    Some(DeviceCounters {
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
        kind: subsystem.unwrap_or_else(|| virtual_disk_kind(folder, family)),
        link_bytes_per_s: pci.as_deref().and_then(pci_link),
        ..location(pci.as_deref(), &real)
    })
    .map(|location| IoDevice {
        below: disks_below(folder).join(" "),
        is_virtual: !hardware,
        name,
        ..location
    })
}

/// Name of a device mapping, or level of an array.
fn virtual_disk_kind(folder: &Path, family: &str) -> String {
    let more = ["dm/name", "md/level"].map(|file| read_to_string(folder.join(file)));
    match more.into_iter().flatten().next() {
        Some(more) => format!("{family} {}", more.trim_end()),
        None => family.to_owned(),
    }
}

/// Where a device is attached.
fn location(pci: Option<&Path>, real: &Path) -> IoDevice {
    let address = pci.map_or_else(String::new, file_name);
    IoDevice {
        numa_node: pci.and_then(numa_node),
        slot: slot_of(slots(), &address),
        pci_root: root_bus(real),
        pci: address,
        ..IoDevice::default()
    }
}

fn file_name(path: &Path) -> String {
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

/// The disk that holds the file of a loop device.
fn backing_disk(folder: &Path) -> Option<String> {
    let file = read_to_string(folder.join("loop/backing_file")).ok()?;
    let number = std::fs::metadata(file.trim_end()).ok()?.dev();
    let place = format!(
        "/sys/dev/block/{}:{}",
        libc::major(number),
        libc::minor(number)
    );
    Some(file_name(&Path::new(&place).canonicalize().ok()?))
}

// ------------------------------------------------------------------------- PCI

/// The nearest PCI function above a device: the last component of its sysfs path of the form
/// `0000:3b:00.0`.
fn pci_of(real: &Path) -> Option<PathBuf> {
    real.ancestors()
        .find(|path| is_pci_address(&file_name(path)))
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

/// Root bus of a device, from `pci0000:17` in its path.
fn root_bus(real: &Path) -> String {
    let root = real
        .iter()
        .filter_map(|part| part.to_str()?.strip_prefix("pci"));
    let mut root = root.filter(|bus| is_pci_address(&format!("{bus}:00.0")));
    root.next().unwrap_or_default().to_owned()
}

/// PCI slots by address without function. They do not change.
fn slots() -> &'static BTreeMap<String, String> {
    static SLOTS: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    SLOTS.get_or_init(|| slots_in(Path::new("/sys/bus/pci/slots")))
}

fn slots_in(folder: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let slot = |entry: std::fs::DirEntry| {
        let address = read_to_string(entry.path().join("address")).ok()?;
        Some((address.trim().to_owned(), file_name(&entry.path())))
    };
    entries.filter_map(slot).collect()
}

/// Slot of a PCI function, or empty.
fn slot_of(slots: &BTreeMap<String, String>, address: &str) -> String {
    let device = address
        .rsplit_once('.')
        .map_or(address, |(device, _)| device);
    slots.get(device).cloned().unwrap_or_default()
}

/// NUMA node of a PCI function. The kernel reports -1 if the firmware does not know.
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

/// Bytes per second of a link such as `8.0 GT/s PCIe` after its line code, which uses 8 of 10 bits
/// up to 5 GT/s and 128 of 130 above.
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
    let header_bytes = match device.ethernet && counts_link_header(&device.driver) {
        true => ETHERNET_BYTES,
        false => 0,
    };
    Device {
        counted: without_headers(device.counted, header_bytes),
        facts,
        header_bytes,
        in_other_namespace: !own,
    }
}

/// Whether a driver's Ethernet devices count a link header for each packet. Tunnels that carry
/// Ethernet frames count a packet from the network header on.
fn counts_link_header(driver: &str) -> bool {
    const TUNNELS: [&str; 6] = [
        "vxlan",
        "geneve",
        "gretap",
        "ip6gretap",
        "erspan",
        "ip6erspan",
    ];
    !TUNNELS.contains(&driver)
}

/// Kinds of device that have no hardware. For other namespaces, where sysfs does not show it.
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
        || !counts_link_header(kind)
}

/// Counters of received and sent bytes and packets without link headers.
pub(super) fn without_headers(counted: [u64; 4], header: u64) -> DeviceCounters {
    let [received, packets_in, sent, packets_out] = counted;
    let without = |bytes: u64, packets: u64| bytes.saturating_sub(packets * header);
    DeviceCounters {
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
        link_bytes_per_s: megabits.map(|m| m * 1_000_000 / 8),
        below: networks_below(folder).join(" "),
        is_virtual: real.starts_with("/sys/devices/virtual"),
        ..location(pci.as_deref(), &real)
    }
}

/// Devices below a bond, bridge or VLAN, which sysfs links as `lower_NAME`.
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
        let found = pci_of(Path::new(path)).map(|p| file_name(&p));
        assert_eq!(found.as_deref(), Some("0000:3b:00.0"));
        assert_eq!(pci_of(Path::new("/sys/devices/virtual/block/loop0")), None);
    }

    #[test]
    fn a_function_has_the_slot_and_the_root_of_its_device() {
        let folder = tempfile::tempdir().unwrap();
        for (slot, address) in [("4", "0000:3b:00\n"), ("7-1", "0000:5e:00\n")] {
            std::fs::create_dir(folder.path().join(slot)).unwrap();
            std::fs::write(folder.path().join(slot).join("address"), address).unwrap();
        }
        let slots = slots_in(folder.path());
        assert_eq!(slot_of(&slots, "0000:3b:00.1"), "4");
        assert_eq!(slot_of(&slots, "0000:5e:00.0"), "7-1");
        assert_eq!(slot_of(&slots, "0000:00:1f.2"), "");
        let path = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/nvme/nvme0/nvme0n1";
        assert_eq!(root_bus(Path::new(path)), "0000:3a");
        assert_eq!(root_bus(Path::new("/sys/devices/virtual/net/lo")), "");
    }

    fn veth(index: u32, name: &str, peer: u32) -> NetDevice {
        NetDevice {
            index,
            name: name.to_owned(),
            peer,
            ..NetDevice::default()
        }
    }

    #[test]
    fn the_other_end_of_a_pair_is_found_in_its_namespace() {
        let network = |netns, name: &str, devices| Network {
            netns,
            name: name.to_owned(),
            devices,
        };
        let own = vec![
            veth(1, "lo", 0),
            veth(5, "veth5", 2),
            veth(6, "veth6", 2),
            veth(8, "a", 9),
            veth(9, "b", 8),
        ];
        let networks = [
            network(1, "", own),
            network(7, "web", vec![veth(1, "lo", 0), veth(2, "eth0", 5)]),
            network(9, "", vec![veth(2, "eth0", 6)]),
        ];
        let of = |network: usize, device: usize| {
            let here = &networks[network];
            peer(&networks, here, &here.devices[device])
        };
        assert_eq!(of(0, 1).as_deref(), Some("eth0@web"));
        assert_eq!(of(0, 2).as_deref(), Some("eth0@9"));
        assert_eq!(of(0, 3).as_deref(), Some("b"));
        assert_eq!((of(0, 0), of(1, 1).as_deref()), (None, Some("veth5@1")));
    }

    #[test]
    fn a_link_moves_what_its_line_code_leaves() {
        assert_eq!(pci_bytes_per_s("2.5 GT/s PCIe", 1), Some(250_000_000));
        assert_eq!(pci_bytes_per_s("8.0 GT/s PCIe", 4), Some(3_938_461_538));
        assert_eq!(pci_bytes_per_s("Unknown", 4), None);
    }

    #[test]
    fn sectors_are_512_bytes() {
        let counted = parse_disk_stat("3 1 8 9 5 0 16 7 0 0 0").unwrap();
        assert_eq!((counted.bytes, counted.operations), ([4096, 8192], [3, 5]));
        assert_eq!(parse_disk_stat("3 1"), None);
    }
}
