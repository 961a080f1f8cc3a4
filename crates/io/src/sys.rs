//! Reads network devices, also those of other network namespaces.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network device with its driver and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetDevice {
    /// Index in its namespace.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Driver, as the kernel names it, or empty.
    pub driver: String,
    /// Whether its link layer is Ethernet.
    pub ethernet: bool,
    /// For one end of a veth pair, the index of the other end in its own namespace. Otherwise 0.
    pub peer: u32,
    /// Bytes and packets received, bytes and packets sent.
    pub counted: [u64; 4],
}

/// Devices of another namespace, read on a new thread that enters it.
///
/// # Errors
/// The namespace cannot be entered or is gone.
pub(crate) fn list_net_devices_in(namespace: File) -> io::Result<Vec<NetDevice>> {
    let thread = std::thread::Builder::new().spawn(move || {
        enter(&namespace)?;
        list_net_devices()
    })?;
    let failed = |_| io::Error::other("the thread that entered the namespace ended early");
    thread.join().map_err(failed)?
}

fn enter(namespace: &File) -> io::Result<()> {
    let network = Some(LinkNameSpaceType::Network);
    Ok(move_into_link_name_space(namespace.as_fd(), network)?)
}

/// Devices of the calling thread's namespace.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn list_net_devices() -> io::Result<Vec<NetDevice>> {
    let socket = ethtool_socket()?;
    let counted = device_counters()?.into_iter();
    let mut devices: Vec<NetDevice> = counted
        .map(|(name, counted)| NetDevice {
            name,
            counted,
            ..NetDevice::default()
        })
        .collect();
    for device in &mut devices {
        device.index = name_to_index(&socket, &device.name).unwrap_or(0);
        let (driver, statistics) = driver_of(&socket, &device.name).unwrap_or_default();
        if driver == "veth" {
            device.peer = peer_of(&socket, &device.name, statistics).unwrap_or(0);
        }
        device.driver = driver;
        device.ethernet = is_ethernet(&socket, &device.name);
    }
    Ok(devices)
}

/// Counters of the devices in the calling thread's namespace, by name: bytes and
/// packets received, bytes and packets sent.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn device_counters() -> io::Result<BTreeMap<String, [u64; 4]>> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    Ok(table.lines().filter_map(parse_counters).collect())
}

/// Parses a line of /proc/net/dev: a name and sixteen numbers.
fn parse_counters(line: &str) -> Option<(String, [u64; 4])> {
    let (name, rest) = line.split_once(':')?;
    let numbers: Vec<u64> = rest
        .split_whitespace()
        .map_while(|f| f.parse().ok())
        .collect();
    let counted = [
        *numbers.first()?,
        *numbers.get(1)?,
        *numbers.get(8)?,
        *numbers.get(9)?,
    ];
    Some((name.trim().to_owned(), counted))
}

fn ethtool_socket() -> io::Result<File> {
    let close = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, close, None)?;
    Ok(socket.into())
}

/// `struct ethtool_drvinfo` (linux/ethtool.h), 196 bytes.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    versions: [u8; 144],
    statistics: u32,
    rest: [u32; 3],
}
const _: () = assert!(size_of::<DriverInfo>() == 196);
const _: () = assert!(std::mem::offset_of!(DriverInfo, statistics) == 180);

/// ETHTOOL_GDRVINFO of linux/ethtool.h.
const GET_DRIVER: u32 = 3;

/// ETHTOOL_GSTATS of linux/ethtool.h.
const GET_STATISTICS: u32 = 0x1d;

/// Spare room for statistics: a driver may get more queues between the two calls.
const SPARE_STATISTICS: usize = 4096;

/// SIOCETHTOOL of linux/sockios.h.
const ETHTOOL: u64 = 0x8946;

/// Driver name and number of statistics.
fn driver_of(socket: &File, name: &str) -> Option<(String, u32)> {
    let mut info = DriverInfo {
        command: GET_DRIVER,
        driver: [0; 32],
        versions: [0; 144],
        statistics: 0,
        rest: [0; 3],
    };
    let mut request = interface_request(name);
    request.ifr_ifru.ifru_data = (&raw mut info).cast();
    // SAFETY: `request` and the structure it points to are valid for the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL as _, &mut request) };
    let driver = info.driver.split(|&b| b == 0).next()?;
    let driver = String::from_utf8_lossy(driver).into_owned();
    (done == 0).then_some((driver, info.statistics))
}

/// Index of the other end of a veth pair, which is its first statistic.
fn peer_of(socket: &File, name: &str, statistics: u32) -> Option<u32> {
    if statistics == 0 {
        return None;
    }
    let mut words = vec![0u64; 1 + statistics as usize + SPARE_STATISTICS];
    words[0] = u64::from(GET_STATISTICS);
    let mut request = interface_request(name);
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: `request` and the words it points to are valid for the call. The kernel
    // writes as many words as the driver has, and there is room for them.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL as _, &mut request) };
    (done == 0).then(|| words[1] as u32)
}

fn interface_request(name: &str) -> libc::ifreq {
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let max_accounts = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..max_accounts]
        .iter_mut()
        .zip(name.bytes())
    {
        *to = from as libc::c_char;
    }
    request
}

fn is_ethernet(socket: &File, name: &str) -> bool {
    let mut request = interface_request(name);
    // SAFETY: `request` is valid for the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR as _, &mut request) };
    // SAFETY: the request was all zero, and a socket address is valid with any contents.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    done == 0 && address.sa_family == libc::ARPHRD_ETHER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_counters_is_read_by_its_columns() {
        let line = "  eth0: 1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0";
        let expected = ("eth0".to_owned(), [1000, 10, 2000, 20]);
        assert_eq!(parse_counters(line), Some(expected));
        assert_eq!(parse_counters("Inter-|   Receive"), None);
        assert_eq!(parse_counters(" face |bytes    packets: 1"), None);
    }

    #[test]
    fn this_namespace_has_a_loopback_device() {
        let devices = list_net_devices().unwrap();
        let lo = devices.iter().find(|d| d.name == "lo");
        assert_eq!(lo.map(|d| (d.index, d.ethernet)), Some((1, false)));
    }
}
