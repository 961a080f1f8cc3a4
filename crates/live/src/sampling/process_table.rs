//! Processes, threads and mappings of a recording, from the kernel's side-band records, and from
//! `/proc` for processes that were running before.

use std::collections::HashSet;
use std::fs::{read_dir, read_link, read_to_string};
use std::path::PathBuf;

use memgauge_recording::Writer;
use memgauge_trace::{Module, Pid, Thread, Tid, VirtAddr};

use super::code::CodeReader;
use super::roi_marks;
use crate::Result;
use ahash::HashMap;
use memgauge_host::maps;
use memgauge_host::program::{Mappings, ProgramFiles};
use memgauge_perf::record::{Mmap, Record, Task};

/// Processes and threads with their mappings.
pub(super) struct ProcessTable {
    threads: HashMap<u32, Thread>,
    /// Process and thread of the last sample, if no side-band record came after it.
    last_sampled: Option<(u32, u32)>,
    mappings: Mappings,
    pub(super) files: ProgramFiles,
    /// Threads that have ended, and earlier programs of threads that called `exec`.
    ended: Vec<Thread>,
    /// Code by address, for deriving data addresses.
    pub(super) code: CodeReader,
    /// Programs of the processes that were read from `/proc`.
    programs: HashMap<u32, PathBuf>,
    /// Processes of the target. `None` if only the target is sampled.
    pub(super) target_pids: Option<HashSet<u32>>,
}

impl ProcessTable {
    pub(super) fn new() -> ProcessTable {
        ProcessTable {
            threads: HashMap::default(),
            last_sampled: None,
            mappings: Mappings::default(),
            files: ProgramFiles::new(),
            ended: Vec::new(),
            code: CodeReader::default(),
            programs: HashMap::default(),
            target_pids: None,
        }
    }

    /// Processes a side-band record. `time_ns` is relative to the start.
    pub(super) fn observe(
        &mut self,
        record: &Record<'_>,
        time_ns: u64,
        writer: &mut Writer,
    ) -> Result<()> {
        self.last_sampled = None;
        match record {
            Record::Mmap(map) => self.add_mapping(map, time_ns, writer),
            Record::Comm {
                pid,
                tid,
                exec,
                name,
            } => {
                if *exec {
                    self.exec(*pid, *tid, time_ns, writer)?;
                }
                let name = String::from_utf8_lossy(name).into_owned();
                self.thread(*pid, *tid, time_ns).program = name;
                Ok(())
            }
            Record::Fork(task) => {
                self.fork(task, time_ns);
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

    /// Makes sure that the thread of a sample has a row, and that the mappings which its process
    /// inherited are written. Nothing is left to do if the previous sample had the same thread.
    #[inline]
    pub(super) fn observe_sample(
        &mut self,
        (pid, tid): (u32, u32),
        time_ns: u64,
        writer: &mut Writer,
    ) -> Result<()> {
        if self.last_sampled == Some((pid, tid)) {
            return Ok(());
        }
        self.thread(pid, tid, time_ns);
        self.write_inherited_mappings(pid, writer)?;
        self.last_sampled = Some((pid, tid));
        Ok(())
    }

    /// Mappings of all processes.
    pub(super) fn mappings(&self) -> &Mappings {
        &self.mappings
    }

    /// True if samples of the process are recorded.
    pub(super) fn is_target(&self, pid: u32) -> bool {
        self.target_pids
            .as_ref()
            .is_none_or(|pids| pids.contains(&pid))
    }

    fn add_mapping(&mut self, map: &Mmap<'_>, time_ns: u64, writer: &mut Writer) -> Result<()> {
        let path = String::from_utf8_lossy(map.path);
        let path = match path.as_ref() {
            "//anon" => "[anon]",
            path if roi_marks::is_mark_file(path) => "[regions of interest]",
            path => path,
        };
        if map.executable {
            self.code
                .add_mapping(map.pid, map.start, map.bytes, map.file_offset, path);
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
        self.write_inherited_mappings(map.pid, writer)?;
        self.mappings.mapped(&row);
        writer.push(row)?;
        Ok(())
    }

    /// Writes the mappings that a process inherited from its parent, once the process is of
    /// interest. Most forked processes call `exec` before they are.
    fn write_inherited_mappings(&mut self, pid: u32, writer: &mut Writer) -> Result<()> {
        let rows = self.mappings.inherited(pid);
        self.files.seen(&rows);
        writer.extend(rows)?;
        Ok(())
    }

    /// A thread called `exec`. The new program gets a row of its own.
    fn exec(&mut self, pid: u32, tid: u32, time_ns: u64, writer: &mut Writer) -> Result<()> {
        self.code.forget_process(pid);
        self.mappings.replaced(pid);
        writer.push(Module {
            pid: Pid(pid),
            time_ns,
            path: Module::EXEC.to_owned(),
            ..Module::default()
        })?;
        if let Some(mut previous) = self.threads.remove(&tid).filter(|t| !t.program.is_empty()) {
            previous.end_ns = Some(time_ns);
            self.ended.push(previous);
        }
        Ok(())
    }

    fn fork(&mut self, task: &Task, time_ns: u64) {
        // An earlier thread may have had the same ID.
        self.ended.extend(self.threads.remove(&task.tid));
        let parent = self.threads.get(&task.parent_tid);
        let program = parent.map(|t| t.program.clone()).unwrap_or_default();
        self.code.fork(task.pid, task.parent_pid);
        self.mappings.forked(task.pid, task.parent_pid, time_ns);
        if let Some(pids) = &mut self.target_pids
            && pids.contains(&task.parent_pid)
        {
            pids.insert(task.pid);
        }
        let thread = self.thread(task.pid, task.tid, time_ns);
        thread.program = program;
        thread.parent_pid = Pid(task.parent_pid);
    }

    fn thread(&mut self, pid: u32, tid: u32, time_ns: u64) -> &mut Thread {
        self.threads.entry(tid).or_insert_with(|| Thread {
            pid: Pid(pid),
            tid: Tid(tid),
            start_ns: time_ns,
            ..Thread::default()
        })
    }

    /// IDs of the threads that have not ended.
    pub(super) fn alive_tids(&self) -> impl Iterator<Item = u32> {
        let alive = self.threads.values().filter(|t| t.end_ns.is_none());
        alive.map(|t| t.tid.0)
    }

    /// IDs of all threads, including those that have ended.
    pub(super) fn all_tids(&self) -> impl Iterator<Item = u32> {
        let all = self.threads.values().chain(&self.ended);
        all.map(|t| t.tid.0)
    }

    /// True if the thread is known to have ended.
    pub(super) fn has_ended(&self, tid: u32) -> bool {
        self.threads.get(&tid).is_some_and(|t| t.end_ns.is_some())
    }

    /// Adds a running process or thread with its mappings from `/proc`. It has no mappings if it
    /// ends meanwhile or the user may not read them.
    pub(super) fn add_running(&mut self, id: u32, writer: &mut Writer) -> Result<()> {
        let pid = pid_of_thread(id).unwrap_or(id);
        self.files.attached(pid);
        // Before the mappings, so that a program that is executed in between is noticed later.
        self.programs.extend(program(pid).map(|path| (pid, path)));
        for line in maps::of_process(pid) {
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
            self.add_mapping(&map, 0, writer)?;
        }
        let comm = read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        self.thread(pid, id, 0).program = comm.trim().to_owned();
        Ok(())
    }

    /// Adds a running process unless it is known and executes the same program as before. Returns whether
    /// it was added.
    pub(super) fn add_started(&mut self, pid: u32, writer: &mut Writer) -> Result<bool> {
        // Threads of the kernel and processes that have ended have no program.
        let Some(program) = program(pid) else {
            return Ok(false);
        };
        match self.programs.get(&pid) {
            Some(known) if *known == program => return Ok(false),
            Some(_) => self.exec(pid, pid, 0, writer)?,
            None => {}
        }
        self.add_running(pid, writer)?;
        Ok(true)
    }

    /// Adds all running processes.
    pub(super) fn add_all_running(&mut self, writer: &mut Writer) -> Result<()> {
        let entries = read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        for pid in pids {
            self.add_running(pid, writer)?;
        }
        Ok(())
    }

    /// Returns the rows of all threads by start time.
    pub(super) fn take_rows(&mut self) -> Vec<Thread> {
        let mut all = std::mem::take(&mut self.ended);
        all.extend(std::mem::take(&mut self.threads).into_values());
        all.sort_by_key(|t| (t.start_ns, t.tid));
        all
    }
}

fn program(pid: u32) -> Option<PathBuf> {
    read_link(format!("/proc/{pid}/exe")).ok()
}

fn pid_of_thread(tid: u32) -> Option<u32> {
    let status = read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::pid_of_thread;

    #[test]
    fn process_of_a_thread_is_read_from_proc() {
        let own = std::process::id();
        let thread = std::thread::spawn(|| {
            let link = std::fs::read_link("/proc/thread-self").expect("procfs");
            let tid = link.file_name().and_then(|n| n.to_str()?.parse().ok());
            let tid: u32 = tid.expect("a number");
            (tid, pid_of_thread(tid))
        });
        let (tid, process) = thread.join().expect("the thread ends");
        assert_ne!(tid, own);
        assert_eq!(process, Some(own));
    }
}
