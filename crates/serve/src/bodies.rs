//! Bodies of requests and answers, as JSON has them.
//!
//! Addresses are text in hexadecimal: many readers of JSON keep numbers to 2^53 alone.

use memgauge_online::{
    AccessKind, CommandEnd, DataSource, Derivation, Latency, Result as Sampled, Sample, Settings,
    Sharing, Source, State, Statistics, WhenFull,
};
use serde::{Deserialize, Serialize};

use crate::programs::NewProgram;
use crate::refusal::Refusal;

/// Where samples come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceName {
    /// A timer.
    #[default]
    Clock,
    /// An event.
    Pmu,
    /// The modelled machine, for a program that the service starts.
    Emulate,
}

impl SourceName {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            SourceName::Clock => "clock",
            SourceName::Pmu => "pmu",
            SourceName::Emulate => "emulate",
        }
    }
}

/// What a full buffer does with a new sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FullName {
    /// It overwrites the oldest.
    #[default]
    OverwriteOldest,
    /// It is refused.
    RefuseNewest,
}

/// How long a profiler lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifetime {
    /// Until somebody deletes it, or the service ends.
    #[default]
    UntilDeleted,
    /// As long as the connection that made it.
    Connection,
}

/// Which samples a stream gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharingName {
    /// All.
    #[default]
    Each,
    /// Those that no other reader of the queue got.
    Queue,
}

impl From<SharingName> for Sharing {
    fn from(name: SharingName) -> Sharing {
        match name {
            SharingName::Each => Sharing::Each,
            SharingName::Queue => Sharing::Queue,
        }
    }
}

/// A profiler to make. What is left out is as in `memgauge_online::Settings`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NewProfiler {
    /// A word for people.
    pub name: String,
    /// Where samples come from; without it `emulate` if there is a program, else `pmu` if
    /// there is an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceName>,
    /// Event of source `pmu`, as in `memgauge record -e`; of `emulate` one of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// Events between two samples; of timers nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// Samples of the kernel, too.
    pub kernel: bool,
    /// Physical addresses.
    pub physical: bool,
    /// Samples that a thread's buffer holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<usize>,
    /// What a full buffer does.
    pub when_full: FullName,
    /// How soon a sample can be read: 10 or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    /// Part of each thread's processor time that sampling may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead: Option<f64>,
    /// More of the overhead where what a thread does has just changed, less between.
    pub phases: bool,
    /// How long it lives.
    pub lifetime: Lifetime,
    /// The program to start, of source `emulate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<NewProgram>,
}

/// Longest name of a profiler, in characters.
const MOST_NAME: usize = 64;

/// Whether a character would change how what stands beside it is shown.
fn is_disturbing(c: char) -> bool {
    let unseen =
        matches!(c, '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2064}' | '\u{feff}');
    let turns = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
    );
    let breaks = matches!(c, '\u{2028}' | '\u{2029}');
    c.is_control() || unseen || turns || breaks
}

impl NewProfiler {
    /// Its source.
    pub(crate) fn source(&self) -> SourceName {
        let usual = match (&self.program, &self.event) {
            (Some(_), _) => SourceName::Emulate,
            (None, Some(_)) => SourceName::Pmu,
            (None, None) => SourceName::Clock,
        };
        self.source.unwrap_or(usual)
    }

    pub(crate) fn settings(&self) -> Result<Settings, Refusal> {
        let runs = self.source() == SourceName::Emulate;
        if runs != self.program.is_some() {
            let why = match runs {
                true => {
                    "failed to make a profiler: source `emulate` attaches to nothing: give it a program to start"
                }
                false => "failed to start a program: source `emulate` does: leave out the other",
            };
            return Err(Refusal::bad(why));
        }
        let source = match (self.source(), &self.event) {
            (SourceName::Emulate, _) => Source::Program,
            (SourceName::Clock, None) => Source::Clock,
            (SourceName::Pmu, Some(event)) => Source::Pmu(event.clone()),
            (SourceName::Clock, Some(event)) => {
                let why = format!(
                    "failed to sample `{event}` by source `clock`: leave out the event, or take \
                     source `pmu`"
                );
                return Err(Refusal::bad(why));
            }
            (SourceName::Pmu, None) => {
                let why =
                    "failed to make a profiler: source `pmu` needs an event, such as page-faults";
                return Err(Refusal::bad(why));
            }
        };
        if self.name.chars().count() > MOST_NAME || self.name.chars().any(is_disturbing) {
            let why = format!(
                "failed to name a profiler: take {MOST_NAME} characters at most, in one line, \
                 none that turns it or is unseen"
            );
            return Err(Refusal::bad(why));
        }
        let usual = Settings::of(source);
        Ok(Settings {
            period: self.period,
            kernel: self.kernel,
            physical: self.physical,
            buffer: self.buffer.unwrap_or(usual.buffer),
            when_full: match self.when_full {
                FullName::OverwriteOldest => WhenFull::OverwriteOldest,
                FullName::RefuseNewest => WhenFull::RefuseNewest,
            },
            latency: latency(self.latency_ms)?,
            overhead: self.overhead,
            phases: self.phases,
            ..usual
        })
    }
}

fn latency(ms: Option<u64>) -> Result<Latency, Refusal> {
    match ms {
        None | Some(10) => Ok(Latency::TenMilliseconds),
        Some(1) => Ok(Latency::OneMillisecond),
        Some(other) => {
            let why = format!("failed to set a latency of `{other}` ms: take 10 or 1");
            Err(Refusal::bad(why))
        }
    }
}

/// Changes of a profiler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeProfiler {
    /// All sampling on or off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<bool>,
    /// Period of threads that are added later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// Buffer of threads that are added later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<usize>,
}

/// Changes of a thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeThread {
    /// Whether it is sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<bool>,
    /// Its period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
}

/// A thread to add.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddThread {
    /// Its number.
    pub tid: u32,
}

/// A process to add.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddProcess {
    /// Its number.
    pub pid: u32,
}

/// Which threads to forget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CleanWhich {
    /// Those that have ended and whose samples were read.
    #[default]
    Read,
    /// All that have ended.
    All,
}

/// Which threads to forget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cleaning {
    /// Which.
    pub which: CleanWhich,
}

/// Sums over threads: those of now, and those that were forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Samples taken.
    pub samples: u64,
    /// Of them in the kernel.
    pub kernel_samples: u64,
    /// Of them with a data address.
    pub memory_samples: u64,
    /// Samples that the kernel's ring had no room for.
    pub lost: u64,
    /// Samples that a full buffer refused.
    pub refused: u64,
    /// Samples that were overwritten before anybody had read them.
    pub overwritten: u64,
    /// Samples that somebody has read: a batch or a stream.
    pub delivered: u64,
    /// Samples that nobody had read when their thread was forgotten.
    pub discarded: u64,
    /// Times the kernel stopped sampling for a moment.
    pub throttled: u64,
    /// Threads of followed processes that were not sampled.
    pub missed: u64,
    /// Nanoseconds of processor time of the threads.
    pub processor_ns: u64,
    /// Nanoseconds of the service's own processor time for reading samples.
    pub own_ns: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, thread: &Statistics) {
        self.samples += thread.samples;
        self.kernel_samples += thread.kernel_samples;
        self.memory_samples += thread.memory_samples;
        self.lost += thread.lost;
        self.refused += thread.refused;
        self.overwritten += thread.account.overwritten;
        self.delivered += thread.account.delivered;
        self.throttled += thread.throttled;
        self.processor_ns += thread.processor_ns;
        self.own_ns += thread.own_ns;
    }

    pub(crate) fn add_all(&mut self, other: &Totals) {
        self.samples += other.samples;
        self.kernel_samples += other.kernel_samples;
        self.memory_samples += other.memory_samples;
        self.lost += other.lost;
        self.refused += other.refused;
        self.overwritten += other.overwritten;
        self.delivered += other.delivered;
        self.discarded += other.discarded;
        self.throttled += other.throttled;
        self.missed += other.missed;
        self.processor_ns += other.processor_ns;
        self.own_ns += other.own_ns;
    }
}

/// A profiler as the service shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShownProfiler {
    /// Its number.
    pub id: u64,
    /// User who made it.
    pub uid: u32,
    /// A word for people.
    pub name: String,
    /// Where samples come from.
    pub source: SourceName,
    /// Event; null of source `clock`.
    pub event: Option<String>,
    /// The program that was started for it; null where there is none.
    pub program: Option<ShownProgram>,
    /// Whether sampling is on.
    pub on: bool,
    /// Period of threads that are added; null: the source's usual one.
    pub period: Option<u64>,
    /// Samples of the kernel, too.
    pub kernel: bool,
    /// Physical addresses.
    pub physical: bool,
    /// Samples that the buffer of a thread that is added holds.
    pub buffer: usize,
    /// What a full buffer does.
    pub when_full: FullName,
    /// How soon a sample can be read.
    pub latency_ms: u64,
    /// Part of each thread's processor time that sampling may take.
    pub overhead: Option<f64>,
    /// More of the overhead where what a thread does has just changed.
    pub phases: bool,
    /// How long it lives.
    pub lifetime: Lifetime,
    /// Whether it samples processes of its user alone.
    pub own_processes_only: bool,
    /// Processes whose threads are attached to.
    pub processes: usize,
    /// Threads that are attached to.
    pub threads: usize,
    /// Threads it may have, with those that ended and were not read.
    pub most_threads: usize,
    /// Sums over threads.
    pub totals: Totals,
    /// What had to be changed of the settings, and what went wrong.
    pub notes: Vec<String>,
}

/// A program that the service started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownProgram {
    /// Its words.
    pub command: Vec<String>,
    /// Its first process.
    pub pid: u32,
    /// Whether it has ended, and all its samples can be read.
    pub ended: bool,
    /// Its exit code; null while it runs, and where a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why it could not be followed to its end.
    pub trouble: Option<String>,
}

impl ShownProgram {
    pub(crate) fn of(command: &[String], pid: u32, end: Option<Sampled<CommandEnd>>) -> Self {
        let mut shown = ShownProgram {
            command: command.to_vec(),
            pid,
            ended: end.is_some(),
            ..ShownProgram::default()
        };
        match end {
            None | Some(Ok(CommandEnd::Interrupted)) => {}
            Some(Ok(CommandEnd::Exited(code))) => shown.exit_code = Some(code),
            Some(Ok(CommandEnd::Signalled(signal))) => shown.signal = Some(signal),
            Some(Err(e)) => shown.trouble = Some(e.in_full()),
        }
        shown
    }
}

/// Counts of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownThread {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// `started`, `stopped`, `ended` or `deleted`.
    pub state: String,
    /// Period now.
    pub period: u64,
    /// Samples that its buffer holds.
    pub buffer: u64,
    /// Samples taken.
    pub samples: u64,
    /// Of them in the kernel.
    pub kernel_samples: u64,
    /// Of them with a data address.
    pub memory_samples: u64,
    /// Samples that the kernel's ring had no room for.
    pub lost: u64,
    /// Samples that a full buffer refused.
    pub refused: u64,
    /// Samples that were overwritten before anybody had read them.
    pub overwritten: u64,
    /// Samples that somebody has read: a batch or a stream.
    pub delivered: u64,
    /// Samples that nobody has read yet.
    pub waiting: u64,
    /// Samples of the kernel that the processor took and nobody wanted.
    pub unwanted: u64,
    /// Times the kernel stopped sampling for a moment.
    pub throttled: u64,
    /// Bytes of the kernel's ring that could not be read.
    pub unreadable_bytes: u64,
    /// Sum of what the samples stand for.
    pub stands_for: u64,
    /// Events that the thread's counter counted.
    pub counted: u64,
    /// Nanoseconds that the thread was on a processor.
    pub processor_ns: u64,
    /// Nanoseconds of the service's own processor time for reading its samples.
    pub own_ns: u64,
    /// Times it was seen to do something else than before, with `phases`.
    pub changes: u64,
}

impl From<&Statistics> for ShownThread {
    fn from(s: &Statistics) -> ShownThread {
        let state = match s.state {
            State::Started => "started",
            State::Stopped => "stopped",
            State::Ended => "ended",
            State::Deleted => "deleted",
        };
        ShownThread {
            pid: s.pid,
            tid: s.tid,
            state: state.to_owned(),
            period: s.period,
            buffer: s.buffer,
            samples: s.samples,
            kernel_samples: s.kernel_samples,
            memory_samples: s.memory_samples,
            lost: s.lost,
            refused: s.refused,
            overwritten: s.account.overwritten,
            delivered: s.account.delivered,
            waiting: s.account.waiting,
            unwanted: s.unwanted,
            throttled: s.throttled,
            unreadable_bytes: s.unreadable_bytes,
            stands_for: s.stands_for,
            counted: s.counted,
            processor_ns: s.processor_ns,
            own_ns: s.own_ns,
            changes: s.changes,
        }
    }
}

/// A sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownSample {
    /// When it was taken, nanoseconds of `CLOCK_MONOTONIC`; of source `emulate` virtual time.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Processor.
    pub cpu: u32,
    /// Instruction, hexadecimal.
    pub ip: String,
    /// Data address, hexadecimal; null where none is known.
    pub addr: Option<String>,
    /// Physical data address, hexadecimal.
    pub phys: Option<String>,
    /// `load`, `store`, `modify` or null.
    pub access: Option<String>,
    /// Bytes accessed; null where unknown.
    pub size_bytes: Option<u16>,
    /// Level that delivered the data; null where unknown.
    pub data_source: Option<String>,
    /// Cycles until the data arrived; null where unknown.
    pub latency_cycles: Option<u32>,
    /// How the address was rebuilt; null where the event told it or there is none.
    pub derivation: Option<String>,
    /// Whether it was taken in the kernel.
    pub in_kernel: bool,
    /// The period that was set when it was taken.
    pub period: u64,
    /// Events that it stands for.
    pub stands_for: u64,
}

impl From<&Sample> for ShownSample {
    fn from(s: &Sample) -> ShownSample {
        let hex = |address: u64| format!("{address:#x}");
        ShownSample {
            time_ns: s.time_ns,
            pid: s.pid.0,
            tid: s.tid.0,
            cpu: s.cpu.0,
            ip: hex(s.ip.0),
            addr: s.addr.map(|a| hex(a.0)),
            phys: s.phys.map(|a| hex(a.0)),
            access: access(s.kind).map(str::to_owned),
            size_bytes: (s.size_bytes != 0).then_some(s.size_bytes),
            data_source: data_source(s.source).map(str::to_owned),
            latency_cycles: (s.latency_cycles != 0).then_some(s.latency_cycles),
            derivation: s.derivation.map(|d| derivation(d).to_owned()),
            in_kernel: s.in_kernel,
            period: s.period,
            stands_for: s.stands_for,
        }
    }
}

fn access(kind: AccessKind) -> Option<&'static str> {
    match kind {
        AccessKind::Unknown => None,
        AccessKind::Load => Some("load"),
        AccessKind::Store => Some("store"),
        AccessKind::Modify => Some("modify"),
    }
}

fn data_source(source: DataSource) -> Option<&'static str> {
    match source {
        DataSource::Unknown => None,
        DataSource::L1d => Some("l1d"),
        DataSource::L2 => Some("l2"),
        DataSource::Llc => Some("llc"),
        DataSource::Dram => Some("dram"),
        DataSource::FillBuffer => Some("fill_buffer"),
        DataSource::RemoteCache => Some("remote_cache"),
        DataSource::RemoteDram => Some("remote_dram"),
    }
}

fn derivation(derivation: Derivation) -> &'static str {
    match derivation {
        Derivation::Exact => "exact",
        Derivation::Previous => "previous",
        Derivation::Next => "next",
    }
}

/// The body of a request.
pub(crate) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    let refused = |what: &str| {
        let why =
            format!("failed to read the body: {what}: GET /v1/openapi.json says what it may have");
        Refusal::bad(why)
    };
    // serde would take fields by their places, too.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(refused("it is no JSON object"));
    }
    serde_json::from_slice(body).map_err(|e| refused(&e.to_string()))
}

/// The body of a request that may have none.
pub(crate) fn read_if_any<'a, T: Deserialize<'a> + Default>(body: &'a [u8]) -> Result<T, Refusal> {
    match body {
        [] => Ok(T::default()),
        body => read(body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> String {
        let new = read::<NewProfiler>(body.as_bytes()).and_then(|new| new.settings());
        let refusal = new.expect_err("it makes no sense");
        assert_eq!(refusal.status, 400);
        refusal.message
    }

    #[test]
    fn an_empty_profiler_is_the_usual_one() {
        let new: NewProfiler = read(b"{}").expect("a profiler");
        assert_eq!(new.settings(), Ok(Settings::of(Source::Clock)));
        let new: NewProfiler = read(br#"{"event":"page-faults"}"#).expect("a profiler");
        let source = Source::Pmu("page-faults".to_owned());
        assert_eq!(new.settings(), Ok(Settings::of(source)));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        assert!(refused(r#"{"sauce":"clock"}"#).contains("sauce"));
        assert!(refused(r#"{"source":"clock","event":"page-faults"}"#).contains("page-faults"));
        assert!(refused(r#"{"source":"pmu"}"#).contains("needs an event"));
        assert!(refused(r#"{"source":"emulate"}"#).contains("a program to start"));
        let program = r#""program":{"command":["true"]}"#;
        assert!(refused(&format!(r#"{{"source":"clock",{program}}}"#)).contains("`emulate`"));
        let unknown = r#"{"program":{"command":["true"],"user":0}}"#;
        assert!(refused(unknown).contains("user"));
        assert!(refused(r#"{"latency_ms":5}"#).contains("`5`"));
        assert!(refused(r#"{"period":-1}"#).contains("-1"));
        assert!(refused(&format!(r#"{{"name":"{}"}}"#, "n".repeat(65))).contains("64"));
        assert!(refused(r#"{"name":"a\nb"}"#).contains("one line"));
        assert!(refused("[]").contains("body"));
        assert!(refused("").contains("body"));
        let deep = format!(r#"{{"name":{}"#, "[".repeat(60_000));
        assert!(refused(&deep).contains("body"));
    }

    #[test]
    fn names_are_counted_by_character_and_change_nothing_around_them() {
        let named = |name: &str| {
            let new = NewProfiler {
                name: name.to_owned(),
                ..NewProfiler::default()
            };
            new.settings().map_err(|refusal| refusal.status).err()
        };
        for good in ["", "a b", &"ä".repeat(64), "日本"] {
            assert_eq!(named(good), None, "{good}");
        }
        for bad in [
            "a\nb",
            "a\u{9b}b",
            "a\u{202e}b",
            "a\u{2066}b",
            "a\u{2028}b",
            "\u{200b}",
        ] {
            assert_eq!(named(bad), Some(400), "{bad:?}");
        }
        assert_eq!(named(&"ä".repeat(65)), Some(400));
    }
}
