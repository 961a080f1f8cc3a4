//! Writes rows in a thread of its own, while the next are read from the file.
//!
//! Encoding takes as long as parsing, so that an import with both in turn would
//! take twice as long. Batches wait in a queue of fixed length: memory does not
//! grow where writing is slower than reading.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use memgauge_trace::recording::Writer;
use memgauge_trace::{Module, Sample, SampleRegister, SeriesRow};

use crate::{Error, ErrorKind, Result};

/// Rows of one table that are handed over at once.
const BATCH_ROWS: usize = 4096;
/// Batches that may wait.
const WAITING: usize = 8;

enum Batch {
    Samples(Vec<Sample>),
    Series(Vec<SeriesRow>),
    Modules(Vec<Module>),
    Registers(Vec<SampleRegister>),
}

type Written = memgauge_trace::Result<Writer>;

/// Who writes.
enum State {
    /// Nobody yet: a small file never fills a batch, and needs no thread.
    Waiting(Box<Writer>),
    /// A thread, through a queue.
    Thread(SyncSender<Batch>, JoinHandle<Written>),
    /// Nobody any more: it failed.
    Failed,
}

/// Takes rows; the recording is written behind it.
pub(super) struct Writing {
    samples: Vec<Sample>,
    series: Vec<SeriesRow>,
    modules: Vec<Module>,
    registers: Vec<SampleRegister>,
    state: State,
}

fn write(writer: &mut Writer, batch: Batch) -> memgauge_trace::Result<()> {
    match batch {
        Batch::Samples(rows) => writer.extend(rows),
        Batch::Series(rows) => writer.extend(rows),
        Batch::Modules(rows) => writer.extend(rows),
        Batch::Registers(rows) => writer.extend(rows),
    }
}

/// Hands a writer over to a thread.
fn handed_over(mut writer: Writer) -> State {
    let (queue, batches) = sync_channel(WAITING);
    let thread = std::thread::spawn(move || {
        for batch in batches {
            write(&mut writer, batch)?;
        }
        Ok(writer)
    });
    State::Thread(queue, thread)
}

impl Writing {
    pub(super) fn new(writer: Writer) -> Writing {
        Writing {
            samples: Vec::new(),
            series: Vec::new(),
            modules: Vec::new(),
            registers: Vec::new(),
            state: State::Waiting(Box::new(writer)),
        }
    }

    #[inline]
    pub(super) fn sample(&mut self, row: Sample) -> Result<()> {
        self.samples.push(row);
        match self.samples.len() >= BATCH_ROWS {
            true => {
                let next = Vec::with_capacity(BATCH_ROWS);
                let full = std::mem::replace(&mut self.samples, next);
                self.send(Batch::Samples(full))
            }
            false => Ok(()),
        }
    }

    pub(super) fn series(&mut self, row: SeriesRow) -> Result<()> {
        self.series.push(row);
        match self.series.len() >= BATCH_ROWS {
            true => {
                let full = std::mem::take(&mut self.series);
                self.send(Batch::Series(full))
            }
            false => Ok(()),
        }
    }

    pub(super) fn registers(&mut self, rows: impl Iterator<Item = SampleRegister>) -> Result<()> {
        self.registers.extend(rows);
        match self.registers.len() >= BATCH_ROWS {
            true => {
                let full = std::mem::take(&mut self.registers);
                self.send(Batch::Registers(full))
            }
            false => Ok(()),
        }
    }

    pub(super) fn module(&mut self, row: Module) -> Result<()> {
        self.modules.push(row);
        match self.modules.len() >= BATCH_ROWS {
            true => {
                let full = std::mem::take(&mut self.modules);
                self.send(Batch::Modules(full))
            }
            false => Ok(()),
        }
    }

    /// Hands a full batch over, the first to a new thread.
    fn send(&mut self, batch: Batch) -> Result<()> {
        let state = match std::mem::replace(&mut self.state, State::Failed) {
            State::Waiting(writer) => handed_over(*writer),
            state => state,
        };
        let State::Thread(queue, thread) = state else {
            return Err(failed());
        };
        if queue.send(batch).is_ok() {
            self.state = State::Thread(queue, thread);
            return Ok(());
        }
        // The other end is gone: the writer has failed, and says why.
        drop(queue);
        joined(thread).map(drop)
    }

    /// Everything has been handed over: waits until it is written.
    pub(super) fn finish(mut self) -> Result<Writer> {
        let mut writer = match self.state {
            State::Waiting(writer) => *writer,
            State::Thread(queue, thread) => {
                drop(queue);
                joined(thread)?
            }
            State::Failed => return Err(failed()),
        };
        let last = [
            Batch::Samples(std::mem::take(&mut self.samples)),
            Batch::Series(std::mem::take(&mut self.series)),
            Batch::Modules(std::mem::take(&mut self.modules)),
            Batch::Registers(std::mem::take(&mut self.registers)),
        ];
        for batch in last {
            write(&mut writer, batch)?;
        }
        Ok(writer)
    }
}

fn failed() -> Error {
    Error::new(ErrorKind::Recording, "failed to write the recording")
}

fn joined(thread: JoinHandle<Written>) -> Result<Writer> {
    Ok(thread.join().map_err(|_| failed())??)
}
