//! Processes, threads and mappings of a live recording: what the kernel's
//! side-band records say, and what `/proc` says of those that were there before.

use std::collections::HashSet;
use std::fs::{read_dir, read_to_string};

use memgauge_recording::Writer;
use memgauge_trace::{Module, Pid, Thread, Tid, VirtAddr};

use super::code::Code;
use super::marks;
use crate::Result;
use ahash::HashMap;
use memgauge_host::maps;
use memgauge_host::program::{Mappings, ProgramFiles};
use memgauge_perf::record::{Mmap, Record, Task};

/// Who runs, and what they have mapped.
pub(super) struct Followed {
    threads: HashMap<u32, Thread>,
    /// Process and thread of the last sample; nothing has been said of others since.
    sampled: Option<(u32, u32)>,
    mappings: Mappings,
    /// Which files they are.
    pub(super) files: ProgramFiles,
    done: Vec<Thread>,
    /// Code by address, for samples whose data address has to be rebuilt.
    pub(super) code: Code,
    /// Processes of the target, where samples of other processes come too.
    pub(super) only: Option<HashSet<u32>>,
}

impl Followed {
    pub(super) fn new() -> Followed {
        Followed {
            threads: HashMap::default(),
            sampled: None,
            mappings: Mappings::default(),
            files: ProgramFiles::new(),
            done: Vec::new(),
            code: Code::default(),
            only: None,
        }
    }

    /// Takes what a side-band record says; `time_ns` is since the start.
    pub(super) fn take(
        &mut self,
        record: &Record<'_>,
        time_ns: u64,
        writer: &mut Writer,
    ) -> Result<()> {
        self.sampled = None;
        match record {
            Record::Mmap(map) => self.mapped(map, time_ns, writer),
            Record::Comm {
                pid,
                tid,
                exec,
                name,
            } => {
                if *exec {
                    self.replaced(*pid, *tid, time_ns, writer)?;
                }
                let name = String::from_utf8_lossy(name).into_owned();
                self.thread(*pid, *tid, time_ns).program = name;
                Ok(())
            }
            Record::Fork(task) => {
                self.forked(task, time_ns);
                Ok(())
            }
            Record::Exit(task) => {
                self.thread(task.pid, task.tid, time_ns).end_ns = Some(time_ns);
                if task.pid == task.tid {
                    self.mappings.ended(task.pid);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A sample came of this thread: its row begins, if there is none, and what its process
    /// inherited is written. The next ones of the same thread need neither.
    #[inline]
    pub(super) fn sampled(
        &mut self,
        (pid, tid): (u32, u32),
        time_ns: u64,
        writer: &mut Writer,
    ) -> Result<()> {
        if self.sampled == Some((pid, tid)) {
            return Ok(());
        }
        self.thread(pid, tid, time_ns);
        self.inherited(pid, writer)?;
        self.sampled = Some((pid, tid));
        Ok(())
    }

    /// What processes have mapped.
    pub(super) fn mappings(&self) -> &Mappings {
        &self.mappings
    }

    /// Whether samples of the process are wanted.
    pub(super) fn wants(&self, pid: u32) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(&pid))
    }

    fn mapped(&mut self, map: &Mmap<'_>, time_ns: u64, writer: &mut Writer) -> Result<()> {
        let path = String::from_utf8_lossy(map.path);
        let path = match path.as_ref() {
            "//anon" => "[anon]",
            path if marks::is_mark_file(path) => "[regions of interest]",
            path => path,
        };
        if map.executable {
            self.code
                .mapped(map.pid, map.start, map.bytes, map.file_offset, path);
        }
        let mut row = Module {
            pid: Pid(map.pid),
            time_ns,
            start: VirtAddr(map.start),
            end: VirtAddr(map.start.saturating_add(map.bytes)),
            file_offset: map.file_offset,
            path: path.to_owned(),
            executable: map.executable,
            ..Module::default()
        };
        self.files.identify(&mut row);
        self.inherited(map.pid, writer)?;
        self.mappings.mapped(&row);
        writer.push(row)?;
        Ok(())
    }

    /// Something happened in a process: what it has mapped is needed, also where it
    /// was mapped before the fork.
    pub(super) fn inherited(&mut self, pid: u32, writer: &mut Writer) -> Result<()> {
        let rows = self.mappings.inherited(pid);
        self.files.seen(&rows);
        writer.extend(rows)?;
        Ok(())
    }

    /// Another program began: its row is a new one, its mappings too.
    fn replaced(&mut self, pid: u32, tid: u32, time_ns: u64, writer: &mut Writer) -> Result<()> {
        self.code.replaced(pid);
        self.mappings.replaced(pid);
        writer.push(Module {
            pid: Pid(pid),
            time_ns,
            path: Module::EXEC.to_owned(),
            ..Module::default()
        })?;
        if let Some(mut before) = self.threads.remove(&tid).filter(|t| !t.program.is_empty()) {
            before.end_ns = Some(time_ns);
            self.done.push(before);
        }
        Ok(())
    }

    fn forked(&mut self, task: &Task, time_ns: u64) {
        self.done.extend(self.threads.remove(&task.tid));
        let parent = self.threads.get(&task.parent_tid);
        let program = parent.map(|t| t.program.clone()).unwrap_or_default();
        self.code.forked(task.pid, task.parent_pid);
        self.mappings.forked(task.pid, task.parent_pid, time_ns);
        if let Some(only) = &mut self.only
            && only.contains(&task.parent_pid)
        {
            only.insert(task.pid);
        }
        let thread = self.thread(task.pid, task.tid, time_ns);
        thread.program = program;
        thread.parent_pid = Pid(task.parent_pid);
    }

    /// The thread's row.
    pub(super) fn thread(&mut self, pid: u32, tid: u32, time_ns: u64) -> &mut Thread {
        self.threads.entry(tid).or_insert_with(|| Thread {
            pid: Pid(pid),
            tid: Tid(tid),
            start_ns: time_ns,
            ..Thread::default()
        })
    }

    /// Threads that have not ended.
    pub(super) fn alive(&self) -> impl Iterator<Item = u32> {
        let alive = self.threads.values().filter(|t| t.end_ns.is_none());
        alive.map(|t| t.tid.0)
    }

    /// Threads that there are or were.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        let all = self.threads.values().chain(&self.done);
        all.map(|t| t.tid.0)
    }

    /// Whether a thread is known to have ended.
    pub(super) fn has_ended(&self, tid: u32) -> bool {
        self.threads.get(&tid).is_some_and(|t| t.end_ns.is_some())
    }

    /// A process or thread that runs already, and what it has mapped. One that ends
    /// meanwhile, or that may not be looked at, has no mappings.
    pub(super) fn existing(&mut self, id: u32, writer: &mut Writer) -> Result<()> {
        let pid = process_of(id).unwrap_or(id);
        self.files.attached(pid);
        for line in maps::of(pid) {
            let path = match line.path.as_str() {
                "" => "//anon",
                path => path,
            };
            let map = Mmap {
                pid,
                tid: pid,
                start: line.start,
                bytes: line.end.saturating_sub(line.start),
                file_offset: line.file_offset,
                executable: line.executable,
                path: path.as_bytes(),
                build_id: &[],
            };
            self.mapped(&map, 0, writer)?;
        }
        let comm = read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        self.thread(pid, id, 0).program = comm.trim().to_owned();
        Ok(())
    }

    /// All processes there are.
    pub(super) fn everybody(&mut self, writer: &mut Writer) -> Result<()> {
        let entries = read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        for pid in pids {
            self.existing(pid, writer)?;
        }
        Ok(())
    }

    /// Rows of all threads, in order of time.
    pub(super) fn rows(&mut self) -> Vec<Thread> {
        let mut all = std::mem::take(&mut self.done);
        all.extend(std::mem::take(&mut self.threads).into_values());
        all.sort_by_key(|t| (t.start_ns, t.tid));
        all
    }
}

/// The process of a thread.
fn process_of(tid: u32) -> Option<u32> {
    let status = read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::process_of;

    #[test]
    fn mappings_of_a_thread_are_its_processes() {
        let own = std::process::id();
        let thread = std::thread::spawn(|| {
            let link = std::fs::read_link("/proc/thread-self").expect("procfs");
            let tid = link.file_name().and_then(|n| n.to_str()?.parse().ok());
            let tid: u32 = tid.expect("a number");
            (tid, process_of(tid))
        });
        let (tid, process) = thread.join().expect("the thread ends");
        assert_ne!(tid, own);
        assert_eq!(process, Some(own));
    }
}
