use super::*;
use crate::events::{Pmus, parse};
use memgauge_perf::abi::kind;

const IBS: u32 = 9;
const SPE: u32 = 10;

fn intel(pebs_format: u8) -> PmuCapabilities {
    PmuCapabilities {
        has_pebs: true,
        pebs_format,
        ..PmuCapabilities::default()
    }
}

fn amd(has_ibs_filter: bool) -> PmuCapabilities {
    PmuCapabilities {
        ibs_pmus: vec![IBS],
        has_ibs_filter,
        ..PmuCapabilities::default()
    }
}

fn event(text: &str) -> Event {
    let none = std::path::Path::new("/nonexistent");
    parse(text, &Pmus::from_dirs(none, none)).unwrap()[0].events[0].clone()
}

fn of_pmu(number: u32, flags: u64) -> Event {
    let mut event = event("cycles");
    event.attr.kind = number;
    event.attr.flags = flags;
    event
}

const REQUEST: SampleRequest = SampleRequest {
    stacks: None,
    rate: SamplingRate::Period(1000),
    registers: false,
    physical_address: false,
    timer_values: true,
};

fn pebs(request: SampleRequest, format: u8) -> SamplingAttr {
    sampling_attr(&event("r20d1:pp"), &request, &intel(format))
}

#[test]
fn requested_fields_let_pebs_records_gather() {
    for format in 3..=6 {
        for (registers, physical_address) in [(false, false), (true, false), (true, true)] {
            let sampling = pebs(
                SampleRequest {
                    registers,
                    physical_address,
                    ..REQUEST
                },
                format,
            );
            assert_eq!(sampling.method, SamplingMethod::Pebs);
            assert_eq!(interrupt_reasons(&sampling.attr, format), [""; 0]);
            assert!(sampling.uses_large_pebs);
            assert!(sampling.notes.is_empty(), "{:?}", sampling.notes);
        }
    }
}

/// Changes an attribute with records that gather in the processor's buffer, and checks the reasons
/// for an interrupt.
fn check(format: u8, change: impl Fn(&mut Attr), expected: &[&str]) {
    let mut attr = pebs(REQUEST, format).attr;
    change(&mut attr);
    assert_eq!(interrupt_reasons(&attr, format), expected);
}

#[test]
fn every_condition_of_the_kernel_is_named() {
    check(
        4,
        |a| a.flags |= flag::FREQ,
        &["a frequency instead of a period"],
    );
    let by_number = |a: &mut Attr| {
        a.wakeup = 1;
        a.flags &= !flag::WATERMARK;
    };
    check(4, by_number, &["a wake-up by number of samples"]);
    check(4, |a| a.wakeup = 4096, &[]);
    check(
        4,
        |a| a.flags |= flag::USE_CLOCKID,
        &["times of a chosen clock"],
    );
    check(4, |a| a.aux_action = 1, &["control of an AUX trace"]);
    check(2, |_| {}, &["time (not in this processor's records)"]);
    assert!(!pebs(REQUEST, 2).uses_large_pebs, "each has an interrupt");
    check(3, |_| {}, &[]);
}

#[test]
fn records_gather_if_their_format_has_all_fields() {
    let with = |bit: u64| move |a: &mut Attr| a.sample_type |= bit;
    let never = [
        (sample::CALLCHAIN, "call chains"),
        (sample::STACK_USER, "stacks"),
        (sample::RAW, "raw bytes"),
        (sample::CGROUP, "control groups"),
        (sample::DATA_PAGE_SIZE, "sizes of data pages"),
        (sample::AUX, "AUX samples"),
    ];
    for (bit, name) in never {
        check(6, with(bit), &[name]);
    }
    let always = [
        sample::ID,
        sample::STREAM_ID,
        sample::TRANSACTION,
        sample::CODE_PAGE_SIZE,
        sample::PHYS_ADDR,
        sample::WEIGHT,
    ];
    for bit in always {
        check(3, with(bit), &[]);
    }
    check(3, with(sample::BRANCH_STACK), &["branch stacks"]);
    check(4, with(sample::BRANCH_STACK), &[]);
    check(5, with(sample::READ), &["counters' values"]);
    check(6, with(sample::READ), &[]);
    check(6, with(1 << 40), &["fields that memgauge does not know"]);
}

#[test]
fn records_gather_with_general_registers_of_user_space() {
    let user = |mask: u64, flags: u64| {
        move |a: &mut Attr| {
            a.sample_type |= sample::REGS_USER;
            a.sample_regs_user = mask;
            a.flags |= flags;
        }
    };
    check(4, user(REGISTERS, flag::EXCLUDE_KERNEL), &[]);
    check(4, user(REGISTERS, 0), &["user registers"]);
    let segments = REGISTERS | 1 << 14;
    check(4, user(segments, flag::EXCLUDE_KERNEL), &["user registers"]);
    let vectors = |a: &mut Attr| {
        a.sample_type |= sample::REGS_INTR;
        a.sample_regs_intr = REGISTERS | 1 << 32;
    };
    check(4, vectors, &["registers that records do not hold"]);
}

#[test]
fn frequency_is_kept_with_a_note_about_its_cost() {
    let rate = SamplingRate::Frequency(4000);
    let sampling = pebs(SampleRequest { rate, ..REQUEST }, 4);
    assert_eq!(sampling.attr.period, 4000);
    assert!(
        sampling.notes[0].contains("a frequency"),
        "{:?}",
        sampling.notes
    );
}

#[test]
fn period_in_the_events_terms_takes_precedence() {
    let mut event = event("r20d1:pp");
    event.attr.period = 7;
    assert_eq!(sampling_attr(&event, &REQUEST, &intel(4)).attr.period, 7);
}

#[test]
fn periods_of_ibs_are_multiples_of_sixteen() {
    for (requested, expected) in [(1, 144), (144, 144), (145, 160), (1000, 1008), (4096, 4096)] {
        let rate = SamplingRate::Period(requested);
        let sampling = sampling_attr(
            &of_pmu(IBS, 0),
            &SampleRequest { rate, ..REQUEST },
            &amd(true),
        );
        assert_eq!(
            (sampling.method, sampling.attr.period),
            (SamplingMethod::Ibs, expected)
        );
        assert_eq!(sampling.notes.is_empty(), requested == expected);
    }
}

#[test]
fn ibs_excludes_the_kernel_by_filter_or_by_dropping_samples() {
    let event = of_pmu(IBS, flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV);
    let filtered = sampling_attr(&event, &REQUEST, &amd(true));
    assert_eq!((filtered.attr.config2, filtered.drop_kernel), (1, false));
    assert!(filtered.attr.has(flag::EXCLUDE_KERNEL));
    let dropped = sampling_attr(&event, &REQUEST, &amd(false));
    assert_eq!((dropped.attr.config2, dropped.drop_kernel), (0, true));
    assert!(
        !dropped.attr.has(flag::EXCLUDE_KERNEL),
        "the kernel refuses it"
    );
}

#[test]
fn precise_events_of_amds_core_pmu_are_ibs() {
    let sampling = sampling_attr(&event("cycles:p"), &REQUEST, &amd(true));
    assert_eq!(sampling.method, SamplingMethod::Ibs);
    assert!(sampling.attr.sample_type & sample::RAW != 0);
}

#[test]
fn spe_period_is_raised_to_its_minimum() {
    let capabilities = PmuCapabilities {
        spe_pmus: vec![SPE],
        ..PmuCapabilities::default()
    };
    let sampling = sampling_attr(&of_pmu(SPE, 0), &REQUEST, &capabilities);
    assert_eq!(
        (sampling.method, sampling.attr.period),
        (SamplingMethod::Spe, 2048)
    );
    assert_eq!(sampling.attr.sample_type & sample::ADDR, 0);
}

#[test]
fn software_events_have_no_latencies() {
    let sampling = sampling_attr(&event("page-faults"), &REQUEST, &intel(4));
    assert_eq!(sampling.attr.sample_type, EVERY_SAMPLE & !sample::PERIOD);
    assert_eq!(sampling.attr.kind, kind::SOFTWARE);
}

#[test]
fn samples_of_events_counted_in_software_have_no_period() {
    let asks = |text: &str| {
        let sampling = sampling_attr(&event(text), &REQUEST, &intel(4));
        sampling.attr.sample_type & sample::PERIOD != 0
    };
    for text in ["page-faults", "context-switches", "mem:0x1000/8:w"] {
        assert!(!asks(text), "{text}");
    }
    for text in ["cycles", "cycles:pp"] {
        assert!(asks(text), "{text}");
    }
}

/// The kernel would write the period that the event was opened with.
#[test]
fn timer_samples_have_its_count_and_no_period() {
    let both = sample::READ | sample::PERIOD;
    for (timer_values, expected) in [(true, sample::READ), (false, 0)] {
        let request = SampleRequest {
            timer_values,
            ..REQUEST
        };
        for text in ["cpu-clock:u", "task-clock"] {
            let sampling = sampling_attr(&event(text), &request, &intel(4));
            assert_eq!(sampling.attr.sample_type & both, expected, "{text}");
        }
    }
    let timer = sampling_attr(&event("cpu-clock"), &REQUEST, &intel(4)).attr;
    let (next, feature) = drop_one_feature(&timer, false, false).unwrap();
    assert_eq!(
        (next.sample_type & both, feature),
        (0, DroppedFeature::TimerValues),
        "before 6.13"
    );
}

#[test]
fn timer_period_is_raised_to_the_kernels_minimum() {
    let rate = SamplingRate::Period(10);
    let sampling = sampling_attr(
        &event("cpu-clock"),
        &SampleRequest { rate, ..REQUEST },
        &intel(4),
    );
    assert_eq!((sampling.attr.period, sampling.notes.len()), (10_000, 1));
}

/// Features that are dropped, in order, if the kernel refuses every attribute.
fn dropped_features(is_denied: bool, has_mode_modifiers: bool) -> Vec<DroppedFeature> {
    let request = SampleRequest {
        physical_address: true,
        ..REQUEST
    };
    let mut attr = pebs(request, 4).attr;
    let mut all = Vec::new();
    while let Some((next, feature)) = drop_one_feature(&attr, is_denied, has_mode_modifiers) {
        all.push(feature);
        attr = next;
    }
    all
}

#[test]
fn least_important_feature_is_dropped_first() {
    use DroppedFeature::*;
    assert_eq!(dropped_features(true, false), [PhysicalAddress, Kernel]);
    assert_eq!(dropped_features(true, true), [PhysicalAddress]);
    assert_eq!(
        dropped_features(false, false),
        [LostCounts, LatencyParts, Latencies]
    );
}

#[test]
fn copied_stack_comes_with_registers_for_unwinding() {
    let stacks = |copied_bytes| SampleRequest {
        stacks: Some(StackRequest {
            max_frames: 127,
            copied_bytes,
        }),
        ..REQUEST
    };
    let attr = |copied| sampling_attr(&event("cycles:u"), &stacks(copied), &amd(true)).attr;
    let (followed, copied) = (attr(None), attr(Some(8192)));
    let fields = sample::REGS_USER | sample::STACK_USER;
    assert_eq!(followed.sample_type & fields, 0);
    assert_eq!(followed.sample_type | fields, copied.sample_type);
    assert!(copied.sample_type & sample::CALLCHAIN != 0);
    assert!(
        copied.has(flag::EXCLUDE_CALLCHAIN_USER) && !followed.has(flag::EXCLUDE_CALLCHAIN_USER)
    );
    assert_eq!(
        (copied.sample_stack_user, copied.sample_max_stack),
        (8192, 127)
    );
    assert_eq!(
        copied.sample_regs_user.count_ones(),
        if cfg!(target_arch = "aarch64") { 5 } else { 4 }
    );
}
