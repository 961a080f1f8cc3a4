//! Tries which of the live sources work here.

use std::fs::read_to_string;
use std::time::{Duration, Instant};

use super::counters::READ_FORMAT;
use super::events::{self, Pmus};
use super::sample::{Facilities, Rate, SampleRequest, attribute, facilities, relaxed};
use super::stat::bare::sampled_tick_ns;
use super::stat::{BEARABLE, RING_PAGES, SHORTEST_INTERVAL_NS, bearable_interval_ns};
use crate::sys::perf::{self, EventScope, Ring};
use crate::sys::pfm;
use memgauge_host::check::{Check, in_words, verdict};
use memgauge_perf::abi::{Attr, flag, kind, sample, software};

/// Series, ring memory, attaching, addresses from the clock.
pub fn checks() -> Vec<Check> {
    vec![
        series(),
        floors(),
        vendors_names(),
        rings(),
        whole_processors(),
        attach(),
        confinement(),
        addresses(),
    ]
}

const PARANOID: &str = "sysctl kernel.perf_event_paranoid=2, or setcap cap_perfmon+ep on memgauge";

/// A timer as `memgauge stat -I` has it, on this thread.
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
    let ticks = ticks_of(Duration::from_millis(100));
    let threads = match &inherit {
        Ok(_) => "threads and children followed",
        Err(_) => "threads started later are followed one by one (kernel 6.13 inherits counters)",
    };
    let bears = |shortest_us: u64| match sampled_tick_ns() {
        Some(tick_ns) => format!(
            "; a tick takes {:.1} us, which is less than {:.0} % of the time from -I {}us on",
            tick_ns / 1e3,
            100.0 * BEARABLE,
            bearable_interval_ns(tick_ns)
                .div_ceil(1000)
                .max(shortest_us),
        ),
        None => String::new(),
    };
    let found = match &ticks {
        Ok(rate) => format!(
            "the shortest interval is {:.0} us{}; {threads}",
            1e6 / rate.max(1.0),
            bears((1e6 / rate.max(1.0)).round() as u64),
        ),
        Err(e) => format!("refused: {}", in_words(e)),
    };
    verdict("counter series", ticks.is_ok(), found, PARANOID)
}

/// Events whose smallest period is tried: what every machine has, then what
/// precise sampling adds.
const SAMPLED: [&str; 8] = [
    "page-faults:u",
    "context-switches",
    "cpu-clock:u",
    "cycles:u",
    "cycles:upp",
    "cpu/mem-loads/upp",
    "ibs_op//",
    "arm_spe_0//u",
];

/// Periods tried, the smallest first: those that some kernel or processor begins
/// to take.
const PERIODS: [u64; 10] = [1, 2, 16, 32, 128, 144, 1024, 2048, 10_000, 100_000];

/// The smallest period that the kernel takes, of each event that can be sampled.
fn floors() -> Check {
    let pmus = Pmus::default();
    let has = facilities(&pmus);
    let shown = |name: &&str| {
        let unit = if name.starts_with("cpu-clock") {
            " ns"
        } else {
            ""
        };
        Some(format!("{name} {}{unit}", floor(name, &pmus, &has)?))
    };
    let floors: Vec<String> = SAMPLED.iter().filter_map(shown).collect();
    let found = match floors.is_empty() {
        true => "no event can be sampled".to_owned(),
        false => format!("smallest periods: {}", floors.join(", ")),
    };
    verdict("event samples", !floors.is_empty(), found, PARANOID)
}

fn floor(name: &str, pmus: &Pmus, has: &Facilities) -> Option<u64> {
    let groups = events::parse(name, pmus).ok()?;
    let event = groups.first()?.events.first()?;
    let taken = |&&period: &&u64| {
        let wanted = SampleRequest {
            rate: Rate::Period(period),
            registers: false,
            physical: false,
            stacks: None,
            timer_values: false,
        };
        let built = attribute(event, &wanted, has);
        let mut attr = built.attr;
        // A period that the program had to raise counts as not taken.
        attr.period == period && opens(&mut attr)
    };
    PERIODS.iter().find(taken).copied()
}

fn opens(attr: &mut Attr) -> bool {
    loop {
        match perf::open(attr, EventScope::Thread(0), None, None) {
            Ok(_) => return true,
            Err(e) => {
                let denied = e.kind() == std::io::ErrorKind::PermissionDenied;
                match relaxed(attr, denied, false) {
                    Some((less, _)) => *attr = less,
                    None => return false,
                }
            }
        }
    }
}

fn vendors_names() -> Check {
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

/// Ticks a second at the shortest interval.
fn ticks_of(span: Duration) -> std::io::Result<f64> {
    let event = perf::open(
        &timer(SHORTEST_INTERVAL_NS, 0),
        EventScope::Thread(0),
        None,
        None,
    )?;
    let mut ring = Ring::map(&event, RING_PAGES)?;
    let began = Instant::now();
    let mut sum = 0u64;
    while began.elapsed() < span {
        sum = std::hint::black_box(sum.wrapping_add(1));
    }
    let seconds = began.elapsed().as_secs_f64();
    let records =
        ring.drain(|a, b| memgauge_perf::ring::walk(a, b, &mut Vec::new(), |_, _| {}).records);
    Ok(records as f64 / seconds)
}

fn rings() -> Check {
    let fits = |pages: &usize| {
        let event = perf::open(&timer(1_000_000, 0), EventScope::Thread(0), None, None);
        event.is_ok_and(|event| Ring::map(&event, *pages).is_ok())
    };
    let most = [1024, 512, 256, RING_PAGES, 64, 16, 1]
        .into_iter()
        .find(fits);
    let found = match most {
        Some(pages) => format!(
            "at least {} KiB for each ring",
            pages * perf::page_bytes() / 1024
        ),
        None => "no ring can be mapped".to_owned(),
    };
    let ok = most.is_some_and(|pages| pages >= RING_PAGES);
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
    let tried = perf::open(&attr, EventScope::Everybody, Some(0), None);
    let found = match &tried {
        Ok(_) => "-a, -C, -G and --container work".to_owned(),
        Err(e) => format!("refused: {}", in_words(e)),
    };
    let fix = "sysctl kernel.perf_event_paranoid=0, or setcap cap_perfmon+ep on memgauge";
    verdict("whole processors", tried.is_ok(), found, fix)
}

/// Attaching to one's own processes needs perf alone; reading code that belongs
/// to no file (JIT) needs the right to trace.
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
    let filtered = memgauge_host::sys::process::is_filtered();
    let opens = perf::open(&timer(1_000_000, 0), EventScope::Thread(0), None, None).is_ok();
    let found = match (filtered, opens) {
        (false, _) => "no system-call filter",
        (true, true) => "a system-call filter that lets perf_event_open through",
        (true, false) => "a system-call filter, and perf_event_open fails",
    };
    let fix = "start the container with --cap-add PERFMON (or --security-opt seccomp=unconfined)";
    verdict("confinement", opens || !filtered, found.to_owned(), fix)
}

fn addresses() -> Check {
    let mut attr = timer(1_000_000, 0);
    attr.sample_type |= sample::IP | sample::REGS_USER;
    attr.sample_regs_user = memgauge_perf::derive::REGISTERS;
    let tried = perf::open(&attr, EventScope::Thread(0), None, None);
    let found = match &tried {
        Ok(_) => "rebuilt from timer samples (record --source clock)".to_owned(),
        Err(e) => format!("refused: {}", in_words(e)),
    };
    verdict("data addresses", tried.is_ok(), found, PARANOID)
}
