//! Results from recordings: what the rows of a recording show about a program's memory.
//!
//! Every analysis is an [`Analysis`]: it observes batches of one table's rows, merges with another
//! one of its type, and finishes into a result. The live view, the report on a finished recording,
//! and a job over many recordings use the same analyses. [`summarise`] runs all of them over one
//! recording and returns a [`Summary`].
//!
//! Nothing here calls the operating system. Names come through [`Resolve`], and rows through the
//! recording's reader. No analysis asks which source made an event. It relies on the declarations
//! in the manifest.
//!
//! Results are deterministic: equal rows in any batching give equal results,
//! and ties are ordered by name, then address.
#![forbid(unsafe_code)]

mod assemble;
pub mod bandwidth;
mod cause;
mod causes;
mod code;
mod counting;
mod counts;
mod data;
mod derived;
mod findings;
mod io;
mod layouts_to_try;
mod levels;
mod listed;
mod losses;
mod part;
mod partial;
mod reading;
mod resolve;
mod run_totals;
mod sample_intervals;
mod samples;
mod set_groups;
mod sort;
mod sort_column;
mod summarise;
mod summary;
mod threads;
mod time;
mod what_if;

#[cfg(test)]
mod oracle;

pub use assemble::{Options, SummaryParts, assemble, summarise_counting};
pub use bandwidth::dram::{BandwidthCurve, Dram};
pub use cause::{Cause, CauseKind};
pub use code::address_spaces::{AddressSpaces, Generated, Modules};
pub use code::disassembly::{CodeListing, ListedInstruction};
pub use code::excerpts::Excerpt;
pub use code::hotspots::{
    HotRow, HotTable, HotTables, OtherRows, Rank, STARTUP, STARTUP_MATTERS_PERCENT, TableLimits,
    hot_tables, is_startup_code,
};
pub use code::library_calls::{LibraryCaller, LibraryFunction};
pub use code::library_names::is_library_code;
pub use code::named_code::symbol_rows;
pub use code::python::{PythonRow, PythonSums, PythonTable};
pub use code::roi::{CodeRegionRow, CodeRegions, CodeValueRow, CodeValues};
pub use code::sites::{SampledSites, SiteTotals, Sites};
pub use code::stacked::{StackFrame, StackedSample, StackedSamples, stacked_samples};
pub use code::stacks::{
    CallEdge, CallNode, CallTree, CalledFrom, Frames, InclusiveRow, SampledStacks, TimedCalls,
};
pub use code::unnamed::{PythonWithoutLines, Runtime, UnnamedCode};
pub use counting::{CounterCurve, Counting, EventCounter, Ticking};
pub use counts::{Counts, EventNames};
pub use data::fine_heat::{FineHeat, FineStretch};
pub use data::heap_history::{
    HeapClass, HeapClassSums, HeapCurve, HeapHistograms, HeapHistory, HeapOverTime,
};
pub use data::heat::{HeatByEvent, HeatMap, HeatMaps, HotPlace, Stretch};
pub use data::layout::{LayoutChange, LayoutError, MovedOffset, ObjectLayout};
pub use data::placement::{
    Advice, ByNode, MemoryRegion, PageNodes, PageUseByNode, PlacedRange, Placement, placement,
};
pub use data::references::{References, TakeReferences, no_references, references};
pub use data::regions::{
    AddressGap, RegionRow, RegionTable, Regions, RowLimit, SampledRegions, UnaddressedFunction,
};
pub use data::sharing::{
    ByteRange, SharedAccess, SharedLine, SharedLineSums, SharedLines, SharingCounts,
};
pub use data::table::{
    AllocationCall, AllocationSite, Allocations, DataKind, DataPlace, DataSums, DataTable,
    HeapErrors, HeapUse, allocator_name, metric_name,
};
pub use data::types::{MemberRow, TypeRow, TypeTable, UntypedRow};
pub use derived::{Derived, derived};
pub use findings::{Finding, findings};
pub use io::curves::{IoCurve, IoOverTime};
pub use io::memory::{IoMemory, IoPort, IoTerm, MemoryCounterSums};
pub use io::moved::{BothWays, IoDeviceLine, IoLine, Moved};
pub use io::{IoAccounts, IoBy, IoLoss, IoSummary, summarise_io};
pub use layouts_to_try::{HotMembers, falsely_shared_variables, layouts_to_try};
pub use levels::{Level, LevelName, levels};
pub use losses::{LossRow, Losses, sentence};
pub use part::summarise_part;
pub use partial::{MismatchedShares, PartialError, PartialSummary};
pub use resolve::data_type::{DataAccess, DataType, NoType, TypeHole, TypeMember};
pub use resolve::{
    BranchTarget, Caller, CodeStep, ControlFlow, Instruction, ModuleFile, NoSymbols, Resolve,
    SourceText, Symbol, file_name,
};
pub use run_totals::{RunTotals, run_totals};
pub use sample_intervals::{wilson, wilson_95};
pub use samples::{DataFrom, SampleTotals, SampledEvent, SamplingResults};
pub use set_groups::EstimateInterval;
pub use sort::{Cell, SortRow, UnknownColumn};
pub use sort_column::SortColumn;
pub use summarise::{summarise, summarise_end};
pub use summary::{Provenances, RecordingFacts, RunFacts, SCHEMA_VERSION, Summary, TotalsFrom};
pub use threads::{
    ProcessRow, ThreadNames, ThreadRow, ThreadSums, ThreadTotals, processes, threads,
};
pub use time::counted_time::{CountedPart, CountedTime};
pub use time::file_waits::FileWaitPlace;
pub use time::region_times::{
    RegionOverTime, RegionTimes, RegionsOverTime, TimedRegion, TimedSpan,
};
pub use time::series::{Curves, EventCurve, Peak, Series};
pub use time::time_use::{TimePart, TimeUse};
pub use time::timeline::{SampleTimes, TimedCurve, TimedRow, TimedSamples, Timeline};
pub use what_if::{Changed, WhatIf};

/// One way of reading one table.
pub trait Analysis {
    /// The table's row type.
    type Row;
    /// Result of the analysis.
    type Output;

    /// Observes some rows. How a table is divided into batches does not matter.
    fn observe(&mut self, batch: &[Self::Row]);

    /// Adds the observations of another analysis with the same settings.
    fn merge(&mut self, other: Self);

    /// Returns the result of all observed rows.
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
