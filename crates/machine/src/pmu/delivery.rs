//! Parameters of the delivery of overflow records: their cost and what they lose.
//!
//! A delivery is plain data, so that further processors only need numbers. Times are cycles of the
//! modelled core.

use serde::{Deserialize, Serialize};

/// The mechanism that turns an overflow into a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Delivery {
    /// Immediate, without cost or loss. No hardware does this.
    #[default]
    Ideal,
    /// The processor writes records into a buffer by itself (Intel's PEBS).
    Precise(Precise),
    /// An interrupt for each overflow. Its handler records the time.
    Interrupt(Interrupt),
    /// One operation per period is followed through the processor (AMD's IBS).
    Tagged(Tagged),
}

/// Properties of the core that matter when it is stopped.
///
/// An assist or interrupt aborts the loads in flight. Their lines arrive nevertheless, so the
/// repeated loads hit the first level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Maximum number of lines that a core waits for at a time.
    pub fill_buffers: u32,
    /// Maximum number of lines that have arrived while their load still waits for an older one,
    /// because memory answers out of order.
    pub backlog_lines: u32,
    /// Number of misses since the last stop after which the backlog has grown by a line.
    pub backlog_misses: u32,
    /// Maximum number of instructions in flight. A later load has not begun.
    pub reorder_window: u32,
    /// Instructions that retire per cycle when nothing delays them, as after a miss whose line has
    /// arrived.
    pub retire_width: u32,
    /// Loads per cycle that hit the first level.
    pub load_ports: u32,
}

/// Records that microcode writes into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Precise {
    /// The core it stops.
    pub pipeline: Pipeline,
    /// Thousandths of a cycle from the event that fires to the assist. Events that retire in this
    /// time are in no record.
    pub delay_millicycles: u32,
    /// Cycles of the assist that writes a record.
    pub assist_cycles: u32,
    /// Capacity of the buffer in records.
    pub buffer_records: u32,
    /// Number of records in the buffer that raises the interrupt.
    pub threshold_records: u32,
    /// Cycles from the interrupt to its handler. More records are written in this time.
    pub latency_cycles: u32,
    /// Cycles of the handler that exchanges the buffer.
    pub swap_cycles: u32,
    /// Cycles to read a record.
    pub drain_cycles: u32,
    /// True if another core reads the records while a second buffer fills. Otherwise the handler
    /// reads them.
    pub drained_elsewhere: bool,
}

/// An interrupt for each overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interrupt {
    /// The core it stops.
    pub pipeline: Pipeline,
    /// Cycles from the overflow to the interrupt. Events in this time are counted, because the
    /// handler reads the counter.
    pub skid_cycles: u32,
    /// Cycles of the handler, including entry and return.
    pub handler_cycles: u32,
}

/// One operation per period, with an interrupt for each one that caused the event.
///
/// The period counts instructions. A record still stands for a period of events, because one event
/// in a period is tagged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tagged {
    /// The core it stops.
    pub pipeline: Pipeline,
    /// Maximum random change of a period, in instructions. It keeps a loop from being tagged at the
    /// same instruction each time.
    pub jitter: u32,
    /// Cycles of the handler, entry and return included.
    pub handler_cycles: u32,
}

/// Skylake, in the terms of the first document. Fill buffers, reorder window, retire width and load
/// ports are Intel's published numbers. Only the backlog is fitted to the document's curve of
/// losses (about 35 lines per activation at large periods).
const SKYLAKE: Pipeline = Pipeline {
    fill_buffers: 12,
    backlog_lines: 18,
    backlog_misses: 20,
    reorder_window: 224,
    retire_width: 4,
    load_ports: 2,
};

/// 3 MiB of 200 bytes each.
const DOCUMENT_RECORDS: u32 = 15_728;
/// 64 KiB of 200 bytes each.
const LINUX_RECORDS: u32 = 327;

impl Precise {
    /// The document's machine with its kernel module: two buffers of 3 MiB, read on another core.
    pub const DOCUMENT: Precise = Precise {
        pipeline: SKYLAKE,
        delay_millicycles: 870,
        assist_cycles: 875,
        buffer_records: DOCUMENT_RECORDS,
        threshold_records: DOCUMENT_RECORDS - 28,
        latency_cycles: 1_000,
        swap_cycles: 3_000,
        drain_cycles: 16,
        drained_elsewhere: true,
    };

    /// The same processor under Linux's perf: one buffer of 64 KiB that the handler copies.
    pub const LINUX: Precise = Precise {
        buffer_records: LINUX_RECORDS,
        threshold_records: LINUX_RECORDS - 8,
        drain_cycles: 100,
        drained_elsewhere: false,
        ..Precise::DOCUMENT
    };
}

impl Interrupt {
    /// The document's software baseline. Its slowdown at period 10 (150 % instead of 50 %, with 13
    /// % more overflows) corresponds to a handler of 1900 cycles, if an assist takes 875.
    pub const DOCUMENT: Interrupt = Interrupt {
        pipeline: SKYLAKE,
        skid_cycles: 30,
        handler_cycles: 1_900,
    };
}

impl Tagged {
    /// A Zen 4 that only reports operations that caused the event.
    pub const ZEN4: Tagged = Tagged {
        pipeline: Pipeline {
            fill_buffers: 24,
            backlog_lines: 18,
            backlog_misses: 20,
            reorder_window: 320,
            retire_width: 8,
            load_ports: 3,
        },
        jitter: 7,
        handler_cycles: 3_000,
    };
}

impl Delivery {
    /// The deliveries that have names.
    pub const NAMED: [(&str, Delivery); 5] = [
        ("ideal", Delivery::Ideal),
        ("precise", Delivery::Precise(Precise::DOCUMENT)),
        ("precise-linux", Delivery::Precise(Precise::LINUX)),
        ("interrupt", Delivery::Interrupt(Interrupt::DOCUMENT)),
        ("tagged", Delivery::Tagged(Tagged::ZEN4)),
    ];

    /// Returns the delivery of that name.
    pub fn by_name(name: &str) -> Option<Delivery> {
        Self::NAMED.iter().find(|n| n.0 == name).map(|n| n.1)
    }

    pub(crate) fn pipeline(&self) -> Option<&Pipeline> {
        match self {
            Delivery::Ideal => None,
            Delivery::Precise(p) => Some(&p.pipeline),
            Delivery::Interrupt(p) => Some(&p.pipeline),
            Delivery::Tagged(p) => Some(&p.pipeline),
        }
    }

    /// Returns the field that the model cannot represent, and the reason.
    pub(crate) fn check(&self) -> Result<(), (String, String)> {
        let mut positive = Vec::new();
        if let Some(p) = self.pipeline() {
            positive.extend([
                ("backlog_misses", p.backlog_misses),
                ("retire_width", p.retire_width),
                ("load_ports", p.load_ports),
            ]);
        }
        if let Delivery::Precise(p) = self {
            positive.push(("threshold_records", p.threshold_records));
            if p.threshold_records > p.buffer_records {
                let why = format!(
                    "`{}` is over buffer_records, {}",
                    p.threshold_records, p.buffer_records
                );
                return Err(("delivery.threshold_records".to_owned(), why));
            }
        }
        match positive.iter().find(|f| f.1 == 0) {
            Some((field, _)) => Err((
                format!("delivery.{field}"),
                "`0` is not positive".to_owned(),
            )),
            None => Ok(()),
        }
    }
}

/// Cost and losses of delivery in a core. Only a model knows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Number of written records.
    pub records: u64,
    /// Number of assists and interrupts for overflows.
    pub stops: u64,
    /// Number of interrupts that exchanged a buffer.
    pub swaps: u64,
    /// Events (in their unit) between an overflow and the assist, which are in no record. Summed
    /// over all sampled events.
    pub passed: u64,
    /// Number of lines whose load was aborted and then hit. No counter saw these misses.
    pub cleared_lines: u64,
    /// Number of pages whose load was aborted and then hit the TLB.
    pub cleared_pages: u64,
    /// Number of records that did not fit into the buffer.
    pub full: u64,
    /// Events since the last record of each counter: the remainder of a period, which a reader of
    /// the counters knows.
    pub rest: u64,
    /// Thousandths of a cycle for which the core was stopped for delivery.
    pub millicycles: u64,
}

impl Delivered {
    /// Adds those of another core.
    pub fn add(&mut self, other: &Delivered) {
        self.records += other.records;
        self.stops += other.stops;
        self.swaps += other.swaps;
        self.passed += other.passed;
        self.cleared_lines += other.cleared_lines;
        self.cleared_pages += other.cleared_pages;
        self.full += other.full;
        self.rest += other.rest;
        self.millicycles += other.millicycles;
    }
}
