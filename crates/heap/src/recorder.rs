//! Reads the rings of all processes and writes the recording.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use ahash::HashMap;
use memgauge_host::program::ProgramFiles;
use memgauge_host::sys::process::{Watched, monotonic_ns};
use memgauge_host::unwind::BROKEN_STACKS;
use memgauge_host::{Error, Result, maps, new_manifest};
use memgauge_recording::Writer;
use memgauge_recording::stacks::{CUT, Stacks};
use memgauge_trace::{
    CommandEnd, FrameId, HeapUseRow, Loss, LossKind, Module, OwnCost, Pid, SourceFacts, SourceKind,
    SourceSettings, Thread, Tid, VirtAddr,
};

use crate::Options;
use crate::folder::PrivateFolder;
use crate::process::{EventKind, HeapEvent, HeapTotals, ProcessHeap};
use crate::resident::Resident;
use crate::sys::SharedRing;
use crate::wire::{self, HeapRecord, MAX_STACKS};

/// A stack of a ring. Its frames are written when an allocation needs them, whose time they get.
#[derive(Clone, Debug, Default)]
struct RingStack {
    calls: Option<Vec<VirtAddr>>,
    caller: Option<FrameId>,
    /// The last function that was called with this stack, and its site.
    site: Option<(u8, u32)>,
}

/// A ring and what was read from it.
struct RingReader {
    ring: SharedRing,
    position: u64,
    stacks: Vec<RingStack>,
    tid: u32,
    is_damaged: bool,
}

/// A program in a process.
struct ProcessImage {
    pid: u32,
    start_ns: u64,
    watched: Watched,
    rings: Vec<RingReader>,
    /// Events that are applied once no ring can contain earlier ones.
    pending: Vec<HeapEvent>,
    heap: ProcessHeap,
    resident: Resident,
    mapped: HashSet<(u64, u64, String)>,
    threads: BTreeMap<u32, Thread>,
    has_own_malloc: bool,
    program: String,
}

/// Losses of all processes.
#[derive(Debug, Default)]
struct RecorderLosses {
    full_rings: u64,
    unfollowed: u64,
    broken_stacks: u64,
    damaged_rings: u64,
    unreadable_rings: u64,
}

pub(crate) struct Recorder<'a> {
    folder: &'a PrivateFolder,
    writer: Writer,
    period: u64,
    start_ns: u64,
    images: Vec<ProcessImage>,
    stacks: Stacks,
    files: ProgramFiles,
    /// Number of sites so far, by process: an exec begins a new image of the same process.
    sites: HashMap<u32, u32>,
    totals: HeapTotals,
    losses: RecorderLosses,
    own_mallocs: Vec<String>,
    has_processes: bool,
}

impl<'a> Recorder<'a> {
    pub(crate) fn create(options: &Options, folder: &'a PrivateFolder) -> Result<Recorder<'a>> {
        let source = SourceFacts {
            kind: SourceKind::Malloc,
            settings: SourceSettings {
                heap_period: Some(options.period),
                ..SourceSettings::default()
            },
        };
        let manifest = new_manifest(source, options.command.clone(), "monotonic");
        Ok(Recorder {
            folder,
            writer: Writer::create(&options.output, manifest)?,
            period: options.period,
            start_ns: monotonic_ns(),
            images: Vec::new(),
            stacks: Stacks::new(),
            files: ProgramFiles::new(),
            sites: HashMap::default(),
            totals: HeapTotals::default(),
            losses: RecorderLosses::default(),
            own_mallocs: Vec::new(),
            has_processes: false,
        })
    }

    /// Reads all rings once, and applies the events that cannot be preceded by unread ones.
    pub(crate) fn read_round(&mut self) -> Result<()> {
        let horizon_ns = monotonic_ns();
        // Must come before new rings are added, so that all rings of an ended process are found.
        let ended: Vec<bool> = self.images.iter().map(|i| i.watched.ended()).collect();
        self.add_rings()?;
        for number in 0..self.images.len() {
            self.read_image(number)?;
            let now_ns = horizon_ns.saturating_sub(self.start_ns);
            let image = &mut self.images[number];
            image.apply_until(now_ns);
            image.resident.read(image.pid, now_ns);
        }
        for number in (0..ended.len()).rev() {
            let image = &self.images[number];
            let mut later = self.images[number + 1..].iter();
            let next = later.find(|other| other.pid == image.pid);
            let replaced_ns = next.map(|other| other.start_ns);
            if ended[number] || replaced_ns.is_some() {
                let image = self.images.remove(number);
                self.end_image(image, replaced_ns.unwrap_or(horizon_ns))?;
            }
        }
        Ok(())
    }

    /// Writes the rows of all processes. Processes that still run are no longer followed.
    pub(crate) fn end_processes(&mut self) -> Result<()> {
        self.add_rings()?;
        for number in 0..self.images.len() {
            self.read_image(number)?;
        }
        let end_ns = monotonic_ns();
        for image in std::mem::take(&mut self.images) {
            self.end_image(image, end_ns)?;
        }
        Ok(())
    }

    fn add_rings(&mut self) -> Result<()> {
        for path in self.folder.rings() {
            let ring = SharedRing::map(&path);
            // Nobody needs the name any more. If it stays, the ring would be read twice.
            std::fs::remove_file(&path)
                .map_err(|e| Error::system(format!("failed to remove `{}`", path.display()), e))?;
            let Ok(Some(ring)) = ring else {
                self.losses.unreadable_rings += 1;
                continue;
            };
            self.add_ring(ring)?;
        }
        Ok(())
    }

    fn add_ring(&mut self, ring: SharedRing) -> Result<()> {
        self.has_processes = true;
        let (pid, start_ns) = (ring.u32(wire::PID), ring.u64(wire::START_NS));
        let known = self
            .images
            .iter_mut()
            .position(|image| image.pid == pid && image.start_ns == start_ns);
        let number = match known {
            Some(number) => number,
            None => self.add_image(&ring)?,
        };
        self.images[number].rings.push(RingReader {
            ring,
            position: 0,
            stacks: vec![RingStack::default(); MAX_STACKS],
            tid: pid,
            is_damaged: false,
        });
        Ok(())
    }

    fn add_image(&mut self, ring: &SharedRing) -> Result<usize> {
        let (pid, start_ns) = (ring.u32(wire::PID), ring.u64(wire::START_NS));
        let program = ring.program();
        if self.sites.contains_key(&pid) || self.images.iter().any(|image| image.pid == pid) {
            self.stacks.forget(Pid(pid));
            self.writer.push(Module {
                pid: Pid(pid),
                time_ns: start_ns.saturating_sub(self.start_ns),
                path: Module::EXEC.to_owned(),
                ..Module::default()
            })?;
        }
        let main = Thread {
            pid: Pid(pid),
            tid: Tid(pid),
            parent_pid: Pid(ring.u32(wire::PARENT)),
            program: program.clone(),
            start_ns: start_ns.saturating_sub(self.start_ns),
            ..Thread::default()
        };
        self.images.push(ProcessImage {
            pid,
            start_ns,
            watched: Watched::new(pid),
            rings: Vec::new(),
            pending: Vec::new(),
            heap: ProcessHeap::new(self.period),
            resident: Resident::new(start_ns.saturating_sub(self.start_ns)),
            mapped: HashSet::new(),
            threads: [(pid, main)].into(),
            has_own_malloc: ring.u32(wire::HAS_OWN_MALLOC) != 0,
            program,
        });
        Ok(self.images.len() - 1)
    }

    fn read_image(&mut self, number: usize) -> Result<()> {
        let Recorder {
            writer,
            start_ns,
            images,
            stacks,
            files,
            ..
        } = self;
        let mut output = RecordOutput {
            writer,
            start_ns: *start_ns,
            stacks,
            files,
        };
        images[number].read(&mut output)
    }

    fn end_image(&mut self, mut image: ProcessImage, end_ns: u64) -> Result<()> {
        image.apply_until(u64::MAX);
        let pid = Pid(image.pid);
        let first_site = *self.sites.entry(image.pid).or_default();
        let rows = image.heap.rows(pid, first_site);
        self.sites.insert(image.pid, first_site + rows.len() as u32);
        self.writer.extend(rows)?;
        let end_ns = end_ns.saturating_sub(self.start_ns);
        let mut history = image.heap.history(pid, end_ns);
        image.resident.add_to(&mut history, pid, end_ns);
        let history = history.into_iter().map(|row| HeapUseRow {
            site: row.site.map(|site| site + first_site),
            ..row
        });
        self.writer.extend(history)?;
        self.writer.extend(image.heap.classes(pid))?;
        self.writer.extend(image.threads.into_values())?;
        self.totals.add(&image.heap.totals());
        for reader in &image.rings {
            self.losses.full_rings += reader.ring.u64(wire::LOST);
            self.losses.unfollowed += reader.ring.u64(wire::UNFOLLOWED);
            self.losses.broken_stacks += reader.ring.u64(wire::BROKEN);
            self.losses.damaged_rings += u64::from(reader.is_damaged);
        }
        if image.has_own_malloc && !self.own_mallocs.contains(&image.program) {
            self.own_mallocs.push(image.program);
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        Ok(self.writer.flush_due()?)
    }

    /// Notes for the user about the recording.
    pub(crate) fn notes(&self) -> Vec<String> {
        let own_mallocs = self.own_mallocs.iter().map(|program| {
            format!("`{program}` defines malloc itself: calls of its own code are not recorded")
        });
        let mut notes: Vec<String> = own_mallocs.collect();
        if !self.has_processes {
            notes.push(
                "the program did not load memgauge's library: it may be linked statically, \
                 set-user-ID, or without /proc; source emulate can record it"
                    .to_owned(),
            );
        }
        notes
    }

    fn losses(&self) -> Vec<Loss> {
        let losses = &self.losses;
        let all = [
            (
                LossKind::RingFull,
                losses.full_rings,
                "allocations and frees",
            ),
            (
                LossKind::NotKept,
                losses.unfollowed,
                "sampled allocations: too many sampled objects were in use at once; use a larger \
                 period (-c)",
            ),
            (LossKind::NotKept, losses.broken_stacks, BROKEN_STACKS),
            (LossKind::NotKept, self.stacks.cut, CUT),
            (
                LossKind::Unreadable,
                losses.damaged_rings,
                "rings from the first senseless record on",
            ),
            (
                LossKind::ThreadNotRecorded,
                losses.unreadable_rings,
                "rings that could not be mapped",
            ),
        ];
        let lost = all.into_iter().filter(|&(_, count, _)| count > 0);
        lost.map(|(kind, count, detail)| Loss {
            kind,
            count,
            detail: detail.to_owned(),
            ..Loss::default()
        })
        .collect()
    }

    pub(crate) fn finish(
        mut self,
        output: &Path,
        end: &CommandEnd,
        mut cost: OwnCost,
    ) -> Result<()> {
        let losses = self.losses();
        self.writer.extend(losses)?;
        self.writer.flush_so_far()?;
        let copied_bytes = self.files.finish(output, &mut self.writer)?;
        self.writer.flush_so_far()?;
        cost.recording_bytes = self.writer.bytes_written() + copied_bytes;
        let totals = self.totals;
        self.writer.finish(|manifest| {
            manifest.end = Some(end.clone());
            manifest.own_cost = cost;
            manifest.totals = heap_totals(&totals);
        })?;
        Ok(())
    }
}

fn heap_totals(heap: &HeapTotals) -> BTreeMap<String, u64> {
    let unusual = [
        ("heap.unknown_frees", heap.unknown_frees),
        ("heap.late_changes", heap.late_changes),
    ];
    let unusual = unusual.into_iter().filter(|&(_, count)| count > 0);
    let usual = [
        ("heap.allocations", heap.allocations.round() as u64),
        ("heap.peak_bytes", heap.peak_bytes),
        ("heap.unfreed_bytes", heap.live_bytes),
    ];
    let all = usual.into_iter().chain(unusual);
    all.map(|(name, count)| (name.to_owned(), count)).collect()
}

/// Destinations of the records of a ring.
struct RecordOutput<'a> {
    writer: &'a mut Writer,
    start_ns: u64,
    stacks: &'a mut Stacks,
    files: &'a mut ProgramFiles,
}

impl RecordOutput<'_> {
    /// Time since the start of the recording.
    fn time_ns(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_sub(self.start_ns)
    }
}

impl ProcessImage {
    fn read(&mut self, output: &mut RecordOutput<'_>) -> Result<()> {
        let mut rings = std::mem::take(&mut self.rings);
        let read = rings
            .iter_mut()
            .try_for_each(|reader| self.read_ring(reader, output));
        self.rings = rings;
        read
    }

    fn read_ring(&mut self, reader: &mut RingReader, output: &mut RecordOutput<'_>) -> Result<()> {
        let head = reader.ring.u64(wire::HEAD);
        let unread = head.wrapping_sub(reader.position);
        reader.is_damaged |= unread > reader.ring.words;
        let mut next = 0;
        while next < unread && !reader.is_damaged {
            let start = reader.position;
            let word = |distance: usize| {
                let at = next + distance as u64;
                (at < unread).then(|| reader.ring.at(start + at))
            };
            let decoded = word(0).and_then(|first| wire::decode(first, word));
            let Some((record, words)) = decoded else {
                reader.is_damaged = true;
                break;
            };
            next += words as u64;
            self.observe(record, reader, output)?;
        }
        // A damaged ring is skipped, so that the program does not wait for room.
        reader.position = head;
        reader.ring.set_tail(head);
        Ok(())
    }

    fn observe(
        &mut self,
        record: HeapRecord,
        reader: &mut RingReader,
        output: &mut RecordOutput<'_>,
    ) -> Result<()> {
        match record {
            HeapRecord::Allocated {
                function,
                stack,
                time_ns,
                address,
                bytes,
            } => {
                let time_ns = output.time_ns(time_ns);
                let stack = &mut reader.stacks[stack as usize];
                let site = self.site(stack, function, time_ns, output)?;
                self.pending.push(HeapEvent {
                    time_ns,
                    address,
                    kind: EventKind::Allocated { site, bytes },
                });
                self.note_thread(reader.tid, time_ns);
            }
            HeapRecord::Freed {
                is_temporary,
                time_ns,
                address,
            } => {
                let time_ns = output.time_ns(time_ns);
                self.pending.push(HeapEvent {
                    time_ns,
                    address,
                    kind: EventKind::Freed { is_temporary },
                });
                self.note_thread(reader.tid, time_ns);
            }
            HeapRecord::Stack { number, calls } => {
                reader.stacks[number as usize] = RingStack {
                    calls: Some(calls.into_iter().map(VirtAddr).collect()),
                    ..RingStack::default()
                };
            }
            HeapRecord::Mapping { time_ns, line } => {
                self.add_mapping(&line, output.time_ns(time_ns), output)?;
            }
            HeapRecord::Thread { tid, time_ns } => {
                let time_ns = output.time_ns(time_ns);
                reader.tid = tid;
                let parent_pid = self.threads.get(&self.pid).map(|main| main.parent_pid);
                self.threads.entry(tid).or_insert_with(|| Thread {
                    pid: Pid(self.pid),
                    tid: Tid(tid),
                    parent_pid: parent_pid.unwrap_or_default(),
                    program: self.program.clone(),
                    start_ns: time_ns,
                    ..Thread::default()
                });
                self.note_thread(tid, time_ns);
            }
        }
        Ok(())
    }

    fn site(
        &mut self,
        stack: &mut RingStack,
        function: u8,
        time_ns: u64,
        output: &mut RecordOutput<'_>,
    ) -> Result<u32> {
        if let Some((last, site)) = stack.site
            && last == function
        {
            return Ok(site);
        }
        if let Some(calls) = stack.calls.take() {
            let RecordOutput { stacks, writer, .. } = output;
            let process = (Pid(self.pid), time_ns);
            stack.caller = stacks.caller(process, &calls, |frame| writer.push(frame))?;
        }
        let site = self.heap.site(function, stack.caller);
        stack.site = Some((function, site));
        Ok(site)
    }

    fn note_thread(&mut self, tid: u32, time_ns: u64) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.end_ns = thread.end_ns.max(Some(time_ns));
        }
    }

    fn add_mapping(
        &mut self,
        line: &[u8],
        time_ns: u64,
        output: &mut RecordOutput<'_>,
    ) -> Result<()> {
        for mapping in maps::parse(line) {
            let key = (mapping.start, mapping.end, mapping.path.clone());
            if !self.mapped.insert(key) {
                continue;
            }
            let mut row = Module {
                pid: Pid(self.pid),
                time_ns,
                start: VirtAddr(mapping.start),
                end: VirtAddr(mapping.end),
                file_offset: mapping.file_offset,
                path: match mapping.path.as_str() {
                    "" => "[anon]".to_owned(),
                    path => path.to_owned(),
                },
                executable: mapping.executable,
                ..Module::default()
            };
            output.files.identify(&mut row);
            output.writer.push(row)?;
        }
        Ok(())
    }

    /// Applies the pending events up to a time, in their order.
    fn apply_until(&mut self, horizon_ns: u64) {
        self.pending.sort_by_key(|event| event.time_ns);
        let count = self
            .pending
            .partition_point(|event| event.time_ns < horizon_ns);
        for event in self.pending.drain(..count) {
            self.heap.apply(&event);
        }
    }
}
