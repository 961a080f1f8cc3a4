//! Batches of rows on their way to a thread that writes them.
//!
//! Batches wait in a queue of fixed length, so memory does not grow if writing is slower than
//! reading. If the rows never fill a batch, the calling thread writes them: a small file needs no
//! thread.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use crate::{Error, ErrorKind, Result};

/// Maximum number of waiting batches.
const MAX_WAITING: usize = 3;

type WriteResult<W> = memgauge_recording::Result<W>;

/// Rows that are handed over together.
pub(super) trait Batch: Default + Send + 'static {
    /// The writer of the rows.
    type Writer: Send + 'static;

    /// Writes all rows and clears the batch.
    fn write(&mut self, writer: &mut Self::Writer) -> memgauge_recording::Result<()>;

    /// Flushes the writer. Called in the thread that wrote the rows, whose caches and allocator
    /// arenas hold their memory.
    fn flush(writer: &mut Self::Writer) -> memgauge_recording::Result<()>;
}

/// A writer thread.
struct WriterThread<L: Batch> {
    batches: SyncSender<L>,
    /// Written batches, to be reused.
    written: Receiver<L>,
    thread: JoinHandle<WriteResult<L::Writer>>,
}

/// Where rows are written.
enum WriterState<L: Batch> {
    /// In this thread: no batch has been full yet.
    SameThread(Box<L::Writer>),
    /// In another thread.
    Thread(WriterThread<L>),
    /// Nowhere: the writer failed.
    Failed,
}

/// A batch that is being filled, and its queue.
pub(super) struct BatchQueue<L: Batch> {
    pub(super) batch: L,
    state: WriterState<L>,
}

/// Moves a writer to a new thread.
fn spawn_writer<L: Batch>(mut writer: L::Writer) -> WriterThread<L> {
    let (batches, full) = sync_channel::<L>(MAX_WAITING);
    let (emptied, written) = channel();
    let thread = std::thread::spawn(move || {
        for mut batch in full {
            batch.write(&mut writer)?;
            // Fails at the end, when no batch is needed any more.
            let _ = emptied.send(batch);
        }
        L::flush(&mut writer)?;
        Ok(writer)
    });
    WriterThread {
        batches,
        written,
        thread,
    }
}

impl<L: Batch> BatchQueue<L> {
    pub(super) fn new(writer: L::Writer) -> BatchQueue<L> {
        BatchQueue {
            batch: L::default(),
            state: WriterState::SameThread(Box::new(writer)),
        }
    }

    /// Sends a full batch. The first one starts the thread.
    pub(super) fn send(&mut self) -> Result<()> {
        let writer_thread = match std::mem::replace(&mut self.state, WriterState::Failed) {
            WriterState::SameThread(writer) => spawn_writer(*writer),
            WriterState::Thread(writer_thread) => writer_thread,
            WriterState::Failed => return Err(failed()),
        };
        let next = writer_thread.written.try_recv().unwrap_or_default();
        let full = std::mem::replace(&mut self.batch, next);
        if writer_thread.batches.send(full).is_err() {
            // The writer failed; joining it returns the reason.
            return join(writer_thread).map(drop);
        }
        self.state = WriterState::Thread(writer_thread);
        Ok(())
    }

    /// Waits until all rows are written.
    pub(super) fn finish(mut self) -> Result<L::Writer> {
        match self.state {
            WriterState::SameThread(mut writer) => {
                self.batch.write(&mut writer)?;
                Ok(*writer)
            }
            WriterState::Thread(writer_thread) => {
                // If the writer failed, joining it returns the reason.
                let _ = writer_thread.batches.send(self.batch);
                join(writer_thread)
            }
            WriterState::Failed => Err(failed()),
        }
    }
}

fn failed() -> Error {
    Error::new(ErrorKind::Recording, "failed to write the recording")
}

fn join<L: Batch>(writer_thread: WriterThread<L>) -> Result<L::Writer> {
    drop(writer_thread.batches);
    Ok(writer_thread.thread.join().map_err(|_| failed())??)
}
