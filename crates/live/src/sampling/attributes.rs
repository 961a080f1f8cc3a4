//! Chooses the kernel attributes for samples of an event. Pure.
//!
//! **Large PEBS.** Intel's processors write precise records into a buffer by themselves. The
//! kernel lets the buffer fill up and takes one interrupt for hundreds of records, unless the
//! attribute asks for something that only an interrupt can provide. [`interrupt_reasons`] is the
//! kernel's rule (`intel_pmu_hw_config`, `intel_pmu_large_pebs_flags`; Linux 6.1 to 6.18).
//! [`sampling_attr`] asks for nothing that breaks it unless the user does.
//!
//! **IBS** has no buffer. Its periods are multiples of 16, at least 144. Before Zen 6 it samples
//! user space and the kernel alike; the kernel's filter (`swfilt`) or memgauge drops the rest.
//!
//! **SPE** writes packets into an area next to the ring (`memgauge_perf::spe`).
//!
//! **Timers.** The kernel writes into a timer's samples the period that its event was opened
//! with, even if it has been changed since (`perf_swevent_hrtimer` uses `hw.last_period`, which
//! nothing updates; Linux 6.1 to 6.18). So samples contain the counter's value instead, and a
//! sample stands for the difference to the previous one. Kernels before 6.13 do not support that
//! for inherited events. There, a sample stands for the current period.

use crate::events::Event;
use crate::stat::MIN_INTERVAL_NS;
use memgauge_host::unwind;
use memgauge_perf::abi::{Attr, flag, kind, read, sample, software};

/// Mechanism that takes the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingMethod {
    /// Intel's precise records.
    Pebs,
    /// AMD's op sampling.
    Ibs,
    /// ARM's statistical profiling.
    Spe,
    /// The interrupt of a counter, or the kernel.
    Interrupt,
}

/// Capabilities of the processor and the kernel's PMU drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PmuCapabilities {
    /// True if precise events of the core PMU are PEBS. Otherwise they are IBS.
    pub has_pebs: bool,
    /// Format of PEBS records: 3 from Skylake on, 4 from Ice Lake, 6 from Arrow Lake.
    pub pebs_format: u8,
    /// Numbers of AMD's IBS PMUs (`perf_event_attr.type`).
    pub ibs_pmus: Vec<u32>,
    /// True if the kernel can filter IBS samples by mode.
    pub has_ibs_filter: bool,
    /// Numbers of ARM's SPE PMUs.
    pub spe_pmus: Vec<u32>,
}

/// How often to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingRate {
    /// Number of events between two samples.
    Period(u64),
    /// Samples per second. The kernel adjusts the period.
    Frequency(u64),
}

/// How to record call stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackRequest {
    /// Maximum number of frames.
    pub max_frames: u16,
    /// Number of bytes of the stack to copy and unwind. With `None` the kernel follows frame
    /// pointers.
    pub copied_bytes: Option<u32>,
}

/// Fields that samples should contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRequest {
    /// How often to sample.
    pub rate: SamplingRate,
    /// General registers.
    pub registers: bool,
    /// Physical addresses of data, if the user is allowed to see them.
    pub physical_address: bool,
    /// Call stacks.
    pub stacks: Option<StackRequest>,
    /// The count of a timer (kernel 6.13 for inherited events).
    pub timer_values: bool,
}

/// An attribute to open, and what had to be changed for it.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingAttr {
    /// The kernel's attribute.
    pub attr: Attr,
    /// Mechanism that takes the samples.
    pub method: SamplingMethod,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// True if memgauge has to drop samples of the kernel.
    pub drop_kernel: bool,
    /// True if PEBS records gather in the processor's buffer.
    pub uses_large_pebs: bool,
}

/// General registers by the kernel's numbers: all that PEBS records but the flags.
pub(super) const REGISTERS: u64 = memgauge_perf::derive::REGISTERS;

/// Registers that a PEBS record contains (`PEBS_GP_REGS`): AX to IP, flags, R8 to R15.
const PEBS_REGISTERS: u64 = 0x00ff_03ff;

/// Fields in the samples of every event. Having them in all samples puts the event's ID and the
/// time at the same offset.
pub(super) const EVERY_SAMPLE: u64 = sample::IDENTIFIER
    | sample::IP
    | sample::TID
    | sample::TIME
    | sample::ADDR
    | sample::CPU
    | sample::PERIOD;

/// Minimum period of IBS (`perf_ibs_op`, "min_period" 0x90).
const IBS_MIN_PERIOD: u64 = 0x90;
/// Periods of IBS are multiples of this.
pub(super) const IBS_PERIOD_STEP: u64 = 16;
/// Below this period SPE loses samples to collisions.
const SPE_MIN_PERIOD: u64 = 2048;
/// `config2:0` of IBS PMUs that have `swfilt`.
const IBS_FILTER: u64 = 1;

/// Returns the mechanism that samples an event.
pub(super) fn sampling_method(attr: &Attr, capabilities: &PmuCapabilities) -> SamplingMethod {
    match attr.kind {
        kind if capabilities.ibs_pmus.contains(&kind) => SamplingMethod::Ibs,
        kind if capabilities.spe_pmus.contains(&kind) => SamplingMethod::Spe,
        _ if attr.precise_ip() == 0 => SamplingMethod::Interrupt,
        _ if capabilities.has_pebs => SamplingMethod::Pebs,
        // The kernel forwards precise events of the core PMU to IBS.
        _ => SamplingMethod::Ibs,
    }
}

/// Minimum period of an event. Below it the kernel silently uses a longer one, refuses the
/// event, or loses samples. The minimum of PEBS depends on the processor (32 on Nehalem and
/// Haswell, 128 on Broadwell); the kernel enforces it.
pub(super) fn min_period(attr: &Attr, method: SamplingMethod) -> u64 {
    match method {
        SamplingMethod::Ibs => IBS_MIN_PERIOD,
        SamplingMethod::Spe => SPE_MIN_PERIOD,
        SamplingMethod::Pebs => 2,
        SamplingMethod::Interrupt if is_timer(attr) => MIN_INTERVAL_NS,
        SamplingMethod::Interrupt => 1,
    }
}

/// Builds the attribute for samples of an event.
pub fn sampling_attr(
    event: &Event,
    request: &SampleRequest,
    capabilities: &PmuCapabilities,
) -> SamplingAttr {
    let mut attr = event.attr;
    let method = sampling_method(&attr, capabilities);
    attr.flags |= flag::DISABLED | flag::WATERMARK | flag::SAMPLE_ID_ALL;
    attr.sample_type = EVERY_SAMPLE;
    attr.read_format = read::LOST;
    set_rate(&mut attr, request.rate);
    if request.physical_address {
        attr.sample_type |= sample::PHYS_ADDR;
    }
    if request.registers {
        attr.sample_type |= sample::REGS_INTR;
        attr.sample_regs_intr = REGISTERS;
    }
    if let Some(stacks) = request.stacks {
        add_stacks(&mut attr, stacks);
    }
    let mut sampling = SamplingAttr {
        attr,
        method,
        notes: Vec::new(),
        drop_kernel: false,
        uses_large_pebs: false,
    };
    match method {
        SamplingMethod::Pebs => sampling.set_pebs_fields(capabilities),
        SamplingMethod::Ibs => sampling.set_ibs_fields(capabilities),
        SamplingMethod::Spe => sampling.set_spe_fields(),
        SamplingMethod::Interrupt if is_counted_in_software(&sampling.attr) => {
            // With a frequency the kernel chooses the period, so only the sample has it.
            if !sampling.attr.has(flag::FREQ) {
                sampling.attr.sample_type &= !sample::PERIOD;
            }
        }
        SamplingMethod::Interrupt if !event.is_software() => sampling.add_latencies(),
        SamplingMethod::Interrupt => sampling.set_timer_fields(request.timer_values),
    }
    sampling
}

fn add_stacks(attr: &mut Attr, stacks: StackRequest) {
    attr.sample_type |= sample::CALLCHAIN;
    attr.sample_max_stack = stacks.max_frames;
    if attr.has(flag::EXCLUDE_KERNEL) {
        attr.flags |= flag::EXCLUDE_CALLCHAIN_KERNEL;
    }
    if let Some(bytes) = stacks.copied_bytes {
        // The copy has the user's frames. The kernel still walks its own.
        attr.flags |= flag::EXCLUDE_CALLCHAIN_USER;
        attr.sample_type |= sample::REGS_USER | sample::STACK_USER;
        attr.sample_regs_user = unwind::registers();
        attr.sample_stack_user = bytes;
    }
}

/// True if the kernel itself counts the event, one by one. If the samples of such an event
/// contain the period, the kernel samples every event, whatever the period
/// (`perf_swevent_event`).
fn is_counted_in_software(attr: &Attr) -> bool {
    match attr.kind {
        kind::TRACEPOINT | kind::BREAKPOINT => true,
        kind::SOFTWARE => !is_timer(attr),
        _ => false,
    }
}

/// True if the event's period is a time in nanoseconds.
pub(super) fn is_timer(attr: &Attr) -> bool {
    attr.kind == kind::SOFTWARE && matches!(attr.config, software::CPU_CLOCK | software::TASK_CLOCK)
}

fn set_rate(attr: &mut Attr, rate: SamplingRate) {
    match rate {
        // A period in the event's own terms takes precedence.
        SamplingRate::Period(_) if attr.period > 0 => {}
        SamplingRate::Period(period) => attr.period = period,
        SamplingRate::Frequency(hertz) => {
            attr.period = hertz;
            attr.flags |= flag::FREQ;
        }
    }
}

impl SamplingAttr {
    fn add_latencies(&mut self) {
        self.attr.sample_type |= sample::DATA_SRC | sample::WEIGHT_STRUCT;
    }

    fn set_pebs_fields(&mut self, capabilities: &PmuCapabilities) {
        self.add_latencies();
        let reasons = interrupt_reasons(&self.attr, capabilities.pebs_format);
        self.uses_large_pebs = reasons.is_empty();
        if !reasons.is_empty() {
            let reasons = reasons.join(", ");
            self.notes
                .push(format!("an interrupt for each record: {reasons}"));
        }
    }

    fn set_ibs_fields(&mut self, capabilities: &PmuCapabilities) {
        self.add_latencies();
        // Only the raw registers contain the width of an operand.
        self.attr.sample_type |= sample::RAW;
        self.round_ibs_period();
        let is_own_pmu = capabilities.ibs_pmus.contains(&self.attr.kind);
        if is_own_pmu && self.attr.has(flag::EXCLUDE_KERNEL) {
            self.exclude_kernel_from_ibs(capabilities);
        }
    }

    fn round_ibs_period(&mut self) {
        let requested = self.attr.period;
        if self.attr.has(flag::FREQ) {
            return;
        }
        let period = requested
            .max(IBS_MIN_PERIOD)
            .next_multiple_of(IBS_PERIOD_STEP);
        if period != requested {
            self.attr.period = period;
            self.notes.push(format!(
                "period {period} instead of {requested}: IBS supports multiples of \
                 {IBS_PERIOD_STEP} from {IBS_MIN_PERIOD} on"
            ));
        }
    }

    fn set_timer_fields(&mut self, values: bool) {
        if values {
            self.attr.sample_type |= sample::READ;
        }
        let requested = self.attr.period;
        if self.attr.has(flag::FREQ) {
            return;
        }
        // The kernel would write the period at opening, not the current one.
        self.attr.sample_type &= !sample::PERIOD;
        if requested < MIN_INTERVAL_NS {
            self.attr.period = MIN_INTERVAL_NS;
            self.notes.push(format!(
                "period {MIN_INTERVAL_NS} ns instead of {requested}: the kernel's timer has no \
                 shorter one"
            ));
        }
    }

    fn exclude_kernel_from_ibs(&mut self, capabilities: &PmuCapabilities) {
        if capabilities.has_ibs_filter {
            self.attr.config2 |= IBS_FILTER;
            return;
        }
        self.attr.flags &= !(flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV);
        self.drop_kernel = true;
        self.notes.push(
            "IBS samples the kernel too (kernel 6.14 can filter); memgauge drops these samples"
                .to_owned(),
        );
    }

    fn set_spe_fields(&mut self) {
        // The area has the samples; the ring has only side-band records.
        self.attr.sample_type = sample::IDENTIFIER | sample::TID | sample::TIME | sample::CPU;
        self.attr.sample_regs_intr = 0;
        let requested = self.attr.period;
        if !self.attr.has(flag::FREQ) && requested < SPE_MIN_PERIOD {
            self.attr.period = SPE_MIN_PERIOD;
            self.notes.push(format!(
                "period {SPE_MIN_PERIOD} instead of {requested}, the minimum of SPE"
            ));
        }
    }
}

/// Fields that the kernel can take from a PEBS record of this format.
fn pebs_record_fields(attr: &Attr, format: u8) -> u64 {
    let mut fields = sample::IP
        | sample::TID
        | sample::ADDR
        | sample::ID
        | sample::CPU
        | sample::STREAM_ID
        | sample::DATA_SRC
        | sample::IDENTIFIER
        | sample::TRANSACTION
        | sample::PHYS_ADDR
        | sample::REGS_INTR
        | sample::REGS_USER
        | sample::PERIOD
        | sample::CODE_PAGE_SIZE
        | sample::WEIGHT
        | sample::WEIGHT_STRUCT;
    if format >= 3 && !attr.has(flag::USE_CLOCKID) {
        fields |= sample::TIME;
    }
    if format >= 4 {
        fields |= sample::BRANCH_STACK;
    }
    if format >= 6 {
        fields |= sample::READ;
    }
    if !attr.has(flag::EXCLUDE_KERNEL) || attr.sample_regs_user & !PEBS_REGISTERS != 0 {
        fields &= !sample::REGS_USER;
    }
    if attr.sample_regs_intr & !PEBS_REGISTERS != 0 {
        fields &= !sample::REGS_INTR;
    }
    fields
}

const FIELD_NAMES: &[(u64, &str)] = &[
    (sample::TIME, "time (not in this processor's records)"),
    (sample::READ, "counters' values"),
    (sample::CALLCHAIN, "call chains"),
    (sample::RAW, "raw bytes"),
    (sample::BRANCH_STACK, "branch stacks"),
    (sample::REGS_USER, "user registers"),
    (sample::STACK_USER, "stacks"),
    (sample::REGS_INTR, "registers that records do not hold"),
    (sample::AUX, "AUX samples"),
    (sample::CGROUP, "control groups"),
    (sample::DATA_PAGE_SIZE, "sizes of data pages"),
];

/// Returns why the kernel takes an interrupt for each PEBS record of this event. Empty if records
/// gather in the buffer.
pub(crate) fn interrupt_reasons(attr: &Attr, pebs_format: u8) -> Vec<&'static str> {
    let mut reasons = Vec::new();
    if attr.has(flag::FREQ) {
        reasons.push("a frequency instead of a period");
    }
    if attr.wakeup > 0 && !attr.has(flag::WATERMARK) {
        reasons.push("a wake-up by number of samples");
    }
    if attr.aux_action != 0 {
        reasons.push("control of an AUX trace");
    }
    let other_fields = attr.sample_type & !pebs_record_fields(attr, pebs_format);
    let named = FIELD_NAMES
        .iter()
        .filter(|(bit, _)| other_fields & bit != 0);
    reasons.extend(named.map(|(bit, name)| match *bit {
        sample::TIME if attr.has(flag::USE_CLOCKID) => "times of a chosen clock",
        _ => name,
    }));
    if other_fields & !FIELD_NAMES.iter().map(|n| n.0).sum::<u64>() != 0 {
        reasons.push("fields that memgauge does not know");
    }
    reasons
}

/// A feature that memgauge does without because the kernel refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedFeature {
    /// A timer's count in its samples (kernel 6.13 for inherited events).
    TimerValues,
    /// Physical addresses.
    PhysicalAddress,
    /// Samples of the kernel.
    Kernel,
    /// Counts of lost samples by event (kernel 6.0).
    LostCounts,
    /// The three parts of a latency (kernel 5.12).
    LatencyParts,
    /// Latencies and data sources.
    Latencies,
}

/// Returns the attribute to try after the kernel has refused this one, and the feature that it
/// lacks. `None` if no feature is left to drop. With `has_mode_modifiers`, the user has chosen the
/// modes to sample, so they are kept.
pub(crate) fn drop_one_feature(
    attr: &Attr,
    is_denied: bool,
    has_mode_modifiers: bool,
) -> Option<(Attr, DroppedFeature)> {
    let mut next = *attr;
    let has = |bit| attr.sample_type & bit != 0;
    let dropped = match is_denied {
        true if has(sample::PHYS_ADDR) => {
            next.sample_type &= !sample::PHYS_ADDR;
            DroppedFeature::PhysicalAddress
        }
        true if !has_mode_modifiers && !attr.has(flag::EXCLUDE_KERNEL) => {
            next.flags |= flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
            DroppedFeature::Kernel
        }
        true => return None,
        // Only timers have it.
        false if has(sample::READ) => {
            next.sample_type &= !sample::READ;
            DroppedFeature::TimerValues
        }
        false if attr.read_format & read::LOST != 0 => {
            next.read_format &= !read::LOST;
            DroppedFeature::LostCounts
        }
        false if has(sample::WEIGHT_STRUCT) => {
            next.sample_type ^= sample::WEIGHT_STRUCT | sample::WEIGHT;
            DroppedFeature::LatencyParts
        }
        false if has(sample::WEIGHT | sample::DATA_SRC) => {
            next.sample_type &= !(sample::WEIGHT | sample::DATA_SRC);
            DroppedFeature::Latencies
        }
        false => return None,
    };
    Some((next, dropped))
}

#[cfg(test)]
#[path = "attributes_tests.rs"]
mod tests;
