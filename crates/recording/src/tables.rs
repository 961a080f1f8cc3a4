//! The tables: columns of each row type.
//!
//! `docs/format.md` lists the same columns for readers in other languages; a test compares the two.

use super::columns::{Column, NumberType, Packing, ToArray, arrays};
use Packing::{Delta, Dictionary};
use memgauge_trace::{
    AccessKind, AllocationRow, CodeRegion, CodeValue, Cpu, DataRow, DataSource, Derivation,
    Direction, EventId, EventRow, Frame, FrameId, GeneratedCode, HeapClassRow, HeapUseRow,
    IoDevice, IoOwner, IoRow, Loss, LossKind, Module, Overflow, OverflowBlock, Owner, PhysAddr,
    Pid, PythonLine, RegionSpan, Sample, SampleRegister, SeriesRow, SharingRow, SiteCount,
    SymbolRow, Thread, Tid, VirtAddr,
};

/// Location of a table.
pub trait Folder {
    /// Name of the table and of its folder.
    const TABLE: &'static str;
}

/// Methods that only this module can implement, so the set of tables is closed.
pub trait Columns: Folder + Clone + Default + Send + 'static {
    const COLUMNS: &'static [Column<Self>];

    /// Column for selection by time. `None` for rows that are valid for longer than one moment.
    const TIME: Option<&'static str> = None;

    fn time_ns(&self) -> u64 {
        0
    }

    /// Size of the row's text in bytes.
    fn text_bytes(&self) -> usize {
        0
    }
}

/// List of all tables: row type, field of [`super::row::Tables`], folder. A macro passed to it
/// generates code for each table.
macro_rules! each_table {
    ($make:ident) => {
        $make! {
            Sample in samples, "samples";
            SeriesRow in series, "series";
            Overflow in overflows, "overflows";
            OverflowBlock in overflow_blocks, "overflow_blocks";
            SiteCount in sites, "sites";
            DataRow in data, "data";
            AllocationRow in allocations, "allocations";
            HeapUseRow in heap_use, "heap_use";
            HeapClassRow in heap_classes, "heap_classes";
            SharingRow in sharing, "sharing";
            Thread in threads, "threads";
            Module in modules, "modules";
            Loss in losses, "losses";
            IoRow in io, "io";
            IoOwner in io_owners, "io_owners";
            IoDevice in io_devices, "io_devices";
            SampleRegister in registers, "registers";
            GeneratedCode in generated_code, "generated_code";
            PythonLine in python_lines, "python_lines";
            CodeRegion in code_regions, "code_regions";
            CodeValue in code_values, "code_values";
            RegionSpan in region_spans, "region_spans";
            Frame in frames, "frames";
            EventRow in events, "events";
            SymbolRow in symbols, "symbols";
        }
    };
}
pub(super) use each_table;

macro_rules! folders {
    ($($row:ident in $table:ident, $name:literal;)+) => {
        $( impl Folder for $row { const TABLE: &'static str = $name; } )+

        /// Names of all tables, in processing order.
        pub(super) const NAMES: &[&str] = &[$($name),+];
    };
}

each_table!(folders);

/// A numeric column with its getter and setter.
macro_rules! number {
    ($name:literal, $width:ident, $packing:expr, $get:expr, $set:expr $(,)?) => {
        Column::number(
            $name,
            NumberType::$width,
            $packing,
            |rows: &[Self]| <arrays::$width as ToArray>::array(rows, $get),
            $set,
        )
    };
}

/// A column for a plain field.
macro_rules! field {
    ($name:literal, $width:ident, $packing:ident, $field:ident) => {
        number!(
            $name,
            $width,
            $packing,
            |r: &Self| Some(r.$field.into()),
            |r, v| r.$field = v as _,
        )
    };
}

/// A column for a newtype field.
macro_rules! wrapped {
    ($name:literal, $width:ident, $packing:ident, $field:ident, $wrap:ident) => {
        number!(
            $name,
            $width,
            $packing,
            |r: &Self| Some(r.$field.0.into()),
            |r, v| r.$field = $wrap(v as _),
        )
    };
}

/// A column of sharing that is null in rows that were not estimated from samples.
macro_rules! sampled {
    ($name:literal, $field:ident) => {
        number!(
            $name,
            U64,
            Dictionary,
            |r: &Self| (r.samples > 0).then_some(r.$field),
            |r, v| r.$field = v,
        )
        .optional()
    };
}

/// A column for an optional newtype field.
macro_rules! optional {
    ($name:literal, $width:ident, $packing:ident, $field:ident, $wrap:ident) => {
        number!(
            $name,
            $width,
            $packing,
            |r: &Self| r.$field.map(|v| v.0.into()),
            |r, v| r.$field = Some($wrap(v as _)),
        )
        .optional()
    };
}

/// A column for the codes of an enum.
macro_rules! coded {
    ($name:literal, $width:ident, $field:ident, $enum:ident) => {
        number!(
            $name,
            $width,
            Dictionary,
            |r: &Self| Some(r.$field as u64),
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
        number!(
            "derivation",
            U8,
            Dictionary,
            |r: &Self| r.derivation.map(|d| d as u64),
            |r, v| r.derivation = Derivation::from_code(v),
        )
        .optional(),
        optional!("caller", U32, Dictionary, caller, FrameId),
    ];
    const TIME: Option<&'static str> = Some("time_ns");

    fn time_ns(&self) -> u64 {
        self.time_ns
    }
}

impl Columns for SampleRegister {
    const COLUMNS: &'static [Column<Self>] = &[
        field!("time_ns", U64, Delta, time_ns),
        wrapped!("tid", U32, Dictionary, tid, Tid),
        wrapped!("event", U16, Dictionary, event, EventId),
        field!("register", U8, Dictionary, register),
        field!("value", U64, Dictionary, value),
    ];
    const TIME: Option<&'static str> = Some("time_ns");

    fn time_ns(&self) -> u64 {
        self.time_ns
    }
}

impl Columns for Frame {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("id", U32, Delta, id, FrameId),
        optional!("caller", U32, Delta, caller, FrameId),
        wrapped!("pid", U32, Dictionary, pid, Pid),
        field!("time_ns", U64, Delta, time_ns),
        wrapped!("ip", U64, Dictionary, ip, VirtAddr),
    ];
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
}

impl Columns for OverflowBlock {
    // A part may have a single row, of which dictionaries would be the largest part.
    const COLUMNS: &'static [Column<Self>] = &[
        field!("time_ns", U64, Delta, time_ns),
        field!("last_ns", U64, Delta, last_ns),
        wrapped!("pid", U32, Delta, pid, Pid),
        wrapped!("tid", U32, Delta, tid, Tid),
        wrapped!("event", U16, Delta, event, EventId),
        field!("period", U64, Delta, period),
        field!("count", U32, Delta, count),
        field!("resolution_ns", U64, Delta, resolution_ns),
        Column::bytes("packed", |r| &r.packed, |r, v| r.packed = v.to_vec()),
    ];

    fn text_bytes(&self) -> usize {
        self.packed.len()
    }
}

impl Columns for SiteCount {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("pid", U32, Dictionary, pid, Pid),
        wrapped!("ip", U64, Delta, ip, VirtAddr),
        wrapped!("event", U16, Dictionary, event, EventId),
        field!("count", U64, Dictionary, count),
        number!(
            "set_group",
            U8,
            Dictionary,
            |r: &Self| r.set_group.map(u64::from),
            |r, v| r.set_group = Some(v as _),
        )
        .optional(),
        number!("code_ns", U64, Dictionary, |r: &Self| r.code_ns, |r, v| r
            .code_ns =
            Some(v),)
        .optional(),
    ];
}

impl Columns for DataRow {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("pid", U32, Dictionary, pid, Pid),
        number!(
            "site",
            U32,
            Delta,
            |r: &Self| r.site.map(u64::from),
            |r, v| r.site = Some(v as _),
        )
        .optional(),
        optional!("addr", U64, Delta, addr, VirtAddr),
        field!("time_ns", U64, Dictionary, time_ns),
        field!("l1d_misses", U64, Dictionary, l1d_misses),
        field!("l2_misses", U64, Dictionary, l2_misses),
        field!("llc_misses", U64, Dictionary, llc_misses),
        field!("dtlb_misses", U64, Dictionary, dtlb_misses),
        field!("dtlb_walks", U64, Dictionary, dtlb_walks),
        field!("dram_read_bytes", U64, Dictionary, dram_read_bytes),
        field!("dram_write_bytes", U64, Dictionary, dram_write_bytes),
        field!("stall_l2", U64, Dictionary, stall_l2),
        field!("stall_llc", U64, Dictionary, stall_llc),
        field!("stall_dram", U64, Dictionary, stall_dram),
        field!("stall_queue", U64, Dictionary, stall_queue),
        field!("stall_tlb", U64, Dictionary, stall_tlb),
        field!("stall_stores", U64, Dictionary, stall_stores),
        field!("stall_sharing", U64, Dictionary, stall_sharing),
        number!("loads", U64, Dictionary, |r: &Self| r.loads, |r, v| r
            .loads =
            Some(v),)
        .optional(),
        number!("stores", U64, Dictionary, |r: &Self| r.stores, |r, v| r
            .stores =
            Some(v),)
        .optional(),
    ];
}

impl Columns for SharingRow {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("pid", U32, Dictionary, pid, Pid),
        wrapped!("tid", U32, Dictionary, tid, Tid),
        wrapped!("line", U64, Delta, line, VirtAddr),
        number!(
            "site",
            U32,
            Delta,
            |r: &Self| r.site.map(u64::from),
            |r, v| r.site = Some(v as _),
        )
        .optional(),
        field!("time_ns", U64, Dictionary, time_ns),
        wrapped!("ip", U64, Delta, ip, VirtAddr),
        field!("code_ns", U64, Dictionary, code_ns),
        field!("loaded", U64, Dictionary, loaded),
        field!("stored", U64, Dictionary, stored),
        field!("hitm", U64, Dictionary, hitm),
        field!("invalidating", U64, Dictionary, invalidating),
        field!("true_sharing", U64, Dictionary, true_sharing),
        field!("false_sharing", U64, Dictionary, false_sharing),
        field!("stall_cycles", U64, Dictionary, stall_cycles),
        sampled!("samples", samples),
        sampled!("hitm_samples", hitm_samples),
        sampled!("remote_hitm", remote_hitm),
    ];
}

impl Columns for AllocationRow {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("pid", U32, Dictionary, pid, Pid),
        field!("site", U32, Delta, site),
        Column::text(
            "function",
            |r| &r.function,
            |r, v| v.clone_into(&mut r.function),
        ),
        optional!("caller", U32, Delta, caller, FrameId),
        field!("allocations", U64, Dictionary, allocations),
        field!("bytes", U64, Dictionary, bytes),
        field!("frees", U64, Dictionary, frees),
        field!("freed_bytes", U64, Dictionary, freed_bytes),
        field!("lifetime_ns", U64, Dictionary, lifetime_ns),
        field!("live_bytes", U64, Dictionary, live_bytes),
        field!("at_peak_bytes", U64, Dictionary, at_peak_bytes),
        field!("temporary", U64, Dictionary, temporary),
        field!(
            "allocations_variance",
            U64,
            Dictionary,
            allocations_variance
        ),
        field!("bytes_variance", U64, Dictionary, bytes_variance),
        field!("live_variance", U64, Dictionary, live_variance),
        field!("at_peak_variance", U64, Dictionary, at_peak_variance),
        number!(
            "untouched_bytes",
            U64,
            Dictionary,
            |r: &Self| r.untouched_bytes,
            |r, v| r.untouched_bytes = Some(v),
        )
        .optional(),
    ];

    fn text_bytes(&self) -> usize {
        self.function.len()
    }
}

impl Columns for HeapUseRow {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("pid", U32, Dictionary, pid, Pid),
        field!("time_ns", U64, Delta, time_ns),
        number!(
            "site",
            U32,
            Dictionary,
            |r: &Self| r.site.map(u64::from),
            |r, v| r.site = Some(v as _),
        )
        .optional(),
        field!("bytes", U64, Dictionary, bytes),
        number!(
            "resident_bytes",
            U64,
            Dictionary,
            |r: &Self| r.resident_bytes,
            |r, v| r.resident_bytes = Some(v),
        )
        .optional(),
    ];
}

impl Columns for HeapClassRow {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("pid", U32, Dictionary, pid, Pid),
        field!("size_bits", U8, Dictionary, size_bits),
        number!(
            "lifetime_bits",
            U8,
            Dictionary,
            |r: &Self| r.lifetime_bits.map(u64::from),
            |r, v| r.lifetime_bits = Some(v as _),
        )
        .optional(),
        field!("allocations", U64, Dictionary, allocations),
    ];
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
        number!("end_ns", U64, Delta, |r: &Self| r.end_ns, |r, v| r.end_ns =
            Some(v),)
        .optional(),
        number!("idle_ns", U64, Delta, |r: &Self| r.idle_ns, |r, v| r
            .idle_ns =
            Some(v),)
        .optional(),
    ];

    fn text_bytes(&self) -> usize {
        self.program.len()
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
        number!(
            "executable",
            Bool,
            Packing::Plain,
            |r: &Self| Some(r.executable.into()),
            |r, v| r.executable = v != 0,
        ),
        Column::text(
            "build_id",
            |r: &Self| &r.build_id,
            |r, v| v.clone_into(&mut r.build_id),
        )
        .optional(),
        number!(
            "file_bytes",
            U64,
            Dictionary,
            |r: &Self| r.file_bytes,
            |r, v| r.file_bytes = Some(v),
        )
        .optional(),
        number!(
            "modified_ns",
            U64,
            Dictionary,
            |r: &Self| r.modified_ns,
            |r, v| r.modified_ns = Some(v),
        )
        .optional(),
    ];

    fn text_bytes(&self) -> usize {
        self.path.len() + self.build_id.len()
    }
}

impl Columns for GeneratedCode {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("pid", U32, Dictionary, pid, Pid),
        wrapped!("start", U64, Delta, start, VirtAddr),
        field!("bytes", U64, Dictionary, bytes),
        Column::text("name", |r| &r.name, |r, v| v.clone_into(&mut r.name)),
        Column::text(
            "module",
            |r: &Self| &r.module,
            |r, v| v.clone_into(&mut r.module),
        )
        .optional(),
        Column::text("file", |r: &Self| &r.file, |r, v| v.clone_into(&mut r.file)).optional(),
        number!(
            "line",
            U32,
            Dictionary,
            |r: &Self| r.line.map(Into::into),
            |r, v| r.line = u32::try_from(v).ok(),
        )
        .optional(),
    ];

    fn text_bytes(&self) -> usize {
        self.name.len() + self.module.len() + self.file.len()
    }
}

impl Columns for PythonLine {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("pid", U32, Dictionary, pid, Pid),
        Column::text("file", |r| &r.file, |r, v| v.clone_into(&mut r.file)),
        Column::text(
            "function",
            |r| &r.function,
            |r, v| v.clone_into(&mut r.function),
        ),
        number!(
            "line",
            U32,
            Dictionary,
            |r: &Self| r.line.map(Into::into),
            |r, v| r.line = u32::try_from(v).ok(),
        )
        .optional(),
        wrapped!("event", U16, Dictionary, event, EventId),
        field!("count", U64, Dictionary, count),
    ];

    fn text_bytes(&self) -> usize {
        self.file.len() + self.function.len()
    }
}

impl Columns for CodeRegion {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("pid", U32, Dictionary, pid, Pid),
        wrapped!("tid", U32, Dictionary, tid, Tid),
        Column::text("name", |r| &r.name, |r, v| v.clone_into(&mut r.name)),
        field!("entries", U64, Dictionary, entries),
        field!("time_ns", U64, Dictionary, time_ns),
        optional!("event", U16, Dictionary, event, EventId),
        field!("count", U64, Dictionary, count),
    ];

    fn text_bytes(&self) -> usize {
        self.name.len()
    }
}

impl Columns for CodeValue {
    const COLUMNS: &'static [Column<Self>] = &[
        field!("time_ns", U64, Delta, time_ns),
        wrapped!("pid", U32, Dictionary, pid, Pid),
        wrapped!("tid", U32, Dictionary, tid, Tid),
        Column::text("name", |r| &r.name, |r, v| v.clone_into(&mut r.name)),
        field!("value", U64, Dictionary, value),
    ];
    const TIME: Option<&'static str> = Some("time_ns");

    fn time_ns(&self) -> u64 {
        self.time_ns
    }

    fn text_bytes(&self) -> usize {
        self.name.len()
    }
}

impl Columns for RegionSpan {
    const COLUMNS: &'static [Column<Self>] = &[
        field!("time_ns", U64, Delta, time_ns),
        wrapped!("pid", U32, Dictionary, pid, Pid),
        wrapped!("tid", U32, Dictionary, tid, Tid),
        Column::text("name", |r| &r.name, |r, v| v.clone_into(&mut r.name)),
        field!("duration_ns", U64, Dictionary, duration_ns),
        field!("inside_ns", U64, Dictionary, inside_ns),
        field!("entries", U64, Dictionary, entries),
    ];

    fn text_bytes(&self) -> usize {
        self.name.len()
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
}

/// A column for half of a device's ID.
macro_rules! device {
    ($name:literal, $part:ident) => {
        number!(
            $name,
            U32,
            Dictionary,
            |r: &Self| Some(r.device.$part.into()),
            |r, v| r.device.$part = v as _,
        )
    };
}

/// A column for an optional field.
macro_rules! maybe {
    ($name:literal, $width:ident, $field:ident) => {
        number!(
            $name,
            $width,
            Dictionary,
            |r: &Self| r.$field.map(u64::from),
            |r, v| r.$field = Some(v as _),
        )
        .optional()
    };
}

/// A text column.
macro_rules! text {
    ($name:literal, $field:ident) => {
        Column::text(
            $name,
            |r: &Self| &r.$field,
            |r, v| v.clone_into(&mut r.$field),
        )
    };
}

/// A Boolean column.
macro_rules! boolean {
    ($name:literal, $field:ident) => {
        number!(
            $name,
            Bool,
            Packing::Plain,
            |r: &Self| Some(r.$field.into()),
            |r, v| r.$field = v != 0,
        )
    };
}

impl Columns for EventRow {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("id", U16, Delta, id, EventId),
        text!("name", name),
        text!("unit", unit),
        text!("provenance", provenance),
        maybe!("total", U64, total),
    ];

    fn text_bytes(&self) -> usize {
        self.name.len() + self.unit.len() + self.provenance.len()
    }
}

impl Columns for SymbolRow {
    const COLUMNS: &'static [Column<Self>] = &[
        wrapped!("pid", U32, Dictionary, pid, Pid),
        wrapped!("ip", U64, Delta, ip, VirtAddr),
        field!("time_ns", U64, Delta, time_ns),
        text!("module", module),
        text!("build_id", build_id).optional(),
        maybe!("offset", U64, offset),
        text!("function", function).optional(),
        text!("file", file).optional(),
        maybe!("line", U32, line),
        text!("inlined_into", inlined_into).optional(),
    ];

    fn text_bytes(&self) -> usize {
        let code = self.module.len() + self.build_id.len() + self.function.len();
        code + self.file.len() + self.inlined_into.len()
    }
}

impl Columns for IoRow {
    const COLUMNS: &'static [Column<Self>] = &[
        field!("time_ns", U64, Delta, time_ns),
        field!("interval_ns", U64, Dictionary, interval_ns),
        wrapped!("owner", U64, Dictionary, owner, Owner),
        device!("netns", netns),
        device!("device", number),
        coded!("direction", U8, direction, Direction),
        field!("bytes", U64, Dictionary, bytes),
        field!("operations", U64, Dictionary, operations),
        field!("segments", U64, Dictionary, segments),
        field!("header_bytes", U64, Dictionary, header_bytes),
    ];
    const TIME: Option<&'static str> = Some("time_ns");

    fn time_ns(&self) -> u64 {
        self.time_ns
    }
}

impl Columns for IoOwner {
    const COLUMNS: &'static [Column<Self>] = &[
        field!("time_ns", U64, Delta, time_ns),
        wrapped!("owner", U64, Dictionary, owner, Owner),
        text!("command", command),
        field!("uid", U32, Dictionary, uid),
        text!("user", user),
        text!("cgroup", cgroup),
        boolean!("kernel", kernel),
        maybe!("process", U32, process),
    ];

    fn text_bytes(&self) -> usize {
        self.command.len() + self.user.len() + self.cgroup.len()
    }
}

impl Columns for IoDevice {
    const COLUMNS: &'static [Column<Self>] = &[
        field!("time_ns", U64, Delta, time_ns),
        device!("netns", netns),
        device!("device", number),
        text!("name", name),
        text!("kind", kind),
        text!("pci", pci),
        text!("slot", slot).optional(),
        text!("pci_root", pci_root).optional(),
        text!("peer", peer).optional(),
        maybe!("numa_node", U32, numa_node),
        maybe!("link_bytes_per_s", U64, link_bytes_per_s),
        text!("below", below),
        boolean!("is_virtual", is_virtual),
    ];

    fn text_bytes(&self) -> usize {
        let place = self.pci.len() + self.slot.len() + self.pci_root.len();
        self.name.len() + self.kind.len() + place + self.below.len() + self.peer.len()
    }
}
