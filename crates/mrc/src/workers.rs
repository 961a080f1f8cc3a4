//! Threads that share the work on chunks.
//!
//! No thread has a task of its own: a free thread takes the next work there is, the
//! last stage first. So threads are equally busy whatever takes the most time in a
//! stream. One chunk of every part is looked up at a time, and one chunk is counted at
//! a time, each in the order of the stream. So results do not depend on which thread
//! does the work.

use std::sync::{Condvar, Mutex, MutexGuard};

use super::batch::{BATCH, Batch};
use super::chunk::{Chunk, ChunkBuilder, Head, NO_PANIC, Picked, Piece, lock};
use super::exact::{Back, Full, Settings};
use super::histogram::Distances;
use super::last_times::LastTimes;
use super::sys::{self, Job, Operations};
use super::table_part::{NARROW_BITS, TablePart};

/// Maximum number of chunks in progress.
const CHUNKS: u64 = 4;
/// Rounds that a thread with nothing to do looks for something before it sleeps,
/// and pauses of each: together about as long as a task.
const ROUNDS: u32 = 200;
const PAUSES: u32 = 32;
/// Batches whose home lines are on their way before the first of them is searched.
/// While one is looked up, no other work is done that a miss could hide behind.
const AHEAD: usize = 3;
/// Blocks whose renumbering is worth beginning a thread for.
const WORTH_A_THREAD: u32 = 1 << 16;

/// Progress of a stage: the number of chunks that it has finished, in their order, and whether
/// a thread works on one now.
#[derive(Clone, Copy, Debug, Default)]
struct Stage {
    done: u64,
    busy: bool,
}

/// Work to be done, and the threads that wait for it.
#[derive(Debug, Default)]
pub(super) struct WorkList {
    handed: u64,
    looked_up: Vec<Stage>,
    counted: Stage,
    ended: Option<Ended>,
    asleep: usize,
}

/// Why nothing more is done.
#[derive(Clone, Copy, Debug)]
enum Ended {
    /// A table has no room.
    Full,
    /// No thread wants more.
    Closed,
}

/// Work that a thread prefers. The caller leaves counting to others: its tables stay in
/// their caches, and what others wait for is done at once.
#[derive(Clone, Copy, Debug)]
enum Preference {
    Counting,
    LookingUp,
}

#[derive(Clone, Copy, Debug)]
enum Task {
    LookUp(u64, usize),
    Count(u64),
}

impl WorkList {
    /// Whether there is no room for another chunk.
    fn is_full(&self) -> bool {
        self.handed - self.counted.done == CHUNKS
    }

    /// Whether all that was handed over is counted.
    fn is_settled(&self) -> bool {
        self.handed == self.counted.done
    }

    /// Takes on a task, if there is one.
    fn take(&mut self, prefers: Preference) -> Option<Task> {
        match prefers {
            Preference::Counting => self.take_chunk().or_else(|| self.take_piece()),
            Preference::LookingUp => self.take_piece().or_else(|| self.take_chunk()),
        }
    }

    fn take_chunk(&mut self) -> Option<Task> {
        let ready = self.looked_up.iter().map(|part| part.done).min()?;
        if self.counted.busy || self.counted.done == ready {
            return None;
        }
        self.counted.busy = true;
        Some(Task::Count(self.counted.done))
    }

    fn take_piece(&mut self) -> Option<Task> {
        let parts = self.looked_up.iter_mut().enumerate();
        let open = parts.filter(|(_, part)| !part.busy && part.done < self.handed);
        let (number, part) = open.min_by_key(|(_, part)| part.done)?;
        part.busy = true;
        Some(Task::LookUp(part.done, number))
    }

    fn complete(&mut self, task: Task) {
        let stage = match task {
            Task::LookUp(_, part) => &mut self.looked_up[part],
            Task::Count(_) => &mut self.counted,
        };
        stage.busy = false;
        stage.done += 1;
    }
}

/// A table would take more memory than it may.
struct TableTooLarge;

/// Parts that the blocks are divided into, a power of two. There are enough for all
/// threads to find work next to one that counts, and no more, as each goes through the
/// whole chunk.
fn parts(threads: usize) -> usize {
    if threads > 2 { 4 } else { 2 }
}

/// Bytes that each of so many tables may take next to a window of so many slots.
fn share(settings: &Settings, window: u32, parts: usize) -> usize {
    settings.memory_bytes.saturating_sub(window as usize / 8) / parts
}

/// When the blocks of one part were pushed out, and batches on their way
/// through the table.
#[derive(Debug)]
struct Table {
    part: TablePart,
    times: LastTimes,
    picked: Picked,
    batches: [Box<Batch>; AHEAD + 2],
    /// Bytes it may take, with the counts of its distances.
    memory_bytes: usize,
}

impl Table {
    fn new(settings: &Settings, window: u32, part: TablePart, memory_bytes: usize) -> Table {
        Table {
            part,
            picked: Picked::default(),
            times: LastTimes::new(window, part, settings.advise),
            batches: std::array::from_fn(|_| Batch::empty()),
            memory_bytes,
        }
    }

    #[inline(always)]
    fn look_up<O: Operations>(
        &mut self,
        head: &Head,
        piece: &mut Piece,
    ) -> Result<(), TableTooLarge> {
        self.picked.pick::<O>(head, self.part, piece);
        let blocks = self.picked.blocks();
        let bits = blocks.iter().fold(0, |all, block| all | block);
        if self.times.is_narrow() && bits >> NARROW_BITS != 0 {
            self.times.widen();
        }
        let late = head.late().filter(|late| self.part.contains(late.0));
        late.for_each(|(block, time)| self.times.stamp_one(block, time));
        let batches = blocks.len().div_ceil(BATCH);
        for round in 0..=batches + AHEAD {
            if let Some(done) = round.checked_sub(AHEAD + 1) {
                self.finish::<O>(piece, done * BATCH)?;
            }
            self.times.search_homes::<O>(&mut self.batches[AHEAD]);
            self.begin(round * BATCH);
            self.batches.rotate_right(1);
        }
        self.batches.iter_mut().for_each(|batch| batch.len = 0);
        Ok(())
    }

    /// Takes the next batch, of the references from one on.
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

    /// Looks the oldest batch up.
    #[inline(always)]
    fn finish<O: Operations>(
        &mut self,
        piece: &mut Piece,
        from: usize,
    ) -> Result<(), TableTooLarge> {
        let batch = &mut *self.batches[AHEAD + 1];
        if self.times.is_full(batch.len) {
            let tables = self.times.bytes() + self.times.bytes_to_grow();
            if tables + self.times.blocks() * 5 > self.memory_bytes {
                return Err(TableTooLarge);
            }
            self.times.grow();
            self.times.search_homes::<sys::Portable>(batch);
        }
        self.times.probe_and_stamp::<O>(batch);
        piece.found(from, &batch.previous[..batch.len]);
        Ok(())
    }
}

/// All that threads share.
#[derive(Debug)]
pub(super) struct Workers {
    settings: Settings,
    books: Mutex<WorkList>,
    changed: Condvar,
    chunks: Vec<Chunk>,
    /// One for each part.
    tables: Vec<Mutex<Table>>,
    /// Makes distances of chunks.
    back: Mutex<Back>,
}

impl Workers {
    /// State that so many threads share.
    pub(super) fn new(settings: &Settings, window: u32, threads: usize) -> Workers {
        let parts = parts(threads);
        let memory_bytes = share(settings, window, parts);
        let table = |part| Mutex::new(Table::new(settings, window, part, memory_bytes));
        Workers {
            settings: *settings,
            books: Mutex::new(WorkList {
                looked_up: vec![Stage::default(); parts],
                ..WorkList::default()
            }),
            changed: Condvar::new(),
            chunks: (0..CHUNKS).map(|_| Chunk::new(parts)).collect(),
            tables: TablePart::all(parts).map(table).collect(),
            back: Mutex::new(Back::new(settings, window)),
        }
    }

    /// Loop of another thread: all work there is, until the end.
    pub(super) fn serve(&self) {
        let _alarm = Alarm(self);
        self.work(Preference::Counting, |_| false);
    }

    /// Takes a chunk that was filled over, and works until there is room for the next.
    pub(super) fn take_over(&self, draft: &mut ChunkBuilder) -> Result<(), Full> {
        let handed = lock(&self.books).handed;
        draft.hand_over(&self.chunks[(handed % CHUNKS) as usize]);
        lock(&self.books).handed += 1;
        self.changed();
        self.work(Preference::LookingUp, |books| !books.is_full());
        self.check()
    }

    /// Works until all is counted.
    fn settle(&self) -> Result<(), Full> {
        self.work(Preference::LookingUp, WorkList::is_settled);
        self.check()
    }

    fn check(&self) -> Result<(), Full> {
        let ended = lock(&self.books).ended;
        match ended {
            None => Ok(()),
            Some(Ended::Full) => Err(self.full()),
            Some(Ended::Closed) => panic!("another thread of the engine panicked"),
        }
    }

    fn full(&self) -> Full {
        Full {
            blocks: self.blocks(),
        }
    }

    /// Distinct blocks known.
    pub(super) fn blocks(&self) -> u64 {
        let blocks = self.tables.iter().map(|t| lock(t).times.blocks() as u64);
        blocks.sum()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let tables = self.tables.iter().map(|t| lock(t).times.bytes());
        tables.sum::<usize>() + lock(&self.back).bytes()
    }

    /// Counts since the last call, with hits at the top of the stack.
    pub(super) fn take(&self, hits: &[u64]) -> Result<Distances, Full> {
        self.settle()?;
        Ok(lock(&self.back).take(hits))
    }

    /// Renumbers all times, in a window with room for more; returns it and its first
    /// free slot.
    pub(super) fn compact(&self, first_window: u32) -> Result<(u32, u32), Full> {
        self.settle()?;
        let mut back = lock(&self.back);
        let window = back.next_window(first_window).ok_or_else(|| self.full())?;
        let ranks = back.ranks();
        let memory_bytes = share(&self.settings, window, self.tables.len());
        let renumber = |tables: &[Mutex<Table>]| {
            for table in tables {
                let table = &mut *lock(table);
                table.times.renumber(ranks, window);
                table.memory_bytes = memory_bytes;
            }
        };
        let (some, others) = self.tables.split_at(self.tables.len() / 2);
        if ranks.live() < WORTH_A_THREAD {
            renumber(some);
            renumber(others);
        } else {
            std::thread::scope(|scope| {
                scope.spawn(|| renumber(some));
                renumber(others);
            });
        }
        Ok((window, back.begin(window)))
    }

    /// Ends the work of all threads.
    pub(super) fn close(&self) {
        lock(&self.books).ended.get_or_insert(Ended::Closed);
        self.changed.notify_all();
    }

    /// Wakes those that wait for something to do.
    fn changed(&self) {
        if lock(&self.books).asleep > 0 {
            self.changed.notify_all();
        }
    }

    /// Does any work there is, until it is enough or all ended.
    fn work(&self, prefers: Preference, enough: impl Fn(&WorkList) -> bool) {
        while let Some(task) = self.next(prefers, &enough) {
            let done = sys::run(self.settings.vectors, Do(self, task));
            let mut books = lock(&self.books);
            books.complete(task);
            if done.is_err() {
                books.ended = Some(Ended::Full);
            }
            drop(books);
            self.changed();
        }
    }

    /// Waits for something to do, or until it is enough.
    fn next(&self, prefers: Preference, enough: &impl Fn(&WorkList) -> bool) -> Option<Task> {
        let mut books = lock(&self.books);
        for round in 0.. {
            if books.ended.is_some() || enough(&books) {
                return None;
            }
            if let Some(task) = books.take(prefers) {
                return Some(task);
            }
            if round < ROUNDS {
                drop(books);
                (0..PAUSES).for_each(|_| std::hint::spin_loop());
                books = lock(&self.books);
            } else {
                books = self.sleep(books);
            }
        }
        None
    }

    fn sleep<'a>(&self, mut books: MutexGuard<'a, WorkList>) -> MutexGuard<'a, WorkList> {
        books.asleep += 1;
        let woken = self.changed.wait(books);
        let mut books = woken.expect(NO_PANIC);
        books.asleep -= 1;
        books
    }

    #[inline(always)]
    fn run<O: Operations>(&self, task: Task) -> Result<(), TableTooLarge> {
        let chunk = |number: u64| &self.chunks[(number % CHUNKS) as usize];
        match task {
            Task::LookUp(number, part) => {
                let piece = &mut lock(&chunk(number).pieces[part]);
                lock(&self.tables[part]).look_up::<O>(&chunk(number).head(), piece)
            }
            Task::Count(number) => {
                let mut back = lock(&self.back);
                chunk(number).batches::<O>(|batch| back.count::<O>(batch));
                Ok(())
            }
        }
    }
}

/// Ends the work of all if its thread panics, so that no thread waits in vain.
struct Alarm<'a>(&'a Workers);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A task, compiled for each variant.
struct Do<'a>(&'a Workers, Task);

impl Job for Do<'_> {
    type Output = Result<(), TableTooLarge>;

    #[inline(always)]
    fn run<O: Operations>(self) -> Result<(), TableTooLarge> {
        self.0.run::<O>(self.1)
    }
}
