//! Private disks and networks, and actors on them.

#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod totals;

use memgauge_testing::{Need, skipped};
use std::io::{BufRead, BufReader, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

use memgauge_io::{Account, AccountingOptions, Session};
use memgauge_trace::DeviceId;

pub(crate) const MIB: u64 = 1 << 20;

const ACTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/io/actor.py");

/// Tests of accounting drop caches and load programs: one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A session that the tests share which need no setting and look at differences: the kernel
/// checks the programs of each for about a second. It ends with the process.
static SHARED: Mutex<Option<Session>> = Mutex::new(None);

/// The shared session, while one test has it.
pub(crate) struct Shared(MutexGuard<'static, Option<Session>>);

impl Deref for Shared {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.0.as_ref().unwrap()
    }
}

impl DerefMut for Shared {
    fn deref_mut(&mut self) -> &mut Session {
        self.0.as_mut().unwrap()
    }
}

/// Returns the shared session and the lock that lets one test run at a time. Prints the reason and
/// returns `None` if this machine does not allow accounting.
pub(crate) fn session() -> Option<(Shared, MutexGuard<'static, ()>)> {
    let turn = turn()?;
    let mut shared = SHARED.lock().unwrap_or_else(|e| e.into_inner());
    if shared.is_none() {
        *shared = Some(started(AccountingOptions::default())?);
    }
    Some((Shared(shared), turn))
}

/// Returns a new session that has seen nothing yet. There is no other session beside it.
pub(crate) fn fresh(setup: AccountingOptions) -> Option<(Session, MutexGuard<'static, ()>)> {
    let turn = turn()?;
    SHARED.lock().unwrap_or_else(|e| e.into_inner()).take();
    Some((started(setup)?, turn))
}

/// Returns the lock and makes sure that no session exists. `None` if a session cannot be created.
pub(crate) fn quiet() -> Option<MutexGuard<'static, ()>> {
    session().map(|(shared, turn)| {
        drop(shared);
        SHARED.lock().unwrap_or_else(|e| e.into_inner()).take();
        turn
    })
}

fn turn() -> Option<MutexGuard<'static, ()>> {
    let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    for tool in ["python3", "mkfs.ext4", "losetup", "ip"] {
        if !has(tool) {
            skipped(Need::Tool, format!("needs {tool}"));
            return None;
        }
    }
    Some(turn)
}

fn started(setup: AccountingOptions) -> Option<Session> {
    match Session::start(setup) {
        Ok(session) => Some(session),
        Err(error) => {
            skipped(Need::Kernel, format!("{error}"));
            None
        }
    }
}

/// Runs a check of exact amounts, and repeats it a few times if it fails. Some patched kernels run
/// no BPF program while certain tasks are current, so these packets are not counted. Packets that
/// an interrupt sends meanwhile are in no account. A real accounting error fails each time.
pub(crate) fn in_sight(check: impl Fn()) {
    const TRIES: usize = 5;
    for _ in 1..TRIES {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(&check)).is_ok() {
            return;
        }
        println!("again: there may be packets that no program saw");
    }
    check();
}

fn has(tool: &str) -> bool {
    let places = ["/bin", "/sbin", "/usr/bin", "/usr/sbin"];
    places
        .iter()
        .any(|place| Path::new(place).join(tool).exists())
}

/// Runs a command in a shell and returns its output.
pub(crate) fn sh(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {error}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A process that does I/O.
pub(crate) struct Actor {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Actor {
    pub(crate) fn start(wrapper: &[&str], words: &[&str]) -> Actor {
        let mut all = wrapper.to_vec();
        all.extend(["python3", ACTOR]);
        all.extend(words);
        let mut child = Command::new(all[0])
            .args(&all[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Actor {
            child,
            input,
            output,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its next line of output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub(crate) fn ready(mut self) -> Actor {
        assert_eq!(self.line(), "ready");
        self
    }

    pub(crate) fn go_on(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    /// Waits for its end. Returns its process ID.
    pub(crate) fn end(mut self) -> u32 {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
        self.child.id()
    }
}

/// Runs an actor to its end. Returns its process ID.
pub(crate) fn act(words: &[&str]) -> u32 {
    Actor::start(&["env"], words).end()
}

/// A file system of its own on a loop device.
pub(crate) struct Disk {
    /// The loop device.
    device: String,
    /// Name of the mapping above it, if there is one.
    mapping: Option<String>,
    folder: tempfile::TempDir,
    pub(crate) id: DeviceId,
    /// The loop device below a mapping.
    pub(crate) below: Option<DeviceId>,
}

impl Disk {
    pub(crate) fn new() -> Disk {
        Disk::with("mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0")
            .expect("ext4 can be made and mounted")
    }

    /// Creates a file system with this command. `None` if that does not work.
    pub(crate) fn with(make: &str) -> Option<Disk> {
        Disk::on(make, None)
    }

    /// Creates a file system on a linear mapping of the whole loop device. `None` without a device
    /// mapper.
    pub(crate) fn mapped(name: &str) -> Option<Disk> {
        Disk::on(
            "mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0",
            Some(name),
        )
    }

    fn on(make: &str, mapping: Option<&str>) -> Option<Disk> {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let mount = folder.path().join("mount");
        std::fs::create_dir(&mount).unwrap();
        std::fs::File::create(&image)
            .unwrap()
            .set_len(384 * MIB)
            .unwrap();
        let device = sh(&format!("losetup --find --show {}", image.display()));
        let (map, upper) = match mapping {
            None => ("true".to_owned(), device.clone()),
            Some(name) => (
                format!(
                    "dmsetup create {name} --table \"0 $(blockdev --getsz {device}) linear {device} 0\" \
                     && dmsetup mknodes"
                ),
                format!("/dev/mapper/{name}"),
            ),
        };
        let command = format!(
            "{map} && {make} {upper} && mount -o noatime {upper} {}",
            mount.display()
        );
        let made = Command::new("sh")
            .args(["-c", &command])
            .stderr(Stdio::null())
            .status();
        if !made.is_ok_and(|status| status.success()) {
            let _ = Command::new("losetup").args(["-d", &device]).status();
            return None;
        }
        let below = mapping.map(|_| number_of(&device));
        Some(Disk {
            id: number_of(&upper),
            mapping: mapping.map(str::to_owned),
            device,
            folder,
            below,
        })
    }

    pub(crate) fn path(&self, name: &str) -> String {
        let path: PathBuf = self.folder.path().join("mount").join(name);
        path.display().to_string()
    }

    /// A file of that many bytes that lies on the disk and not in memory.
    pub(crate) fn file(&self, name: &str, bytes: u64) -> String {
        let path = self.path(name);
        std::fs::write(&path, vec![7u8; bytes as usize]).unwrap();
        self.forget();
        path
    }

    /// Writes everything and drops what is cached.
    pub(crate) fn forget(&self) {
        sh(&format!(
            "sync -f {} && echo 3 > /proc/sys/vm/drop_caches",
            self.path(".")
        ));
    }

    /// Bytes read and written as the disk counts them.
    pub(crate) fn counted(&self) -> (u64, u64) {
        let name = self.device.trim_start_matches("/dev/");
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        let fields: Vec<u64> = stat
            .split_whitespace()
            .map(|f| f.parse().unwrap())
            .collect();
        (fields[2] * 512, fields[6] * 512)
    }
}

/// A mirror (md) of two loop devices, without a file system.
pub(crate) struct Mirror {
    pub(crate) path: String,
    pub(crate) id: DeviceId,
    /// The disks below.
    pub(crate) below: [DeviceId; 2],
    loops: [String; 2],
    _folder: tempfile::TempDir,
}

impl Mirror {
    /// Returns `None` if this kernel or machine cannot create a mirror.
    pub(crate) fn new() -> Option<Mirror> {
        let folder = tempfile::tempdir().unwrap();
        let loops = ["one", "two"].map(|name| {
            let image = folder.path().join(name);
            std::fs::File::create(&image)
                .unwrap()
                .set_len(64 * MIB)
                .unwrap();
            sh(&format!("losetup --find --show {}", image.display()))
        });
        let path = format!("/dev/md{}", 100 + std::process::id() % 100);
        let command = format!(
            "mdadm --create {path} --run --assume-clean --level=1 --raid-devices=2 \
             --metadata=1.0 --bitmap=none {} {}",
            loops[0], loops[1]
        );
        let made = Command::new("sh")
            .args(["-c", &command])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !made.is_ok_and(|status| status.success()) {
            let _ = Command::new("losetup").arg("-d").args(&loops).status();
            return None;
        }
        Some(Mirror {
            id: number_of(&path),
            below: [number_of(&loops[0]), number_of(&loops[1])],
            path,
            loops,
            _folder: folder,
        })
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let _ = Command::new("mdadm")
            .args(["--stop", &self.path])
            .stderr(Stdio::null())
            .status();
        let _ = Command::new("losetup").arg("-d").args(&self.loops).status();
    }
}

fn number_of(device: &str) -> DeviceId {
    let number = std::fs::metadata(device).unwrap().rdev();
    DeviceId::of_disk(libc::major(number), libc::minor(number))
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mount = self.path("");
        let _ = Command::new("umount").arg(mount).status();
        if let Some(name) = &self.mapping {
            let _ = Command::new("dmsetup").args(["remove", name]).status();
        }
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
    }
}

/// Two network namespaces, `a` and `b`, joined by two pairs of devices, `one` and
/// `two`. Addresses are 10.77.1.x and fd77:1::x on the first, 10.77.2.x and fd77:2::x
/// on the second; x is 1 in `a`, 2 in `b`.
pub(crate) struct Network {
    name: String,
}

impl Network {
    pub(crate) fn new() -> Network {
        let network = Network {
            name: format!("mg{}", std::process::id()),
        };
        let (a, b) = (network.namespace('a'), network.namespace('b'));
        sh(&format!(
            "ip netns del {a} 2>/dev/null; ip netns del {b} 2>/dev/null; true"
        ));
        sh(&format!("ip netns add {a} && ip netns add {b}"));
        for (device, net) in [("one", 1), ("two", 2)] {
            sh(&format!(
                "ip -n {a} link add {device} address 02:00:00:00:0{net}:01 type veth \
                 peer name {device} address 02:00:00:00:0{net}:02 netns {b}"
            ));
            for (namespace, host) in [(&a, 1), (&b, 2)] {
                let other = 3 - host;
                // Neighbours are known, so that no datagram is held back or dropped for that.
                sh(&format!(
                    "ip -n {namespace} addr add 10.77.{net}.{host}/24 dev {device} && \
                     ip -n {namespace} addr add fd77:{net}::{host}/64 dev {device} nodad && \
                     ip netns exec {namespace} sysctl -q -w net.ipv4.conf.{device}.rp_filter=0 \
                       net.ipv6.conf.{device}.router_solicitations=0 && \
                     ip -n {namespace} link set {device} up && ip -n {namespace} link set lo up && \
                     ip -n {namespace} neigh replace 10.77.{net}.{other} dev {device} \
                       lladdr 02:00:00:00:0{net}:0{other} nud permanent && \
                     ip -n {namespace} neigh replace fd77:{net}::{other} dev {device} \
                       lladdr 02:00:00:00:0{net}:0{other} nud permanent"
                ));
            }
        }
        for namespace in [&a, &b] {
            sh(&format!(
                "ip netns exec {namespace} sysctl -q -w net.ipv4.conf.all.rp_filter=0"
            ));
        }
        network
    }

    /// Makes device `one` the only device of a bond on both sides, with 10.77.9.x on it. Returns
    /// false if this kernel cannot.
    pub(crate) fn bond(&self) -> bool {
        let join = |side: char, host: u32| {
            let (namespace, other) = (self.namespace(side), 3 - host);
            let command = format!(
                "ip -n {namespace} link add bond0 type bond mode active-backup && \
                 ip -n {namespace} link set one down && \
                 ip -n {namespace} link set one master bond0 && \
                 ip -n {namespace} addr add 10.77.9.{host}/24 dev bond0 && \
                 ip -n {namespace} link set bond0 up && \
                 ip -n {namespace} neigh replace 10.77.9.{other} dev bond0 \
                   lladdr 02:00:00:00:01:0{other} nud permanent"
            );
            let made = Command::new("sh")
                .args(["-c", &command])
                .stderr(Stdio::null())
                .status();
            made.is_ok_and(|status| status.success())
        };
        let made = join('a', 1) && join('b', 2);
        if made {
            // A bond uses a device only a moment after it has come up.
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        made
    }

    /// Moves device `one` of `b` into a bridge, which gets its address. Returns false if this
    /// kernel cannot.
    pub(crate) fn bridge(&self) -> bool {
        let namespace = self.namespace('b');
        let command = format!(
            "ip -n {namespace} link add bridge0 address 02:00:00:00:01:02 type bridge && \
             ip -n {namespace} addr flush dev one && \
             ip -n {namespace} link set one master bridge0 && \
             ip -n {namespace} addr add 10.77.1.2/24 dev bridge0 && \
             ip -n {namespace} link set bridge0 up && \
             ip -n {namespace} neigh replace 10.77.1.1 dev bridge0 \
               lladdr 02:00:00:00:01:01 nud permanent"
        );
        let made = Command::new("sh")
            .args(["-c", &command])
            .stderr(Stdio::null())
            .status();
        made.is_ok_and(|status| status.success())
    }

    /// Creates a VXLAN tunnel `tunnel0` over device `one`, with 10.77.3.x on it. Returns false if
    /// this kernel cannot.
    pub(crate) fn tunnel(&self) -> bool {
        let join = |side: char, host: u32| {
            let (namespace, other) = (self.namespace(side), 3 - host);
            let command = format!(
                "ip -n {namespace} link add tunnel0 address 02:00:00:00:03:0{host} type vxlan \
                   id 7 remote 10.77.1.{other} dstport 4789 && \
                 ip netns exec {namespace} sysctl -q -w net.ipv6.conf.tunnel0.disable_ipv6=1 && \
                 ip -n {namespace} addr add 10.77.3.{host}/24 dev tunnel0 && \
                 ip -n {namespace} link set tunnel0 up && \
                 ip -n {namespace} neigh replace 10.77.3.{other} dev tunnel0 \
                   lladdr 02:00:00:00:03:0{other} nud permanent"
            );
            let made = Command::new("sh")
                .args(["-c", &command])
                .stderr(Stdio::null())
                .status();
            made.is_ok_and(|status| status.success())
        };
        join('a', 1) && join('b', 2)
    }

    /// Makes `b` forward packets for 10.99.x.x from device `one` to device `two`.
    pub(crate) fn forward(&self) {
        let (a, b) = (self.namespace('a'), self.namespace('b'));
        sh(&format!(
            "ip netns exec {b} sysctl -q -w net.ipv4.ip_forward=1 && \
             ip -n {a} route add 10.99.0.0/16 via 10.77.1.2 dev one && \
             ip -n {b} route add 10.99.0.0/16 via 10.77.2.1 dev two"
        ));
    }

    pub(crate) fn namespace(&self, side: char) -> String {
        format!("{}{side}", self.name)
    }

    /// Runs a command of the system on one side.
    pub(crate) fn on(&self, side: char, command: &str) -> String {
        sh(&format!("ip netns exec {} {command}", self.namespace(side)))
    }

    /// Number of TCP segments that both sides have sent again so far. The devices counted these
    /// more than once.
    pub(crate) fn segments_sent_again(&self) -> u64 {
        let of = |side| {
            let snmp = self.on(side, "cat /proc/net/snmp");
            let mut rows = snmp.lines().filter(|row| row.starts_with("Tcp:"));
            let names = rows.next().unwrap().split_whitespace();
            let values = rows.next().unwrap().split_whitespace();
            let mut both = names.zip(values);
            let (_, count) = both.find(|(name, _)| *name == "RetransSegs").unwrap();
            count.parse::<u64>().unwrap()
        };
        of('a') + of('b')
    }

    pub(crate) fn actor(&self, side: char, words: &[&str]) -> Actor {
        let namespace = self.namespace(side);
        Actor::start(&["ip", "netns", "exec", &namespace], words)
    }

    pub(crate) fn act(&self, side: char, words: &[&str]) -> u32 {
        self.actor(side, words).end()
    }

    pub(crate) fn device(&self, side: char, device: &str) -> DeviceId {
        let netns = std::fs::metadata(format!("/run/netns/{}", self.namespace(side)))
            .unwrap()
            .ino();
        let link = sh(&format!(
            "ip -n {} -o link show dev {device}",
            self.namespace(side)
        ));
        let number = link.split(':').next().unwrap().parse().unwrap();
        DeviceId {
            netns: netns as u32,
            number,
        }
    }

    /// Received bytes and packets, sent bytes and packets, and packets dropped before they were
    /// sent, as the device counts them.
    pub(crate) fn counted(&self, side: char, device: &str) -> [u64; 5] {
        let all = self.on(side, "cat /proc/net/dev");
        let line = all
            .lines()
            .find_map(|l| l.trim().strip_prefix(&format!("{device}:")))
            .unwrap();
        let fields: Vec<u64> = line
            .split_whitespace()
            .map(|f| f.parse().unwrap())
            .collect();
        [fields[0], fields[1], fields[8], fields[9], fields[11]]
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for side in ['a', 'b'] {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.namespace(side)])
                .status();
        }
    }
}

/// Account of a process at a device.
pub(crate) fn account(session: &mut Session, pid: u32, device: DeviceId) -> Account {
    let accounts = session.accounts().unwrap();
    let of_pid = accounts
        .iter()
        .filter(|((o, d), _)| o.pid().0 == pid && *d == device);
    of_pid.fold(Account::default(), |sum, (_, account)| sum.plus(*account))
}

/// Sum of all processes' accounts at a device.
pub(crate) fn everyone(session: &mut Session, device: DeviceId) -> Account {
    let accounts = session.accounts().unwrap();
    let of_device = accounts.iter().filter(|((_, d), _)| *d == device);
    of_device.fold(Account::default(), |sum, (_, account)| sum.plus(*account))
}
