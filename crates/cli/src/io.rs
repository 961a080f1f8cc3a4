//! `memgauge io`: bytes by process and device.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use memgauge_analyze::{IoAccounts, IoBy, IoLoss, IoSummary};
use memgauge_console::access::access;
use memgauge_console::outcome::Exit;
use memgauge_console::terminal;
use memgauge_host::memory_counters::{MemoryCounters, NoMemoryCounters};
use memgauge_host::sys::signals::interrupts;
use memgauge_io::{
    AccountingOptions, GroupedCommand, IoFilter, IoInterval, IoRecorder, Meter, check_devices,
    check_pids, control_group,
};
use memgauge_live::uncore::MemoryCounting;
use memgauge_report::{IoOrder, io_json, io_text};
use memgauge_top::io::{LiveIo, add_interval};
use memgauge_trace::CommandEnd;

use crate::args::{GroupBy, Io, SortOrder};
use crate::record;

/// Interval at which the end of the command and keys are checked.
const LOOK_AROUND: Duration = Duration::from_millis(20);

/// Interval at which interrupts are checked if there is nothing else to do.
const LISTEN: Duration = Duration::from_millis(100);

/// Accounts until the command ends, the time is over, or the user interrupts.
pub(crate) fn io(args: &Io) -> anyhow::Result<Exit> {
    let output = args.output.as_deref();
    let output = output.map(|path| record::make_room(path, args.force));
    let _output = output.transpose()?;
    terminal::catch_interrupts()?;
    let json = args.json.iter().flatten().next();
    let json = json.map(|path| create(path)).transpose()?;
    let mut run = IoRun::start(args)?;
    run.json = json;
    let live = terminal::stdout_is_terminal() && args.json.is_none() && args.command.is_empty();
    let ended = if live && args.duration.is_none() {
        let (source, missing_reason) = (
            run.meter.memory().source(),
            run.meter.memory().missing_reason(),
        );
        let mut live = LiveIo::start(order(args), by(args), args.rows, [&source, missing_reason])?;
        run.until(LOOK_AROUND, &mut |run, interval| {
            live.show(run.elapsed(), interval)
        })
    } else {
        let pause = run.launched.as_ref().map_or(LISTEN, |_| LOOK_AROUND);
        run.until(pause, &mut |_, _| Ok(true))
    };
    let end = ended?;
    run.finish(args, live, end)
}

fn create(path: &Path) -> anyhow::Result<File> {
    let failed = || format!("failed to create `{}`", path.display());
    access().create_file(path).with_context(failed)
}

/// The descriptor that receives `ready` when accounting has started.
fn ready_descriptor(number: u32) -> anyhow::Result<File> {
    // Open it again, since the number does not show who owns the descriptor.
    let opened = File::options()
        .append(true)
        .open(format!("/dev/fd/{number}"));
    opened.map_err(|e| {
        let why = format!(
            "failed to open file descriptor {number} (--ready-fd): {e}: \
             open a pipe or file there, as in --ready-fd 3 3>FILE"
        );
        memgauge_host::Error::usage(why).into()
    })
}

fn order(args: &Io) -> IoOrder {
    match args.sort {
        SortOrder::Total => IoOrder::Total,
        SortOrder::In => IoOrder::In,
        SortOrder::Out => IoOrder::Out,
        SortOrder::Pid => IoOrder::Pid,
    }
}

fn by(args: &Io) -> IoBy {
    match args.by {
        GroupBy::Process => IoBy::Process,
        GroupBy::Command => IoBy::Command,
        GroupBy::User => IoBy::User,
        GroupBy::Cgroup => IoBy::Cgroup,
    }
}

/// The targets of the accounting, after a check that they exist.
fn filter(args: &Io) -> anyhow::Result<IoFilter> {
    check_pids(&args.pid)?;
    check_devices(&args.device)?;
    Ok(IoFilter {
        pids: args.pid.clone(),
        cgroup: None,
        cgroup_path: args.cgroup.as_deref().map(control_group).transpose()?,
        devices: args.device.clone(),
    })
}

/// Starts accounting and counting.
fn meter(args: &Io, filter: IoFilter) -> anyhow::Result<Meter> {
    // The memory traffic of a device is its share of what all devices moved.
    let memory: Box<dyn MemoryCounters> = if args.device.is_empty() {
        Box::new(MemoryCounting::start(args.counters.as_deref())?)
    } else {
        let why = "with --device the shares of other devices are not known";
        Box::new(NoMemoryCounters(why.to_owned()))
    };
    let setup = AccountingOptions {
        by_thread: args.threads,
        ..AccountingOptions::default()
    };
    Ok(Meter::start(filter, setup, memory)?)
}

/// Running accounting.
pub(crate) struct IoRun {
    meter: Meter,
    accounts: IoAccounts,
    recorder: Option<IoRecorder>,
    launched: Option<GroupedCommand>,
    interval: Duration,
    until: Option<Duration>,
    filtered: bool,
    /// Destination of JSON if it is a file.
    json: Option<File>,
}

impl IoRun {
    fn start(args: &Io) -> anyhow::Result<IoRun> {
        let filter = filter(args)?;
        let ready = args.ready_fd.map(ready_descriptor).transpose()?;
        let mut meter = meter(args, filter.clone())?;
        if let Some(mut ready) = ready {
            let written = ready.write_all(b"ready\n");
            written.context("failed to write to the descriptor of --ready-fd")?;
        }
        let launched = match args.command.as_slice() {
            [] => None,
            command => Some(GroupedCommand::start(command)?),
        };
        if let Some(launched) = &launched {
            meter.set_filter(IoFilter {
                cgroup: Some(launched.group_id()),
                ..filter
            });
        }
        let filtered = launched.is_some() || !args.pid.is_empty() || args.cgroup.is_some();
        let memory = meter.memory();
        let (source, missing_reason) = (memory.source(), memory.missing_reason().to_owned());
        let mut accounts = IoAccounts::default();
        accounts.set_counter_source(&source, &missing_reason);
        let settings = [
            ("interval_ns", args.interval.ns.to_string()),
            ("filtered", filtered.to_string()),
            ("counters", source),
            ("no_counters", missing_reason),
        ];
        let series = memory.series();
        if let Some(folder) = &args.pin {
            meter.pin(folder)?;
        }
        let recorder = args.output.as_deref();
        let recorder =
            recorder.map(|path| IoRecorder::create(path, &args.command, &settings, series));
        Ok(IoRun {
            meter,
            accounts,
            recorder: recorder.transpose()?,
            filtered,
            launched,
            json: None,
            interval: Duration::from_nanos(args.interval.ns),
            until: args.duration.map(|d| Duration::from_nanos(d.ns)),
        })
    }

    fn elapsed(&self) -> Duration {
        self.meter.elapsed()
    }

    /// Reads the meter after each interval. Calls `show` after each pause, which returns false to
    /// end.
    fn until(
        &mut self,
        pause: Duration,
        show: &mut dyn FnMut(&IoRun, Option<&IoInterval>) -> anyhow::Result<bool>,
    ) -> anyhow::Result<Option<CommandEnd>> {
        let mut next = Instant::now() + self.interval;
        loop {
            if let Some(end) = self.over()? {
                return Ok(end);
            }
            if !show(self, None)? {
                return Ok(None);
            }
            let wait = next.saturating_duration_since(Instant::now());
            if wait > Duration::ZERO {
                std::thread::sleep(wait.min(pause).min(self.left()));
                continue;
            }
            next = (next + self.interval).max(Instant::now());
            let interval = self.read(false)?;
            if !show(self, Some(&interval))? {
                return Ok(None);
            }
        }
    }

    /// Remaining time.
    fn left(&self) -> Duration {
        let until = self.until.unwrap_or(Duration::MAX);
        until.saturating_sub(self.elapsed())
    }

    /// Returns how the command ended if it is time to stop.
    fn over(&mut self) -> anyhow::Result<Option<Option<CommandEnd>>> {
        if let Some(launched) = &mut self.launched {
            if let Some(end) = launched.program.ended()? {
                return Ok(Some(Some(end)));
            }
        } else if interrupts() > 0 {
            return Ok(Some(Some(CommandEnd::Interrupted)));
        }
        Ok(self
            .until
            .is_some_and(|until| self.elapsed() >= until)
            .then_some(None))
    }

    fn read(&mut self, last: bool) -> anyhow::Result<IoInterval> {
        let interval = self.meter.read(last)?;
        add_interval(&mut self.accounts, &interval);
        if self.meter.is_pinned() && !interval.memory.is_empty() {
            self.meter
                .set_memory_per_byte(memory_per_byte(&self.accounts, &interval));
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.put(&interval)?;
        }
        Ok(interval)
    }

    fn finish(mut self, args: &Io, live: bool, end: Option<CommandEnd>) -> anyhow::Result<Exit> {
        self.read(true)?;
        let losses = self.meter.losses()?;
        let missing = self.meter.missing();
        let duration_ns = self.elapsed().as_nanos() as u64;
        if let Some(recorder) = self.recorder {
            recorder.finish(end.clone(), &losses, &missing)?;
        }
        let loss = |loss: &memgauge_io::AccountingLoss| IoLoss {
            name: loss.name.to_owned(),
            meaning: loss.meaning.to_owned(),
            count: loss.count,
        };
        let summary = IoSummary {
            filtered: self.filtered,
            losses: losses.iter().map(loss).collect(),
            missing,
            ..self.accounts.summary(duration_ns).by(by(args))
        };
        if let Some(mut file) = self.json {
            let written = file.write_all(io_json(&summary).as_bytes());
            written.context("failed to write the file of --json")?;
        } else if !live {
            print(args, &summary)?;
        }
        Ok(exit(end, self.launched.is_some()))
    }
}

/// Bytes of memory traffic per byte in and per byte out in this interval. Without counters, the
/// maximum of 1.
fn memory_per_byte(known: &IoAccounts, interval: &IoInterval) -> [f64; 2] {
    let mut accounts = known.clone();
    accounts.clear();
    add_interval(&mut accounts, interval);
    let memory = accounts.summary(interval.interval_ns).memory;
    let [most_in, most_out] = memory.at_most_bytes;
    let per_byte = |bytes: Option<u64>, most: u64| match (bytes, most) {
        (Some(bytes), 1..) => bytes as f64 / most as f64,
        _ => 1.0,
    };
    [
        per_byte(memory.in_bytes, most_in),
        per_byte(memory.out_bytes, most_out),
    ]
}

/// Exit code: that of the command, or success after an interrupt.
fn exit(end: Option<CommandEnd>, command: bool) -> Exit {
    match end {
        Some(end) if command => Exit::of(&end),
        _ => Exit::Success,
    }
}

/// Prints to standard error if standard output belongs to a command.
fn print(args: &Io, summary: &IoSummary) -> anyhow::Result<()> {
    let to_stderr = !args.command.is_empty();
    let style = terminal::style(if to_stderr {
        terminal::stderr_is_terminal()
    } else {
        terminal::stdout_is_terminal()
    });
    let text = if args.json.is_some() {
        io_json(summary)
    } else {
        io_text(summary, order(args), args.rows, &style)
    };
    if to_stderr {
        eprint!("{text}");
        return Ok(());
    }
    terminal::print(&text)
}
