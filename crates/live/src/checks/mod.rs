//! Checks for `memgauge doctor`: which of the live sources work on this machine.

mod pmu;

use std::fs::read_to_string;
use std::time::{Duration, Instant};

use crate::counters::READ_FORMAT;
use crate::events::{self, Pmus};
use crate::sampling::{
    PmuCapabilities, SampleRequest, SamplingRate, drop_one_feature, pmu_capabilities, sampling_attr,
};
use crate::stat::tick_cost::sampled_tick_ns;
use crate::stat::{MAX_TICK_SHARE, MIN_INTERVAL_NS, RING_PAGES, min_interval_without_warning_ns};
use crate::sys::perf::{self, EventScope, KernelRing};
use crate::sys::pfm;
use memgauge_host::checks::{Check, describe_os_error, verdict};
use memgauge_perf::abi::{Attr, flag, kind, sample, software};

/// Runs all checks.
pub fn checks() -> Vec<Check> {
    let mut checks = pmu::pmu();
    checks.extend([
        pmu::rights(),
        series(),
        min_periods(),
        vendor_events(),
        ring_memory(),
        whole_processors(),
        attach(),
        confinement(),
        addresses(),
    ]);
    checks
}

const PARANOID: &str = "sysctl kernel.perf_event_paranoid=2, or setcap cap_perfmon+ep on memgauge";

/// The timer of `memgauge stat -I`.
fn timer(interval_ns: u64, inherit: u64) -> Attr {
    let mut attr = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    attr.period = interval_ns;
    attr.sample_type = sample::IDENTIFIER | sample::TID | sample::TIME | sample::READ;
    attr.read_format = READ_FORMAT;
    attr.flags = flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV | inherit;
    attr
}

/// Counts the ticks that arrive in a tenth of a second at the shortest interval.
fn series() -> Check {
    let inherit = perf::open(
        &timer(1_000_000, flag::INHERIT),
        EventScope::Thread(0),
        Some(0),
        None,
    );
    let ticks = ticks_per_second(Duration::from_millis(100));
    let threads = match &inherit {
        Ok(_) => "threads and children followed",
        Err(_) => "threads started later are followed one by one (kernel 6.13 inherits counters)",
    };
    let recommended = |shortest_us: u64| match sampled_tick_ns() {
        Some(tick_ns) => format!(
            "; a tick takes {:.1} us, which is less than {:.0} % of the time from -I {}us on",
            tick_ns / 1e3,
            100.0 * MAX_TICK_SHARE,
            min_interval_without_warning_ns(tick_ns)
                .div_ceil(1000)
                .max(shortest_us),
        ),
        None => String::new(),
    };
    let found = match &ticks {
        Ok(rate) => format!(
            "the shortest interval is {:.0} us{}; {threads}",
            1e6 / rate.max(1.0),
            recommended((1e6 / rate.max(1.0)).round() as u64),
        ),
        Err(e) => format!("refused: {}", describe_os_error(e)),
    };
    verdict("counter series", ticks.is_ok(), found, PARANOID)
}

/// Events whose minimum period is tested: those that every machine has, then precise ones.
const TESTED_EVENTS: [&str; 8] = [
    "page-faults:u",
    "context-switches",
    "cpu-clock:u",
    "cycles:u",
    "cycles:upp",
    "cpu/mem-loads/upp",
    "ibs_op//",
    "arm_spe_0//u",
];

/// Periods that are tested, in ascending order: minimum periods of kernels and processors.
const TESTED_PERIODS: [u64; 10] = [1, 2, 16, 32, 128, 144, 1024, 2048, 10_000, 100_000];

/// Tests the minimum period of each event that can be sampled.
fn min_periods() -> Check {
    let pmus = Pmus::default();
    let capabilities = pmu_capabilities(&pmus);
    let describe = |name: &&str| {
        let unit = if name.starts_with("cpu-clock") {
            " ns"
        } else {
            ""
        };
        Some(format!(
            "{name} {}{unit}",
            min_period(name, &pmus, &capabilities)?
        ))
    };
    let periods: Vec<String> = TESTED_EVENTS.iter().filter_map(describe).collect();
    let found = match periods.is_empty() {
        true => "no event can be sampled".to_owned(),
        false => format!("smallest periods: {}", periods.join(", ")),
    };
    verdict("event samples", !periods.is_empty(), found, PARANOID)
}

fn min_period(name: &str, pmus: &Pmus, capabilities: &PmuCapabilities) -> Option<u64> {
    let groups = events::parse(name, pmus).ok()?;
    let event = groups.first()?.events.first()?;
    let is_supported = |&&period: &&u64| {
        let request = SampleRequest {
            rate: SamplingRate::Period(period),
            registers: false,
            physical_address: false,
            stacks: None,
            timer_values: false,
        };
        let mut attr = sampling_attr(event, &request, capabilities).attr;
        // A period that memgauge had to raise is not supported.
        attr.period == period && can_open(&mut attr)
    };
    TESTED_PERIODS.iter().find(is_supported).copied()
}

fn can_open(attr: &mut Attr) -> bool {
    loop {
        match perf::open(attr, EventScope::Thread(0), None, None) {
            Ok(_) => return true,
            Err(e) => {
                let is_denied = e.kind() == std::io::ErrorKind::PermissionDenied;
                match drop_one_feature(attr, is_denied, false) {
                    Some((next, _)) => *attr = next,
                    None => return false,
                }
            }
        }
    }
}

fn vendor_events() -> Check {
    let known = pfm::events().len();
    let (found, fix) = match pfm::is_installed() {
        true if known == 0 => (
            "libpfm4 knows no events of this processor".to_owned(),
            "a newer libpfm4, or events by code (cpu/event=0xd1,umask=0x20/)",
        ),
        true => (
            format!("libpfm4 knows {known} events of this processor"),
            "",
        ),
        false => (
            "libpfm4 is not installed".to_owned(),
            "apt-get install libpfm4",
        ),
    };
    verdict("vendors' names", known > 0, found, fix)
}

/// Number of ticks per second at the minimum interval.
fn ticks_per_second(span: Duration) -> std::io::Result<f64> {
    let event = perf::open(
        &timer(MIN_INTERVAL_NS, 0),
        EventScope::Thread(0),
        None,
        None,
    )?;
    let mut ring = KernelRing::map(&event, RING_PAGES)?;
    let began = Instant::now();
    let mut sum = 0u64;
    while began.elapsed() < span {
        sum = std::hint::black_box(sum.wrapping_add(1));
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(ring.read_records(|_, _| {}).records as f64 / seconds)
}

fn ring_memory() -> Check {
    let fits = |pages: &usize| {
        let event = perf::open(&timer(1_000_000, 0), EventScope::Thread(0), None, None);
        event.is_ok_and(|event| KernelRing::map(&event, *pages).is_ok())
    };
    let max_pages = [1024, 512, 256, RING_PAGES, 64, 16, 1]
        .into_iter()
        .find(fits);
    let found = match max_pages {
        Some(pages) => format!(
            "at least {} KiB for each ring",
            pages * perf::page_bytes() / 1024
        ),
        None => "no ring can be mapped".to_owned(),
    };
    let ok = max_pages.is_some_and(|pages| pages >= RING_PAGES);
    verdict(
        "ring memory",
        ok,
        found,
        "sysctl kernel.perf_event_mlock_kb=516, or ulimit -l unlimited",
    )
}

fn whole_processors() -> Check {
    let mut attr = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    attr.flags = flag::DISABLED;
    let tried = perf::open(&attr, EventScope::AllProcesses, Some(0), None);
    let found = match &tried {
        Ok(_) => "-a, -C, -G and --container work".to_owned(),
        Err(e) => format!("refused: {}", describe_os_error(e)),
    };
    let fix = "sysctl kernel.perf_event_paranoid=0, or setcap cap_perfmon+ep on memgauge";
    verdict("whole processors", tried.is_ok(), found, fix)
}

/// The user's own processes can be attached to with perf events alone. Reading generated code,
/// which is in no file, needs the right to trace.
fn attach() -> Check {
    let scope = read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let scope = scope
        .ok()
        .and_then(|s| s.trim().parse::<u32>().ok())
        .unwrap_or(0);
    let found = match scope {
        0 => "own processes, generated code included",
        1 => "own processes; generated code only of programs that memgauge starts",
        _ => "own processes, without generated code",
    };
    verdict(
        "attaching",
        scope == 0,
        found.to_owned(),
        "sysctl kernel.yama.ptrace_scope=0",
    )
}

fn confinement() -> Check {
    let filtered = memgauge_host::sys::process::has_seccomp_filter();
    let can_open = perf::open(&timer(1_000_000, 0), EventScope::Thread(0), None, None).is_ok();
    let found = match (filtered, can_open) {
        (false, _) => "no system-call filter",
        (true, true) => "a system-call filter that lets perf_event_open through",
        (true, false) => "a system-call filter, and perf_event_open fails",
    };
    let fix = "start the container with --cap-add PERFMON (or --security-opt seccomp=unconfined)";
    verdict("confinement", can_open || !filtered, found.to_owned(), fix)
}

fn addresses() -> Check {
    let mut attr = timer(1_000_000, 0);
    attr.sample_type |= sample::IP | sample::REGS_USER;
    attr.sample_regs_user = memgauge_perf::derive::REGISTERS;
    let tried = perf::open(&attr, EventScope::Thread(0), None, None);
    let found = match &tried {
        Ok(_) => "rebuilt from timer samples (record --source clock)".to_owned(),
        Err(e) => format!("refused: {}", describe_os_error(e)),
    };
    verdict("data addresses", tried.is_ok(), found, PARANOID)
}
