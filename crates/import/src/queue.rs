//! Rows on their way to a thread that writes them.
//!
//! Loads of rows wait in a queue of fixed length: memory does not grow where writing is
//! slower than reading. Rows that never fill a load are written where they were made: a
//! small file needs no thread.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use crate::{Error, ErrorKind, Result};

/// Loads that may wait.
const WAITING: usize = 3;

type Written<W> = memgauge_recording::Result<W>;

/// Rows that are handed over at once.
pub(super) trait Load: Default + Send + 'static {
    /// The writer of the rows.
    type Writer: Send + 'static;

    /// Writes all rows, and is empty again.
    fn write(&mut self, writer: &mut Self::Writer) -> memgauge_recording::Result<()>;

    /// Completes what is written, in the thread where the memory for it is.
    fn flush(writer: &mut Self::Writer) -> memgauge_recording::Result<()>;
}

/// A thread that writes.
struct WriterThread<L: Load> {
    loads: SyncSender<L>,
    /// Loads that are written, to be filled again.
    empty: Receiver<L>,
    thread: JoinHandle<Written<L::Writer>>,
}

/// Who writes.
enum State<L: Load> {
    /// No writer yet.
    Waiting(Box<L::Writer>),
    /// A thread, through a queue.
    Thread(WriterThread<L>),
    /// The writer failed.
    Failed,
}

/// A load that is being filled, and who writes it.
pub(super) struct Queue<L: Load> {
    pub(super) load: L,
    state: State<L>,
}

/// Hands a writer over to a thread.
fn handed_over<L: Load>(mut writer: L::Writer) -> WriterThread<L> {
    let (loads, full) = sync_channel::<L>(WAITING);
    let (emptied, empty) = channel();
    let thread = std::thread::spawn(move || {
        for mut load in full {
            load.write(&mut writer)?;
            // No rows follow once all has been read.
            let _ = emptied.send(load);
        }
        L::flush(&mut writer)?;
        Ok(writer)
    });
    WriterThread {
        loads,
        empty,
        thread,
    }
}

impl<L: Load> Queue<L> {
    pub(super) fn new(writer: L::Writer) -> Queue<L> {
        Queue {
            load: L::default(),
            state: State::Waiting(Box::new(writer)),
        }
    }

    /// Hands a full load over, the first to a new thread.
    pub(super) fn send(&mut self) -> Result<()> {
        let hand = match std::mem::replace(&mut self.state, State::Failed) {
            State::Waiting(writer) => handed_over(*writer),
            State::Thread(hand) => hand,
            State::Failed => return Err(failed()),
        };
        let next = hand.empty.try_recv().unwrap_or_default();
        let full = std::mem::replace(&mut self.load, next);
        if hand.loads.send(full).is_err() {
            // The other end is gone: the writer has failed, and says why.
            return joined(hand).map(drop);
        }
        self.state = State::Thread(hand);
        Ok(())
    }

    /// Everything has been handed over: waits until it is written.
    pub(super) fn finish(mut self) -> Result<L::Writer> {
        match self.state {
            State::Waiting(mut writer) => {
                self.load.write(&mut writer)?;
                Ok(*writer)
            }
            State::Thread(hand) => {
                // Where the thread is gone, it says why when it is joined.
                let _ = hand.loads.send(self.load);
                joined(hand)
            }
            State::Failed => Err(failed()),
        }
    }
}

fn failed() -> Error {
    Error::new(ErrorKind::Recording, "failed to write the recording")
}

fn joined<L: Load>(hand: WriterThread<L>) -> Result<L::Writer> {
    drop(hand.loads);
    Ok(hand.thread.join().map_err(|_| failed())??)
}
