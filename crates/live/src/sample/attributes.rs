//! Chooses the kernel's attributes for samples of an event. Pure.
//!
//! **Large PEBS.** Intel's processors write precise records into a buffer by
//! themselves. The kernel lets it fill up, and takes one interrupt for hundreds of
//! records, if the attribute asks for nothing that only an interrupt can tell.
//! [`interrupts_each`] is the kernel's rule (`intel_pmu_hw_config`,
//! `intel_pmu_large_pebs_flags`; Linux 6.1 to 6.18), and [`attribute`] asks for nothing
//! that breaks it unless the user did.
//!
//! **IBS** has no buffer. Its periods are multiples of 16 from 144 on. Before Zen 6 it
//! cannot tell user space from the kernel without the kernel's filter (`swfilt`) or
//! ours.
//!
//! **SPE** writes packets into an area next to the ring (`memgauge_perf::spe`).
//!
//! **Timers.** The kernel writes into a timer's samples the period that its event was
//! opened with, even if it was changed since (`perf_swevent_hrtimer` takes
//! `hw.last_period`, which nothing refreshes; Linux 6.1 to 6.18). So samples are asked
//! for the counter's value instead, and a sample stands for the difference to the
//! previous one. Where the kernel does not tell (before 6.13), it stands for the period
//! in force.

use crate::events::Event;
use crate::stat::SHORTEST_INTERVAL_NS;
use memgauge_host::unwind;
use memgauge_perf::abi::{Attr, flag, kind, read, sample, software};

/// Who takes the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Intel's precise records.
    Pebs,
    /// AMD's op sampling.
    Ibs,
    /// ARM's statistical profiling.
    Spe,
    /// The interrupt of a counter, or the kernel.
    Interrupt,
}

/// Abilities of the processor and of the kernel's PMUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facilities {
    /// Whether precise events of the core PMU are PEBS; else they are IBS.
    pub intel: bool,
    /// Format of PEBS records: 3 from Skylake on, 4 from Ice Lake, 6 from Arrow Lake.
    pub pebs_format: u8,
    /// Numbers of AMD's IBS PMUs.
    pub ibs: Vec<u32>,
    /// Whether the kernel filters IBS samples by mode.
    pub ibs_filter: bool,
    /// Numbers of ARM's SPE PMUs.
    pub spe: Vec<u32>,
}

/// How often to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// A sample every so many events.
    Period(u64),
    /// So many samples a second; the kernel adjusts the period.
    Frequency(u64),
}

/// Call stacks that the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackRequest {
    /// Frames at most.
    pub frames: u16,
    /// Bytes of stack to copy and unwind; `None`: the kernel follows frame pointers.
    pub copied_bytes: Option<u32>,
}

/// Samples that the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRequest {
    /// How often.
    pub rate: Rate,
    /// General registers.
    pub registers: bool,
    /// Physical addresses, where allowed.
    pub physical: bool,
    /// Call stacks, where they are wanted.
    pub stacks: Option<StackRequest>,
    /// Whether samples have a timer's count so far, which kernels from 6.13 on report.
    pub timer_values: bool,
}

/// An attribute, and what had to be changed for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Built {
    /// Attributes to open it with.
    pub attr: Attr,
    /// Who samples.
    pub method: Method,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Samples of the kernel have to be dropped here.
    pub drop_kernel: bool,
    /// Records of PEBS gather in the processor's buffer, as nothing asked for prevents it.
    pub gathers: bool,
}

/// General registers by the kernel's numbers: all of PEBS' but the flags.
pub(super) const REGISTERS: u64 = memgauge_perf::derive::REGISTERS;

/// Registers that a PEBS record holds (`PEBS_GP_REGS`): AX to IP, flags, R8 to R15.
const PEBS_REGISTERS: u64 = 0x00ff_03ff;

/// Fields in samples of every event, so that records of all have their time and the
/// event's id at one place.
pub(super) const EVERY_SAMPLE: u64 = sample::IDENTIFIER
    | sample::IP
    | sample::TID
    | sample::TIME
    | sample::ADDR
    | sample::CPU
    | sample::PERIOD;

/// Smallest period of IBS (`perf_ibs_op`, "min_period" 0x90), and its step.
const IBS_LEAST: u64 = 0x90;
pub(super) const IBS_STEP: u64 = 16;
/// Below it, SPE loses samples to collisions.
const SPE_LEAST: u64 = 2048;
/// `config2:0` of IBS PMUs that have `swfilt`.
const IBS_FILTER: u64 = 1;

/// Who samples an event.
pub(super) fn method(attr: &Attr, has: &Facilities) -> Method {
    match attr.kind {
        kind if has.ibs.contains(&kind) => Method::Ibs,
        kind if has.spe.contains(&kind) => Method::Spe,
        _ if attr.precise_ip() == 0 => Method::Interrupt,
        _ if has.intel => Method::Pebs,
        // The kernel hands precise events of the core PMU on to IBS.
        _ => Method::Ibs,
    }
}

/// The smallest period that an event has by what samples it: below, the kernel
/// takes it silently, refuses, or loses samples. That of PEBS differs between
/// processors (32 on Nehalem and Haswell, 128 on Broadwell); the kernel sees to it.
pub(super) fn floor(attr: &Attr, method: Method) -> u64 {
    match method {
        Method::Ibs => IBS_LEAST,
        Method::Spe => SPE_LEAST,
        Method::Pebs => 2,
        Method::Interrupt if is_timer(attr) => SHORTEST_INTERVAL_NS,
        Method::Interrupt => 1,
    }
}

/// The attribute for samples of an event.
pub fn attribute(event: &Event, wanted: &SampleRequest, has: &Facilities) -> Built {
    let mut attr = event.attr;
    let method = method(&attr, has);
    attr.flags |= flag::DISABLED | flag::WATERMARK | flag::SAMPLE_ID_ALL;
    attr.sample_type = EVERY_SAMPLE;
    attr.read_format = read::LOST;
    set_rate(&mut attr, wanted.rate);
    if wanted.physical {
        attr.sample_type |= sample::PHYS_ADDR;
    }
    if wanted.registers {
        attr.sample_type |= sample::REGS_INTR;
        attr.sample_regs_intr = REGISTERS;
    }
    if let Some(stacks) = wanted.stacks {
        add_stacks(&mut attr, stacks);
    }
    let mut built = Built {
        attr,
        method,
        notes: Vec::new(),
        drop_kernel: false,
        gathers: false,
    };
    match method {
        Method::Pebs => built.pebs(has),
        Method::Ibs => built.ibs(has),
        Method::Spe => built.spe(),
        Method::Interrupt if counted_by_kernel(&built.attr) => {
            // With a frequency the period is the kernel's, and only it can tell.
            let known = !built.attr.has(flag::FREQ);
            built.attr.sample_type &= if known { !sample::PERIOD } else { u64::MAX };
        }
        Method::Interrupt if !event.is_software() => built.latencies(),
        Method::Interrupt => built.timer(wanted.timer_values),
    }
    built
}

/// With a copy of the stack, the kernel follows its own calls alone.
fn add_stacks(attr: &mut Attr, stacks: StackRequest) {
    attr.sample_type |= sample::CALLCHAIN;
    attr.sample_max_stack = stacks.frames;
    if attr.has(flag::EXCLUDE_KERNEL) {
        attr.flags |= flag::EXCLUDE_CALLCHAIN_KERNEL;
    }
    if let Some(bytes) = stacks.copied_bytes {
        attr.flags |= flag::EXCLUDE_CALLCHAIN_USER;
        attr.sample_type |= sample::REGS_USER | sample::STACK_USER;
        attr.sample_regs_user = unwind::registers();
        attr.sample_stack_user = bytes;
    }
}

/// Events that the kernel itself counts one by one. If samples have the period, the
/// kernel samples each event, for any period (`perf_swevent_event`).
fn counted_by_kernel(attr: &Attr) -> bool {
    match attr.kind {
        kind::TRACEPOINT | kind::BREAKPOINT => true,
        kind::SOFTWARE => !is_timer(attr),
        _ => false,
    }
}

/// Whether its period is of time.
pub(super) fn is_timer(attr: &Attr) -> bool {
    attr.kind == kind::SOFTWARE && matches!(attr.config, software::CPU_CLOCK | software::TASK_CLOCK)
}

fn set_rate(attr: &mut Attr, rate: Rate) {
    match rate {
        // A period in the event's own terms wins.
        Rate::Period(_) if attr.period > 0 => {}
        Rate::Period(period) => attr.period = period,
        Rate::Frequency(hertz) => {
            attr.period = hertz;
            attr.flags |= flag::FREQ;
        }
    }
}

impl Built {
    fn latencies(&mut self) {
        self.attr.sample_type |= sample::DATA_SRC | sample::WEIGHT_STRUCT;
    }

    fn pebs(&mut self, has: &Facilities) {
        self.latencies();
        let reasons = interrupts_each(&self.attr, has.pebs_format);
        self.gathers = reasons.is_empty();
        if !reasons.is_empty() {
            let reasons = reasons.join(", ");
            self.notes
                .push(format!("an interrupt for each record: {reasons}"));
        }
    }

    fn ibs(&mut self, has: &Facilities) {
        self.latencies();
        // Widths of operands are in the registers only.
        self.attr.sample_type |= sample::RAW;
        self.ibs_period();
        let own_pmu = has.ibs.contains(&self.attr.kind);
        if own_pmu && self.attr.has(flag::EXCLUDE_KERNEL) {
            self.ibs_modes(has);
        }
    }

    fn ibs_period(&mut self) {
        let asked = self.attr.period;
        if self.attr.has(flag::FREQ) {
            return;
        }
        let period = asked.max(IBS_LEAST).next_multiple_of(IBS_STEP);
        if period != asked {
            self.attr.period = period;
            self.notes.push(format!(
                "period {period} instead of {asked}: IBS takes multiples of {IBS_STEP} from {IBS_LEAST} on"
            ));
        }
    }

    fn timer(&mut self, values: bool) {
        self.attr.sample_type |= if values { sample::READ } else { 0 };
        let asked = self.attr.period;
        if self.attr.has(flag::FREQ) {
            return;
        }
        // It would be the one at opening.
        self.attr.sample_type &= !sample::PERIOD;
        if asked < SHORTEST_INTERVAL_NS {
            self.attr.period = SHORTEST_INTERVAL_NS;
            self.notes.push(format!(
                "period {SHORTEST_INTERVAL_NS} ns instead of {asked}: the kernel's timer has no \
                shorter one"
            ));
        }
    }

    fn ibs_modes(&mut self, has: &Facilities) {
        if has.ibs_filter {
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

    fn spe(&mut self) {
        // The area has the samples; the ring has side-band records alone.
        self.attr.sample_type = sample::IDENTIFIER | sample::TID | sample::TIME | sample::CPU;
        self.attr.sample_regs_intr = 0;
        let asked = self.attr.period;
        if !self.attr.has(flag::FREQ) && asked < SPE_LEAST {
            self.attr.period = SPE_LEAST;
            self.notes.push(format!(
                "period {SPE_LEAST} instead of {asked}, SPE's smallest"
            ));
        }
    }
}

/// Fields that the kernel can take from a PEBS record of this format.
fn in_record(attr: &Attr, format: u8) -> u64 {
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

const NAMES: &[(u64, &str)] = &[
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

/// Why the kernel would take an interrupt for each PEBS record of this event;
/// nothing where it lets records gather.
pub(crate) fn interrupts_each(attr: &Attr, pebs_format: u8) -> Vec<&'static str> {
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
    let beyond = attr.sample_type & !in_record(attr, pebs_format);
    let named = NAMES.iter().filter(|(bit, _)| beyond & bit != 0);
    reasons.extend(named.map(|(bit, name)| match *bit {
        sample::TIME if attr.has(flag::USE_CLOCKID) => "times of a chosen clock",
        _ => name,
    }));
    if beyond & !NAMES.iter().map(|n| n.0).sum::<u64>() != 0 {
        reasons.push("fields this version does not know");
    }
    reasons
}

/// Steps to give up where the kernel refuses an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// A timer's values in its samples (kernel 6.13, where events are inherited).
    TimerValues,
    /// Physical addresses.
    Physical,
    /// Samples of the kernel.
    Kernel,
    /// Counts of lost samples by event (kernel 6.0).
    LostCounts,
    /// Latencies in parts (kernel 5.12).
    Parts,
    /// Latencies and data sources.
    Latencies,
}

/// The next attribute to try after a refusal; `None` where nothing is left to
/// give up. `modes_chosen`: the user said which modes to sample.
pub(crate) fn relaxed(attr: &Attr, denied: bool, modes_chosen: bool) -> Option<(Attr, GivenUp)> {
    let mut less = *attr;
    let has = |bit| attr.sample_type & bit != 0;
    let given_up = match denied {
        true if has(sample::PHYS_ADDR) => {
            less.sample_type &= !sample::PHYS_ADDR;
            GivenUp::Physical
        }
        true if !modes_chosen && !attr.has(flag::EXCLUDE_KERNEL) => {
            less.flags |= flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
            GivenUp::Kernel
        }
        true => return None,
        // Only timers are asked for it.
        false if has(sample::READ) => {
            less.sample_type &= !sample::READ;
            GivenUp::TimerValues
        }
        false if attr.read_format & read::LOST != 0 => {
            less.read_format &= !read::LOST;
            GivenUp::LostCounts
        }
        false if has(sample::WEIGHT_STRUCT) => {
            less.sample_type ^= sample::WEIGHT_STRUCT | sample::WEIGHT;
            GivenUp::Parts
        }
        false if has(sample::WEIGHT | sample::DATA_SRC) => {
            less.sample_type &= !(sample::WEIGHT | sample::DATA_SRC);
            GivenUp::Latencies
        }
        false => return None,
    };
    Some((less, given_up))
}

#[cfg(test)]
#[path = "attributes_tests.rs"]
mod tests;
