//! Operations of the service: applies requests to the profilers.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memgauge_online::{Clean, Reader, Sample, Sharing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::{Value, json};

use crate::bodies::{
    AddProcess, AddThread, ChangeProfiler, ChangeThread, CleanRequest, CleanWhich, NewProfiler,
    SharingName, ShownSample, parse, parse_or_default,
};
use crate::http::{JSON, MAX_BODY_BYTES, Request, Response};
use crate::profilers::{Limits, ProfilerEntry, Profilers};
use crate::programs::{ProgramSource, ProgramStarter};
use crate::refusal::Refusal;
use crate::rights::{AccessPolicy, ClientRights, Peer, Rights};
use crate::routes::{Operation, RouteMatch, find};

/// OpenAPI description of the service.
pub const OPENAPI: &str = include_str!("../../../docs/openapi.json");

/// Maximum number of samples in a batch.
const MAX_BATCH: usize = 10_000;
/// Number of samples in a batch by default.
const DEFAULT_BATCH: usize = 1000;
/// Maximum wait for the first sample of a batch.
const MAX_WAIT_MS: u64 = 60_000;

/// Maximum time until a reader notices that its profiler is gone.
pub(crate) const GONE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The client that sent a request.
pub(crate) struct RequestCaller<'a> {
    pub(crate) peer: &'a Peer,
    pub(crate) connection: u64,
    /// The connection. A wait ends when it is closed.
    pub(crate) socket: &'a dyn AsFd,
}

/// Response to a request.
pub(crate) enum Answer {
    /// A complete response.
    Whole(Response),
    /// A stream of samples.
    Stream(SampleStream),
}

/// Samples to send as they are taken.
pub(crate) struct SampleStream {
    pub(crate) reader: Reader,
    /// Set when no more samples will follow.
    pub(crate) gone: Arc<AtomicBool>,
}

/// Executes requests.
pub(crate) struct Service {
    pub(crate) profilers: Profilers,
    policy: AccessPolicy,
}

fn ok(body: &impl Serialize) -> Result<Answer, Refusal> {
    with_status(200, body)
}

fn with_status(status: u16, body: &impl Serialize) -> Result<Answer, Refusal> {
    let failed = |e| Refusal::new(500, "system", format!("failed to write the response: {e}"));
    let mut body = serde_json::to_vec(body).map_err(failed)?;
    body.push(b'\n');
    Ok(Answer::Whole(Response {
        status,
        kind: JSON,
        headers: Vec::new(),
        body,
    }))
}

fn no_content() -> Result<Answer, Refusal> {
    Ok(Answer::Whole(Response {
        status: 204,
        kind: "",
        headers: Vec::new(),
        body: Vec::new(),
    }))
}

impl Service {
    pub(crate) fn new(
        limits: Limits,
        policy: AccessPolicy,
        programs: Option<Box<dyn ProgramSource>>,
    ) -> Service {
        let program_starter = ProgramStarter {
            source: programs,
            service_uid: policy.service_uid,
        };
        Service {
            profilers: Profilers::new(limits, program_starter),
            policy,
        }
    }

    /// Executes a request.
    pub(crate) fn answer(&self, caller: &RequestCaller<'_>, request: &Request) -> Answer {
        let route = find(&request.method, &request.path);
        let answer = route.and_then(|found| self.operate(caller, request, &found));
        answer.unwrap_or_else(|refusal| Answer::Whole(refusal.response()))
    }

    fn operate(
        &self,
        caller: &RequestCaller<'_>,
        request: &Request,
        found: &RouteMatch,
    ) -> Result<Answer, Refusal> {
        let client = ClientRights {
            peer: caller.peer,
            rights: self.policy.rights(caller.peer),
        };
        let query = QueryParameters::from_request(request, found.operation)?;
        let entry = || self.profilers.get(client, found.id);
        let body = request.body.as_slice();
        match found.operation {
            Operation::ShowService => ok(&self.describe(client)),
            Operation::ShowOpenApi => Ok(Answer::Whole(Response {
                status: 200,
                kind: JSON,
                headers: Vec::new(),
                body: OPENAPI.as_bytes().to_vec(),
            })),
            Operation::ListProfilers => {
                let all = self.profilers.list(client);
                let all: Vec<_> = all.iter().map(|entry| entry.show()).collect();
                ok(&json!({ "profilers": all }))
            }
            Operation::CreateProfiler => {
                let new: NewProfiler = parse_or_default(body)?;
                let profiler = self.profilers.create(client, new, caller.connection)?;
                with_status(201, &profiler.show())
            }
            Operation::ShowProfiler => ok(&self.profilers.find(client, found.id)?.show()),
            Operation::ChangeProfiler => change_profiler(&*entry()?, &parse(body)?),
            Operation::DeleteProfiler => {
                let id = self.profilers.find(client, found.id)?.id;
                self.profilers.delete(id);
                no_content()
            }
            Operation::ListThreads => ok(&json!({ "threads": entry()?.threads() })),
            Operation::AddThread => {
                let AddThread { tid } = parse(body)?;
                let entry = entry()?;
                let added = entry.profiler.add_thread(tid);
                added.map_err(|e| self.add_service_user(e.into()))?;
                with_status(201, &entry.thread(tid)?)
            }
            Operation::ShowThread => ok(&entry()?.thread(found.task)?),
            Operation::ChangeThread => change_thread(&*entry()?, found.task, &parse(body)?),
            Operation::DeleteThread => {
                entry()?.profiler.delete_thread(found.task)?;
                no_content()
            }
            Operation::AddProcess => {
                let AddProcess { pid } = parse(body)?;
                let added = entry()?.profiler.add_process(pid);
                let added = added.map_err(|e| self.add_service_user(e.into()))?;
                with_status(201, &json!({ "pid": pid, "threads": added }))
            }
            Operation::DeleteProcess => {
                let deleted = entry()?.profiler.delete_process(found.task)?;
                ok(&json!({ "pid": found.task, "threads": deleted }))
            }
            Operation::Clean => {
                let CleanRequest { which } = parse_or_default(body)?;
                let which = match which {
                    CleanWhich::Read => Clean::Read,
                    CleanWhich::All => Clean::All,
                };
                ok(&json!({ "threads": entry()?.clean(which) }))
            }
            Operation::ReadSamples => batch(entry()?, &query, caller),
            Operation::StreamSamples => stream(&*entry()?, &query),
        }
    }

    /// If the service's own user lacks a permission, adds that to the message, since it does not
    /// depend on the client.
    fn add_service_user(&self, mut refusal: Refusal) -> Refusal {
        let user = self.policy.service_uid;
        if refusal.kind == "not_allowed" && user != 0 {
            refusal.message += &format!(
                "; the service runs as user {user} and has only the permissions of that user: \
                 use a service that runs as root"
            );
        }
        refusal
    }

    fn describe(&self, client: ClientRights<'_>) -> Value {
        let limits = self.profilers.limits();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uid": client.peer.uid,
            "may_profile": match client.rights {
                Rights::All => "all",
                Rights::Own => "own",
            },
            "limits": {
                "profilers_of_user": limits.profilers_of_user,
                "threads_of_profiler": limits.threads,
                "buffer_bytes_of_profiler": limits.buffer_bytes,
                "body_bytes": MAX_BODY_BYTES,
                "batch_samples": MAX_BATCH,
            },
        })
    }
}

fn change_profiler(entry: &ProfilerEntry, change: &ChangeProfiler) -> Result<Answer, Refusal> {
    if let Some(period) = change.period {
        entry.set_default_period(period)?;
    }
    if let Some(buffer) = change.buffer {
        entry.set_default_buffer(buffer)?;
    }
    if let Some(on) = change.on {
        entry.set_enabled(on);
    }
    ok(&entry.show())
}

fn change_thread(
    entry: &ProfilerEntry,
    tid: u32,
    change: &ChangeThread,
) -> Result<Answer, Refusal> {
    if let Some(period) = change.period {
        entry.profiler.set_period(tid, period)?;
    }
    match change.started {
        Some(true) => entry.profiler.start(tid)?,
        Some(false) => entry.profiler.stop(tid)?,
        None => {}
    }
    ok(&entry.thread(tid)?)
}

/// Query parameters.
#[derive(Default)]
struct QueryParameters {
    max: Option<usize>,
    wait_ms: Option<u64>,
    tid: Option<u32>,
    sharing: SharingName,
}

/// Names of the query parameters of an operation.
pub fn parameters(operation: Operation) -> &'static [&'static str] {
    match operation {
        Operation::ReadSamples => &["max", "wait_ms"],
        Operation::StreamSamples => &["tid", "sharing"],
        _ => &[],
    }
}

impl QueryParameters {
    fn from_request(request: &Request, operation: Operation) -> Result<QueryParameters, Refusal> {
        let known = parameters(operation);
        let mut query = QueryParameters::default();
        for (name, value) in &request.query {
            let wrong =
                |what: &str| Refusal::bad(format!("failed to read `{name}={value}`: not a {what}"));
            match name.as_str() {
                name if !known.contains(&name) => {
                    let known = match known {
                        [] => "this path has no parameters".to_owned(),
                        known => format!("use {}", known.join(", ")),
                    };
                    let why = format!("failed to read parameter `{name}`: {known}");
                    return Err(Refusal::bad(why));
                }
                "max" => query.max = Some(value.parse().map_err(|_| wrong("number of samples"))?),
                "wait_ms" => query.wait_ms = Some(value.parse().map_err(|_| wrong("time in ms"))?),
                "tid" => query.tid = Some(value.parse().map_err(|_| wrong("thread"))?),
                _ => {
                    query.sharing = match value.as_str() {
                        "each" => SharingName::Each,
                        "queue" => SharingName::Queue,
                        _ => return Err(wrong("way to share; use each or queue")),
                    }
                }
            }
        }
        Ok(query)
    }
}

/// Reads samples from the queue that all batches share.
fn batch(
    entry: Arc<ProfilerEntry>,
    query: &QueryParameters,
    caller: &RequestCaller<'_>,
) -> Result<Answer, Refusal> {
    let max = query.max.unwrap_or(DEFAULT_BATCH);
    if !(1..=MAX_BATCH).contains(&max) {
        let why = format!("failed to read `{max}` samples: use 1 to {MAX_BATCH}");
        return Err(Refusal::bad(why));
    }
    let wait_ms = query.wait_ms.unwrap_or(0);
    if wait_ms > MAX_WAIT_MS {
        let why = format!("failed to wait `{wait_ms}` ms: use at most {MAX_WAIT_MS}");
        return Err(Refusal::bad(why));
    }
    let end = Instant::now() + Duration::from_millis(wait_ms);
    let mut reader = entry.profiler.reader(Sharing::Batch)?;
    let mut samples = Vec::new();
    let gone = entry.gone();
    // Deleting the profiler must not wait for this request.
    drop(entry);
    while reader.read(&mut samples, max) == 0 {
        let left = end.saturating_duration_since(Instant::now());
        let over = left.is_zero() || gone.load(Ordering::Acquire);
        if over
            || wait_for_samples(&reader, caller.socket, left.min(GONE_CHECK_INTERVAL))
                == WakeReason::Disconnected
        {
            break;
        }
    }
    let samples: Vec<ShownSample> = samples.iter().map(ShownSample::from).collect();
    ok(&json!({ "samples": samples }))
}

fn stream(entry: &ProfilerEntry, query: &QueryParameters) -> Result<Answer, Refusal> {
    let sharing = Sharing::from(query.sharing);
    let reader = match query.tid {
        Some(tid) => entry.profiler.reader_of_thread(tid, sharing)?,
        None => entry.profiler.reader(sharing)?,
    };
    Ok(Answer::Stream(SampleStream {
        reader,
        gone: entry.gone(),
    }))
}

/// Reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeReason {
    /// There may be samples, or the time is over.
    MaybeSamples,
    /// The client has disconnected.
    Disconnected,
}

/// Waits for samples for at most `max_wait`.
pub(crate) fn wait_for_samples(
    reader: &Reader,
    socket: &dyn AsFd,
    max_wait: Duration,
) -> WakeReason {
    let timeout = Timespec {
        tv_sec: max_wait.as_secs() as i64,
        tv_nsec: i64::from(max_wait.subsec_nanos()),
    };
    // poll() always reports a hang-up, so no flags are needed for the socket.
    let mut fds = [
        PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty()),
    ];
    // An interrupted wait just ends early.
    let _ = poll(&mut fds, Some(&timeout));
    match fds[1].revents().is_empty() {
        true => WakeReason::MaybeSamples,
        false => WakeReason::Disconnected,
    }
}

/// Returns samples as lines of JSON.
pub(crate) fn json_lines(samples: &[Sample]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(samples.len() * 256);
    for sample in samples {
        // A sample contains nothing that JSON cannot represent, and writing to memory cannot fail.
        serde_json::to_writer(&mut lines, &ShownSample::from(sample))
            .expect("SANITY: a sample is JSON");
        lines.push(b'\n');
    }
    lines
}
