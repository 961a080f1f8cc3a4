//! A process with its accessed bits.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use memgauge_host::maps::MapsLine;
use memgauge_host::{Error, ErrorKind, Result, process_tree};
use memgauge_mrc::Mapping;
use rustix::io::Errno;

use crate::page_tables::{PageList, PageTables};
use crate::rollup::MemoryUse;
use crate::source::AccessedBitSource;

/// Requests that are written to `clear_refs` (Documentation/filesystems/proc.rst).
pub(crate) const CLEAR_ACCESSED: &[u8] = b"1";
/// Clears the soft-dirty bits. The kernel flushes the TLB for this request only.
const CLEAR_SOFT_DIRTY: &[u8] = b"4";

const NO_MEMORY: &str =
    "it has no memory of its own (a kernel thread, or a process that has ended)";

/// An address space whose accessed bits can be cleared and read.
#[derive(Debug)]
pub struct ObservedProcess {
    /// Process ID.
    pub pid: u32,
    /// Name of the command.
    pub command: String,
    start_time: u64,
    clear_refs: File,
    rollup: File,
    /// The program that walks over its page tables, and the address space that it found first.
    walk: Option<(OwnedFd, u64)>,
    /// The sums of the last reading of `rollup`.
    sums: MemoryUse,
}

/// Why a target cannot be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The process has ended.
    Ended,
    /// It has executed another program and has a new address space.
    Executed,
}

impl ObservedProcess {
    /// Opens a process and keeps other runs of memgauge away from it.
    ///
    /// # Errors
    /// There is no such process or it has no memory of its own, another run observes it, this user
    /// may not, or the kernel cannot.
    pub fn open(pid: u32) -> Result<ObservedProcess> {
        let failed =
            |kind, why: &str| Error::new(kind, format!("failed to observe process {pid}: {why}"));
        let Some(stat) = ProcessStat::read(pid) else {
            return Err(failed(ErrorKind::NoSuchTask, "no such process"));
        };
        let open = |file: &str, write: bool| {
            let path = format!("/proc/{pid}/{file}");
            let opened = File::options().read(!write).write(write).open(&path);
            opened.map_err(|e| match e.kind() {
                io::ErrorKind::NotFound if Path::new(&format!("/proc/{pid}/stat")).exists() => {
                    failed(ErrorKind::Missing, &no_support(file))
                }
                io::ErrorKind::NotFound => failed(ErrorKind::NoSuchTask, "it has ended"),
                _ if e.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {
                    failed(ErrorKind::NoSuchTask, NO_MEMORY)
                }
                io::ErrorKind::PermissionDenied => failed(
                    ErrorKind::Refused,
                    match rustix::process::geteuid().is_root() {
                        true => {
                            "permission denied; this takes CAP_SYS_PTRACE and the capabilities of \
                             the process"
                        }
                        false => "permission denied; run as root or as the owner of the process",
                    },
                ),
                _ => Error::system(format!("failed to open `{path}`"), e),
            })
        };
        let clear_refs = open("clear_refs", true)?;
        match clear_refs.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(failed(
                    ErrorKind::Refused,
                    "another memgauge clears its accessed bits; wait until that run has ended",
                ));
            }
            Err(TryLockError::Error(e)) => {
                return Err(Error::system(format!("failed to lock process {pid}"), e));
            }
        }
        let mut target = ObservedProcess {
            pid,
            command: stat.command,
            start_time: stat.start_time,
            clear_refs,
            rollup: open("smaps_rollup", false)?,
            walk: None,
            sums: MemoryUse::default(),
        };
        match target.read_rollup() {
            Ok(_) => Ok(target),
            Err(_) => Err(failed(ErrorKind::NoSuchTask, NO_MEMORY)),
        }
    }

    /// Clears the accessed bits. With `flush`, also the TLB, where a processor remembers pages
    /// whose bit it has already set.
    pub(crate) fn clear(&mut self, flush: bool) -> io::Result<()> {
        self.clear_refs.write_all(CLEAR_ACCESSED)?;
        if flush {
            self.clear_refs.write_all(CLEAR_SOFT_DIRTY)?;
        }
        Ok(())
    }

    /// Reads the memory of the address space. Fails once the process has ended or executed another
    /// program.
    pub(crate) fn read(&mut self, source: &AccessedBitSource) -> io::Result<MemoryUse> {
        match source {
            AccessedBitSource::Rollup => self.read_rollup(),
            AccessedBitSource::PageTables(tables) => self.walk(tables),
        }
    }

    /// Counts pages in the page tables. Sums that these do not contain are from the last reading of
    /// `smaps_rollup`.
    fn walk(&mut self, tables: &PageTables) -> io::Result<MemoryUse> {
        let not_found = || io::Error::from(io::ErrorKind::NotFound);
        let (link, first) = match self.walk.take() {
            Some((link, first)) => (link, Some(first)),
            None => (tables.attach_walk(self.pid)?, None),
        };
        let found = tables.walk(&link)?.ok_or_else(not_found)?;
        let first = first.unwrap_or(found.address_space);
        self.walk = Some((link, first));
        if found.address_space != first {
            return Err(not_found());
        }
        let page_bytes = memgauge_host::sys::pages::page_bytes();
        Ok(MemoryUse {
            resident_bytes: found.resident_pages * page_bytes,
            used_bytes: found.used_pages * page_bytes,
            first_resident_bytes: found.first_resident_pages * page_bytes,
            first_used_bytes: found.first_used_pages * page_bytes,
            huge_bytes: found.huge_pages * page_bytes,
            unread_tables: found.unread,
            ..self.sums
        })
    }

    /// Lists its pages one by one. `None` if the source cannot, or the address space is gone.
    pub(crate) fn list(&mut self, source: &AccessedBitSource) -> Option<PageList> {
        match (source, &self.walk) {
            (AccessedBitSource::PageTables(tables), Some((link, first))) => {
                tables.list(link, *first).ok().flatten()
            }
            _ => None,
        }
    }

    /// Its mappings by address.
    pub(crate) fn mappings(&self) -> Vec<Mapping> {
        let named = |line: MapsLine| Mapping {
            start: line.start,
            end: line.end,
            name: match line.path.is_empty() {
                true => "[anon]".to_owned(),
                false => line.path,
            },
        };
        let lines = memgauge_host::maps::of_process(self.pid);
        lines.into_iter().map(named).collect()
    }

    /// Reads `smaps_rollup`. The file belongs to the address space.
    pub(crate) fn read_rollup(&mut self) -> io::Result<MemoryUse> {
        let mut text = String::new();
        self.rollup.seek(SeekFrom::Start(0))?;
        self.rollup.read_to_string(&mut text)?;
        let sums = MemoryUse::parse(&text);
        self.sums = sums.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(self.sums)
    }

    /// Why it cannot be read.
    pub(crate) fn gone(&self) -> Gone {
        match ProcessStat::read(self.pid) {
            Some(stat) if stat.start_time == self.start_time && !stat.is_dead() => Gone::Executed,
            _ => Gone::Ended,
        }
    }

    /// Whether it is stopped by a signal or a debugger.
    pub fn is_stopped(&self) -> bool {
        ProcessStat::read(self.pid).is_some_and(|stat| matches!(stat.state, 'T' | 't'))
    }

    /// Number of its child processes.
    pub fn children(&self) -> usize {
        process_tree::children(self.pid).len()
    }
}

fn no_support(file: &str) -> String {
    format!(
        "this kernel has no /proc/PID/{file}; it needs Linux 4.14 or later, built with \
         CONFIG_PROC_PAGE_MONITOR"
    )
}

/// Fields of `/proc/PID/stat`.
struct ProcessStat {
    command: String,
    state: char,
    start_time: u64,
}

impl ProcessStat {
    fn read(pid: u32) -> Option<ProcessStat> {
        ProcessStat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// `PID (COMMAND) STATE …`. The command may contain spaces and parentheses. The start time is
    /// field 22.
    fn parse(line: &str) -> Option<ProcessStat> {
        let (head, rest) = line.rsplit_once(')')?;
        let (_, command) = head.split_once('(')?;
        let mut fields = rest.split_whitespace();
        Some(ProcessStat {
            command: command.to_owned(),
            state: fields.next()?.chars().next()?,
            start_time: fields.nth(18)?.parse().ok()?,
        })
    }

    fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Whether the kernel tracks soft-dirty bits, which a flush of the TLB would clear.
///
/// The kernel marks every page of a new mapping, so a page that was just written has the bit
/// (55 in `/proc/PID/pagemap`, Documentation/admin-guide/mm/pagemap.rst).
pub(crate) fn tracks_soft_dirty() -> bool {
    const ENTRY_BYTES: u64 = 8;
    const SOFT_DIRTY: u64 = 1 << 55;
    let page = memgauge_host::sys::pages::page_bytes();
    let written = vec![1u8; 2 * page as usize];
    let address = std::hint::black_box(&written).as_ptr() as u64 + page;
    let mut entry = [0; ENTRY_BYTES as usize];
    let read = File::open("/proc/self/pagemap").and_then(|mut pagemap| {
        pagemap.seek(SeekFrom::Start(address / page * ENTRY_BYTES))?;
        pagemap.read_exact(&mut entry)
    });
    // Without the file nothing can depend on the bits.
    read.is_ok() && u64::from_ne_bytes(entry) & SOFT_DIRTY != 0
}

/// Processes of a control group and of the groups below it.
///
/// # Errors
/// The group's list of processes cannot be read.
pub fn pids_of_cgroup(group: &Path) -> Result<Vec<u32>> {
    let list = group.join("cgroup.procs");
    let text = fs::read_to_string(&list)
        .map_err(|e| Error::system(format!("failed to read `{}`", list.display()), e))?;
    let mut pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let below = fs::read_dir(group).into_iter().flatten().flatten();
    for folder in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        // A group may be removed meanwhile.
        pids.extend(pids_of_cgroup(&folder.path()).unwrap_or_default());
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_behind_the_last_parenthesis() {
        let line =
            "4711 (a) b (c) S 1 4711 4711 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 8848 1 1 1\n";
        let stat = ProcessStat::parse(line).unwrap();
        assert_eq!(stat.command, "a) b (c");
        assert_eq!((stat.state, stat.start_time), ('S', 8848));
        assert!(ProcessStat::parse("4711 (cut").is_none());
        assert!(ProcessStat::parse("4711 (cut) S 1").is_none());
    }

    #[test]
    fn process_that_does_not_exist_is_named() {
        let error = ObservedProcess::open(u32::MAX / 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSuchTask);
        assert!(error.to_string().contains(&(u32::MAX / 2).to_string()));
    }
}
