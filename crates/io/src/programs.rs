//! Loads and attaches the BPF programs.
//!
//! Dropping [`BpfPrograms`] detaches and unloads everything. The kernel does the same when memgauge
//! is killed, because links and maps are descriptors of this process and nothing is pinned unless
//! asked for. Generated bindings were rejected, since they need another build tool for five maps
//! that are read by name. A daemon that keeps the programs loaded was rejected, too.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use libbpf_rs::{
    Iter, Link, Map, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel, Program,
    ProgramInput, ProgramMut,
};
use memgauge_host::cgroup_memory_limit::own_limit;
use memgauge_trace::{DeviceId, Owner};

use super::deferred::DeferredHook;
use super::hooks::{self, HOOKS, Hook, HookChoice, KernelTypes};
use super::layout::{self, Account, OwnerFacts, ProcessRate};
use crate::{Error, ErrorKind, Result};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/account.bpf.o"));

const BTF: &str = "/sys/kernel/btf";

/// Maximum number of files, or of chunks of pages, with known writers: enough for 16 GiB of dirty
/// pages.
const MAX_CHUNKS: u32 = 1 << 18;

/// libbpf's messages about the last load. libbpf takes a plain function, which has no other place
/// to put them.
static MESSAGES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn collect_message(_: PrintLevel, text: String) {
    if let Ok(mut messages) = MESSAGES.lock() {
        messages.push(text.trim_end().to_owned());
    }
}

fn libbpf_messages() -> Vec<String> {
    MESSAGES
        .lock()
        .map(|mut s| std::mem::take(&mut *s))
        .unwrap_or_default()
}

/// Programs that the kernel runs once for each open file or socket.
const ITERATORS: [&str; 2] = ["seed", "read_out"];

/// Program that runs before the accounts are read. It charges what open TCP sockets have summed up.
const READ_SLOTS: &str = "read_slots";

/// Options of the accounting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountingOptions {
    /// Account for each thread separately.
    pub by_thread: bool,
    /// Maximum number of accounts (process and device) at a time. `None` is the size that the BPF
    /// program declares.
    pub max_accounts: Option<u32>,
    /// Drop the accounts of ended processes after they were reported once more. For callers that
    /// run for weeks.
    pub forget_ended: bool,
    /// Do not use the kernel's iterators over files and sockets, as if the kernel lacked them.
    pub no_iterators: bool,
}

/// Loaded and attached programs.
pub(super) struct BpfPrograms {
    object: Arc<Object>,
    /// Detached when dropped.
    _links: Vec<Link>,
    deferred: Vec<(&'static Hook, DeferredHook)>,
    read_out: Option<Link>,
    missing: BTreeMap<&'static str, &'static str>,
    pinned: Option<PathBuf>,
    /// Held as long as this run lives, so that no other run replaces the pinned map.
    pin_lock: Option<File>,
}

impl Drop for BpfPrograms {
    fn drop(&mut self) {
        if let Some(path) = &self.pinned {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl BpfPrograms {
    /// Loads the programs that this kernel supports, attaches them, and assigns the open listeners
    /// to processes.
    pub(super) fn load(setup: AccountingOptions) -> Result<BpfPrograms> {
        libbpf_rs::set_print(Some((PrintLevel::Warn, collect_message)));
        let kernel = KernelTypes::read(Path::new(BTF)).map_err(|e| missing_btf(&e))?;
        let mut refused = match setup.no_iterators {
            true => ITERATORS.map(str::to_owned).to_vec(),
            false => Vec::new(),
        };
        let (object, choice) = loop {
            let choice = hooks::choose(&|target| kernel.has(target), &refused);
            check_required(&choice)?;
            match open(&choice, setup) {
                Ok(object) => break (object, choice),
                Err(e) => refused.push(refused_program(&choice, &e)?),
            }
        };
        BpfPrograms::attach(object, choice)
    }

    fn attach(object: Object, choice: HookChoice) -> Result<BpfPrograms> {
        let object = Arc::new(object);
        let cgroup = unified_hierarchy();
        let mut links = Vec::new();
        let mut read_out = None;
        let mut missing = choice.missing;
        let (deferred, at_once): (Vec<&Hook>, Vec<&Hook>) = HOOKS
            .iter()
            .filter(|hook| choice.load.contains(&hook.program) && hook.program != READ_SLOTS)
            .partition(|hook| hook.deferred);
        for program in object.progs_mut() {
            let name = name_of(&program);
            if !at_once.iter().any(|hook| hook.program == name) {
                continue;
            }
            match attach(&program, &name, &object, cgroup.as_deref()) {
                Ok(link) if name == "read_out" => read_out = Some(link),
                Ok(link) => links.push(link),
                Err(e) => record_missing(&mut missing, &name, &e)?,
            }
        }
        if choice.load.contains(&READ_SLOTS)
            && let Err(e) = read_slots(&object)
        {
            record_missing(&mut missing, READ_SLOTS, &e)?;
        }
        let deferred = deferred.into_iter().map(|hook| {
            let waiting = DeferredHook::wait(Arc::clone(&object), hook.program);
            Ok((hook, waiting.map_err(|e| thread_error(hook, e))?))
        });
        Ok(BpfPrograms {
            deferred: deferred.collect::<Result<_>>()?,
            object,
            _links: links,
            read_out,
            missing,
            pinned: None,
            pin_lock: None,
        })
    }

    /// Parts that are not or less exactly accounted on this machine, in sentences.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        let refused = self
            .deferred
            .iter()
            .filter(|(_, deferred)| deferred.is_refused());
        let refused = refused.map(|(hook, _)| hook.without);
        let known = self.missing.values().copied();
        let mut sentences: Vec<&'static str> = known.chain(refused).collect();
        sentences.sort_unstable();
        sentences.dedup();
        sentences
    }

    /// Charges the sums of open sockets to the accounts.
    pub(super) fn charge_open_sockets(&self) -> Result<()> {
        if !self.missing.contains_key(READ_SLOTS) {
            read_slots(&self.object).map_err(|e| map_error("slots", e))?;
        }
        self.read_out.as_ref().map_or(Ok(()), run)
    }

    /// All accounts at this moment.
    pub(super) fn accounts(&self) -> Result<Vec<((Owner, DeviceId), Account)>> {
        self.accounts_in("accounts")
    }

    /// Sums of owners that found no room in the table of accounts, by the ID of their control
    /// group.
    pub(super) fn group_accounts(&self) -> Result<Vec<((u64, DeviceId), Account)>> {
        let group_accounts = self.accounts_in("folded")?.into_iter();
        let by_group = |((group, device), account): ((Owner, _), _)| ((group.0, device), account);
        Ok(group_accounts.map(by_group).collect())
    }

    fn accounts_in(&self, name: &str) -> Result<Vec<((Owner, DeviceId), Account)>> {
        let map = self.map(name)?;
        let mut accounts = Vec::new();
        for key in map.keys() {
            let values = map
                .lookup_percpu(&key, MapFlags::ANY)
                .map_err(|e| map_error(name, e))?;
            // Another reader may have removed it between the two calls.
            if let Some(values) = values {
                accounts.push((layout::key(&key), Account::sum_over_cpus(&values)));
            }
        }
        Ok(accounts)
    }

    /// Removes an account from the kernel's table and returns its final value.
    pub(super) fn close(&self, key: (Owner, DeviceId)) -> Result<Account> {
        let map = self.map("accounts")?;
        let key = layout::key_bytes(key);
        // Read it again: pages of an ended process are charged when they are written back, at any
        // time.
        let failed = |e| map_error("accounts", e);
        let values = map.lookup_percpu(&key, MapFlags::ANY).map_err(failed)?;
        map.delete(&key).map_err(failed)?;
        Ok(Account::sum_over_cpus(&values.unwrap_or_default()))
    }

    /// Facts that the programs recorded about an owner.
    pub(super) fn facts(&self, owner: Owner) -> Result<Option<OwnerFacts>> {
        let key = owner.0.to_ne_bytes();
        for name in ["owners", "more_owners"] {
            let found = self.map(name)?.lookup(&key, MapFlags::ANY);
            if let Some(bytes) = found.map_err(|e| map_error(name, e))? {
                return Ok(Some(layout::facts(owner, &bytes)));
            }
        }
        Ok(None)
    }

    /// Removes the facts about an owner.
    pub(super) fn forget(&self, owner: Owner) -> Result<()> {
        for name in ["owners", "more_owners"] {
            match self.map(name)?.delete(&owner.0.to_ne_bytes()) {
                Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => {
                    return Err(map_error(name, e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Count of each loss in `layout::LOSSES`.
    pub(super) fn losses(&self) -> Result<Vec<u64>> {
        let map = self.map("losses")?;
        (0..layout::LOSSES.len() as u32)
            .map(|reason| {
                let values = map
                    .lookup_percpu(&reason.to_ne_bytes(), MapFlags::ANY)
                    .map_err(|e| map_error("losses", e))?;
                Ok(layout::counter_sum(&values.unwrap_or_default()))
            })
            .collect()
    }

    /// Number of times that the kernel skipped a program because the same program was already
    /// running on that CPU.
    pub(super) fn runs_missed(&self) -> u64 {
        let ours = |program: &ProgramMut<'_>| Program::id_from_fd(program.as_fd()).ok();
        let ids: Vec<u32> = self.object.progs_mut().filter_map(|p| ours(&p)).collect();
        let all = libbpf_rs::query::ProgInfoIter::default();
        all.filter(|info| ids.contains(&info.id))
            .map(|info| info.recursion_misses)
            .sum()
    }

    /// Pins the map of rates in a BPF file system and replaces the map of an earlier run.
    pub(super) fn pin(&mut self, folder: &Path) -> Result<()> {
        let path = folder.join("io_rates");
        let failed = |e: &dyn std::fmt::Display| {
            let message = format!(
                "failed to pin map `{}`: {e}; the folder must be in a BPF file system \
                 (mount -t bpf bpf /sys/fs/bpf)",
                path.display()
            );
            Error::new(ErrorKind::System, message)
        };
        std::fs::create_dir_all(folder).map_err(|e| failed(&e))?;
        self.pin_lock = Some(lock_folder(folder)?);
        if path.exists() && MapHandle::from_pinned_path(&path).is_ok() {
            std::fs::remove_file(&path).map_err(|e| failed(&e))?;
        }
        let rates = MapHandle::try_from(&self.map("io_rates")?);
        let pinned = rates.and_then(|mut rates| rates.pin(&path));
        pinned.map_err(|e| failed(&e))?;
        self.pinned = Some(path.clone());
        Ok(())
    }

    /// Writes a process's rates if the map is pinned.
    pub(super) fn publish(&self, rate: &ProcessRate) -> Result<()> {
        let Some(path) = &self.pinned else {
            return Ok(());
        };
        let pid = rate.owner.pid().0.to_ne_bytes();
        let written = self
            .map("io_rates")?
            .update(&pid, &rate.to_bytes(), MapFlags::ANY);
        written.map_err(|e| {
            let message = format!("failed to write map `{}`", path.display());
            Error::system(message, std::io::Error::other(e))
        })
    }

    /// True if other programs can read the rates.
    pub(super) fn is_pinned(&self) -> bool {
        self.pinned.is_some()
    }

    /// Capacity of the table of accounts.
    pub(super) fn capacity(&self) -> usize {
        self.map("accounts")
            .map_or(0, |map| map.max_entries() as usize)
    }

    fn map(&self, name: &str) -> Result<Map<'_>> {
        let found = self.object.maps().find(|map| map.name() == name);
        found.ok_or_else(|| Error::new(ErrorKind::System, format!("failed to find map `{name}`")))
    }
}

/// Locks a folder for one run's map of rates.
fn lock_folder(folder: &Path) -> Result<File> {
    let failed = |e| Error::system(format!("failed to lock `{}`", folder.display()), e);
    let lock = File::open(folder).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::Error(e)) => Err(failed(e)),
        Err(TryLockError::WouldBlock) => {
            let message = format!(
                "failed to pin a map in `{}`: another memgauge io keeps its rates there; name \
                 another folder with --pin",
                folder.display()
            );
            Err(Error::new(ErrorKind::System, message))
        }
    }
}

fn name_of(program: &ProgramMut<'_>) -> String {
    program.name().to_string_lossy().into_owned()
}

fn open(choice: &HookChoice, setup: AccountingOptions) -> libbpf_rs::Result<Object> {
    libbpf_messages();
    let mut object = ObjectBuilder::default()
        .name("memgauge_io")?
        .open_memory(OBJECT)?;
    for mut program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        program.set_autoload(choice.load.contains(&name.as_str()));
    }
    for mut map in object.maps_mut() {
        if map.name() == "dirtiers" || map.name() == "files" {
            map.set_max_entries(chunks(memory_kib(), own_limit()))?;
        }
        if let ("accounts", Some(max_accounts)) =
            (map.name().to_string_lossy().as_ref(), setup.max_accounts)
        {
            map.set_max_entries(max_accounts)?;
        }
        if map.name().to_string_lossy().ends_with(".rodata")
            && let Some([by_thread, ends_seen, ..]) = map.initial_value_mut()
        {
            *by_thread = u8::from(setup.by_thread);
            *ends_seen = u8::from(choice.load.contains(&"stream_ended"));
        }
    }
    object.load()
}

/// Memory of one entry of `dirtiers` or `files`, with the kernel's headers and hash buckets.
const CHUNK_BYTES: u64 = 384;

/// The tables of files and chunks use at most 1/8 of the control group's memory limit.
const LIMIT_DIVISOR: u64 = 8;

/// Number of entries of the tables of files and chunks: twice the pages that may be dirty, in
/// chunks of 16, limited by the control group's memory limit in bytes.
fn chunks(memory_kib: u64, limit: Option<u64>) -> u32 {
    // vm.dirty_ratio is 20 % by default.
    let pages = memory_kib / 4 / 5 * 2;
    let fitting = limit.map_or(u64::MAX, |limit| limit / LIMIT_DIVISOR / CHUNK_BYTES);
    (pages / 16).min(fitting).clamp(4096, u64::from(MAX_CHUNKS)) as u32
}

/// Memory of the machine in KiB.
fn memory_kib() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(1 << 22)
}

/// Name of the program that the kernel refused, if the others work without it.
fn refused_program(choice: &HookChoice, cause: &libbpf_rs::Error) -> Result<String> {
    let messages = libbpf_messages();
    let named = choice.load.iter().find(|program| {
        messages
            .iter()
            .any(|line| line.contains(&format!("prog '{program}':")))
    });
    if cause.kind() == libbpf_rs::ErrorKind::PermissionDenied && !has_capabilities() {
        return Err(missing_capabilities());
    }
    match named {
        Some(program) if !is_required(program) => Ok((*program).to_owned()),
        _ => Err(load_error(cause, &messages)),
    }
}

fn is_required(program: &str) -> bool {
    HOOKS
        .iter()
        .any(|hook| hook.required && hook.program == program)
}

fn check_required(choice: &HookChoice) -> Result<()> {
    let lacking = HOOKS
        .iter()
        .find(|hook| hook.required && !choice.load.contains(&hook.program));
    lacking.map_or(Ok(()), |hook| {
        let target = hook.target.unwrap_or_default();
        let message = format!(
            "failed to account I/O: this kernel has no `{target}` ({}); Linux 5.18 or later is needed",
            hook.without
        );
        Err(Error::new(ErrorKind::Missing, message))
    })
}

fn record_missing(
    missing: &mut BTreeMap<&'static str, &'static str>,
    name: &str,
    cause: &dyn std::fmt::Display,
) -> Result<()> {
    let hook = HOOKS.iter().find(|hook| hook.program == name);
    match hook {
        Some(hook) if !hook.required => {
            missing.insert(hook.program, hook.without);
            Ok(())
        }
        _ => {
            let message = format!("failed to attach program `{name}`: {cause}");
            Err(Error::new(ErrorKind::System, message))
        }
    }
}

/// Attaches a program in the way that its type needs.
fn attach(
    program: &ProgramMut<'_>,
    name: &str,
    object: &Object,
    cgroup: Option<&Path>,
) -> std::result::Result<Link, String> {
    let section = program.section().to_string_lossy().into_owned();
    let failed = |e: libbpf_rs::Error| e.to_string();
    if section.starts_with("cgroup") {
        let path = cgroup.ok_or("no control groups of version 2 are mounted")?;
        let folder = File::open(path).map_err(|e| e.to_string())?;
        return program.attach_cgroup(folder.as_raw_fd()).map_err(failed);
    }
    match name {
        "read_out" => {
            let accounts = object.maps().find(|map| map.name() == "socket_accounts");
            let accounts = accounts.ok_or("the programs have no map `socket_accounts`")?;
            program.attach_iter(accounts.as_fd()).map_err(failed)
        }
        "seed" => {
            let link = program.attach().map_err(failed)?;
            run(&link).map_err(|e| e.to_string())?;
            Ok(link)
        }
        _ => program.attach().map_err(failed),
    }
}

/// Reads an iterator to its end, which runs its program for each item.
fn run(link: &Link) -> Result<()> {
    let failed = |e| Error::system("failed to read the open sockets", e);
    let mut iter = Iter::new(link).map_err(|e| failed(std::io::Error::other(e)))?;
    std::io::copy(&mut iter, &mut std::io::sink()).map_err(failed)?;
    Ok(())
}

fn read_slots(object: &Object) -> libbpf_rs::Result<()> {
    let Some(program) = object.progs_mut().find(|p| p.name() == READ_SLOTS) else {
        return Ok(());
    };
    program.test_run(ProgramInput::default()).map(|_| ())
}

/// Mount point of the control groups of version 2.
pub fn unified_hierarchy() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(cgroup2_mount)
}

/// The mount point of a line of mountinfo, if it is of type cgroup2.
fn cgroup2_mount(line: &str) -> Option<PathBuf> {
    let (place, kind) = line.split_once(" - ")?;
    kind.starts_with("cgroup2 ").then_some(())?;
    place.split(' ').nth(4).map(PathBuf::from)
}

// ------------------------------------------------------------------- failures

/// True with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN. CAP_SYS_ADMIN replaces the first two.
fn has_capabilities() -> bool {
    const BPF: u64 = 1 << 39 | 1 << 38;
    const SYS_ADMIN: u64 = 1 << 21;
    const NET_ADMIN: u64 = 1 << 12;
    let held = capabilities();
    held & NET_ADMIN != 0 && (held & SYS_ADMIN != 0 || held & BPF == BPF)
}

fn capabilities() -> u64 {
    let held = status_field("CapEff:");
    held.and_then(|h| u64::from_str_radix(&h, 16).ok())
        .unwrap_or(0)
}

fn status_field(name: &str) -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

fn missing_capabilities() -> Error {
    Error::new(
        ErrorKind::Missing,
        "failed to load the accounting programs: it needs CAP_BPF, CAP_PERFMON and \
         CAP_NET_ADMIN; run memgauge as root (sudo), or once: sudo setcap \
         cap_bpf,cap_perfmon,cap_net_admin,cap_dac_read_search,cap_sys_ptrace+ep \
         $(command -v memgauge)",
    )
}

fn thread_error(hook: &Hook, cause: std::io::Error) -> Error {
    let message = format!("failed to start a thread for program `{}`", hook.program);
    Error::system(message, cause)
}

fn missing_btf(cause: &std::io::Error) -> Error {
    let message = format!(
        "failed to read the kernel's types `{BTF}/vmlinux`: {cause}; accounting needs a kernel \
         built with CONFIG_DEBUG_INFO_BTF, as those of the distributions are"
    );
    Error::new(ErrorKind::Missing, message)
}

/// Explains a refusal by lockdown or seccomp. Under lockdown the verifier rejects helpers with a
/// message that does not mention lockdown. A seccomp filter denies bpf(2) despite sufficient
/// capabilities.
fn refusal_reason(denied: bool) -> Option<&'static str> {
    let lockdown = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    if lockdown.contains("[confidentiality]") {
        return Some(
            "the kernel is locked down (lockdown=confidentiality); boot it with lockdown=integrity",
        );
    }
    (denied && memgauge_host::sys::process::has_seccomp_filter())
        .then_some("a seccomp filter is in force here; allow bpf(2) in the container's profile")
}

/// Number of file descriptors needed: one for each program, map and link, and a few more while
/// loading.
const DESCRIPTORS: u64 = 256;

/// A remark on the limit of open files if it may be the cause of the failure.
fn descriptor_remark() -> String {
    let may_be_open = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let few = may_be_open.filter(|&n| n < DESCRIPTORS);
    few.map_or(String::new(), |few| {
        format!("; only {few} files may be open at once: allow more (ulimit -n {DESCRIPTORS})")
    })
}

/// Memory that memgauge and its maps need in a control group: a fixed part, and per-CPU maps.
fn needed_bytes(processors: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    48 * MIB + processors * 2 * MIB
}

/// A remark on the control group's memory limit if the maps do not fit.
fn memory_remark(limit: Option<u64>, processors: u64) -> Option<String> {
    let limit = limit.filter(|&limit| limit < 2 * needed_bytes(processors))?;
    Some(format!(
        "; the memory limit of this control group is {} MiB: allow at least {} MiB (memory.max, \
         or docker run --memory)",
        limit >> 20,
        needed_bytes(processors) >> 20
    ))
}

fn possible_processors() -> u64 {
    libbpf_rs::num_possible_cpus().map_or(1, |n| n as u64)
}

fn load_error(cause: &libbpf_rs::Error, messages: &[String]) -> Error {
    let denied = cause.kind() == libbpf_rs::ErrorKind::PermissionDenied;
    let why = refusal_reason(denied);
    let last = messages
        .iter()
        .rev()
        .find(|line| !line.is_empty())
        .map(String::as_str);
    let why = why.or(last).unwrap_or("the kernel gave no reason");
    let no_memory = (cause.kind() == libbpf_rs::ErrorKind::OutOfMemory)
        .then(|| memory_remark(own_limit(), possible_processors()))
        .flatten();
    let message = format!(
        "failed to load the accounting programs: {cause}: {}{}{}",
        one_line(why),
        descriptor_remark(),
        no_memory.unwrap_or_default()
    );
    Error::new(ErrorKind::System, message)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn map_error(map: &str, cause: libbpf_rs::Error) -> Error {
    Error::system(
        format!("failed to read map `{map}`"),
        std::io::Error::other(cause),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a program is refused, all are loaded again. Therefore, programs that a kernel may refuse
    /// although it has every hook come first.
    #[test]
    fn a_program_that_may_be_refused_is_loaded_before_all_others() {
        let object = ObjectBuilder::default().open_memory(OBJECT).unwrap();
        let name =
            |program: libbpf_rs::OpenProgram<'_>| program.name().to_string_lossy().into_owned();
        let names: Vec<String> = object.progs().map(name).collect();
        assert_eq!(names[..2], ["packet_queued", "packet_queued_unaware"]);
    }

    #[test]
    fn tables_of_dirty_pages_fit_in_the_memory_limit() {
        let memory_kib = 24 << 20;
        assert_eq!(chunks(memory_kib, None), 157_286);
        assert_eq!(chunks(memory_kib, Some(1 << 40)), 157_286);
        let limit = 48 << 20;
        let bytes = u64::from(chunks(memory_kib, Some(limit))) * CHUNK_BYTES;
        assert!(bytes <= limit / LIMIT_DIVISOR && bytes > limit / LIMIT_DIVISOR / 2);
        assert_eq!(chunks(memory_kib, Some(1 << 20)), 4096);
        assert_eq!(chunks(1 << 40, None), MAX_CHUNKS);
    }

    #[test]
    fn memory_limit_that_is_too_low_is_named_with_the_size_needed() {
        let message = memory_remark(Some(24 << 20), 4).unwrap();
        assert!(message.contains("24 MiB"), "{message}");
        assert!(message.contains("at least 56 MiB"), "{message}");
        assert_eq!(memory_remark(Some(1 << 40), 4), None);
        assert_eq!(memory_remark(None, 4), None);
    }

    #[test]
    fn the_unified_hierarchy_is_found_among_the_mounts() {
        let v1 = "30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        let v2 = "31 25 0:27 / /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw";
        assert_eq!(cgroup2_mount(v1), None);
        assert_eq!(
            cgroup2_mount(v2),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
    }
}
