//! Operations: what a request asks of the profilers, and the answer.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memgauge_online::{Clean, Reader, Sample, Sharing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::{Value, json};

use crate::bodies::{
    AddProcess, AddThread, ChangeProfiler, ChangeThread, CleanWhich, Cleaning, NewProfiler,
    SharingName, ShownSample, read, read_if_any,
};
use crate::http::{JSON, MOST_BODY_BYTES, Request, Response};
use crate::profilers::{Entry, Limits, Profilers};
use crate::programs::{ProgramSource, Programs};
use crate::refusal::Refusal;
use crate::rights::{Peer, Policy, Rights};
use crate::routes::{Found, Operation, find};

/// The description of the service.
pub const OPENAPI: &str = include_str!("../../../docs/openapi.json");

/// Most samples of a batch.
const MOST_BATCH: usize = 10_000;
/// Samples of a batch that does not say.
const USUAL_BATCH: usize = 1000;
/// Longest wait for the first sample of a batch.
const LONGEST_WAIT_MS: u64 = 60_000;

/// Longest time until a reader sees that its profiler is gone.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// Who asks, by which connection.
pub(crate) struct Caller<'a> {
    pub(crate) peer: &'a Peer,
    pub(crate) connection: u64,
    /// The connection itself: a wait ends where it does.
    pub(crate) socket: &'a dyn AsFd,
}

/// What is sent back.
pub(crate) enum Answer {
    /// All at once.
    Whole(Response),
    /// Samples as they come.
    Stream(SampleStream),
}

/// Samples to send as they come.
pub(crate) struct SampleStream {
    pub(crate) reader: Reader,
    /// Set when nothing follows what can be read.
    pub(crate) gone: Arc<AtomicBool>,
}

/// The operations.
pub(crate) struct Service {
    pub(crate) profilers: Profilers,
    policy: Policy,
}

fn ok(body: &impl Serialize) -> Result<Answer, Refusal> {
    with_status(200, body)
}

fn with_status(status: u16, body: &impl Serialize) -> Result<Answer, Refusal> {
    let failed = |e| Refusal::new(500, "system", format!("failed to write the answer: {e}"));
    let mut body = serde_json::to_vec(body).map_err(failed)?;
    body.push(b'\n');
    Ok(Answer::Whole(Response {
        status,
        kind: JSON,
        headers: Vec::new(),
        body,
    }))
}

fn nothing() -> Result<Answer, Refusal> {
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
        policy: Policy,
        programs: Option<Box<dyn ProgramSource>>,
    ) -> Service {
        let programs = Programs {
            source: programs,
            service_uid: policy.service_uid,
        };
        Service {
            profilers: Profilers::new(limits, programs),
            policy,
        }
    }

    /// Does what is asked.
    pub(crate) fn answer(&self, caller: &Caller<'_>, request: &Request) -> Answer {
        let asked = find(&request.method, &request.path);
        let answer = asked.and_then(|found| self.operate(caller, request, &found));
        answer.unwrap_or_else(|refusal| Answer::Whole(refusal.response()))
    }

    fn operate(
        &self,
        caller: &Caller<'_>,
        request: &Request,
        found: &Found,
    ) -> Result<Answer, Refusal> {
        let who = (caller.peer, self.policy.rights(caller.peer));
        let query = Query::of(request, found.operation)?;
        let entry = || self.profilers.get(who, found.id);
        let body = request.body.as_slice();
        match found.operation {
            Operation::ShowService => ok(&self.about(who)),
            Operation::ShowOpenApi => Ok(Answer::Whole(Response {
                status: 200,
                kind: JSON,
                headers: Vec::new(),
                body: OPENAPI.as_bytes().to_vec(),
            })),
            Operation::ListProfilers => {
                let all = self.profilers.list(who);
                let all: Vec<_> = all.iter().map(|entry| entry.show()).collect();
                ok(&json!({ "profilers": all }))
            }
            Operation::CreateProfiler => {
                let new: NewProfiler = read_if_any(body)?;
                let made = self.profilers.create(who, new, caller.connection)?;
                with_status(201, &made.show())
            }
            Operation::ShowProfiler => ok(&self.profilers.find(who, found.id)?.show()),
            Operation::ChangeProfiler => change_profiler(&*entry()?, &read(body)?),
            Operation::DeleteProfiler => {
                let id = self.profilers.find(who, found.id)?.id;
                self.profilers.delete(id);
                nothing()
            }
            Operation::ListThreads => ok(&json!({ "threads": entry()?.threads() })),
            Operation::AddThread => {
                let AddThread { tid } = read(body)?;
                let entry = entry()?;
                let added = entry.profiler.add_thread(tid);
                added.map_err(|e| self.with_user(e.into()))?;
                with_status(201, &entry.thread(tid)?)
            }
            Operation::ShowThread => ok(&entry()?.thread(found.task)?),
            Operation::ChangeThread => change_thread(&*entry()?, found.task, &read(body)?),
            Operation::DeleteThread => {
                entry()?.profiler.delete_thread(found.task)?;
                nothing()
            }
            Operation::AddProcess => {
                let AddProcess { pid } = read(body)?;
                let added = entry()?.profiler.add_process(pid);
                let added = added.map_err(|e| self.with_user(e.into()))?;
                with_status(201, &json!({ "pid": pid, "threads": added }))
            }
            Operation::DeleteProcess => {
                let deleted = entry()?.profiler.delete_process(found.task)?;
                ok(&json!({ "pid": found.task, "threads": deleted }))
            }
            Operation::Clean => {
                let Cleaning { which } = read_if_any(body)?;
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

    /// What the service may not is no matter of who asks: says whose it is.
    fn with_user(&self, mut refusal: Refusal) -> Refusal {
        let user = self.policy.service_uid;
        if refusal.kind == "not_allowed" && user != 0 {
            refusal.message += &format!(
                "; this service is that of user {user} and can do what that user can: ask a \
                 service of root"
            );
        }
        refusal
    }

    fn about(&self, (peer, rights): (&Peer, Rights)) -> Value {
        let limits = self.profilers.limits();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uid": peer.uid,
            "may_profile": match rights {
                Rights::All => "all",
                Rights::Own => "own",
            },
            "limits": {
                "profilers_of_user": limits.profilers_of_user,
                "threads_of_profiler": limits.threads,
                "buffer_bytes_of_profiler": limits.buffer_bytes,
                "body_bytes": MOST_BODY_BYTES,
                "batch_samples": MOST_BATCH,
            },
        })
    }
}

fn change_profiler(entry: &Entry, change: &ChangeProfiler) -> Result<Answer, Refusal> {
    if let Some(period) = change.period {
        entry.set_period_of_new(period)?;
    }
    if let Some(buffer) = change.buffer {
        entry.set_buffer_of_new(buffer)?;
    }
    if let Some(on) = change.on {
        entry.turn(on);
    }
    ok(&entry.show())
}

fn change_thread(entry: &Entry, tid: u32, change: &ChangeThread) -> Result<Answer, Refusal> {
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

/// What stands behind the `?`.
#[derive(Default)]
struct Query {
    max: Option<usize>,
    wait_ms: Option<u64>,
    tid: Option<u32>,
    sharing: SharingName,
}

/// Names behind the `?`, by operation.
pub fn parameters(operation: Operation) -> &'static [&'static str] {
    match operation {
        Operation::ReadSamples => &["max", "wait_ms"],
        Operation::StreamSamples => &["tid", "sharing"],
        _ => &[],
    }
}

impl Query {
    fn of(request: &Request, operation: Operation) -> Result<Query, Refusal> {
        let known = parameters(operation);
        let mut query = Query::default();
        for (name, value) in &request.query {
            let wrong = |what: &str| {
                Refusal::bad(format!("failed to read `{name}={value}`: it is no {what}"))
            };
            match name.as_str() {
                name if !known.contains(&name) => {
                    let known = match known {
                        [] => "this path takes none".to_owned(),
                        known => format!("this path takes {}", known.join(", ")),
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
                        _ => return Err(wrong("way to share: take each or queue")),
                    }
                }
            }
        }
        Ok(query)
    }
}

/// Samples of the queue that all batches share.
fn batch(entry: Arc<Entry>, query: &Query, caller: &Caller<'_>) -> Result<Answer, Refusal> {
    let most = query.max.unwrap_or(USUAL_BATCH);
    if !(1..=MOST_BATCH).contains(&most) {
        let why = format!("failed to read `{most}` samples: take 1 to {MOST_BATCH}");
        return Err(Refusal::bad(why));
    }
    let wait_ms = query.wait_ms.unwrap_or(0);
    if wait_ms > LONGEST_WAIT_MS {
        let why = format!("failed to wait `{wait_ms}` ms: take {LONGEST_WAIT_MS} at most");
        return Err(Refusal::bad(why));
    }
    let end = Instant::now() + Duration::from_millis(wait_ms);
    let mut reader = entry.profiler.reader(Sharing::Batch)?;
    let mut samples = Vec::new();
    let gone = entry.gone();
    // Whoever deletes the profiler meanwhile does not wait for this.
    drop(entry);
    while reader.read(&mut samples, most) == 0 {
        let left = end.saturating_duration_since(Instant::now());
        let over = left.is_zero() || gone.load(Ordering::Acquire);
        if over || wait(&reader, caller.socket, left.min(TICK)) == Woken::Gone {
            break;
        }
    }
    let samples: Vec<ShownSample> = samples.iter().map(ShownSample::from).collect();
    ok(&json!({ "samples": samples }))
}

fn stream(entry: &Entry, query: &Query) -> Result<Answer, Refusal> {
    let sharing = Sharing::from(query.sharing);
    let reader = match query.tid {
        Some(tid) => entry.profiler.reader_of(tid, sharing)?,
        None => entry.profiler.reader(sharing)?,
    };
    Ok(Answer::Stream(SampleStream {
        reader,
        gone: entry.gone(),
    }))
}

/// Why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// There may be samples, or the time is over.
    Look,
    /// The other end has gone away.
    Gone,
}

/// Waits for samples, at most so long.
pub(crate) fn wait(reader: &Reader, socket: &dyn AsFd, longest: Duration) -> Woken {
    let timeout = Timespec {
        tv_sec: longest.as_secs() as i64,
        tv_nsec: i64::from(longest.subsec_nanos()),
    };
    // Without flags the kernel still tells of an end that was closed.
    let mut fds = [
        PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty()),
    ];
    // An interrupted wait is one that ended early.
    let _ = poll(&mut fds, Some(&timeout));
    match fds[1].revents().is_empty() {
        true => Woken::Look,
        false => Woken::Gone,
    }
}

/// Samples as lines.
pub(crate) fn lines(samples: &[Sample]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(samples.len() * 256);
    for sample in samples {
        // SANITY: a sample has nothing that JSON lacks, and memory takes what is written.
        serde_json::to_writer(&mut lines, &ShownSample::from(sample))
            .expect("SANITY: a sample is JSON");
        lines.push(b'\n');
    }
    lines
}
