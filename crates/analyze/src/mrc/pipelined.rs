//! The exact engine in two threads: one finds out when blocks were referenced
//! last, the other makes distances of it.
//!
//! Both see every reference once and in order, so the result is the same, count by
//! count, and no memory is needed twice. They meet only where the window of times
//! is full. Not tried: a piece of the stream for each thread. Each would need a table
//! of all blocks, and what one piece references first must be looked up in the piece
//! before.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::batch::{BATCH, Batch, Looked};
use super::exact::{Back, Front, Full, STAGES, Settings};
use super::histogram::Distances;
use super::sys::{self, Job, Operations, Vectors};

/// Batches that go over at once.
const GROUP: usize = 64;
/// Groups on the way.
const ON_THE_WAY: usize = 8;

enum Work {
    Batches(Vec<Looked>),
    /// The other thread needs the ranks for a moment, or for good.
    Lend,
}

/// The same as [`super::Exact`], on two processors.
#[derive(Debug)]
pub struct Pipelined {
    shift: u32,
    vectors: Vectors,
    front: Front,
    next: Box<Batch>,
    group: Vec<Looked>,
    work: SyncSender<Work>,
    lent: Receiver<Box<Back>>,
    back: SyncSender<Box<Back>>,
    thread: JoinHandle<()>,
}

impl Pipelined {
    /// An engine for blocks of so many bytes.
    ///
    /// # Panics
    /// As [`super::Exact::new`].
    pub fn new(block_bytes: u64, settings: Settings) -> Pipelined {
        assert!(block_bytes.is_power_of_two());
        assert!(Vectors::available().contains(&settings.vectors));
        let (work, to_do) = sync_channel(ON_THE_WAY);
        let (lend, lent) = sync_channel(1);
        let (back, returned) = sync_channel(1);
        let vectors = settings.vectors;
        let ranks = Box::new(Back::new(&settings));
        let thread =
            std::thread::spawn(move || count_all(vectors, ranks, &to_do, &lend, &returned));
        Pipelined {
            shift: block_bytes.trailing_zeros(),
            vectors,
            front: Front::new(&settings),
            next: Batch::empty(),
            group: Vec::with_capacity(GROUP),
            work,
            lent,
            back,
            thread,
        }
    }

    /// Takes in references, by address.
    ///
    /// # Errors
    /// [`Full`]; the engine cannot go on then.
    pub fn feed(&mut self, addresses: &[u64]) -> Result<(), Full> {
        sys::run(self.vectors, Feed(self, addresses))
    }

    #[inline(always)]
    fn run<O: Operations>(&mut self, addresses: &[u64]) -> Result<(), Full> {
        let mut rest = addresses;
        loop {
            let used = self.front.top.fill(rest, self.shift, &mut self.next);
            rest = &rest[used..];
            if self.next.len < BATCH {
                return Ok(());
            }
            self.advance::<O>()?;
        }
    }

    #[inline(always)]
    fn advance<O: Operations>(&mut self) -> Result<(), Full> {
        if self.front.must_compact() {
            self.compact()?;
        }
        self.front.advance::<O>(&mut self.next)?;
        self.group.push(self.front.looked);
        if self.group.len() == GROUP {
            self.send();
        }
        Ok(())
    }

    fn send(&mut self) {
        let group = std::mem::replace(&mut self.group, Vec::with_capacity(GROUP));
        let sent = self.work.send(Work::Batches(group));
        sent.expect("SANITY: the thread ends only when this sender is gone");
    }

    /// The other thread's half, once it has done all there is.
    fn borrow(&mut self) -> Box<Back> {
        self.send();
        let asked = self.work.send(Work::Lend);
        asked.expect("SANITY: the thread ends only when this sender is gone");
        self.lent.recv().expect("SANITY: it answers each request")
    }

    #[cold]
    fn compact(&mut self) -> Result<(), Full> {
        let mut back = self.borrow();
        self.front.compact(&mut back)?;
        let returned = self.back.send(back);
        returned.expect("SANITY: the thread waits for it");
        Ok(())
    }

    /// The distances of everything fed.
    ///
    /// # Errors
    /// [`Full`].
    pub fn finish(mut self) -> Result<Distances, Full> {
        (0..STAGES).try_for_each(|_| self.advance::<sys::Portable>())?;
        let mut back = self.borrow();
        let distances = back.take(&self.front.top.hits);
        drop((self.work, self.back));
        self.thread
            .join()
            .expect("SANITY: it has nothing left to do");
        Ok(distances)
    }
}

/// The other thread: counts until nobody sends any more.
fn count_all(
    vectors: Vectors,
    mut back: Box<Back>,
    to_do: &Receiver<Work>,
    lend: &SyncSender<Box<Back>>,
    returned: &Receiver<Box<Back>>,
) {
    for work in to_do {
        match work {
            Work::Batches(group) => sys::run(vectors, Count(&mut back, &group)),
            Work::Lend => {
                let lent = lend.send(back);
                let Some(again) = lent.ok().and_then(|()| returned.recv().ok()) else {
                    return;
                };
                back = again;
            }
        }
    }
}

struct Feed<'a>(&'a mut Pipelined, &'a [u64]);

impl Job for Feed<'_> {
    type Output = Result<(), Full>;

    #[inline(always)]
    fn run<O: Operations>(self) -> Result<(), Full> {
        self.0.run::<O>(self.1)
    }
}

struct Count<'a>(&'a mut Back, &'a [Looked]);

impl Job for Count<'_> {
    type Output = ();

    #[inline(always)]
    fn run<O: Operations>(self) {
        self.1.iter().for_each(|batch| self.0.count::<O>(batch));
    }
}
