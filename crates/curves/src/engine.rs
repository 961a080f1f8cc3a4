//! The engine of each block size.

use memgauge_host::sys::advice::large_pages;
use memgauge_mrc::{
    Curve, Distances, Exact, Full, Parallel, Sampled, Sampling, Settings, feed_blocks,
};
use memgauge_report::mrc::MeasuredCurve;

use super::args::CurveOptions;
use super::memory::{self, Guard};

/// All that makes the curve of one block size.
pub(super) struct Engine {
    block: u64,
    kind: EngineKind,
}

enum EngineKind {
    Exact(Box<Exact>),
    Parallel(Box<Parallel>),
    Sampled(Box<Sampled>),
}

impl Engine {
    /// One for each block size, which share the memory they may take.
    pub(super) fn all(making: &CurveOptions) -> Vec<Engine> {
        let mut settings = Settings::default();
        settings.memory_bytes = memory::limit(making) / making.block.len();
        settings.advise = Some(large_pages);
        let engine = |&block: &u64| Engine {
            block,
            kind: EngineKind::new(block, making, settings),
        };
        making.block.iter().map(engine).collect()
    }

    /// Adds references. A reference that spans several blocks refers to each of them.
    pub(super) fn feed(&mut self, addresses: &[u64], sizes: &[(usize, u32)]) -> anyhow::Result<()> {
        let Engine { block, kind } = self;
        let fed = feed_blocks(*block, addresses, sizes, &mut |a| kind.feed(a));
        fed.map_err(|full| too_many(full, *block))
    }

    pub(super) fn finish(self) -> anyhow::Result<MeasuredCurve> {
        let exact = |d: Distances| MeasuredCurve::Exact(Curve::exact(&d, self.block));
        let curve = match self.kind {
            EngineKind::Exact(engine) => engine.finish().map(exact),
            EngineKind::Parallel(engine) => engine.finish().map(exact),
            EngineKind::Sampled(engine) => engine.finish().map(MeasuredCurve::Sampled),
        };
        curve.map_err(|full| too_many(full, self.block))
    }
}

impl EngineKind {
    fn new(block: u64, making: &CurveOptions, settings: Settings) -> EngineKind {
        let sampling = match (making.sample, making.sample_size) {
            (Some(rate), _) => Some(Sampling::Rate(rate)),
            (None, Some(size)) => Some(Sampling::Size(size as usize)),
            (None, None) => None,
        };
        match sampling {
            Some(sampling) => {
                let engine = Sampled::new(block, sampling, making.salt, settings);
                let engine = match making.sample_only {
                    true => engine.without_small_memories(),
                    false => engine,
                };
                EngineKind::Sampled(Box::new(engine))
            }
            None if making.threads > 1 => {
                let engine = Parallel::new(block, making.threads.into(), settings);
                EngineKind::Parallel(Box::new(engine))
            }
            None => EngineKind::Exact(Box::new(Exact::new(block, settings))),
        }
    }

    fn feed(&mut self, addresses: &[u64]) -> Result<(), Full> {
        match self {
            EngineKind::Exact(engine) => engine.feed(addresses),
            EngineKind::Parallel(engine) => engine.feed(addresses),
            EngineKind::Sampled(engine) => engine.feed(addresses),
        }
    }
}

/// Engines of all block sizes over the same references, in the caller's thread.
pub(super) struct Engines {
    engines: Vec<Engine>,
    guard: Guard,
}

impl Engines {
    pub(super) fn new(making: &CurveOptions) -> Engines {
        Engines {
            engines: Engine::all(making),
            guard: Guard::new(making),
        }
    }

    /// Adds references. A reference that spans several blocks refers to each of them.
    pub(super) fn feed(&mut self, addresses: &[u64], sizes: &[(usize, u32)]) -> anyhow::Result<()> {
        for engine in &mut self.engines {
            engine.feed(addresses, sizes)?;
        }
        self.guard.check()
    }

    pub(super) fn finish(self) -> anyhow::Result<Vec<MeasuredCurve>> {
        self.engines.into_iter().map(Engine::finish).collect()
    }
}

pub(super) fn too_many(full: Full, block: u64) -> anyhow::Error {
    anyhow::anyhow!(
        "failed to track all blocks of {block} bytes: {full} exceed the memory limit: use \
        --sample-size 100000, which bounds the memory"
    )
}
