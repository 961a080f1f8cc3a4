//! Readers of samples.

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memgauge_live::sys::perf::{self, PollResult};

use crate::registry::{ReaderEntry, Registry, SHARED_QUEUE, SampledThread, wake};
use crate::ring::{DeliveryAccount, QUEUES};
use crate::sample::WORDS;
use crate::settings::Sharing;
use crate::{Error, ErrorKind, Result, Sample};

/// Number of samples copied at once.
const BATCH_SAMPLES: usize = 256;

/// Reads the samples of one thread or of all threads.
///
/// Its descriptor is readable when there may be samples.
pub struct Reader {
    registry: Arc<Registry>,
    number: u64,
    queue: usize,
    thread_number: Option<u64>,
    threads: Vec<Arc<SampledThread>>,
    generation: u64,
    /// Index of the thread to read first. It changes with each read, so that no thread is always
    /// read last.
    first_thread: usize,
    signal: UnixStream,
    wake_sender: UnixStream,
}

impl Reader {
    pub(crate) fn new(
        registry: &Arc<Registry>,
        thread_number: Option<u64>,
        sharing: Sharing,
    ) -> Result<Reader> {
        let failed = |e| Error::system("failed to open a reader", e);
        let (signal, wake_sender) = UnixStream::pair().map_err(failed)?;
        for end in [&signal, &wake_sender] {
            end.set_nonblocking(true).map_err(failed)?;
        }
        let mut state = registry.lock();
        let queue = match sharing {
            Sharing::Queue | Sharing::Batch => SHARED_QUEUE,
            Sharing::Each => {
                let is_taken = |queue: &usize| state.readers.iter().any(|s| s.queue == *queue);
                (1..QUEUES)
                    .find(|queue| !is_taken(queue))
                    .ok_or_else(too_many)?
            }
        };
        for thread in &state.threads {
            let is_read = thread_number.is_none_or(|number| number == thread.number);
            if (is_read || queue == SHARED_QUEUE) && !thread.ring.is_open(queue) {
                thread.ring.open(queue);
            }
        }
        state.shared |= queue == SHARED_QUEUE;
        let is_permanent = sharing != Sharing::Batch;
        let number = state.next_reader;
        state.next_reader += 1;
        state.readers.push(ReaderEntry {
            number,
            queue,
            is_permanent,
            thread_number,
            wake: wake_sender.try_clone().map_err(failed)?,
        });
        state.update_shared_queue();
        drop(state);
        // There may be samples from before.
        wake(&wake_sender);
        Ok(Reader {
            registry: Arc::clone(registry),
            number,
            queue,
            thread_number,
            threads: Vec::new(),
            generation: u64::MAX,
            first_thread: 0,
            signal,
            wake_sender,
        })
    }

    /// Appends up to `max` new samples to `into` and returns their number. Samples of one thread
    /// are in order; threads come one after another.
    pub fn read(&mut self, into: &mut Vec<Sample>, max: usize) -> usize {
        self.refresh();
        // Clear the signal first: samples that arrive from here on set it again.
        while matches!((&self.signal).read(&mut [0; 64]), Ok(64)) {}
        let previous_len = into.len();
        let threads = self.threads.len();
        let mut words = [[0u64; WORDS]; BATCH_SAMPLES];
        for at in 0..threads {
            let thread = &self.threads[(self.first_thread + at) % threads];
            loop {
                let room = max - (into.len() - previous_len);
                let n = thread
                    .ring
                    .read(self.queue, &mut words[..room.min(BATCH_SAMPLES)]);
                into.extend(words[..n].iter().map(Sample::unpacked));
                if n == 0 {
                    break;
                }
            }
        }
        self.first_thread = self.first_thread.wrapping_add(1) % threads.max(1);
        let count = into.len() - previous_len;
        if count == max && max > 0 {
            wake(&self.wake_sender);
        }
        count
    }

    /// Waits until there may be samples. Returns false after `timeout`.
    pub fn wait(&self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
            if perf::wait(&[self.signal.as_raw_fd()], ms)[0] != PollResult::NotReady {
                return true;
            }
            if left < Duration::from_millis(1) {
                return false;
            }
        }
    }

    /// Returns what happened to each thread's samples as seen by this reader, by thread ID.
    pub fn accounts(&mut self) -> HashMap<u32, DeliveryAccount> {
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
        let state = self.registry.lock();
        let all = state.threads.iter();
        let mine = all.filter(|t| self.thread_number.is_none_or(|number| number == t.number));
        self.threads = mine.cloned().collect();
    }
}

fn too_many() -> Error {
    let message = format!(
        "failed to open a reader: there are already {} readers of all samples; share a queue, or \
         close one",
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
        let mut state = self.registry.lock();
        state.readers.retain(|reader| reader.number != self.number);
        if self.queue != SHARED_QUEUE {
            for thread in &state.threads {
                thread.ring.close(self.queue);
            }
        }
        state.update_shared_queue();
    }
}
