//! Threads that share the work on chunks.
//!
//! Threads have no fixed task. A free thread takes the next task, usually of the last stage first,
//! so all threads are equally busy whichever stage takes most of the time. At most one chunk of
//! each part is looked up at a time and at most one chunk is counted, both in stream order. The
//! results therefore do not depend on which thread does the work.

use std::sync::{Condvar, Mutex, MutexGuard};

use super::batch::{BATCH, Batch};
use super::chunk::{
    Chunk, ChunkBuilder, ChunkReferences, NO_PANIC, PartReferences, PartResults, lock,
};
use super::exact::{CountStage, Full, Settings};
use super::histogram::Distances;
use super::last_times::LastTimes;
use super::sys::{self, Job, Operations};
use super::table_part::{NARROW_BITS, TablePart};

/// Maximum number of chunks in progress.
const MAX_CHUNKS: u64 = 4;
/// Number of rounds in which an idle thread checks for work before it sleeps, and of spin-loop
/// pauses per round. The product is about as long as a task.
const SPIN_ROUNDS: u32 = 200;
const PAUSES_PER_ROUND: u32 = 32;
/// Number of batches prefetched before the first of them is searched. Looking up has no other work
/// to hide cache misses behind.
const PREFETCHED_BATCHES: usize = 3;
/// Minimum number of blocks for which renumbering starts a thread.
const MIN_BLOCKS_FOR_THREAD: u32 = 1 << 16;

/// Progress of a stage: the number of finished chunks, and whether a thread works on one now.
#[derive(Clone, Copy, Debug, Default)]
struct Stage {
    done: u64,
    busy: bool,
}

/// State of all tasks, and the number of threads that wait for one.
#[derive(Debug, Default)]
pub(super) struct WorkList {
    submitted: u64,
    looked_up: Vec<Stage>,
    counted: Stage,
    stopped: Option<StopReason>,
    sleeping_threads: usize,
}

/// Reason why the threads stop.
#[derive(Clone, Copy, Debug)]
enum StopReason {
    /// A table reached its memory limit.
    Full,
    /// The engine was dropped, or a thread panicked.
    Closed,
}

/// Kind of task that a thread prefers. The caller's thread prefers looking up: the other threads
/// keep the counting tables in their caches, and chunks become available to them sooner.
#[derive(Clone, Copy, Debug)]
enum Preference {
    Counting,
    LookingUp,
}

#[derive(Clone, Copy, Debug)]
enum WorkerTask {
    LookUp(u64, usize),
    Count(u64),
}

impl WorkList {
    /// Returns whether another chunk must wait.
    fn is_full(&self) -> bool {
        self.submitted - self.counted.done == MAX_CHUNKS
    }

    /// Returns whether all submitted chunks are counted.
    fn is_settled(&self) -> bool {
        self.submitted == self.counted.done
    }

    /// Returns a task and marks it as in progress.
    fn take_task(&mut self, prefers: Preference) -> Option<WorkerTask> {
        match prefers {
            Preference::Counting => self.take_count().or_else(|| self.take_lookup()),
            Preference::LookingUp => self.take_lookup().or_else(|| self.take_count()),
        }
    }

    fn take_count(&mut self) -> Option<WorkerTask> {
        let ready = self.looked_up.iter().map(|part| part.done).min()?;
        if self.counted.busy || self.counted.done == ready {
            return None;
        }
        self.counted.busy = true;
        Some(WorkerTask::Count(self.counted.done))
    }

    fn take_lookup(&mut self) -> Option<WorkerTask> {
        let parts = self.looked_up.iter_mut().enumerate();
        let open = parts.filter(|(_, part)| !part.busy && part.done < self.submitted);
        let (number, part) = open.min_by_key(|(_, part)| part.done)?;
        part.busy = true;
        Some(WorkerTask::LookUp(part.done, number))
    }

    fn complete(&mut self, task: WorkerTask) {
        let stage = match task {
            WorkerTask::LookUp(_, part) => &mut self.looked_up[part],
            WorkerTask::Count(_) => &mut self.counted,
        };
        stage.busy = false;
        stage.done += 1;
    }
}

/// Error: a table would exceed its memory limit.
struct TableTooLarge;

/// Number of parts into which the blocks are divided, a power of two. It is large enough that every
/// thread finds work while one counts. It is not larger, because looking up a part reads the whole
/// chunk.
fn part_count(threads: usize) -> usize {
    if threads > 2 { 4 } else { 2 }
}

/// Maximum size of each table in bytes, for a window of `window` slots.
fn max_table_bytes(settings: &Settings, window: u32, parts: usize) -> usize {
    settings.memory_bytes.saturating_sub(window as usize / 8) / parts
}

/// The table of one part, and the batches being looked up in it.
#[derive(Debug)]
struct PartTable {
    part: TablePart,
    times: LastTimes,
    picked: PartReferences,
    batches: [Box<Batch>; PREFETCHED_BATCHES + 2],
    /// Maximum size in bytes, including the counts of its distances.
    memory_bytes: usize,
}

impl PartTable {
    fn new(settings: &Settings, window: u32, part: TablePart, memory_bytes: usize) -> PartTable {
        PartTable {
            part,
            picked: PartReferences::default(),
            times: LastTimes::new(window, part, settings.advise),
            batches: std::array::from_fn(|_| Batch::empty()),
            memory_bytes,
        }
    }

    #[inline(always)]
    fn look_up<O: Operations>(
        &mut self,
        head: &ChunkReferences,
        piece: &mut PartResults,
    ) -> Result<(), TableTooLarge> {
        self.picked.pick::<O>(head, self.part, piece);
        let blocks = self.picked.blocks();
        let bits = blocks.iter().fold(0, |all, block| all | block);
        if self.times.is_narrow() && bits >> NARROW_BITS != 0 {
            self.times.widen();
        }
        let late = head
            .late_evictions()
            .filter(|late| self.part.contains(late.0));
        late.for_each(|(block, time)| self.times.stamp_one(block, time));
        let batches = blocks.len().div_ceil(BATCH);
        for round in 0..=batches + PREFETCHED_BATCHES {
            if let Some(done) = round.checked_sub(PREFETCHED_BATCHES + 1) {
                self.finish::<O>(piece, done * BATCH)?;
            }
            self.times
                .search_homes::<O>(&mut self.batches[PREFETCHED_BATCHES]);
            self.begin(round * BATCH);
            self.batches.rotate_right(1);
        }
        self.batches.iter_mut().for_each(|batch| batch.len = 0);
        Ok(())
    }

    /// Starts the batch of references from number `from` on.
    #[inline(always)]
    fn begin(&mut self, from: usize) {
        let batch = &mut *self.batches[0];
        let (blocks, pushed) = (self.picked.blocks(), self.picked.pushed());
        let range = from.min(blocks.len())..(from + BATCH).min(blocks.len());
        batch.len = range.len();
        batch.blocks[..range.len()].copy_from_slice(&blocks[range.clone()]);
        batch.pushed[..range.len()].copy_from_slice(&pushed[range]);
        self.times.fetch_early(batch);
    }

    /// Looks up the oldest batch.
    #[inline(always)]
    fn finish<O: Operations>(
        &mut self,
        piece: &mut PartResults,
        from: usize,
    ) -> Result<(), TableTooLarge> {
        let batch = &mut *self.batches[PREFETCHED_BATCHES + 1];
        if self.times.is_full(batch.len) {
            let tables = self.times.bytes() + self.times.bytes_to_grow();
            if tables + self.times.blocks() * 5 > self.memory_bytes {
                return Err(TableTooLarge);
            }
            self.times.grow();
            self.times.search_homes::<sys::Portable>(batch);
        }
        self.times.probe_and_stamp::<O>(batch);
        piece.store_previous(from, &batch.previous[..batch.len]);
        Ok(())
    }
}

/// State that all threads share.
#[derive(Debug)]
pub(super) struct Workers {
    settings: Settings,
    work_list: Mutex<WorkList>,
    changed: Condvar,
    chunks: Vec<Chunk>,
    /// One table per part.
    tables: Vec<Mutex<PartTable>>,
    /// Counts the distances of chunks.
    count_stage: Mutex<CountStage>,
}

impl Workers {
    /// Creates the state for `threads` threads.
    pub(super) fn new(settings: &Settings, window: u32, threads: usize) -> Workers {
        let parts = part_count(threads);
        let memory_bytes = max_table_bytes(settings, window, parts);
        let table = |part| Mutex::new(PartTable::new(settings, window, part, memory_bytes));
        Workers {
            settings: *settings,
            work_list: Mutex::new(WorkList {
                looked_up: vec![Stage::default(); parts],
                ..WorkList::default()
            }),
            changed: Condvar::new(),
            chunks: (0..MAX_CHUNKS).map(|_| Chunk::new(parts)).collect(),
            tables: TablePart::all(parts).map(table).collect(),
            count_stage: Mutex::new(CountStage::new(settings, window)),
        }
    }

    /// Main function of a helper thread. Returns when the engine stops.
    pub(super) fn run_helper(&self) {
        let _stop_on_panic = StopOnPanic(self);
        self.run_tasks(Preference::Counting, |_| false);
    }

    /// Submits a full chunk, and works until there is room for the next.
    pub(super) fn submit(&self, draft: &mut ChunkBuilder) -> Result<(), Full> {
        let submitted = lock(&self.work_list).submitted;
        draft.hand_over(&self.chunks[(submitted % MAX_CHUNKS) as usize]);
        lock(&self.work_list).submitted += 1;
        self.wake_threads();
        self.run_tasks(Preference::LookingUp, |work_list| !work_list.is_full());
        self.check()
    }

    /// Works until all submitted chunks are counted.
    fn wait_until_counted(&self) -> Result<(), Full> {
        self.run_tasks(Preference::LookingUp, WorkList::is_settled);
        self.check()
    }

    fn check(&self) -> Result<(), Full> {
        let stopped = lock(&self.work_list).stopped;
        match stopped {
            None => Ok(()),
            Some(StopReason::Full) => Err(self.full()),
            Some(StopReason::Closed) => panic!("another thread of the engine panicked"),
        }
    }

    fn full(&self) -> Full {
        Full {
            blocks: self.blocks(),
        }
    }

    /// Number of distinct blocks.
    pub(super) fn blocks(&self) -> u64 {
        let blocks = self.tables.iter().map(|t| lock(t).times.blocks() as u64);
        blocks.sum()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let tables = self.tables.iter().map(|t| lock(t).times.bytes());
        tables.sum::<usize>() + lock(&self.count_stage).bytes()
    }

    /// Returns the counts since the last call. `hits` are the references found at the top of the
    /// stack.
    pub(super) fn take_distances(&self, hits: &[u64]) -> Result<Distances, Full> {
        self.wait_until_counted()?;
        Ok(lock(&self.count_stage).take_distances(hits))
    }

    /// Renumbers all times, in a window with more slots. Returns the window and its first free
    /// slot.
    pub(super) fn compact(&self, first_window: u32) -> Result<(u32, u32), Full> {
        self.wait_until_counted()?;
        let mut count_stage = lock(&self.count_stage);
        let window = count_stage
            .next_window(first_window)
            .ok_or_else(|| self.full())?;
        let ranks = count_stage.ranks();
        let memory_bytes = max_table_bytes(&self.settings, window, self.tables.len());
        let renumber = |tables: &[Mutex<PartTable>]| {
            for table in tables {
                let table = &mut *lock(table);
                table.times.renumber(ranks, window);
                table.memory_bytes = memory_bytes;
            }
        };
        let (some, others) = self.tables.split_at(self.tables.len() / 2);
        if ranks.live() < MIN_BLOCKS_FOR_THREAD {
            renumber(some);
            renumber(others);
        } else {
            std::thread::scope(|scope| {
                scope.spawn(|| renumber(some));
                renumber(others);
            });
        }
        Ok((window, count_stage.begin(window)))
    }

    /// Stops all threads.
    pub(super) fn close(&self) {
        lock(&self.work_list)
            .stopped
            .get_or_insert(StopReason::Closed);
        self.changed.notify_all();
    }

    /// Wakes threads that wait for a task.
    fn wake_threads(&self) {
        if lock(&self.work_list).sleeping_threads > 0 {
            self.changed.notify_all();
        }
    }

    /// Runs tasks until `enough` is true or the engine stops.
    fn run_tasks(&self, prefers: Preference, enough: impl Fn(&WorkList) -> bool) {
        while let Some(task) = self.next_task(prefers, &enough) {
            let done = sys::run(self.settings.vectors, RunTask(self, task));
            let mut work_list = lock(&self.work_list);
            work_list.complete(task);
            if done.is_err() {
                work_list.stopped = Some(StopReason::Full);
            }
            drop(work_list);
            self.wake_threads();
        }
    }

    /// Waits for a task. Returns `None` if `enough` is true or the engine stops.
    fn next_task(
        &self,
        prefers: Preference,
        enough: &impl Fn(&WorkList) -> bool,
    ) -> Option<WorkerTask> {
        let mut work_list = lock(&self.work_list);
        for round in 0.. {
            if work_list.stopped.is_some() || enough(&work_list) {
                return None;
            }
            if let Some(task) = work_list.take_task(prefers) {
                return Some(task);
            }
            if round < SPIN_ROUNDS {
                drop(work_list);
                (0..PAUSES_PER_ROUND).for_each(|_| std::hint::spin_loop());
                work_list = lock(&self.work_list);
            } else {
                work_list = self.sleep(work_list);
            }
        }
        None
    }

    fn sleep<'a>(&self, mut work_list: MutexGuard<'a, WorkList>) -> MutexGuard<'a, WorkList> {
        work_list.sleeping_threads += 1;
        let woken = self.changed.wait(work_list);
        let mut work_list = woken.expect(NO_PANIC);
        work_list.sleeping_threads -= 1;
        work_list
    }

    #[inline(always)]
    fn run<O: Operations>(&self, task: WorkerTask) -> Result<(), TableTooLarge> {
        let chunk = |number: u64| &self.chunks[(number % MAX_CHUNKS) as usize];
        match task {
            WorkerTask::LookUp(number, part) => {
                let piece = &mut lock(&chunk(number).pieces[part]);
                lock(&self.tables[part]).look_up::<O>(&chunk(number).head(), piece)
            }
            WorkerTask::Count(number) => {
                let mut count_stage = lock(&self.count_stage);
                chunk(number).for_each_batch::<O>(|batch| count_stage.count::<O>(batch));
                Ok(())
            }
        }
    }
}

/// Stops all threads if its thread panics, since the others would wait for it forever.
struct StopOnPanic<'a>(&'a Workers);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A task, compiled for each instruction set.
struct RunTask<'a>(&'a Workers, WorkerTask);

impl Job for RunTask<'_> {
    type Output = Result<(), TableTooLarge>;

    #[inline(always)]
    fn run<O: Operations>(self) -> Result<(), TableTooLarge> {
        self.0.run::<O>(self.1)
    }
}
