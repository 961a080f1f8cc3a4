//! A thread for the engine of each block size, so that neither an engine nor the source
//! of references waits for another.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use memgauge_import::addresses::AddressBatch;
use memgauge_report::mrc::MeasuredCurve;

use super::args::CurveOptions;
use super::engine::Engine;
use super::memory::Guard;

/// Number of references that are handed over together. It is large enough to make the handover
/// cheap, and small enough for a second-level cache.
const CHUNK: usize = 1 << 15;
/// Number of chunks that an engine may lag behind before the source of references waits for it.
const BEHIND: usize = 4;

/// Engines of all block sizes over the same references, each in a thread of its own.
///
/// Memory: that of the engines and of six chunks. A chunk takes 2 MiB for the references of a
/// program, and up to 16 MiB for lists with sizes, which arrive 65 536 at a time.
pub(super) struct Relay {
    chunk: AddressBatch,
    /// Chunks that engines may still read, oldest first.
    under_way: VecDeque<Arc<AddressBatch>>,
    runners: Vec<Runner>,
    guard: Guard,
}

struct Runner {
    chunks: SyncSender<Arc<AddressBatch>>,
    thread: JoinHandle<anyhow::Result<MeasuredCurve>>,
}

impl Relay {
    pub(super) fn new(making: &CurveOptions) -> Relay {
        let engines = Engine::all(making).into_iter();
        Relay {
            chunk: AddressBatch::default(),
            under_way: VecDeque::new(),
            runners: engines.map(Runner::new).collect(),
            guard: Guard::new(making),
        }
    }

    /// Adds references. A reference that spans several blocks refers to each of them.
    ///
    /// # Errors
    /// An engine failed, perhaps on earlier references. No engine is usable then.
    pub(super) fn feed(&mut self, addresses: &[u64], sizes: &[(usize, u32)]) -> anyhow::Result<()> {
        self.chunk.append(addresses, sizes);
        match self.chunk.addresses.len() < CHUNK {
            true => Ok(()),
            false => self.hand_over(),
        }
    }

    fn hand_over(&mut self) -> anyhow::Result<()> {
        let chunk = Arc::new(std::mem::take(&mut self.chunk));
        for at in 0..self.runners.len() {
            if self.runners[at].chunks.send(Arc::clone(&chunk)).is_err() {
                return self.runners.swap_remove(at).finish().map(drop);
            }
        }
        self.under_way.push_back(chunk);
        self.reuse();
        self.guard.check()
    }

    /// Takes back the oldest chunk if all engines are through with it: fresh memory
    /// costs more than the copy.
    fn reuse(&mut self) {
        match self.under_way.pop_front().map(Arc::try_unwrap) {
            Some(Ok(mut chunk)) => {
                chunk.clear();
                self.chunk = chunk;
            }
            Some(Err(chunk)) => self.under_way.push_front(chunk),
            None => {}
        }
    }

    /// The curves, in the order of the block sizes.
    pub(super) fn finish(mut self) -> anyhow::Result<Vec<MeasuredCurve>> {
        self.hand_over()?;
        self.runners.into_iter().map(Runner::finish).collect()
    }
}

impl Runner {
    fn new(engine: Engine) -> Runner {
        let (chunks, to_feed) = sync_channel(BEHIND);
        Runner {
            chunks,
            thread: std::thread::spawn(move || run(engine, &to_feed)),
        }
    }

    fn finish(self) -> anyhow::Result<MeasuredCurve> {
        drop(self.chunks);
        let measured = self.thread.join();
        measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn run(mut engine: Engine, chunks: &Receiver<Arc<AddressBatch>>) -> anyhow::Result<MeasuredCurve> {
    while let Ok(chunk) = chunks.recv() {
        engine.feed(&chunk.addresses, &chunk.sizes)?;
    }
    engine.finish()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::engine::Engines;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        making: CurveOptions,
    }

    fn making(arguments: &str) -> CurveOptions {
        let words = std::iter::once("mrc").chain(arguments.split_whitespace());
        Line::parse_from(words).making
    }

    /// References of a fixed walk over `bytes` bytes. A third of them have 64 bytes, the others one
    /// byte.
    fn walk(steps: u64, bytes: u64) -> AddressBatch {
        let mut accesses = AddressBatch::default();
        for step in 0..steps {
            let at = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) % bytes;
            accesses.push(at, 1 + (step % 3 == 0) as u32 * 63);
        }
        accesses
    }

    #[test]
    fn curves_are_those_of_engines_in_one_thread() {
        let making = making("--block 64,4096");
        let (mut relay, mut engines) = (Relay::new(&making), Engines::new(&making));
        for steps in [1, 1000, 3 * CHUNK as u64, 7] {
            let AddressBatch { addresses, sizes } = walk(steps, 1 << 22);
            relay.feed(&addresses, &sizes).unwrap();
            engines.feed(&addresses, &sizes).unwrap();
        }
        let (relayed, expected) = (relay.finish().unwrap(), engines.finish().unwrap());
        for (relayed, expected) in relayed.iter().zip(&expected) {
            assert_eq!(relayed.curve(), expected.curve());
            assert!(relayed.curve().references > 3.0 * CHUNK as f64);
        }
    }

    #[test]
    fn an_engine_without_room_ends_it_with_its_message() {
        let mut relay = Relay::new(&making("--block 64,4096 --memory 1048576"));
        let AddressBatch { addresses, sizes } = walk(CHUNK as u64, 1 << 40);
        let mut feed = || relay.feed(&addresses, &sizes);
        // The number of chunks before the failure is noticed is limited by [`BEHIND`].
        let failure = (0..1000).find_map(|_| feed().err()).expect("no room");
        let text = failure.to_string();
        assert!(text.contains("--sample-size"), "{text}");
    }
}
