//! Costs of accesses: misses, traffic and stalls.

use memgauge_machine::AccessOutcome;
use memgauge_trace::DataSource;

/// Misses of one access of the code since they were last written out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SiteMisses {
    pub(crate) l1d: u32,
    pub(crate) l2: u32,
    pub(crate) llc: u32,
    pub(crate) dtlb: u32,
    pub(crate) walks: u32,
    pub(crate) dram_read_bytes: u32,
    pub(crate) dram_write_bytes: u32,
}

impl SiteMisses {
    /// Adds the misses of an access. Tests first, because most accesses only miss the first level,
    /// and because the host cannot forward narrow stores of an outcome to a wide load of it.
    #[inline(always)]
    pub(crate) fn add(&mut self, outcome: &AccessOutcome) {
        self.l1d += u32::from(outcome.l1d_misses);
        if outcome.l2_misses > 0 {
            self.l2 += u32::from(outcome.l2_misses);
            self.llc += u32::from(outcome.llc_misses);
        }
        if outcome.dtlb_misses > 0 {
            self.dtlb += u32::from(outcome.dtlb_misses);
            self.walks += u32::from(outcome.walks);
        }
        if outcome.has_traffic() {
            let (read, written) = (outcome.dram_read_bytes, outcome.dram_write_bytes);
            self.dram_read_bytes = self.dram_read_bytes.saturating_add(read);
            self.dram_write_bytes = self.dram_write_bytes.saturating_add(written);
        }
    }
}

/// Millicycles that an access of the code stalled its core, by what it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct SiteStalls {
    pub(crate) l2: u64,
    pub(crate) llc: u64,
    pub(crate) dram: u64,
    pub(crate) queue: u64,
    pub(crate) tlb: u64,
    pub(crate) stores: u64,
    /// For a line that another core had modified.
    pub(crate) sharing: u64,
}

impl SiteStalls {
    #[inline(always)]
    pub(crate) fn add(&mut self, outcome: &AccessOutcome) {
        let stalled = &outcome.stalled;
        let level = match outcome.source {
            DataSource::Dram => &mut self.dram,
            DataSource::Llc => &mut self.llc,
            DataSource::OtherCore => &mut self.sharing,
            _ => &mut self.l2,
        };
        *level += stalled.latency;
        if stalled.queue > 0 {
            self.queue += stalled.queue;
        }
        if stalled.translation > 0 {
            self.tlb += stalled.translation;
        }
        if stalled.stores > 0 {
            self.stores += stalled.stores;
        }
    }

    pub(crate) fn add_all(&mut self, other: &SiteStalls) {
        self.l2 += other.l2;
        self.llc += other.llc;
        self.dram += other.dram;
        self.queue += other.queue;
        self.tlb += other.tlb;
        self.stores += other.stores;
        self.sharing += other.sharing;
    }

    pub(crate) fn sum(&self) -> u64 {
        self.l2 + self.llc + self.dram + self.queue + self.tlb + self.stores + self.sharing
    }
}
