//! Decodes a sample into a row: from its record, from what the processor added to it, and from
//! the code and registers at the sampled instruction.
//!
//! Recordings and attached threads share these rules.

use super::attributes::{SamplingAttr, SamplingMethod};
use super::code::CodeReader;
use memgauge_perf::abi::{Attr, kind, sample};
use memgauge_perf::data_src::DataSrc;
use memgauge_perf::derive::{IpPosition, NoRecipe, Recipe};
use memgauge_perf::ibs::Op;
use memgauge_perf::record::{Header, Layout, Sample};
use memgauge_trace::{
    AccessKind, Cpu, DataSource, Derivation, EventId, PhysAddr, Pid, Sample as SampleRow, Tid,
    VirtAddr,
};

/// `HW_BREAKPOINT_W` and `HW_BREAKPOINT_X`.
const BREAK_WRITE: u32 = 2;
const BREAK_EXECUTE: u32 = 4;

/// Decodes the samples of one event.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleDecoder {
    pub(super) layout: Layout,
    pub(super) attr: Attr,
    pub(super) method: SamplingMethod,
    /// The processor samples the kernel although only user space was requested.
    drop_kernel: bool,
}

/// A data source as the kernel packs it, and its meaning.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecodedDataSource {
    pub(super) packed: DataSrc,
    kind: AccessKind,
    source: DataSource,
}

impl DecodedDataSource {
    pub(super) fn new(packed: DataSrc) -> DecodedDataSource {
        DecodedDataSource {
            packed,
            kind: packed.kind(),
            source: packed.level(),
        }
    }
}

/// Kind and size in bytes of the access, as far as the event itself determines them.
fn access_of_event(attr: &Attr) -> (AccessKind, u16) {
    match (attr.kind, attr.bp_type) {
        (kind::BREAKPOINT, BREAK_WRITE) => (AccessKind::Store, attr.config2 as u16),
        (kind::BREAKPOINT, BREAK_EXECUTE) => (AccessKind::Unknown, 0),
        (kind::BREAKPOINT, _) => (AccessKind::Unknown, attr.config2 as u16),
        _ => (AccessKind::Unknown, 0),
    }
}

impl SampleDecoder {
    pub(super) fn new(sampling: &SamplingAttr) -> SampleDecoder {
        SampleDecoder {
            layout: Layout::new(&sampling.attr),
            attr: sampling.attr,
            method: sampling.method,
            drop_kernel: sampling.drop_kernel,
        }
    }

    /// True if the sample must be dropped because only user space was requested.
    pub(super) fn is_unwanted(&self, header: Header) -> bool {
        self.drop_kernel && !header.is_user()
    }

    /// Number of events that a sample represents. This is the count since the previous sample, or
    /// else the period in the sample, or else the period that was set when it was taken.
    pub(super) fn stands_for(
        &self,
        s: &Sample<'_>,
        counted: Option<u64>,
        set_period: impl FnOnce() -> u64,
    ) -> u64 {
        match counted {
            Some(counted) => counted,
            None if self.layout.has(sample::PERIOD) => s.period,
            None => set_period(),
        }
    }

    /// Decodes the record. The caller fills in the time.
    pub(super) fn row(&self, event: EventId, s: &Sample<'_>, period: u64) -> SampleRow {
        self.row_from(
            DecodedDataSource::new(DataSrc(s.data_src)),
            event,
            s,
            period,
        )
    }

    /// As [`row`](Self::row), with a data source that has been decoded already.
    #[inline]
    pub(super) fn row_from(
        &self,
        data_source: DecodedDataSource,
        event: EventId,
        s: &Sample<'_>,
        period: u64,
    ) -> SampleRow {
        let (kind, size_bytes) = access_of_event(&self.attr);
        SampleRow {
            cpu: Some(Cpu(s.cpu)),
            pid: Pid(s.pid),
            tid: Tid(s.tid),
            event,
            ip: VirtAddr(s.ip),
            addr: (s.addr != 0).then_some(VirtAddr(s.addr)),
            phys: (s.phys != 0).then_some(PhysAddr(s.phys)),
            kind: match data_source.kind {
                AccessKind::Unknown => kind,
                known => known,
            },
            size_bytes,
            latency_cycles: self.layout.latency(s),
            source: data_source.source,
            period,
            ..SampleRow::default()
        }
    }

    /// Fills in what only IBS registers contain, and returns them.
    pub(super) fn add_ibs_fields(&self, s: &Sample<'_>, row: &mut SampleRow) -> Option<Op> {
        let op = match self.method {
            SamplingMethod::Ibs => Op::parse(s.raw)?,
            _ => return None,
        };
        row.size_bytes = op.size_bytes();
        row.addr = row.addr.or(op.addr().map(VirtAddr));
        row.phys = row.phys.or(op.phys().map(PhysAddr));
        if row.kind == AccessKind::Unknown {
            row.kind = op.kind();
        }
        if row.source == DataSource::Unknown {
            row.source = op.level();
        }
        if row.latency_cycles == 0 {
            row.latency_cycles = op.latency_cycles();
        }
        Some(op)
    }

    /// True if the data address can only come from the code and registers.
    pub(super) fn needs_derived_address(&self, row: &SampleRow) -> bool {
        // IBS and SPE report every address there is.
        let may_lack_it = matches!(
            self.method,
            SamplingMethod::Interrupt | SamplingMethod::Pebs
        );
        row.addr.is_none() && may_lack_it
    }

    /// Whether the instruction at the sampled address has been executed.
    pub(super) fn ip_position(&self, header: Header) -> IpPosition {
        match (self.method, header.is_exact()) {
            (SamplingMethod::Pebs, true) => IpPosition::Executed,
            (SamplingMethod::Pebs, false) => IpPosition::AfterExecuted,
            _ => IpPosition::AboutToExecute,
        }
    }
}

/// Derives the data address from the code around the sample and its registers.
pub(super) fn derive_address(
    code: &mut CodeReader,
    position: IpPosition,
    s: &Sample<'_>,
    row: &mut SampleRow,
) -> Result<Derivation, NoRecipe> {
    let register = |number| s.intr_regs.and_then(|registers| registers.get(number));
    let recipe = code.recipe(s.pid, s.ip, position)?;
    let address = recipe.address(register).ok_or(NoRecipe::NoRegisters)?;
    let Recipe {
        derivation,
        kind,
        size_bytes,
        ..
    } = recipe;
    (row.kind, row.size_bytes) = (kind, size_bytes);
    row.addr = Some(VirtAddr(address));
    row.derivation = Some(derivation);
    Ok(derivation)
}
