//! Readers of samples.

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memgauge_live::sys::perf::{self, Said};

use crate::registry::{Registry, SHARED_QUEUE, SampledThread, Seat, wake};
use crate::ring::{Account, QUEUES};
use crate::sample::WORDS;
use crate::settings::Sharing;
use crate::{Error, ErrorKind, Result, Sample};

/// Samples copied at once.
const AT_ONCE: usize = 256;

/// Reads samples of one thread or of all.
///
/// Its descriptor is readable while samples may wait.
pub struct Reader {
    registry: Arc<Registry>,
    number: u64,
    queue: usize,
    only: Option<u64>,
    threads: Vec<Arc<SampledThread>>,
    generation: u64,
    /// The thread to read first, so that none is always last.
    turn: usize,
    signal: UnixStream,
    own_wake: UnixStream,
}

impl Reader {
    pub(crate) fn new(
        registry: &Arc<Registry>,
        only: Option<u64>,
        sharing: Sharing,
    ) -> Result<Reader> {
        let failed = |e| Error::system("failed to open a reader", e);
        let (signal, own_wake) = UnixStream::pair().map_err(failed)?;
        for end in [&signal, &own_wake] {
            end.set_nonblocking(true).map_err(failed)?;
        }
        let mut seats = registry.seats();
        let queue = match sharing {
            Sharing::Queue | Sharing::Batch => SHARED_QUEUE,
            Sharing::Each => {
                let taken = |queue: &usize| seats.readers.iter().any(|s| s.queue == *queue);
                (1..QUEUES)
                    .find(|queue| !taken(queue))
                    .ok_or_else(too_many)?
            }
        };
        for thread in &seats.threads {
            let read = only.is_none_or(|number| number == thread.number);
            if (read || queue == SHARED_QUEUE) && !thread.ring.is_open(queue) {
                thread.ring.open(queue);
            }
        }
        seats.shared |= queue == SHARED_QUEUE;
        let lasts = sharing != Sharing::Batch;
        let number = seats.next_reader;
        seats.next_reader += 1;
        seats.readers.push(Seat {
            number,
            queue,
            lasts,
            only,
            wake: own_wake.try_clone().map_err(failed)?,
        });
        seats.settle_shared();
        drop(seats);
        // There may be samples from before.
        wake(&own_wake);
        Ok(Reader {
            registry: Arc::clone(registry),
            number,
            queue,
            only,
            threads: Vec::new(),
            generation: u64::MAX,
            turn: 0,
            signal,
            own_wake,
        })
    }

    /// Appends samples that were taken since, at most `most`; returns how many. Samples
    /// of one thread come in their order; threads come one after the other.
    pub fn read(&mut self, into: &mut Vec<Sample>, most: usize) -> usize {
        self.refresh();
        // Whatever comes from here on makes the descriptor readable again.
        while matches!((&self.signal).read(&mut [0; 64]), Ok(64)) {}
        let before = into.len();
        let threads = self.threads.len();
        let mut words = [[0u64; WORDS]; AT_ONCE];
        for at in 0..threads {
            let thread = &self.threads[(self.turn + at) % threads];
            loop {
                let room = most - (into.len() - before);
                let n = thread
                    .ring
                    .read(self.queue, &mut words[..room.min(AT_ONCE)]);
                into.extend(words[..n].iter().map(Sample::unpacked));
                if n == 0 {
                    break;
                }
            }
        }
        self.turn = self.turn.wrapping_add(1) % threads.max(1);
        let taken = into.len() - before;
        if taken == most && most > 0 {
            wake(&self.own_wake);
        }
        taken
    }

    /// Waits until samples may be there; false where the time has passed.
    pub fn wait(&self, longest: Duration) -> bool {
        let end = Instant::now() + longest;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
            if perf::wait(&[self.signal.as_raw_fd()], ms)[0] != Said::Nothing {
                return true;
            }
            if left < Duration::from_millis(1) {
                return false;
            }
        }
    }

    /// What became of each thread's samples, as this reader sees it, by thread.
    pub fn accounts(&mut self) -> HashMap<u32, Account> {
        self.refresh();
        let all = self.threads.iter();
        all.map(|t| (t.tid(), t.ring.account(self.queue))).collect()
    }

    fn refresh(&mut self) {
        let now = self.registry.generation.load(Ordering::Acquire);
        if now == self.generation {
            return;
        }
        self.generation = now;
        let seats = self.registry.seats();
        let all = seats.threads.iter();
        let mine = all.filter(|t| self.only.is_none_or(|number| number == t.number));
        self.threads = mine.cloned().collect();
    }
}

fn too_many() -> Error {
    let message = format!(
        "failed to open a reader: {} read all samples already: share a queue, or close one",
        QUEUES - 1
    );
    Error::new(ErrorKind::Usage, message)
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut seats = self.registry.seats();
        seats.readers.retain(|seat| seat.number != self.number);
        if self.queue != SHARED_QUEUE {
            for thread in &seats.threads {
                thread.ring.close(self.queue);
            }
        }
        seats.settle_shared();
    }
}
