//! The tables: which field of which row is which column.
//!
//! `docs/format.md` lists the same columns for readers of other languages; a
//! test holds the two together.

use super::columns::{Column, Packing, Width};
use super::table_writer::{TableWriter, Tables};
use crate::{
    AccessKind, Cpu, DataSource, Derivation, EventId, Loss, LossKind, Module, Overflow, PhysAddr,
    Pid, Sample, SeriesRow, SiteCount, Thread, Tid, VirtAddr,
};
use Packing::{Delta, Dictionary};
use Width::{Bool, U8, U16, U32, U64};

/// What only this module can implement, so that the set of tables is closed.
pub trait Columns: Sized + 'static {
    const COLUMNS: &'static [Column<Self>];

    /// The column a time range selects by; `None` for rows that hold for
    /// longer than a moment.
    const TIME: Option<&'static str> = None;

    fn time_ns(&self) -> u64 {
        0
    }

    /// Bytes of text the row owns.
    fn text_bytes(&self) -> usize {
        0
    }

    fn writer(tables: &mut Tables) -> &mut TableWriter<Self>;
}

/// A row of a recording's table.
pub trait Row: Columns + Clone + Default + Send {
    /// Name of the table, which is the name of its folder.
    const TABLE: &'static str;
}

macro_rules! tables {
    ($($row:ident in $table:ident, $name:literal;)+) => {
        $( impl Row for $row { const TABLE: &'static str = $name; } )+

        /// Names of all tables, in the order they are looked at.
        pub(super) const NAMES: &[&str] = &[$($name),+];
    };
}

tables! {
    Sample in samples, "samples";
    SeriesRow in series, "series";
    Overflow in overflows, "overflows";
    SiteCount in sites, "sites";
    Thread in threads, "threads";
    Module in modules, "modules";
    Loss in losses, "losses";
}

/// A column of a plain field.
macro_rules! field {
    ($name:literal, $width:ident, $packing:ident, $field:ident) => {
        Column::number(
            $name,
            $width,
            $packing,
            |r| Some(r.$field.into()),
            |r, v| r.$field = v as _,
        )
    };
}

/// A column of a field that wraps a number.
macro_rules! wrapped {
    ($name:literal, $width:ident, $packing:ident, $field:ident, $wrap:ident) => {
        Column::number(
            $name,
            $width,
            $packing,
            |r| Some(r.$field.0.into()),
            |r, v| r.$field = $wrap(v as _),
        )
    };
}

/// A column of an optional field that wraps a number.
macro_rules! optional {
    ($name:literal, $width:ident, $packing:ident, $field:ident, $wrap:ident) => {
        Column::number(
            $name,
            $width,
            $packing,
            |r: &Self| r.$field.map(|v| v.0.into()),
            |r, v| r.$field = Some($wrap(v as _)),
        )
        .optional()
    };
}

/// A column of an enumeration's codes.
macro_rules! coded {
    ($name:literal, $width:ident, $field:ident, $enum:ident) => {
        Column::number(
            $name,
            $width,
            Dictionary,
            |r| Some(r.$field as u64),
            |r, v| r.$field = $enum::from_code(v),
        )
    };
}

impl Columns for Sample {
    const COLUMNS: &'static [Column<Self>] = &[
        field!("time_ns", U64, Delta, time_ns),
        optional!("cpu", U32, Dictionary, cpu, Cpu),
        wrapped!("pid", U32, Dictionary, pid, Pid),
        wrapped!("tid", U32, Dictionary, tid, Tid),
        wrapped!("event", U16, Dictionary, event, EventId),
        wrapped!("ip", U64, Dictionary, ip, VirtAddr),
        optional!("addr", U64, Delta, addr, VirtAddr),
        optional!("phys", U64, Delta, phys, PhysAddr),
        coded!("kind", U8, kind, AccessKind),
        field!("size_bytes", U16, Dictionary, size_bytes),
        field!("latency_cycles", U32, Dictionary, latency_cycles),
        coded!("source", U8, source, DataSource),
        field!("period", U64, Dictionary, period),
        Column::number(
            "derivation",
            U8,
            Dictionary,
            |r: &Self| r.derivation.map(|d| d as u64),
            |r, v| r.derivation = Derivation::from_code(v),
        )
        .optional(),
    ];
    const TIME: Option<&'static str> = Some("time_ns");

    fn time_ns(&self) -> u64 {
        self.time_ns
    }

    fn writer(tables: &mut Tables) -> &mut TableWriter<Self> {
        &mut tables.samples
    }
}

impl Columns for SeriesRow {
    const COLUMNS: &'static [Column<Self>] = &[
        field!("time_ns", U64, Delta, time_ns),
        optional!("cpu", U32, Dictionary, cpu, Cpu),
        wrapped!("pid", U32, Dictionary, pid, Pid),
        wrapped!("tid", U32, Dictionary, tid, Tid),
        wrapped!("event", U16, Dictionary, event, EventId),
        field!("value", U64, Dictionary, value),
        field!("interval_ns", U64, Dictionary, interval_ns),
    ];
    const TIME: Option<&'static str> = Some("time_ns");

    fn time_ns(&self) -> u64 {
        self.time_ns
    }

    fn writer(tables: &mut Tables) -> &mut TableWriter<Self> {
        &mut tables.series
    }
}

impl Columns for Overflow {
    const COLUMNS: &'static [Column<Self>] = &[
        field!("time_ns", U64, Delta, time_ns),
        wrapped!("tid", U32, Dictionary, tid, Tid),
        wrapped!("event", U16, Dictionary, event, EventId),
    ];
    const TIME: Option<&'static str> = Some("time_ns");

    fn time_ns(&self) -> u64 {
        self.time_ns
    }

    fn writer(tables: &mut Tables) -> &mut TableWriter<Self> {
        &mut tables.overflows
    }
}

impl Columns for SiteCount {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("pid", U32, Dictionary, pid, Pid),
        wrapped!("ip", U64, Delta, ip, VirtAddr),
        wrapped!("event", U16, Dictionary, event, EventId),
        field!("count", U64, Dictionary, count),
    ];

    fn writer(tables: &mut Tables) -> &mut TableWriter<Self> {
        &mut tables.sites
    }
}

impl Columns for Thread {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("pid", U32, Dictionary, pid, Pid),
        wrapped!("tid", U32, Delta, tid, Tid),
        wrapped!("parent_pid", U32, Dictionary, parent_pid, Pid),
        Column::text(
            "program",
            |r| &r.program,
            |r, v| v.clone_into(&mut r.program),
        ),
        field!("start_ns", U64, Delta, start_ns),
        Column::number(
            "end_ns",
            U64,
            Delta,
            |r: &Self| r.end_ns,
            |r, v| r.end_ns = Some(v),
        )
        .optional(),
    ];

    fn text_bytes(&self) -> usize {
        self.program.len()
    }

    fn writer(tables: &mut Tables) -> &mut TableWriter<Self> {
        &mut tables.threads
    }
}

impl Columns for Module {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("pid", U32, Dictionary, pid, Pid),
        field!("time_ns", U64, Delta, time_ns),
        wrapped!("start", U64, Delta, start, VirtAddr),
        wrapped!("end", U64, Delta, end, VirtAddr),
        field!("file_offset", U64, Dictionary, file_offset),
        Column::text("path", |r| &r.path, |r, v| v.clone_into(&mut r.path)),
        Column::number(
            "executable",
            Bool,
            Packing::Plain,
            |r| Some(r.executable.into()),
            |r, v| r.executable = v != 0,
        ),
    ];

    fn text_bytes(&self) -> usize {
        self.path.len()
    }

    fn writer(tables: &mut Tables) -> &mut TableWriter<Self> {
        &mut tables.modules
    }
}

impl Columns for Loss {
    const COLUMNS: &'static [Column<Self>] = &[
        field!("time_ns", U64, Delta, time_ns),
        wrapped!("pid", U32, Dictionary, pid, Pid),
        coded!("kind", U16, kind, LossKind),
        field!("count", U64, Dictionary, count),
        Column::text("detail", |r| &r.detail, |r, v| v.clone_into(&mut r.detail)),
    ];
    const TIME: Option<&'static str> = Some("time_ns");

    fn time_ns(&self) -> u64 {
        self.time_ns
    }

    fn text_bytes(&self) -> usize {
        self.detail.len()
    }

    fn writer(tables: &mut Tables) -> &mut TableWriter<Self> {
        &mut tables.losses
    }
}
