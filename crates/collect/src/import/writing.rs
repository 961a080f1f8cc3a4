//! Writes rows in a thread of its own, while the next are read from the file.
//!
//! Encoding takes as long as parsing, so that an import with both in turn would
//! take twice as long. Loads of rows wait in a queue of fixed length: memory does
//! not grow where writing is slower than reading.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use memgauge_trace::recording::Writer;
use memgauge_trace::{Module, Sample, SampleRegister, SeriesRow};

use crate::{Error, ErrorKind, Result};

/// Rows that are handed over at once: some 360 KiB, which stay in a processor's
/// cache. Smaller loads cost more wake-ups, larger ones more new pages, each of which
/// takes microseconds on a virtual machine.
const LOAD_ROWS: usize = 1 << 12;
/// Loads that may wait.
const WAITING: usize = 3;

/// Rows of all tables that a large file fills.
#[derive(Default)]
struct Load {
    samples: Vec<Sample>,
    series: Vec<SeriesRow>,
    modules: Vec<Module>,
    registers: Vec<SampleRegister>,
}

impl Load {
    #[inline]
    fn is_full(&self) -> bool {
        let rows = self.samples.len() + self.series.len();
        rows + self.modules.len() + self.registers.len() >= LOAD_ROWS
    }

    /// Writes all rows, and is empty again.
    fn write(&mut self, writer: &mut Writer) -> memgauge_trace::Result<()> {
        writer.append(&self.samples)?;
        writer.append(&self.series)?;
        writer.append(&self.registers)?;
        writer.extend(self.modules.drain(..))?;
        self.samples.clear();
        self.series.clear();
        self.registers.clear();
        Ok(())
    }
}

type Written = memgauge_trace::Result<Writer>;

/// A thread that writes.
struct Hand {
    loads: SyncSender<Load>,
    /// Loads that are written, to be filled again.
    empty: Receiver<Load>,
    thread: JoinHandle<Written>,
}

/// Who writes.
enum State {
    /// Nobody yet: a small file never fills a load, and needs no thread.
    Waiting(Box<Writer>),
    /// A thread, through a queue.
    Thread(Hand),
    /// Nobody any more: it failed.
    Failed,
}

/// Takes rows; the recording is written behind it.
pub(super) struct Writing {
    load: Load,
    state: State,
}

/// Hands a writer over to a thread.
fn handed_over(mut writer: Writer) -> Hand {
    let (loads, full) = sync_channel::<Load>(WAITING);
    let (emptied, empty) = channel();
    let thread = std::thread::spawn(move || {
        for mut load in full {
            load.write(&mut writer)?;
            // Nobody fills it any more once all has been read.
            let _ = emptied.send(load);
        }
        // Here, where the memory for it is.
        writer.flush()?;
        Ok(writer)
    });
    Hand {
        loads,
        empty,
        thread,
    }
}

impl Writing {
    pub(super) fn new(writer: Writer) -> Writing {
        Writing {
            load: Load::default(),
            state: State::Waiting(Box::new(writer)),
        }
    }

    #[inline]
    pub(super) fn sample(&mut self, row: Sample) -> Result<()> {
        self.load.samples.push(row);
        self.added()
    }

    #[inline]
    pub(super) fn series(&mut self, row: SeriesRow) -> Result<()> {
        self.load.series.push(row);
        self.added()
    }

    pub(super) fn registers(&mut self, rows: impl Iterator<Item = SampleRegister>) -> Result<()> {
        self.load.registers.extend(rows);
        self.added()
    }

    pub(super) fn module(&mut self, row: Module) -> Result<()> {
        self.load.modules.push(row);
        self.added()
    }

    #[inline]
    fn added(&mut self) -> Result<()> {
        match self.load.is_full() {
            true => self.send(),
            false => Ok(()),
        }
    }

    /// Hands a full load over, the first to a new thread.
    fn send(&mut self) -> Result<()> {
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
    pub(super) fn finish(mut self) -> Result<Writer> {
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

fn joined(hand: Hand) -> Result<Writer> {
    drop(hand.loads);
    Ok(hand.thread.join().map_err(|_| failed())??)
}
