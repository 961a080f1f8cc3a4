use super::*;
use crate::events::{Pmus, parse};
use memgauge_perf::abi::kind;

const IBS: u32 = 9;
const SPE: u32 = 10;

fn intel(pebs_format: u8) -> Facilities {
    Facilities {
        intel: true,
        pebs_format,
        ..Facilities::default()
    }
}

fn amd(ibs_filter: bool) -> Facilities {
    Facilities {
        ibs: vec![IBS],
        ibs_filter,
        ..Facilities::default()
    }
}

fn event(text: &str) -> Event {
    let none = std::path::Path::new("/nonexistent");
    parse(text, &Pmus::at(none, none)).unwrap()[0].events[0].clone()
}

fn of_pmu(number: u32, flags: u64) -> Event {
    let mut event = event("cycles");
    event.attr.kind = number;
    event.attr.flags = flags;
    event
}

const WANTED: SampleRequest = SampleRequest {
    stacks: None,
    rate: Rate::Period(1000),
    registers: false,
    physical: false,
    timer_values: true,
};

fn pebs(wanted: SampleRequest, format: u8) -> Built {
    attribute(&event("r20d1:pp"), &wanted, &intel(format))
}

#[test]
fn what_can_gather_in_the_pebs_buffer_does() {
    for format in 3..=6 {
        for (registers, physical) in [(false, false), (true, false), (true, true)] {
            let built = pebs(
                SampleRequest {
                    registers,
                    physical,
                    ..WANTED
                },
                format,
            );
            assert_eq!(built.method, Method::Pebs);
            assert_eq!(interrupts_each(&built.attr, format), [""; 0]);
            assert!(built.gathers);
            assert!(built.notes.is_empty(), "{:?}", built.notes);
        }
    }
}

/// A change to an attribute that gathers, and whether it still does.
fn check(format: u8, change: impl Fn(&mut Attr), expected: &[&str]) {
    let mut attr = pebs(WANTED, format).attr;
    change(&mut attr);
    assert_eq!(interrupts_each(&attr, format), expected);
}

#[test]
fn each_of_the_kernels_conditions_is_known() {
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
    assert!(!pebs(WANTED, 2).gathers, "each has an interrupt");
    check(3, |_| {}, &[]);
}

#[test]
fn fields_gather_if_records_of_the_format_hold_them() {
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
    check(6, with(1 << 40), &["fields this version does not know"]);
}

#[test]
fn registers_gather_if_general_and_of_user_space_alone() {
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
fn a_frequency_is_honoured_and_its_price_said() {
    let rate = Rate::Frequency(4000);
    let built = pebs(SampleRequest { rate, ..WANTED }, 4);
    assert_eq!(built.attr.period, 4000);
    assert!(built.notes[0].contains("a frequency"), "{:?}", built.notes);
}

#[test]
fn a_period_among_the_events_terms_wins() {
    let mut event = event("r20d1:pp");
    event.attr.period = 7;
    assert_eq!(attribute(&event, &WANTED, &intel(4)).attr.period, 7);
}

#[test]
fn periods_of_ibs_are_multiples_of_sixteen() {
    for (asked, given) in [(1, 144), (144, 144), (145, 160), (1000, 1008), (4096, 4096)] {
        let rate = Rate::Period(asked);
        let built = attribute(
            &of_pmu(IBS, 0),
            &SampleRequest { rate, ..WANTED },
            &amd(true),
        );
        assert_eq!((built.method, built.attr.period), (Method::Ibs, given));
        assert_eq!(built.notes.is_empty(), asked == given);
    }
}

#[test]
fn ibs_keeps_to_user_space_by_the_kernels_filter_or_ours() {
    let event = of_pmu(IBS, flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV);
    let filtered = attribute(&event, &WANTED, &amd(true));
    assert_eq!((filtered.attr.config2, filtered.drop_kernel), (1, false));
    assert!(filtered.attr.has(flag::EXCLUDE_KERNEL));
    let dropped = attribute(&event, &WANTED, &amd(false));
    assert_eq!((dropped.attr.config2, dropped.drop_kernel), (0, true));
    assert!(
        !dropped.attr.has(flag::EXCLUDE_KERNEL),
        "the kernel refuses it"
    );
}

#[test]
fn precise_events_of_amds_core_pmu_are_ibs() {
    let built = attribute(&event("cycles:p"), &WANTED, &amd(true));
    assert_eq!(built.method, Method::Ibs);
    assert!(built.attr.sample_type & sample::RAW != 0);
}

#[test]
fn spe_samples_into_an_area_at_a_period_it_can_keep() {
    let has = Facilities {
        spe: vec![SPE],
        ..Facilities::default()
    };
    let built = attribute(&of_pmu(SPE, 0), &WANTED, &has);
    assert_eq!((built.method, built.attr.period), (Method::Spe, 2048));
    assert_eq!(built.attr.sample_type & sample::ADDR, 0);
}

#[test]
fn software_events_have_no_latencies() {
    let built = attribute(&event("page-faults"), &WANTED, &intel(4));
    assert_eq!(built.attr.sample_type, EVERY_SAMPLE & !sample::PERIOD);
    assert_eq!(built.attr.kind, kind::SOFTWARE);
}

#[test]
fn what_the_kernel_counts_has_no_period_in_its_samples() {
    let asks = |text: &str| {
        let built = attribute(&event(text), &WANTED, &intel(4));
        built.attr.sample_type & sample::PERIOD != 0
    };
    for text in ["page-faults", "context-switches", "mem:0x1000/8:w"] {
        assert!(!asks(text), "{text}");
    }
    for text in ["cycles", "cycles:pp"] {
        assert!(asks(text), "{text}");
    }
}

/// The kernel's word for a timer's period is the one that its event was opened with.
#[test]
fn a_timers_samples_have_its_count_and_no_period() {
    let both = sample::READ | sample::PERIOD;
    for (timer_values, expected) in [(true, sample::READ), (false, 0)] {
        let wanted = SampleRequest {
            timer_values,
            ..WANTED
        };
        for text in ["cpu-clock:u", "task-clock"] {
            let built = attribute(&event(text), &wanted, &intel(4));
            assert_eq!(built.attr.sample_type & both, expected, "{text}");
        }
    }
    let timer = attribute(&event("cpu-clock"), &WANTED, &intel(4)).attr;
    let (less, what) = relaxed(&timer, false, false).unwrap();
    assert_eq!(
        (less.sample_type & both, what),
        (0, GivenUp::TimerValues),
        "before 6.13"
    );
}

#[test]
fn a_timer_has_the_shortest_period_there_is() {
    let rate = Rate::Period(10);
    let built = attribute(
        &event("cpu-clock"),
        &SampleRequest { rate, ..WANTED },
        &intel(4),
    );
    assert_eq!((built.attr.period, built.notes.len()), (10_000, 1));
}

/// Steps that are given up, in order, when every attribute is refused.
fn given_up(denied: bool, modes_chosen: bool) -> Vec<GivenUp> {
    let wanted = SampleRequest {
        physical: true,
        ..WANTED
    };
    let mut attr = pebs(wanted, 4).attr;
    let mut all = Vec::new();
    while let Some((less, what)) = relaxed(&attr, denied, modes_chosen) {
        all.push(what);
        attr = less;
    }
    all
}

#[test]
fn what_is_refused_is_given_up_least_first() {
    use GivenUp::*;
    assert_eq!(given_up(true, false), [Physical, Kernel]);
    assert_eq!(given_up(true, true), [Physical]);
    assert_eq!(given_up(false, false), [LostCounts, Parts, Latencies]);
}

#[test]
fn a_copied_stack_comes_with_the_registers_to_unwind_it_from() {
    let stacks = |copied_bytes| SampleRequest {
        stacks: Some(StackRequest {
            frames: 127,
            copied_bytes,
        }),
        ..WANTED
    };
    let attr = |copied| attribute(&event("cycles:u"), &stacks(copied), &amd(true)).attr;
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
