//! `memgauge mrc -p PID`: how much memory running processes need.

use std::path::Path;
use std::time::Duration;

use memgauge_console::outcome::Exit;
use memgauge_console::page;
use memgauge_console::quantities::number_of;
use memgauge_console::target::Targets;
use memgauge_console::terminal;
use memgauge_host::cgroup_memory_limit::limit_of;
use memgauge_host::sys::pages::page_bytes;
use memgauge_host::sys::signals::interrupts;
use memgauge_host::{Error, ErrorKind};
use memgauge_live::target::{cgroup, container};
use memgauge_mrc::Footprint;
use memgauge_pages::{
    AccessedBitSource, End, Observation, Observed, ObservedProcess, Settings, SourceChoice,
    observe, pids_of_cgroup,
};
use memgauge_report::mrc::{ObservationCost, ProcessMemory, RunningView};

use super::args::{Mrc, PagesSource, RunningOptions};
use super::{ReportFormat, ReportOutputs, usage};

/// Longest window unless the user names one.
const MAX_DEFAULT_WINDOW: Duration = Duration::from_secs(30);

/// Windows that fit in the whole run, at least, so that there is an interval.
const EPOCHS: u32 = 4;

/// Rows of the heat map.
const HEAT_MAP_ROWS: usize = 16;

/// Share of a processor that reading and clearing may each take.
const BUDGET: f64 = 0.01;

/// Shows the curve of running processes.
pub(super) fn of_running(args: &Mrc, outputs: ReportOutputs) -> anyhow::Result<Exit> {
    terminal::catch_interrupts()?;
    let chosen = Chosen::open(&args.target)?;
    let settings = settings(&args.running);
    let several = chosen.targets.len() > 1;
    let (mut source, source_note) = open_source(args.running.pages_source, several)?;
    let observation = observe(chosen.targets, &mut source, &settings, &|| interrupts() > 0);
    let mut view = view(chosen.title, chosen.single, observation, &source)?;
    view.notes.extend(chosen.note);
    view.notes.extend(source_note);
    for (form, out) in outputs.0 {
        let text = match form {
            ReportFormat::Text => view.text(&out.style()),
            ReportFormat::Json => format!("{:#}\n", view.json()),
            ReportFormat::Csv => view.csv(),
            ReportFormat::Page => view
                .page()
                .expect("SANITY: the front end was looked for before"),
        };
        out.write(&text)?;
    }
    Ok(Exit::Success)
}

pub(super) fn open_source(
    choice: PagesSource,
    several: bool,
) -> memgauge_host::Result<(AccessedBitSource, Option<String>)> {
    let choice = match choice {
        PagesSource::Auto => SourceChoice::Automatic,
        PagesSource::PageTables => SourceChoice::PageTables,
        PagesSource::ClearRefs => SourceChoice::Rollup,
    };
    let (source, why_not) = AccessedBitSource::open(choice, several)?;
    let note = why_not
        .map(|why| format!("smaps_rollup was read, which costs more than page tables: {why}"));
    Ok((source, note))
}

/// Checks conflicts that no single option shows.
pub(super) fn check(args: &Mrc) -> anyhow::Result<()> {
    if !args.target.tid.is_empty() || args.target.cpu.is_some() {
        return Err(usage(
            "failed to observe threads or processors: memory belongs to processes: use -p PID",
        ));
    }
    args.html.as_ref().map(|_| page::check()).transpose()?;
    check_windows(&args.running)
}

/// Refuses windows that no run can contain.
pub(super) fn check_windows(running: &RunningOptions) -> anyhow::Result<()> {
    if running
        .window
        .is_some_and(|window| window > running.seconds)
    {
        return Err(usage(
            "failed to observe: the longest window is longer than the run: increase --seconds",
        ));
    }
    Ok(())
}

/// How to observe for these options.
pub(super) fn settings(options: &RunningOptions) -> Settings {
    let duration = Duration::from_secs(options.seconds);
    let default = (duration / EPOCHS).min(MAX_DEFAULT_WINDOW);
    Settings {
        duration,
        max_age: options.window.map_or(default, Duration::from_secs),
        budget: BUDGET,
    }
}

/// Processes to observe.
struct Chosen {
    title: String,
    targets: Vec<ObservedProcess>,
    /// Whether the user named a single process.
    single: bool,
    /// Which processes were left out.
    note: Option<String>,
}

impl Chosen {
    fn open(target: &Targets) -> anyhow::Result<Chosen> {
        if !target.pid.is_empty() {
            let mut pids = target.pid.clone();
            pids.sort_unstable();
            pids.dedup();
            let targets: memgauge_host::Result<Vec<ObservedProcess>> =
                pids.into_iter().map(ObservedProcess::open).collect();
            return Chosen::named(targets?);
        }
        let (title, pids) = if let Some(name) = &target.cgroup {
            (
                format!("control group {name}"),
                pids_of_cgroup(&cgroup(name)?)?,
            )
        } else if let Some(name) = &target.container {
            (
                format!("container {name}"),
                pids_of_cgroup(&container(name)?)?,
            )
        } else {
            ("all processes".to_owned(), all_pids())
        };
        let ObservedGroup { targets, note } = open_all(&title, pids)?;
        let title = format!(
            "{title} ({})",
            number_of(targets.len() as u64, "process", "es")
        );
        Ok(Chosen {
            title,
            targets,
            single: false,
            note,
        })
    }

    fn named(targets: Vec<ObservedProcess>) -> anyhow::Result<Chosen> {
        refuse_stopped(&targets)?;
        let names = targets.iter().map(name_of);
        Ok(Chosen {
            title: names.collect::<Vec<_>>().join(", "),
            single: targets.len() == 1,
            targets,
            note: None,
        })
    }
}

/// Refuses processes that are stopped and therefore use nothing.
pub(super) fn refuse_stopped(targets: &[ObservedProcess]) -> anyhow::Result<()> {
    match targets.iter().find(|target| target.is_stopped()) {
        None => Ok(()),
        Some(stopped) => {
            let pid = stopped.pid;
            let message = format!(
                "failed to observe process {pid}: it is stopped; continue it (kill -CONT {pid})"
            );
            Err(Error::new(ErrorKind::Refused, message).into())
        }
    }
}

/// A process in reports.
pub(super) fn name_of(target: &ObservedProcess) -> String {
    format!("{} ({})", target.command, target.pid)
}

/// Processes of a group that can be observed.
pub(super) struct ObservedGroup {
    pub(super) targets: Vec<ObservedProcess>,
    /// Which others were left out, and why.
    pub(super) note: Option<String>,
}

/// Opens the processes of a group that have memory, without this one.
///
/// # Errors
/// None of them can be observed.
pub(super) fn open_all(title: &str, pids: Vec<u32>) -> anyhow::Result<ObservedGroup> {
    let own = std::process::id();
    let opened = pids
        .into_iter()
        .filter(|&pid| pid != own)
        .map(ObservedProcess::open);
    let mut targets = Vec::new();
    let mut refused = Vec::new();
    for target in opened {
        match target {
            Ok(target) => targets.push(target),
            // It is a kernel thread, or it has just ended.
            Err(e) if e.kind() == ErrorKind::NoSuchTask => {}
            Err(e) => refused.push(e),
        }
    }
    if targets.is_empty() {
        return Err(match refused.into_iter().next() {
            Some(first) => first.into(),
            None => {
                let message = format!("failed to observe {title}: no process in it has memory");
                Error::new(ErrorKind::NoSuchTask, message).into()
            }
        });
    }
    let note = refused.first().map(|first| {
        let number = number_of(refused.len() as u64, "process", "es");
        format!("{number} of {title} left out, of which the first: {first}")
    });
    Ok(ObservedGroup { targets, note })
}

fn all_pids() -> Vec<u32> {
    let entries = std::fs::read_dir(Path::new("/proc")).into_iter().flatten();
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let mut pids: Vec<u32> = entries.flatten().filter_map(number).collect();
    pids.sort_unstable();
    pids
}

fn view(
    title: String,
    single: bool,
    observation: Observation,
    source: &AccessedBitSource,
) -> anyhow::Result<RunningView> {
    let Some(footprint) = Footprint::new(&observation.epochs, page_bytes()) else {
        return Err(no_reading(&title, &observation, &observation.processes).into());
    };
    let memory = observation.memory;
    let limit_bytes = common_limit(&observation.processes);
    let pages = match &observation.processes[..] {
        [only] if single => Some(only.pages.page_use(HEAT_MAP_ROWS)),
        _ => None,
    };
    let resident_bytes = memory.resident_bytes.max(1) as f64;
    let rows = |process: &Observed| {
        let share = process.memory.resident_bytes as f64 / resident_bytes;
        ((HEAT_MAP_ROWS as f64 * share).round() as usize).clamp(1, HEAT_MAP_ROWS)
    };
    let processes = observation.processes.iter().filter(|_| !single);
    let processes = processes.map(|process| ProcessMemory {
        pid: process.target.pid,
        command: process.target.command.clone(),
        resident_bytes: process.memory.resident_bytes,
        footprint: Footprint::new(&process.epochs, page_bytes()),
        pages: Some(process.pages.page_use(rows(process)))
            .filter(|pages| !pages.columns.is_empty()),
    });
    Ok(RunningView {
        title,
        source: source.name(),
        footprint,
        page_bytes: page_bytes(),
        resident_bytes: memory.resident_bytes,
        huge_bytes: memory.huge_bytes,
        shared_bytes: memory.shared_bytes,
        swapped_bytes: memory.swapped_bytes,
        hugetlb_bytes: memory.hugetlb_bytes,
        limit_bytes,
        pages: pages.filter(|pages| !pages.columns.is_empty()),
        processes: processes.collect(),
        cost: cost(&observation),
        notes: notes(
            &observation,
            single,
            matches!(source, AccessedBitSource::PageTables(_)),
        ),
    })
}

/// Why there is no reading of these processes.
pub(super) fn no_reading(title: &str, observation: &Observation, processes: &[Observed]) -> Error {
    let why = match processes.first().map(|first| first.end) {
        Some(End::Ended) => "it ended before the first reading",
        Some(End::Executed) => "it executed another program before the first reading",
        _ if observation.stopped_epochs > 0 => "it was stopped all the time",
        _ => "the run ended before the first reading; increase --seconds",
    };
    let message = format!("failed to observe {title}: {why}");
    Error::new(ErrorKind::NoSuchTask, message)
}

/// Memory limit of the control group of these processes. `None` if they have different ones.
pub(super) fn common_limit(processes: &[Observed]) -> Option<u64> {
    let limits = processes.iter().map(|process| limit_of(process.target.pid));
    let limits: Vec<Option<u64>> = limits.collect();
    match &limits[..] {
        [first, rest @ ..] if rest.iter().all(|limit| limit == first) => *first,
        _ => None,
    }
}

pub(super) fn cost(observation: &Observation) -> ObservationCost {
    ObservationCost {
        elapsed_s: observation.elapsed_s,
        own_cpu_s: observation.own_cpu_s,
        clears: observation.clears,
        clear_s: observation.clear_s,
        reads: observation.reads,
        read_s: observation.read_s,
    }
}

/// Limits of the numbers, in sentences.
pub(super) fn notes(observation: &Observation, single: bool, shares_once: bool) -> Vec<String> {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let memory = &observation.memory;
    let mut notes = Vec::new();
    for process in &observation.processes {
        let name = name_of(&process.target);
        match process.end {
            End::Running => {}
            End::Ended => notes.push(format!("{name} ended; the numbers are from before")),
            End::Executed => notes.push(format!(
                "{name} executed another program; the numbers are from before"
            )),
        }
    }
    let children = observation
        .processes
        .first()
        .map(|first| first.target.children());
    if let Some(children @ 1..) = children.filter(|_| single) {
        notes.push(format!(
            "{} not included; name them with -p, or their control group with -G",
            match children {
                1 => "its child process is".to_owned(),
                more => format!("its {more} child processes are"),
            }
        ));
    }
    if observation.stopped_epochs > 0 {
        notes.push(format!(
            "{} left out because a process was stopped",
            number_of(observation.stopped_epochs as u64, "epoch", "s")
        ));
    }
    if observation.disturbed_epochs > 0 {
        notes.push(format!(
            "something else also cleared accessed bits in {} (reclaim, DAMON or another tool), so \
             more memory is in use than the numbers show",
            number_of(observation.disturbed_epochs as u64, "epoch", "s")
        ));
    }
    if memory.shared_bytes > memory.resident_bytes / 10 {
        notes.push(match single {
            true => format!(
                "{} are shared with other processes",
                mib(memory.shared_bytes)
            ),
            false if shares_once => {
                "pages that these processes share count once in the sums".to_owned()
            }
            false => format!(
                "shared pages ({}) count once for each process that maps them",
                mib(memory.shared_bytes)
            ),
        });
    }
    if memory.swapped_bytes > 0 {
        notes.push(format!(
            "{} are paged out and count only when they return",
            mib(memory.swapped_bytes)
        ));
    }
    if memory.hugetlb_bytes > 0 {
        notes.push(format!(
            "{} of hugetlbfs are left out",
            mib(memory.hugetlb_bytes)
        ));
    }
    if observation.unread_tables > 0 {
        notes.push(format!(
            "{} could not be read, and their pages are missing",
            number_of(observation.unread_tables, "page table", "s")
        ));
    }
    if observation.unlisted_tables > 0 {
        notes.push(format!(
            "{} found no room in the list of pages, and regions and heat map lack their pages",
            number_of(observation.unlisted_tables, "page table", "s")
        ));
    }
    if observation.over_budget {
        notes.push(format!(
            "reading took more than {} % of a processor; a longer --window costs less",
            100.0 * BUDGET
        ));
    }
    if !observation.flushed {
        notes.push(
            "the TLB was not flushed, because this kernel tracks soft-dirty bits: up to some \
             thousand pages per processor that are used all the time may be missing"
                .to_owned(),
        );
    }
    notes.push(
        "files read with read() are not seen; the kernel knew less about which pages are in use \
         meanwhile"
            .to_owned(),
    );
    notes
}
