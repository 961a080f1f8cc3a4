//! What a sample says, as a row: from its record, from what the processor added to it,
//! and from the code and the registers at it.

use super::attributes::{Built, Method};
use super::code::Code;
use memgauge_perf::abi::{Attr, kind};
use memgauge_perf::data_src::DataSrc;
use memgauge_perf::derive::{Moment, NoRecipe, Recipe};
use memgauge_perf::ibs::Op;
use memgauge_perf::record::{Header, Layout, Sample};
use memgauge_trace::{
    AccessKind, Cpu, DataSource, Derivation, EventId, PhysAddr, Pid, Sample as SampleRow, Tid,
    VirtAddr,
};

/// How to read the samples of an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decode {
    pub(super) layout: Layout,
    pub(super) attr: Attr,
    pub(super) method: Method,
    /// Samples of the kernel are not wanted, and the processor takes them.
    pub(super) drop_kernel: bool,
}

/// A data source as the kernel packs it, and what it means.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub(super) packed: DataSrc,
    kind: AccessKind,
    source: DataSource,
}

impl Said {
    pub(super) fn by(packed: DataSrc) -> Said {
        Said {
            packed,
            kind: packed.kind(),
            source: packed.level(),
        }
    }
}

/// What an access did, from the event alone.
fn kind_of(attr: &Attr) -> (AccessKind, u16) {
    match (attr.kind, attr.bp_type) {
        (kind::BREAKPOINT, 2) => (AccessKind::Store, attr.config2 as u16),
        (kind::BREAKPOINT, 4) => (AccessKind::Unknown, 0),
        (kind::BREAKPOINT, _) => (AccessKind::Unknown, attr.config2 as u16),
        _ => (AccessKind::Unknown, 0),
    }
}

impl Decode {
    pub(super) fn of(built: &Built) -> Decode {
        Decode {
            layout: Layout::of(&built.attr),
            attr: built.attr,
            method: built.method,
            drop_kernel: built.drop_kernel,
        }
    }

    /// What the record itself says. The time is for the caller to fill in.
    pub(super) fn row(&self, event: EventId, s: &Sample<'_>, period: u64) -> SampleRow {
        self.row_with(Said::by(DataSrc(s.data_src)), event, s, period)
    }

    /// The same, where it is known what the data source means.
    #[inline]
    pub(super) fn row_with(
        &self,
        said: Said,
        event: EventId,
        s: &Sample<'_>,
        period: u64,
    ) -> SampleRow {
        let (kind, size_bytes) = kind_of(&self.attr);
        SampleRow {
            cpu: Some(Cpu(s.cpu)),
            pid: Pid(s.pid),
            tid: Tid(s.tid),
            event,
            ip: VirtAddr(s.ip),
            addr: (s.addr != 0).then_some(VirtAddr(s.addr)),
            phys: (s.phys != 0).then_some(PhysAddr(s.phys)),
            kind: match said.kind {
                AccessKind::Unknown => kind,
                told => told,
            },
            size_bytes,
            latency_cycles: self.layout.latency(s),
            source: said.source,
            period,
            ..SampleRow::default()
        }
    }

    /// Fills in what only IBS' registers say; returns them.
    pub(super) fn complete(&self, s: &Sample<'_>, row: &mut SampleRow) -> Option<Op> {
        let op = match self.method {
            Method::Ibs => Op::parse(s.raw)?,
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

    /// Whether the address is one to be rebuilt from code and registers.
    pub(super) fn lacks_address(&self, row: &SampleRow) -> bool {
        row.addr.is_none() && matches!(self.method, Method::Interrupt | Method::Pebs)
    }

    /// How far the instruction at a sample's address is.
    pub(super) fn moment(&self, header: Header) -> Moment {
        match (self.method, header.is_exact()) {
            (Method::Pebs, true) => Moment::Ran,
            (Method::Pebs, false) => Moment::Follows,
            _ => Moment::Begins,
        }
    }
}

/// Rebuilds the data address from the code around the sample and its registers.
pub(super) fn rebuild(
    code: &mut Code,
    moment: Moment,
    s: &Sample<'_>,
    row: &mut SampleRow,
) -> Result<Derivation, NoRecipe> {
    let register = |number| s.intr_regs.and_then(|r| r.get(number));
    let recipe = code.recipe(s.pid, s.ip, moment)?;
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
