//! Bodies of requests and responses in JSON.
//!
//! Addresses are hexadecimal strings, because many JSON readers lose precision above 2^53.

use memgauge_online::{
    AccessKind, CommandEnd, DataSource, Derivation, Latency, Result as Sampled, Sample, Settings,
    Sharing, Source, Statistics, ThreadState, WhenFull,
};
use serde::{Deserialize, Serialize};

use crate::programs::NewProgram;
use crate::refusal::Refusal;

/// Source of samples.
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
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            SourceName::Clock => "clock",
            SourceName::Pmu => "pmu",
            SourceName::Emulate => "emulate",
        }
    }
}

/// Handling of a new sample if the buffer is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFullName {
    /// It overwrites the oldest.
    #[default]
    OverwriteOldest,
    /// It is refused.
    RefuseNewest,
}

/// Lifetime of a profiler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifetime {
    /// Until it is deleted or the service ends.
    #[default]
    UntilDeleted,
    /// Until the connection that created it is closed.
    Connection,
}

/// Which samples a stream gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharingName {
    /// All samples.
    #[default]
    Each,
    /// Samples that no other reader of the queue got.
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

/// A profiler to create. Missing fields have the defaults of `memgauge_online::Settings`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NewProfiler {
    /// A name to show to people.
    pub name: String,
    /// Source of samples. Default: `emulate` with a program, `pmu` with an event, else `clock`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceName>,
    /// Event: for source `pmu` as in `memgauge record -e`, for `emulate` an event of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// Events between two samples; nanoseconds for timers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// Whether to sample the kernel as well.
    pub kernel: bool,
    /// Whether to record physical addresses.
    pub physical: bool,
    /// Buffer size per thread in samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<usize>,
    /// Handling of a new sample if the buffer is full.
    pub when_full: WhenFullName,
    /// Maximum time until a sample can be read: 10 or 1 ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    /// Maximum share of each thread's CPU time that sampling may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead: Option<f64>,
    /// Whether to spend more of the overhead when a thread has just changed its behaviour.
    pub phases: bool,
    /// Lifetime of the profiler.
    pub lifetime: Lifetime,
    /// Program to start, for source `emulate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<NewProgram>,
}

/// Maximum length of a profiler's name in characters.
const MAX_NAME_CHARS: usize = 64;

/// Returns whether a character would change how the text around it is displayed.
fn disturbs_text(c: char) -> bool {
    let invisible =
        matches!(c, '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2064}' | '\u{feff}');
    let reorders = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
    );
    let breaks = matches!(c, '\u{2028}' | '\u{2029}');
    c.is_control() || invisible || reorders || breaks
}

impl NewProfiler {
    /// Returns the source, or its default.
    pub(crate) fn source(&self) -> SourceName {
        let defaults = match (&self.program, &self.event) {
            (Some(_), _) => SourceName::Emulate,
            (None, Some(_)) => SourceName::Pmu,
            (None, None) => SourceName::Clock,
        };
        self.source.unwrap_or(defaults)
    }

    pub(crate) fn settings(&self) -> Result<Settings, Refusal> {
        let runs = self.source() == SourceName::Emulate;
        if runs != self.program.is_some() {
            let why = match runs {
                true => {
                    "failed to create a profiler: source `emulate` cannot attach to threads; give it a program to start"
                }
                false => {
                    "failed to start a program: only source `emulate` can; remove the other source"
                }
            };
            return Err(Refusal::bad(why));
        }
        let source = match (self.source(), &self.event) {
            (SourceName::Emulate, _) => Source::Program,
            (SourceName::Clock, None) => Source::Clock,
            (SourceName::Pmu, Some(event)) => Source::Pmu(event.clone()),
            (SourceName::Clock, Some(event)) => {
                let why = format!(
                    "failed to sample `{event}` with source `clock`: remove the event, or use \
                     source `pmu`"
                );
                return Err(Refusal::bad(why));
            }
            (SourceName::Pmu, None) => {
                let why =
                    "failed to create a profiler: source `pmu` needs an event, such as page-faults";
                return Err(Refusal::bad(why));
            }
        };
        if self.name.chars().count() > MAX_NAME_CHARS || self.name.chars().any(disturbs_text) {
            let why = format!(
                "failed to name the profiler: use at most {MAX_NAME_CHARS} printable characters, without \
                 line breaks or text-direction marks"
            );
            return Err(Refusal::bad(why));
        }
        let defaults = Settings::new(source);
        Ok(Settings {
            period: self.period,
            kernel: self.kernel,
            physical: self.physical,
            buffer: self.buffer.unwrap_or(defaults.buffer),
            when_full: match self.when_full {
                WhenFullName::OverwriteOldest => WhenFull::OverwriteOldest,
                WhenFullName::RefuseNewest => WhenFull::RefuseNewest,
            },
            latency: latency(self.latency_ms)?,
            overhead: self.overhead,
            phases: self.phases,
            ..defaults
        })
    }
}

fn latency(ms: Option<u64>) -> Result<Latency, Refusal> {
    match ms {
        None | Some(10) => Ok(Latency::TenMilliseconds),
        Some(1) => Ok(Latency::OneMillisecond),
        Some(other) => {
            let why = format!("failed to set a latency of `{other}` ms: use 10 or 1");
            Err(Refusal::bad(why))
        }
    }
}

/// Changes to a profiler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeProfiler {
    /// Enables or disables all sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<bool>,
    /// Period of threads that are added later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// Buffer of threads that are added later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<usize>,
}

/// Changes to a thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeThread {
    /// Enables or disables its sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<bool>,
    /// New period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
}

/// A thread to add.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddThread {
    /// Thread ID.
    pub tid: u32,
}

/// A process to add.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddProcess {
    /// Process ID.
    pub pid: u32,
}

/// Threads to forget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CleanWhich {
    /// Threads that have ended and whose samples were read.
    #[default]
    Read,
    /// All threads that have ended.
    All,
}

/// Request to forget threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CleanRequest {
    /// Threads to forget.
    pub which: CleanWhich,
}

/// Sums over all threads, including forgotten ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Samples taken.
    pub samples: u64,
    /// Samples among these taken in the kernel.
    pub kernel_samples: u64,
    /// Samples among these with a data address.
    pub memory_samples: u64,
    /// Samples lost because the kernel's ring was full.
    pub lost: u64,
    /// Samples refused by a full buffer.
    pub refused: u64,
    /// Samples overwritten before any reader had read them.
    pub overwritten: u64,
    /// Samples that a batch or a stream has read.
    pub delivered: u64,
    /// Unread samples of threads that were forgotten.
    pub discarded: u64,
    /// Number of times the kernel throttled sampling.
    pub throttled: u64,
    /// Threads of followed processes that were not sampled.
    pub missed: u64,
    /// CPU time of the threads in nanoseconds.
    pub processor_ns: u64,
    /// CPU time of the service for reading samples, in nanoseconds.
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

/// A profiler as shown to clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShownProfiler {
    /// Number of the profiler.
    pub id: u64,
    /// User ID of its owner.
    pub uid: u32,
    /// Name to show to people.
    pub name: String,
    /// Source of samples.
    pub source: SourceName,
    /// Event; null for source `clock`.
    pub event: Option<String>,
    /// The program started for it, or null.
    pub program: Option<ShownProgram>,
    /// Whether sampling is enabled.
    pub on: bool,
    /// Period of threads that are added; null for the default of the source.
    pub period: Option<u64>,
    /// Whether the kernel is sampled as well.
    pub kernel: bool,
    /// Whether physical addresses are recorded.
    pub physical: bool,
    /// Buffer size in samples of threads that are added.
    pub buffer: usize,
    /// Handling of a new sample if the buffer is full.
    pub when_full: WhenFullName,
    /// Maximum time until a sample can be read.
    pub latency_ms: u64,
    /// Maximum share of each thread's CPU time that sampling may take.
    pub overhead: Option<f64>,
    /// Whether more of the overhead is spent when a thread has just changed its behaviour.
    pub phases: bool,
    /// Lifetime of the profiler.
    pub lifetime: Lifetime,
    /// Whether it samples only processes of its owner.
    pub own_processes_only: bool,
    /// Number of processes with sampled threads.
    pub processes: usize,
    /// Number of sampled threads.
    pub threads: usize,
    /// Maximum number of threads, including ended ones with unread samples.
    pub most_threads: usize,
    /// Sums over all threads.
    pub totals: Totals,
    /// Settings that had to be changed, and problems.
    pub notes: Vec<String>,
}

/// A program started by the service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownProgram {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// ID of its first process.
    pub pid: u32,
    /// Whether it has ended. All its samples can be read then.
    pub ended: bool,
    /// Exit code; null while it runs or if a signal ended it.
    pub exit_code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// Reason why it could not be sampled until its end.
    pub trouble: Option<String>,
}

impl ShownProgram {
    pub(crate) fn new(command: &[String], pid: u32, end: Option<Sampled<CommandEnd>>) -> Self {
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
    /// Process ID.
    pub pid: u32,
    /// Thread ID.
    pub tid: u32,
    /// `started`, `stopped`, `ended` or `deleted`.
    pub state: String,
    /// Current period.
    pub period: u64,
    /// Buffer size in samples.
    pub buffer: u64,
    /// Samples taken.
    pub samples: u64,
    /// Samples among these taken in the kernel.
    pub kernel_samples: u64,
    /// Samples among these with a data address.
    pub memory_samples: u64,
    /// Samples lost because the kernel's ring was full.
    pub lost: u64,
    /// Samples refused by a full buffer.
    pub refused: u64,
    /// Samples overwritten before any reader had read them.
    pub overwritten: u64,
    /// Samples that a batch or a stream has read.
    pub delivered: u64,
    /// Samples not read yet.
    pub waiting: u64,
    /// Kernel samples that the processor took although they were not requested.
    pub unwanted: u64,
    /// Number of times the kernel throttled sampling.
    pub throttled: u64,
    /// Bytes of the kernel's ring that could not be decoded.
    pub unreadable_bytes: u64,
    /// Sum of the events that the samples stand for.
    pub stands_for: u64,
    /// Events counted by the thread's counter.
    pub counted: u64,
    /// CPU time of the thread in nanoseconds.
    pub processor_ns: u64,
    /// CPU time of the service for reading its samples, in nanoseconds.
    pub own_ns: u64,
    /// Number of phase changes, with `phases`.
    pub changes: u64,
}

impl From<&Statistics> for ShownThread {
    fn from(s: &Statistics) -> ShownThread {
        let state = match s.state {
            ThreadState::Started => "started",
            ThreadState::Stopped => "stopped",
            ThreadState::Ended => "ended",
            ThreadState::Deleted => "deleted",
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
    /// Time in nanoseconds of `CLOCK_MONOTONIC`; virtual time for source `emulate`.
    pub time_ns: u64,
    /// Process ID.
    pub pid: u32,
    /// Thread ID.
    pub tid: u32,
    /// CPU.
    pub cpu: u32,
    /// Address of the instruction, hexadecimal.
    pub ip: String,
    /// Data address, hexadecimal; null if unknown.
    pub addr: Option<String>,
    /// Physical data address, hexadecimal.
    pub phys: Option<String>,
    /// `load`, `store`, `modify` or null.
    pub access: Option<String>,
    /// Bytes accessed; null if unknown.
    pub size_bytes: Option<u16>,
    /// Level that delivered the data; null if unknown.
    pub data_source: Option<String>,
    /// Cycles until the data arrived; null if unknown.
    pub latency_cycles: Option<u32>,
    /// How the address was derived; null if the event reported it or there is none.
    pub derivation: Option<String>,
    /// Whether the sample was taken in the kernel.
    pub in_kernel: bool,
    /// Period when the sample was taken.
    pub period: u64,
    /// Number of events that it stands for.
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
        DataSource::OtherCore => Some("other_core"),
        DataSource::RemoteCore => Some("remote_core"),
    }
}

fn derivation(derivation: Derivation) -> &'static str {
    match derivation {
        Derivation::Exact => "exact",
        Derivation::Previous => "previous",
        Derivation::Next => "next",
    }
}

/// Parses the body of a request.
pub(crate) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    let refused = |what: &str| {
        let why = format!("failed to read the body: {what}; GET /v1/openapi.json describes it");
        Refusal::bad(why)
    };
    // serde also accepts an array with the fields in order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(refused("not a JSON object"));
    }
    serde_json::from_slice(body).map_err(|e| refused(&e.to_string()))
}

/// Parses the body of a request, which may be empty.
pub(crate) fn parse_or_default<'a, T: Deserialize<'a> + Default>(
    body: &'a [u8],
) -> Result<T, Refusal> {
    match body {
        [] => Ok(T::default()),
        body => parse(body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> String {
        let new = parse::<NewProfiler>(body.as_bytes()).and_then(|new| new.settings());
        let refusal = new.expect_err("it makes no sense");
        assert_eq!(refusal.status, 400);
        refusal.message
    }

    #[test]
    fn empty_profiler_has_default_settings() {
        let new: NewProfiler = parse(b"{}").expect("a profiler");
        assert_eq!(new.settings(), Ok(Settings::new(Source::Clock)));
        let new: NewProfiler = parse(br#"{"event":"page-faults"}"#).expect("a profiler");
        let source = Source::Pmu("page-faults".to_owned());
        assert_eq!(new.settings(), Ok(Settings::new(source)));
    }

    #[test]
    fn invalid_field_is_named() {
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
        assert!(refused(r#"{"name":"a\nb"}"#).contains("line breaks"));
        assert!(refused("[]").contains("body"));
        assert!(refused("").contains("body"));
        let deep = format!(r#"{{"name":{}"#, "[".repeat(60_000));
        assert!(refused(&deep).contains("body"));
    }

    #[test]
    fn names_are_limited_in_length_and_characters() {
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
