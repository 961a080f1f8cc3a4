//! How a counter's overflow becomes a record, and what that loses: parameters.
//!
//! Everything is data, so that a processor other than those named here is a
//! matter of figures. Times are cycles of the modelled core.

use serde::{Deserialize, Serialize};

/// The way from an overflow to a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Delivery {
    /// At once, without cost or loss: what no hardware does.
    #[default]
    Ideal,
    /// The processor writes records into a buffer by itself (Intel's PEBS).
    Precise(Precise),
    /// An interrupt for each overflow, whose handler notes the time.
    Interrupt(Interrupt),
    /// One operation in a period is followed through the processor (AMD's IBS).
    Tagged(Tagged),
}

/// Properties of the core that matter when it is stopped in the middle.
///
/// An assist or interrupt aborts the loads under way. The lines they asked for come all
/// the same, so the loads, made again, hit the first level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Lines a core can be waiting for at a time.
    pub fill_buffers: u32,
    /// Most lines that have come while their load still waits for an older one, as
    /// memory answers out of order.
    pub backlog_lines: u32,
    /// Misses since the last stop after which the backlog has grown by a line.
    pub backlog_misses: u32,
    /// Instructions under way at most: a load further on has not begun.
    pub reorder_window: u32,
    /// Instructions that retire in a cycle when nothing holds them up, as after a miss
    /// whose line has come.
    pub retire_width: u32,
    /// Loads that hit the first level in a cycle.
    pub load_ports: u32,
}

/// Records written by microcode into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Precise {
    /// The core it stops.
    pub pipeline: Pipeline,
    /// Thousandths of a cycle from the event that fires to the assist. Events that
    /// retire in it are in nobody's record.
    pub delay_millicycles: u32,
    /// Cycles of the assist that writes a record.
    pub assist_cycles: u32,
    /// Records the buffer holds.
    pub buffer_records: u32,
    /// Records in the buffer that raise the interrupt.
    pub threshold_records: u32,
    /// Cycles from there to the handler; records keep coming.
    pub latency_cycles: u32,
    /// Cycles of the handler that takes the buffer away.
    pub swap_cycles: u32,
    /// Cycles to read a record out.
    pub drain_cycles: u32,
    /// Whether another core reads them out while a second buffer fills; else
    /// the handler does.
    pub drained_elsewhere: bool,
}

/// An interrupt for each overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interrupt {
    /// The core it stops.
    pub pipeline: Pipeline,
    /// Cycles from the overflow to the interrupt. Events in them are counted: the
    /// handler reads the counter.
    pub skid_cycles: u32,
    /// Cycles of the handler, entry and return included.
    pub handler_cycles: u32,
}

/// One operation in a period, with an interrupt for each that made the event.
///
/// The period counts instructions; a record stands for that many events all the
/// same, since each event is tagged once in that many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tagged {
    /// The core it stops.
    pub pipeline: Pipeline,
    /// Largest random change of a period, in instructions, so that a loop is not always
    /// tagged at one instruction.
    pub jitter: u32,
    /// Cycles of the handler, entry and return included.
    pub handler_cycles: u32,
}

/// Skylake, in the first document's terms. Fill buffers, reorder window, retire width
/// and load ports are Intel's published figures. Only the backlog is taken from the
/// document's curve of losses (about 35 lines an activation at large periods).
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
    /// The document's machine and its module: two buffers of 3 MiB, read out on
    /// another core.
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

    /// The same processor under Linux's perf: one buffer of 64 KiB that the
    /// handler copies out.
    pub const LINUX: Precise = Precise {
        buffer_records: LINUX_RECORDS,
        threshold_records: LINUX_RECORDS - 8,
        drain_cycles: 100,
        drained_elsewhere: false,
        ..Precise::DOCUMENT
    };
}

impl Interrupt {
    /// The document's software baseline. Its slowdowns at period 10 (150 % against 50 %
    /// with 13 % more overflows) make a handler of 1900 cycles next to an assist of
    /// 875.
    pub const DOCUMENT: Interrupt = Interrupt {
        pipeline: SKYLAKE,
        skid_cycles: 30,
        handler_cycles: 1_900,
    };
}

impl Tagged {
    /// A Zen 4 that reports operations of the event alone.
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
    /// Deliveries with names.
    pub const NAMED: [(&str, Delivery); 5] = [
        ("ideal", Delivery::Ideal),
        ("precise", Delivery::Precise(Precise::DOCUMENT)),
        ("precise-linux", Delivery::Precise(Precise::LINUX)),
        ("interrupt", Delivery::Interrupt(Interrupt::DOCUMENT)),
        ("tagged", Delivery::Tagged(Tagged::ZEN4)),
    ];

    /// The one of that name.
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

    /// The field that cannot be and why, if any.
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

/// Cost and losses of delivery in a core. The model knows; hardware does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Records written.
    pub records: u64,
    /// Assists and interrupts for overflows.
    pub stops: u64,
    /// Interrupts that took a buffer away.
    pub swaps: u64,
    /// Events (in their unit) that passed between an overflow and the assist and
    /// are in no record, over all sampled events.
    pub passed: u64,
    /// Lines whose load was aborted and then hit: misses no counter saw.
    pub cleared_lines: u64,
    /// Pages whose load was aborted and then hit the TLB.
    pub cleared_pages: u64,
    /// Records the buffer had no room for.
    pub full: u64,
    /// Events that counters have counted since their last record: the rest of a
    /// period, which a reader of the counters knows.
    pub rest: u64,
    /// Thousandths of a cycle the core stood still for all this.
    pub millicycles: u64,
}

impl Delivered {
    /// Adds another core's.
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
