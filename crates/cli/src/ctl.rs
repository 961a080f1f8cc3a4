//! `memgauge ctl`: client of `memgauge serve`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use memgauge_console::outcome::{Exit, usage};
use memgauge_console::quantities::{Duration, Percent, number_of, overhead};
use memgauge_console::terminal;
use memgauge_host::running_program::locate;
use memgauge_host::sys::signals::interrupts;
use memgauge_serve::{
    AddProcess, AddThread, ChangeProfiler, ChangeThread, CleanRequest, CleanWhich, Client,
    NewProfiler, NewProgram, ShownProfiler, ShownSample, ShownThread, SourceName, WhenFullName,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::serve::nearest_socket;

const EXAMPLES: &str = "\
Examples:
  memgauge ctl new                       a profiler by timer; prints its number, as 1
  memgauge ctl new -e page-faults -c 1   every page fault
  memgauge ctl attach 1 -p 4711          a process, and what it starts
  memgauge ctl read 1 --follow           samples as they are taken
  memgauge ctl run -- ./prog             a program on the modelled machine: its LLC misses
  memgauge ctl period 1 4711 100000      another period of one thread
  memgauge ctl stats 1                   counts of each thread
  memgauge ctl delete 1";

/// Control `memgauge serve`: profilers, threads, samples
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ctl {
    /// Socket of the service [default: this user's, or else root's]
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: CtlVerb,
}

#[derive(Debug, Subcommand)]
enum CtlVerb {
    /// List profilers
    List,
    /// Create a profiler and print its number
    New(NewArgs),
    /// Start a program on the modelled machine and sample it; prints the profiler's number
    Run(RunArgs),
    /// Attach to a process or a thread
    Attach(TaskArgs),
    /// Detach from a process or a thread
    Detach(TaskArgs),
    /// Start a thread, or all
    Start(Which),
    /// Stop a thread, or all
    Stop(Which),
    /// Change the period of a thread, or of all attached from now on
    Period(PeriodArgs),
    /// Show the counts of each thread, or of one
    Stats(Which),
    /// Print samples. With several readers, each sample goes to one of them
    Read(ReadArgs),
    /// Remove threads that have ended
    Clean(CleanArgs),
    /// Delete a profiler
    Delete(Id),
}

/// A profiler.
#[derive(Debug, Args)]
struct Id {
    /// Number of the profiler
    #[arg(value_name = "PROFILER")]
    id: u64,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum WhenFull {
    /// Overwrite the oldest sample
    #[default]
    Overwrite,
    /// Drop the new sample
    Refuse,
}

impl From<WhenFull> for WhenFullName {
    fn from(when_full: WhenFull) -> WhenFullName {
        match when_full {
            WhenFull::Overwrite => WhenFullName::OverwriteOldest,
            WhenFull::Refuse => WhenFullName::RefuseNewest,
        }
    }
}

#[derive(Debug, Args)]
struct NewArgs {
    /// Event to sample, as for `record -e` [default: a timer with data addresses from registers]
    #[arg(short, long)]
    event: Option<String>,
    /// Number of events between two samples, or nanoseconds for a timer
    #[arg(short = 'c', long = "count", value_name = "PERIOD")]
    period: Option<u64>,
    /// Also sample the kernel
    #[arg(long)]
    kernel: bool,
    /// Also record physical addresses
    #[arg(long)]
    physical: bool,
    /// Capacity of each thread's buffer in samples
    #[arg(long, value_name = "SAMPLES")]
    buffer: Option<usize>,
    /// Handling of a new sample if the buffer is full
    #[arg(long, value_enum, default_value_t)]
    when_full: WhenFull,
    /// Maximum delay before a sample can be read: 10ms or 1ms
    #[arg(long, value_name = "TIME")]
    latency: Option<Duration>,
    /// Limit the share of each thread's CPU time that sampling takes: 0.01% to 50%
    #[arg(long, value_name = "PERCENT", value_parser = overhead)]
    overhead: Option<Percent>,
    /// Spend that time after a thread's behaviour has changed, and half of it otherwise
    #[arg(long, requires = "overhead")]
    phases: bool,
    /// A name for people
    #[arg(long, default_value = "")]
    name: String,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Event of the modelled machine, as in `memgauge list` [default: llc.miss], with an optional
    /// delivery: llc.miss/tagged
    #[arg(short, long)]
    event: Option<String>,
    /// Period: events between two samples
    #[arg(short = 'c', long = "count", value_name = "PERIOD")]
    period: Option<u64>,
    /// Capacity of each thread's buffer in samples
    #[arg(long, value_name = "SAMPLES")]
    buffer: Option<usize>,
    /// Handling of a new sample if the buffer is full
    #[arg(long, value_enum, default_value_t)]
    when_full: WhenFull,
    /// File to which the program's output and errors are appended [default: discarded]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// A name for people
    #[arg(long, default_value = "")]
    name: String,
    /// Program and its arguments. It has no input, and runs in this folder and environment
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").args(["pid", "tid"]).required(true))]
struct TaskArgs {
    #[command(flatten)]
    id: Id,
    /// Process with all its threads, and the processes that it starts
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// A thread
    #[arg(short, long, value_name = "TID")]
    tid: Option<u32>,
}

#[derive(Debug, Args)]
struct Which {
    #[command(flatten)]
    id: Id,
    /// Thread [default: all]
    tid: Option<u32>,
}

#[derive(Debug, Args)]
struct PeriodArgs {
    #[command(flatten)]
    id: Id,
    /// Thread and period. A period alone applies to threads attached later
    #[arg(value_name = "[TID] PERIOD", num_args = 1..=2, required = true)]
    numbers: Vec<u64>,
}

#[derive(Debug, Args)]
struct ReadArgs {
    #[command(flatten)]
    id: Id,
    /// Maximum number of samples [default without --follow: 1000]. More than 10000 need several
    /// requests
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// Maximum wait for the first sample, at most 60s
    #[arg(long, value_name = "TIME", conflicts_with = "follow")]
    wait: Option<Duration>,
    /// Continue until the profiler is deleted, N samples came, or Ctrl-C. Each reader gets all
    /// samples
    #[arg(short, long)]
    follow: bool,
    /// Only samples of this thread, with --follow
    #[arg(short, long, value_name = "TID", requires = "follow")]
    tid: Option<u32>,
}

#[derive(Debug, Args)]
struct CleanArgs {
    #[command(flatten)]
    id: Id,
    /// Also threads whose samples were not read
    #[arg(long)]
    all: bool,
}

impl NewArgs {
    fn body(&self) -> anyhow::Result<NewProfiler> {
        let latency_ms = self.latency.map(|latency| latency.ns / 1_000_000);
        Ok(NewProfiler {
            name: self.name.clone(),
            source: Some(match self.event {
                Some(_) => SourceName::Pmu,
                None => SourceName::Clock,
            }),
            event: self.event.clone(),
            period: self.period,
            kernel: self.kernel,
            physical: self.physical,
            buffer: self.buffer,
            when_full: self.when_full.into(),
            latency_ms,
            overhead: self.overhead.map(|percent| percent.0 / 100.0),
            phases: self.phases,
            ..NewProfiler::default()
        })
    }
}

impl RunArgs {
    fn body(&self) -> anyhow::Result<NewProfiler> {
        let mut command = self.command.clone();
        if let Some(name) = command.first_mut() {
            // Search as a shell in this folder would, since the service has another folder and
            // environment.
            let path = std::path::absolute(locate(name)?)?;
            *name = path.into_os_string().into_string().map_err(|path| {
                let path = path.to_string_lossy();
                usage(format!("failed to send `{path}`: it is no UTF-8"))
            })?;
        }
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let program = NewProgram {
            command,
            folder: Some(std::env::current_dir()?),
            environment: Some(std::env::vars_os().filter_map(text).collect()),
            output: self.output.as_ref().map(std::path::absolute).transpose()?,
        };
        Ok(NewProfiler {
            name: self.name.clone(),
            source: Some(SourceName::Emulate),
            event: self.event.clone(),
            period: self.period,
            buffer: self.buffer,
            when_full: self.when_full.into(),
            program: Some(program),
            ..NewProfiler::default()
        })
    }
}

/// A connection to the service.
struct ServiceClient {
    client: Client,
    json: bool,
}

const NO_BODY: Option<&()> = None;

impl ServiceClient {
    fn ask<T: DeserializeOwned>(
        &mut self,
        (method, path): (&str, &str),
        body: Option<&impl Serialize>,
    ) -> anyhow::Result<Option<T>> {
        let answer = self.client.request(method, path, body)?;
        if self.json && !answer.is_null() {
            terminal::print(&format!("{answer}\n"))?;
            return Ok(None);
        }
        match answer {
            Value::Null => Ok(None),
            answer => Ok(Some(serde_json::from_value(answer)?)),
        }
    }

    /// Sends a request whose answer has no content.
    fn tell(&mut self, request: (&str, &str), body: Option<&impl Serialize>) -> anyhow::Result<()> {
        self.ask::<Value>(request, body).map(drop)
    }
}

fn task_path(task: &TaskArgs) -> (&'static str, u64, u32) {
    match (task.pid, task.tid) {
        (Some(pid), _) => ("processes", task.id.id, pid),
        (None, tid) => ("threads", task.id.id, tid.unwrap_or(0)),
    }
}

/// Sends the request and prints the answer.
pub(crate) fn ctl(args: &Ctl) -> anyhow::Result<Exit> {
    let path = args.socket.clone().unwrap_or_else(nearest_socket);
    let mut service = ServiceClient {
        client: Client::connect(&path)?,
        json: args.json,
    };
    match &args.verb {
        CtlVerb::List => list(&mut service)?,
        CtlVerb::New(new) => make(&mut service, &new.body()?)?,
        CtlVerb::Run(run) => make(&mut service, &run.body()?)?,
        CtlVerb::Attach(task) => attach(&mut service, task)?,
        CtlVerb::Detach(task) => {
            let (kind, id, number) = task_path(task);
            let path = format!("/v1/profilers/{id}/{kind}/{number}");
            service.tell(("DELETE", &path), NO_BODY)?;
        }
        CtlVerb::Start(which) => switch(&mut service, which, true)?,
        CtlVerb::Stop(which) => switch(&mut service, which, false)?,
        CtlVerb::Period(period) => change_period(&mut service, period)?,
        CtlVerb::Stats(which) => stats(&mut service, which)?,
        CtlVerb::Read(read) => self::read(&mut service, read)?,
        CtlVerb::Clean(clean) => {
            let body = CleanRequest {
                which: if clean.all {
                    CleanWhich::All
                } else {
                    CleanWhich::Read
                },
            };
            let path = format!("/v1/profilers/{}/clean", clean.id.id);
            let answer: Option<Value> = service.ask(("POST", &path), Some(&body))?;
            if let Some(answer) = answer {
                let forgotten = number_of(answer["threads"].as_u64().unwrap_or(0), "thread", "s");
                terminal::print(&format!("{forgotten} forgotten\n"))?;
            }
        }
        CtlVerb::Delete(id) => {
            let path = format!("/v1/profilers/{}", id.id);
            service.tell(("DELETE", &path), NO_BODY)?;
        }
    }
    Ok(Exit::Success)
}

fn make(service: &mut ServiceClient, new: &NewProfiler) -> anyhow::Result<()> {
    let made: Option<ShownProfiler> = service.ask(("POST", "/v1/profilers"), Some(new))?;
    if let Some(made) = made {
        terminal::print(&format!("{}\n", made.id))?;
        made.notes
            .iter()
            .for_each(|note| eprintln!("memgauge: {note}"));
    }
    Ok(())
}

#[derive(serde::Deserialize)]
struct Profilers {
    profilers: Vec<ShownProfiler>,
}

fn list(service: &mut ServiceClient) -> anyhow::Result<()> {
    let Some(all): Option<Profilers> = service.ask(("GET", "/v1/profilers"), NO_BODY)? else {
        return Ok(());
    };
    let heads = [
        "ID",
        "UID",
        "EVENT",
        "PERIOD",
        "STATE",
        "PROCESSES",
        "THREADS",
        "SAMPLES",
        "UNREAD",
        "LOST",
        "NAME",
    ];
    let rows = all.profilers.iter().map(|p| {
        // Samples that were taken but never read. Lost ones were never taken.
        let unread = p.totals.overwritten + p.totals.refused + p.totals.discarded;
        vec![
            p.id.to_string(),
            p.uid.to_string(),
            p.event.clone().unwrap_or_else(|| "clock".to_owned()),
            p.period
                .map_or_else(|| "usual".to_owned(), |period| period.to_string()),
            state(p),
            p.processes.to_string(),
            p.threads.to_string(),
            p.totals.samples.to_string(),
            unread.to_string(),
            p.totals.lost.to_string(),
            p.name.clone(),
        ]
    });
    terminal::print(&table(&heads, rows.collect()))
}

/// Whether the profiler samples. If it runs a program, also how that ended.
fn state(profiler: &ShownProfiler) -> String {
    let ended = profiler.program.as_ref().filter(|program| program.ended);
    match ended.map(|program| (program.exit_code, program.signal)) {
        Some((Some(code), _)) => format!("exited {code}"),
        Some((None, Some(signal))) => format!("signal {signal}"),
        Some((None, None)) => "failed".to_owned(),
        None if profiler.on => "on".to_owned(),
        None => "off".to_owned(),
    }
}

fn attach(service: &mut ServiceClient, task: &TaskArgs) -> anyhow::Result<()> {
    let (kind, id, number) = task_path(task);
    let path = format!("/v1/profilers/{id}/{kind}");
    if task.pid.is_none() {
        return service.tell(("POST", &path), Some(&AddThread { tid: number }));
    }
    let added: Option<Value> = service.ask(("POST", &path), Some(&AddProcess { pid: number }))?;
    if let Some(added) = added {
        let threads = number_of(added["threads"].as_u64().unwrap_or(0), "thread", "s");
        terminal::print(&format!("{threads} of process {number}\n"))?;
    }
    Ok(())
}

fn switch(service: &mut ServiceClient, which: &Which, on: bool) -> anyhow::Result<()> {
    let id = which.id.id;
    match which.tid {
        Some(tid) => {
            let path = format!("/v1/profilers/{id}/threads/{tid}");
            let body = ChangeThread {
                started: Some(on),
                period: None,
            };
            service.tell(("PATCH", &path), Some(&body))
        }
        None => {
            let body = ChangeProfiler {
                on: Some(on),
                ..ChangeProfiler::default()
            };
            service.tell(("PATCH", &format!("/v1/profilers/{id}")), Some(&body))
        }
    }
}

fn change_period(service: &mut ServiceClient, asked: &PeriodArgs) -> anyhow::Result<()> {
    let id = asked.id.id;
    match asked.numbers[..] {
        [tid, period] => {
            let path = format!("/v1/profilers/{id}/threads/{tid}");
            let body = ChangeThread {
                started: None,
                period: Some(period),
            };
            let now: Option<ShownThread> = service.ask(("PATCH", &path), Some(&body))?;
            if let Some(now) = now.filter(|now| now.period != period) {
                eprintln!(
                    "memgauge: period set to {}, the nearest that this event supports",
                    now.period
                );
            }
            Ok(())
        }
        [period] => {
            let body = ChangeProfiler {
                period: Some(period),
                ..ChangeProfiler::default()
            };
            service.tell(("PATCH", &format!("/v1/profilers/{id}")), Some(&body))
        }
        _ => Err(usage(
            "failed to change a period: give THREAD PERIOD for one thread, or PERIOD for all attached from now on",
        )),
    }
}

#[derive(serde::Deserialize)]
struct Threads {
    threads: Vec<ShownThread>,
}

fn stats(service: &mut ServiceClient, which: &Which) -> anyhow::Result<()> {
    let id = which.id.id;
    let threads = match which.tid {
        Some(tid) => {
            let path = format!("/v1/profilers/{id}/threads/{tid}");
            let thread: Option<ShownThread> = service.ask(("GET", &path), NO_BODY)?;
            thread.map(|thread| vec![thread])
        }
        None => {
            let path = format!("/v1/profilers/{id}/threads");
            let all: Option<Threads> = service.ask(("GET", &path), NO_BODY)?;
            all.map(|all| all.threads)
        }
    };
    let Some(threads) = threads else {
        return Ok(());
    };
    let heads = [
        "PID",
        "TID",
        "STATE",
        "PERIOD",
        "SAMPLES",
        "KERNEL",
        "MEMORY",
        "READ",
        "WAITING",
        "OVERWRITTEN",
        "REFUSED",
        "LOST",
        "THROTTLED",
        "CPU_MS",
        "OWN_MS",
        "CHANGES",
    ];
    let rows = threads.iter().map(|t| {
        let ms = |ns: u64| format!("{:.1}", ns as f64 / 1e6);
        let counts = [
            t.period,
            t.samples,
            t.kernel_samples,
            t.memory_samples,
            t.delivered,
            t.waiting,
            t.overwritten,
            t.refused,
            t.lost,
            t.throttled,
        ];
        let mut row = vec![t.pid.to_string(), t.tid.to_string(), t.state.clone()];
        row.extend(counts.map(|count| count.to_string()));
        row.extend([ms(t.processor_ns), ms(t.own_ns), t.changes.to_string()]);
        row
    });
    let style = terminal::style(terminal::stdout_is_terminal());
    let rows: Vec<Vec<String>> = rows.collect();
    let (heads, rows, left_out) = fitted(&heads, rows, style.line);
    terminal::print(&table(&heads, rows))?;
    if !left_out.is_empty() {
        terminal::print(&format!(
            "columns of zeros left out: {}\n",
            left_out.join(", ")
        ))?;
    }
    Ok(())
}

/// Drops columns that contain only zeros, from the last one, until lines fit.
fn fitted<'a>(
    heads: &[&'a str],
    mut rows: Vec<Vec<String>>,
    width: usize,
) -> (Vec<&'a str>, Vec<Vec<String>>, Vec<&'a str>) {
    let (mut heads, mut left_out) = (heads.to_vec(), Vec::new());
    let is_zero = |cell: &String| cell.chars().all(|c| matches!(c, '0' | '.'));
    let widest = |heads: &[&str], rows: &[Vec<String>]| {
        let text = table(heads, rows.to_vec());
        text.lines().map(|line| line.chars().count()).max()
    };
    while widest(&heads, &rows) > Some(width) {
        let zeros = |&at: &usize| rows.iter().all(|row| is_zero(&row[at]));
        let Some(at) = (0..heads.len()).rev().find(zeros) else {
            break;
        };
        left_out.insert(0, heads.remove(at));
        for row in &mut rows {
            row.remove(at);
        }
    }
    (heads, rows, left_out)
}

#[derive(serde::Deserialize)]
struct Samples {
    samples: Vec<ShownSample>,
}

/// Columns of a sample in text output.
const SAMPLE_HEADS: &str = "       TIME_NS     PID     TID CPU                 IP               ADDR ACCESS  SOURCE  LATENCY STANDS_FOR\n";

fn sample_line(s: &ShownSample) -> String {
    let text = |word: &Option<String>| word.clone().unwrap_or_else(|| "-".to_owned());
    let latency = s
        .latency_cycles
        .map_or_else(|| "-".to_owned(), |c| c.to_string());
    format!(
        "{:>14} {:>7} {:>7} {:>3} {:>18} {:>18} {:<7} {:<7} {:>7} {:>10}\n",
        s.time_ns,
        s.pid,
        s.tid,
        s.cpu,
        s.ip,
        text(&s.addr),
        text(&s.access),
        text(&s.data_source),
        latency,
        s.stands_for
    )
}

fn read(service: &mut ServiceClient, read: &ReadArgs) -> anyhow::Result<()> {
    if read.follow {
        return follow(service, read);
    }
    let mut wait = std::time::Duration::from_nanos(read.wait.map_or(0, |wait| wait.ns));
    let mut left = read.max.unwrap_or(1000);
    let mut heads = if service.json { "" } else { SAMPLE_HEADS };
    service.client.extend_timeout(wait)?;
    loop {
        let asked = left.min(MAX_SAMPLES_PER_REQUEST);
        let path = format!(
            "/v1/profilers/{}/samples?max={asked}&wait_ms={}",
            read.id.id,
            wait.as_millis()
        );
        let samples = service.client.request("GET", &path, NO_BODY)?;
        let Samples { samples } = serde_json::from_value(samples)?;
        terminal::print(&format!("{heads}{}", batch(&samples, service.json)?))?;
        left = left.saturating_sub(samples.len() as u64);
        if left == 0 || (samples.len() as u64) < asked {
            return Ok(());
        }
        (wait, heads) = (std::time::Duration::ZERO, "");
    }
}

/// Maximum number of samples in one answer.
const MAX_SAMPLES_PER_REQUEST: u64 = 10_000;

fn batch(samples: &[ShownSample], json: bool) -> anyhow::Result<String> {
    let lines = samples.iter().map(|sample| match json {
        true => serde_json::to_string(sample).map(|line| line + "\n"),
        false => Ok(sample_line(sample)),
    });
    Ok(lines.collect::<Result<String, _>>()?)
}

/// Message for a line of a stream that is not a sample.
fn stream_message(line: &str) -> String {
    let value: Option<Value> = serde_json::from_str(line).ok();
    match value
        .as_ref()
        .and_then(|value| value["overwritten"].as_u64())
    {
        Some(1) => "1 sample was overwritten before it was read".to_owned(),
        Some(n) => format!("{n} samples were overwritten before they were read"),
        None => format!("not printed: {line}"),
    }
}

fn follow(service: &mut ServiceClient, read: &ReadArgs) -> anyhow::Result<()> {
    let of = read
        .tid
        .map_or_else(String::new, |tid| format!("?tid={tid}"));
    let path = format!("/v1/profilers/{}/stream{of}", read.id.id);
    let json = service.json;
    // Printed with the first sample, so that a refused request prints no table.
    let mut heads = SAMPLE_HEADS;
    let mut left = read.max.unwrap_or(u64::MAX);
    let mut failed = None;
    service.client.stream(&path, |line| {
        let sample = serde_json::from_str::<ShownSample>(line);
        left -= u64::from(sample.is_ok());
        let printed = match sample {
            _ if json => terminal::print_while_read(&format!("{line}\n")),
            Ok(sample) => {
                let heads = std::mem::take(&mut heads);
                terminal::print_while_read(&format!("{heads}{}", sample_line(&sample)))
            }
            Err(_) => {
                eprintln!("memgauge: {}", stream_message(line));
                Ok(true)
            }
        };
        match printed {
            Ok(read) => read && left > 0 && interrupts() == 0,
            Err(e) => {
                failed = Some(e);
                false
            }
        }
    })?;
    failed.map_or(Ok(()), Err)
}

/// Rows below headings. All columns are right-aligned, except a last one of names.
fn table(heads: &[&str], rows: Vec<Vec<String>>) -> String {
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&heads).chain(&rows).collect();
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..heads.len())
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let line = |row: &&Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(
                |(at, (cell, width))| match at + 1 == heads.len() && heads[at] == "NAME" {
                    true => cell.clone(),
                    false => format!("{cell:>width$}"),
                },
            )
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    all.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_zeros_make_room() {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let rows = vec![row(["7", "0", "12345", "0.0"]), row(["8", "0", "0", "0"])];
        let heads = ["TID", "REFUSED", "SAMPLES", "OWN_MS"];
        let (all, ..) = fitted(&heads, rows.clone(), 80);
        assert_eq!(all, heads);
        let (heads, rows, left_out) = fitted(&heads, rows, 22);
        assert_eq!(heads, ["TID", "REFUSED", "SAMPLES"]);
        assert_eq!(left_out, ["OWN_MS"]);
        let (heads, _, left_out) = fitted(&heads, rows, 5);
        assert_eq!(
            (heads.len(), left_out.len()),
            (2, 1),
            "others are never left out"
        );
    }

    #[test]
    fn lines_of_a_stream_without_a_sample_become_messages() {
        let said = stream_message("{\"overwritten\":1}");
        assert_eq!(said, "1 sample was overwritten before it was read");
        let said = stream_message("{\"overwritten\":17}");
        assert_eq!(said, "17 samples were overwritten before they were read");
    }

    #[test]
    fn columns_of_a_table_are_aligned() {
        let rows = vec![
            vec!["1".to_owned(), "on".to_owned(), "my own".to_owned()],
            vec!["10".to_owned(), "off".to_owned(), String::new()],
        ];
        let text = table(&["ID", "STATE", "NAME"], rows);
        assert_eq!(text, "ID  STATE  NAME\n 1     on  my own\n10    off\n");
    }
}
