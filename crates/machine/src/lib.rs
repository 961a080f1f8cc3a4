//! The modelled machine: caches, TLBs, memory, virtual time and a PMU.
//!
//! A front end (an emulator, a reader of traces) sees a program's instructions and data accesses.
//! It feeds them to a [`Core`], one for each thread, and reads counters, samples and time series
//! back as it would from hardware. Everything is an integer and depends only on the feed and the
//! [`Config`], so the same feed gives the same numbers everywhere.
//!
//! # Feeding
//!
//! Call [`Core::retire`] once for each block of instructions. Then, for each of the block's
//! accesses in order, call [`Core::touch`] and, if that returns `false`, [`Core::access`]. `retire`
//! may also come after the accesses. The counts are then the same, and times differ by less than a
//! block.
//!
//! ```
//! use memgauge_machine::{AccessKind, Config, Core, Machine, PmuConfig};
//! use memgauge_trace::catalogue;
//!
//! let config = Config::preset("zen5").expect("a preset");
//! let mut machine = Machine::new(config, PmuConfig::default())?;
//! let id = machine.add_core(0);
//! let (core, shared) = machine.core_mut(id);
//! for addr in (0..4096u64).step_by(8) {
//!     core.retire(3, 1, 0, 0);
//!     if Core::crosses_line(addr, 8) || !core.touch(addr, false) {
//!         core.access(shared, addr, 8, AccessKind::Load);
//!     }
//! }
//! let counts = core.counts();
//! assert_eq!(counts.get(catalogue::LOADS), 512);
//! assert_eq!(counts.get(catalogue::L1D_MISS), 64);
//! assert_eq!(counts.get(catalogue::DTLB_WALK), 1);
//! # Ok::<(), memgauge_machine::ConfigError>(())
//! ```
//!
//! # The fast path
//!
//! Most accesses of real programs go to a line and a page that the first level holds. Such an
//! access changes nothing but recency. [`Touches::touch`] therefore needs four loads, two compares,
//! three stores, and no branch that is hard to predict. Hits are not counted there but derived from
//! the block's loads and stores. Misses can be collected: the first level fills the line at once
//! ([`Touches::take`]), and the lower levels supply many misses together later ([`Core::supply`]),
//! so that the host overlaps its own cache misses. `docs/machine-model.md` defines the model, event
//! by event and level by level, and lists what it leaves out.
#![deny(unsafe_code)]

mod cache;
mod clock;
mod coherence;
mod config;
mod conflicts;
mod counts;
mod devices;
mod dram;
mod events;
mod first_level;
mod hierarchy;
mod l1d;
mod l2_hits;
mod machine;
mod outcome;
mod overlap;
pub mod pmu;
mod presets;
mod processor;
mod sets;
mod software_prefetch;
mod streams;
mod tlb;
mod uncore;
mod what_if;
mod write_combining;

pub use cache::fetch_early;
pub use coherence::LineBytes;
pub use config::{
    CacheConfig, Config, ConfigError, HUGE_PAGE_BYTES, LINE_BYTES, PAGE_BYTES, Prefetch,
    Replacement, Timing, TlbConfig,
};
pub use counts::Counts;
pub use devices::DeviceOutcome;
pub use first_level::{Missed, NO_ACCESS, Touches};
pub use machine::{CoreId, Machine};
pub use memgauge_trace::{AccessKind, DataSource};
pub use outcome::{AccessOutcome, LineSharing, Stalled};
pub use overlap::{LoadId, LoadInFlight, LoadOrder, LoadStart, ProgramOrder};
pub use pmu::{Delivered, Delivery, PmuConfig, SampleSpec, SampledOverflow, Tick};
pub use presets::presets;
pub use processor::{Core, LineAccess, string_millicycles};
pub use sets::{CLASSES, class_of};
pub use uncore::SharedLevels;
pub use what_if::MachineChange;

/// The examples of the README, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
