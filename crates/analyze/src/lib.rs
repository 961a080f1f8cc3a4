//! Results from recordings: what the rows of a recording say about a program's
//! memory.
//!
//! Every analysis is an [`Analysis`]: it observes batches of one table's rows,
//! merges with another of its kind and finishes into a result. The live view,
//! the report on a finished recording and a job over many recordings use the
//! same one. [`summarise`] runs them all over one recording into a [`Summary`].
//!
//! Nothing here calls the operating system: names come through [`Resolve`],
//! rows through the recording's reader. No analysis asks which source made an
//! event; it reads what the manifest declares.
//!
//! Results are deterministic: equal rows in any batching give equal results,
//! and ties are ordered by name, then address.
#![forbid(unsafe_code)]

mod address_gap;
mod assemble;
pub mod bandwidth;
mod cause;
mod causes;
mod code_regions;
mod counted_time;
mod counting;
mod counts;
mod data;
mod data_type;
mod derived;
mod disassembly;
mod dram;
mod excerpts;
mod findings;
mod fine_heat;
mod heap_history;
mod heat;
mod hotspots;
mod io;
mod io_curves;
mod io_memory;
mod io_moved;
mod io_time;
mod layout;
mod levels;
mod listed;
mod losses;
mod named_code;
mod order;
mod part;
mod partial;
mod placement;
mod python;
mod reading;
mod references;
mod region_times;
mod regions;
mod resolve;
mod run_totals;
mod sample_intervals;
mod samples;
mod series;
mod set_groups;
mod sharing;
mod sites;
mod sort;
mod sort_column;
mod spaces;
mod stacked;
mod stacks;
mod summarise;
mod summary;
mod threads;
mod time_use;
mod timeline;
mod types;
mod unnamed;
mod what_if;

#[cfg(test)]
mod oracle;

pub use assemble::{Options, Parts, assemble, summarise_counting};
pub use cause::{Cause, CauseKind};
pub use code_regions::{CodeRegionRow, CodeRegions, CodeValueRow, CodeValues};
pub use counted_time::{CountedPart, CountedTime};
pub use counting::{Counter, CounterCurve, Counting, Ticking};
pub use counts::{Counts, EventNames};
pub use data::{
    AllocationCall, AllocationSite, Allocations, DataKind, DataPlace, DataSums, DataTable,
    HeapErrors, HeapUse, metric_name,
};
pub use data_type::{DataAccess, DataType, NoType, TypeHole, TypeMember};
pub use derived::{Derived, derived};
pub use disassembly::{CodeListing, ListedInstruction};
pub use dram::{BandwidthCurve, Dram};
pub use excerpts::Excerpt;
pub use findings::{Finding, findings};
pub use fine_heat::{FineHeat, FineStretch};
pub use heap_history::{
    HeapClass, HeapClassSums, HeapCurve, HeapHistograms, HeapHistory, HeapOverTime,
};
pub use heat::{HeatByEvent, HeatMap, HeatMaps, HotPlace, Stretch};
pub use hotspots::{HotRow, HotTable, HotTables, Limits, OtherRows, Rank, hot_tables};
pub use io::{IoAccounts, IoBy, IoLoss, IoSummary, summarise_io};
pub use io_curves::{IoCurve, IoOverTime};
pub use io_memory::{IoMemory, IoPort, IoTerm, MemoryCounters};
pub use io_moved::{BothWays, IoDeviceLine, IoLine, Moved};
pub use layout::{Layout, LayoutChange, LayoutError, MovedOffset, outermost_member};
pub use levels::{Level, LevelName, levels};
pub use losses::{LossRow, Losses, sentence};
pub use named_code::symbol_rows;
pub use part::summarise_part;
pub use partial::{MismatchedShares, PartialError, PartialSummary};
pub use placement::{
    Advice, ByNode, MemoryRegion, PageNodes, PageUse, PlacedRange, Placement, placement,
};
pub use python::{PythonRow, PythonSums, PythonTable};
pub use references::{References, TakeReferences, no_references, references};
pub use region_times::{RegionOverTime, RegionTimes, RegionsOverTime, TimedRegion, TimedSpan};
pub use regions::{
    AddressGap, RegionRow, RegionTable, Regions, RowLimit, SampledRegions, UnaddressedFunction,
};
pub use resolve::{
    Caller, Instruction, ModuleFile, NoSymbols, Resolve, SourceText, Symbol, file_name,
};
pub use run_totals::{RunTotals, run_totals};
pub use sample_intervals::{wilson, wilson_95};
pub use samples::{DataFrom, SampleTotals, SampledEvent, Sampling};
pub use series::{Curve, Curves, Peak, Series};
pub use set_groups::EstimateInterval;
pub use sharing::{
    ByteRange, SharedAccess, SharedLine, SharedLineSums, SharedLines, SharingCounts,
};
pub use sites::{SampledSites, SiteTotals, Sites};
pub use sort::{Cell, SortRow, UnknownColumn};
pub use sort_column::SortColumn;
pub use spaces::{AddressSpaces, Generated, Modules};
pub use stacked::{StackFrame, StackedSample, StackedSamples, stacked_samples};
pub use stacks::{
    CallEdge, CallNode, CallTree, CalledFrom, Frames, InclusiveRow, SampledStacks, TimedCalls,
};
pub use summarise::{summarise, summarise_end};
pub use summary::{Provenances, RecordingFacts, RunFacts, SCHEMA_VERSION, Summary, TotalsFrom};
pub use threads::{
    ProcessRow, ThreadNames, ThreadRow, ThreadSums, ThreadTotals, processes, threads,
};
pub use time_use::{TimePart, TimeUse};
pub use timeline::{SampleTimes, TimedCurve, TimedRow, TimedSamples, Timeline};
pub use types::{MemberRow, TypeRow, TypeTable, UntypedRow};
pub use unnamed::{PythonWithoutLines, Runtime, UnnamedCode};
pub use what_if::WhatIf;

/// One way of reading one table.
pub trait Analysis {
    /// The table's row type.
    type Row;
    /// Result of the analysis.
    type Output;

    /// Takes some rows; the division of a table into batches does not matter.
    fn observe(&mut self, batch: &[Self::Row]);

    /// Adds the observations of another one with the same settings.
    fn merge(&mut self, other: Self);

    /// The result over everything observed.
    fn finish(self) -> Self::Output;
}

/// An analysis that may not be wanted.
impl<A: Analysis> Analysis for Option<A> {
    type Row = A::Row;
    type Output = Option<A::Output>;

    fn observe(&mut self, batch: &[Self::Row]) {
        if let Some(analysis) = self {
            analysis.observe(batch);
        }
    }

    fn merge(&mut self, other: Self) {
        match (self, other) {
            (Some(analysis), Some(other)) => analysis.merge(other),
            (analysis, other) => *analysis = analysis.take().or(other),
        }
    }

    fn finish(self) -> Self::Output {
        self.map(A::finish)
    }
}

/// Two analyses in one pass over a table.
impl<A, B> Analysis for (A, B)
where
    A: Analysis,
    B: Analysis<Row = A::Row>,
{
    type Row = A::Row;
    type Output = (A::Output, B::Output);

    fn observe(&mut self, batch: &[Self::Row]) {
        self.0.observe(batch);
        self.1.observe(batch);
    }

    fn merge(&mut self, other: Self) {
        self.0.merge(other.0);
        self.1.merge(other.1);
    }

    fn finish(self) -> Self::Output {
        (self.0.finish(), self.1.finish())
    }
}
