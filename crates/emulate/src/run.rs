//! Records a program from its start to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use memgauge_host::roi::RequestedNames;
use memgauge_host::running_program::RunningProgram;
use memgauge_host::sys::page_faults::page_fault_ns_after;
use memgauge_host::sys::process::{children_usage, own_usage};
use memgauge_machine::{Delivered, Delivery, Machine};
use memgauge_recording::Writer;
use memgauge_trace::{CommandEnd, DeliveryFacts, Loss, LossKind, OwnCost, catalogue as events};

use crate::engine::launch::{Emulator, engine_command, not_started, resolve, start};
use crate::engine::session::EngineSession;
use crate::facts::{NOT_WITH_SETS, manifest};
use crate::follow::pace::{FLUSH_EVERY, PollPace, REAP_EVERY, UNRECORDED_IDLE};
use crate::model::sets::{self, SetSample};
use crate::readers::recorder::{Note, ProgressCounts, Recorder, WhatIfMachine};
use crate::{Error, MissingNames, Options, Outcome, Progress, Result};

/// Runs the command under the emulator and records it.
///
/// The command keeps its standard input and output. `progress` is called about ten times per
/// second. The recording is complete when this returns `Ok`. After an error, the part written
/// before stays readable. If the recording can no longer be written, it ends, but the command runs
/// to its end and this function waits for it.
///
/// # Errors
/// The program cannot be executed, the emulator is missing, or the recording cannot be written.
pub fn record(options: &Options, progress: &mut dyn FnMut(&Progress)) -> Result<Outcome> {
    resolve(&options.command)?;
    let requested = RequestedRegions::of(options)?;
    let emulator = Emulator::find()?;
    let machine = model(options)?;
    let mut session = EngineSession::create(options.sets.map_or(0, SetSample::classes))?;
    session.publish_models_time();
    session.publish_caches(&options.machine);
    session.name_functions(&options.functions)?;
    session.name_allocators(options.data.as_deref().unwrap_or_default())?;
    let writer = Writer::create(&options.output, manifest(options, &emulator))?;
    let others = options.what_if.iter().map(WhatIfMachine::new);
    let others = others.collect::<Result<Vec<_>>>()?;
    let recorder = Recorder::new(machine, writer, requested.regions.clone(), others, options);
    let mut engine = engine_command(&options.command, &emulator, &session, options.seed)?;
    if options.discards_output {
        engine.stdout(Stdio::null());
    }
    let mut run = EmulatedRun {
        started: Instant::now(),
        program: start(&mut engine, &emulator).map(RunningProgram::from_child)?,
        recorder,
        requested,
    };
    let (end, failure) = match run.until_the_command_ends(&mut session, progress) {
        Ok(end) => (end, None),
        Err(error) => {
            let early_end = EarlyEnd {
                error,
                since: run.started.elapsed(),
            };
            (run.unrecorded(&mut session)?, Some(early_end))
        }
    };
    let (seen, missing) = run.finish(&mut session, &end, failure, &options.output)?;
    let notes = notes(&seen, &end, &options.command);
    Ok(Outcome {
        end,
        notes,
        missing,
    })
}

/// The machine with all sets or some. Lines are sampled about equally often in both cases, so each
/// sample represents about as many events as requested.
fn model(options: &Options) -> Result<Machine> {
    let (config, mut pmu) = (options.machine.clone(), options.pmu.clone());
    let machine = match options.sets {
        None => Machine::new(config, pmu).map(|mut machine| {
            machine.keep_coherent();
            machine
        }),
        Some(sets) => {
            sets.check(&config)?;
            refuse_with_sets(options)?;
            for spec in &mut pmu.samples {
                spec.period = sets::period_of(spec.event, spec.period, sets.one_in);
            }
            Machine::of_sets(config, pmu, sets.one_in)
        }
    };
    machine.map_err(|e| Error::new(crate::ErrorKind::Missing, e.to_string()))
}

fn refuse_with_sets(options: &Options) -> Result<()> {
    let pmu = &options.pmu;
    if !(options.regions.is_empty() && options.functions.is_empty()) {
        return Err(Error::usage(
            "failed to sample sets: regions of interest need every access: leave out --sets, or \
             --region and --function",
        ));
    }
    if options.stacks {
        return Err(Error::usage(
            "failed to sample sets: call stacks need every block of code: leave out --sets or -g",
        ));
    }
    if pmu.delivery != Delivery::Ideal {
        return Err(Error::usage(
            "failed to sample sets: --delivery models what each single event costs, and most are \
             not seen: leave out one of both",
        ));
    }
    match pmu
        .samples
        .iter()
        .find(|spec| NOT_WITH_SETS.contains(&spec.event))
    {
        None => Ok(()),
        Some(spec) => Err(Error::usage(format!(
            "failed to sample event `{}`: with --sets, address translation and sharing are not modelled: \
             leave out one of both",
            events::name(spec.event).unwrap_or("?")
        ))),
    }
}

/// Names of regions that the user requested.
struct RequestedRegions {
    regions: RequestedNames,
    functions: RequestedNames,
}

impl RequestedRegions {
    fn of(options: &Options) -> Result<RequestedRegions> {
        Ok(RequestedRegions {
            regions: RequestedNames::new("--region", &options.regions)?,
            functions: RequestedNames::new("--function", &options.functions)?,
        })
    }

    /// Requested names that no process had, and those that no thread entered.
    fn missing(&self, seen: &BTreeSet<String>, entered: &BTreeSet<String>) -> MissingNames {
        let absent = |names: &RequestedNames, from: &BTreeSet<String>| {
            names.unmatched(from.iter().map(String::as_str))
        };
        let functions = absent(&self.functions, seen);
        let mut not_called = absent(&self.functions, entered);
        not_called.retain(|name| !functions.contains(name));
        MissingNames {
            regions: absent(&self.regions, seen),
            functions,
            not_called,
            allocators: Vec::new(),
            seen: seen.iter().cloned().collect(),
        }
    }
}

/// Time and reason of a recording's early end.
struct EarlyEnd {
    error: Error,
    since: Duration,
}

impl EarlyEnd {
    fn loss(&self) -> Loss {
        Loss {
            kind: LossKind::PartNotWritten,
            count: 1,
            detail: format!(
                "the run after {:.1} s of wall time was not recorded: {}",
                self.since.as_secs_f64(),
                self.error.in_full()
            ),
            ..Loss::default()
        }
    }

    fn into_error(self, end: &CommandEnd) -> Error {
        let ended = match end {
            CommandEnd::Exited(code) => format!("exited with {code}"),
            CommandEnd::Signalled(signal) => format!("was killed by signal {signal}"),
            CommandEnd::Interrupted => "was interrupted".to_owned(),
        };
        Error::new(
            self.error.kind(),
            format!(
                "{}; the program ran on unrecorded from {:.1} s on and {ended}; the recording \
                until then is kept",
                self.error.in_full(),
                self.since.as_secs_f64()
            ),
        )
    }
}

/// Messages for the user about a run.
fn notes(seen: &[Note], end: &CommandEnd, command: &[String]) -> Vec<String> {
    let crash = match *end {
        CommandEnd::Signalled(signal @ (libc::SIGSEGV | libc::SIGBUS | libc::SIGILL)) => {
            Some(crashed("the program", signal, command))
        }
        _ => None,
    };
    // A program that ends normally has found another way.
    let is_failed = matches!(end, CommandEnd::Signalled(_) | CommandEnd::Exited(1..))
        || seen.iter().any(|note| matches!(note, Note::Crashed { .. }));
    let notes = seen.iter().filter_map(|note| match note {
        Note::LeakSearch => Some(LEAK_SEARCH.to_owned()),
        Note::Unrecorded { count, why } => Some(format!(
            "{count} threads or processes were not recorded: {why}"
        )),
        Note::Crashed { pid, signal } => {
            Some(crashed(&format!("process {pid}"), *signal as i32, command))
        }
        Note::Unsupported(feature) => is_failed.then(|| {
            format!(
                "the program failed and had used {feature}, which the emulator does not \
                 support: use --source clock"
            )
        }),
    });
    notes.chain(crash).collect()
}

/// Message about a crash, which may be the emulator's fault. With source `clock`, the same command
/// runs natively.
fn crashed(who: &str, signal: i32, command: &[String]) -> String {
    // A word of a command contains no NUL, which would end it.
    let quoter = shlex::Quoter::new().allow_nul(true);
    let words = command.iter().map(String::as_str);
    let line = quoter.join(words).unwrap_or_else(|_| command.join(" "));
    format!(
        "{who} crashed (signal {signal}) under the emulator: run \
         `memgauge --source clock -- {line}` to see whether it also crashes without it"
    )
}

/// Message if AddressSanitizer's leak detector could not run.
const LEAK_SEARCH: &str = "AddressSanitizer's search for leaks stops the program's threads by \
    ptrace, which the emulator does not have, and so the program ended with its exit code for \
    errors: set LSAN_OPTIONS=detect_leaks=0";

/// A recording in progress.
struct EmulatedRun {
    started: Instant,
    program: RunningProgram,
    recorder: Recorder,
    requested: RequestedRegions,
}

impl EmulatedRun {
    fn until_the_command_ends(
        &mut self,
        session: &mut EngineSession,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<CommandEnd> {
        let (mut reaped, mut flushed, mut shown) = (self.started, self.started, self.started);
        let mut pace = PollPace::default();
        loop {
            let busy = self.recorder.poll(session, pace.is_eager())?;
            pace.hurry(self.recorder.holds());
            if let Some(sleep) = pace.after(busy) {
                std::thread::sleep(sleep);
            }
            if reaped.elapsed() > REAP_EVERY {
                reaped = Instant::now();
                self.recorder.reap(session, false)?;
                if let Some(end) = self.ended()? {
                    return Ok(end);
                }
            }
            if flushed.elapsed() > FLUSH_EVERY {
                flushed = Instant::now();
                self.recorder.write_all_sites()?;
                self.recorder.writer().flush_due()?;
            }
            if shown.elapsed() > Duration::from_millis(100) {
                shown = Instant::now();
                let seen = self.recorder.counts_so_far();
                progress(&self.progress(&seen));
            }
        }
    }

    fn ended(&mut self) -> Result<Option<CommandEnd>> {
        let (program, recorder) = (&mut self.program, &self.recorder);
        let first = program.pid();
        program.ended_with(&mut |signal| recorder.signal_others(first, signal))
    }

    fn progress(&self, seen: &ProgressCounts) -> Progress {
        let get = |event| seen.counts.get(event);
        Progress {
            elapsed: self.started.elapsed(),
            instructions: get(events::INSTRUCTIONS),
            accesses: get(events::LOADS) + get(events::STORES),
            dram_bytes: get(events::DRAM_READ_BYTES) + get(events::DRAM_WRITE_BYTES),
            virtual_ns: seen.virtual_ns,
            processes: seen.processes,
            threads: seen.threads,
        }
    }

    /// After a failure: waits for the program's end without recording.
    fn unrecorded(&mut self, session: &mut EngineSession) -> Result<CommandEnd> {
        // Nobody reads the rings any more, so the program must not wait for it.
        session.stop();
        loop {
            if let Some(end) = self.ended()? {
                return Ok(end);
            }
            std::thread::sleep(UNRECORDED_IDLE);
        }
    }

    /// Reads the remaining words of the ended command and its children.
    fn read_to_the_end(&mut self, session: &mut EngineSession) -> Result<()> {
        let still_running = self.recorder.read_to_the_end(session)?;
        self.recorder.write_all_sites()?;
        self.recorder.write_losses(session, still_running)
    }

    fn finish(
        mut self,
        session: &mut EngineSession,
        end: &CommandEnd,
        mut failure: Option<EarlyEnd>,
        output: &Path,
    ) -> Result<(Vec<Note>, MissingNames)> {
        if failure.is_none() {
            failure = self.read_to_the_end(session).err().map(|error| EarlyEnd {
                error,
                since: self.started.elapsed(),
            });
            // A killed program may not have come this far.
            if self.recorder.counts_so_far().processes == 0 && matches!(end, CommandEnd::Exited(_))
            {
                return Err(not_started());
            }
        } else {
            // These may fail for the same reason. The recording counts what is lost.
            let _ = self.recorder.write_all_sites();
            let _ = self.recorder.write_losses(session, 0);
        }
        let mut totals = totals(&self.recorder.counts_so_far());
        let unattributed = self.recorder.unattributed_write_bytes();
        totals.insert("dram.unattributed_write_bytes".to_owned(), unattributed);
        let waits = [
            ("cut_sleeps", self.recorder.cut_sleeps()),
            ("outside_wait_ns", self.recorder.outside_ns()),
        ];
        let waits = waits.into_iter().filter(|&(_, n)| n > 0);
        totals.extend(waits.map(|(name, n)| (name.to_owned(), n)));
        if let Some(heap) = self.recorder.heap() {
            totals.insert("heap.allocations".to_owned(), heap.allocations);
            totals.insert("heap.peak_bytes".to_owned(), heap.peak_bytes);
            totals.insert("heap.unfreed_bytes".to_owned(), heap.live_bytes);
            totals.insert("heap.untouched_bytes".to_owned(), heap.untouched_bytes);
            let functions = self.recorder.found_allocators();
            totals.insert("heap.functions".to_owned(), functions);
            let unusual = [
                ("heap.unknown_frees", heap.unknown_frees),
                ("heap.late_changes", heap.late_changes),
            ];
            let unusual = unusual.into_iter().filter(|&(_, count)| count > 0);
            totals.extend(unusual.map(|(name, count)| (name.to_owned(), count)));
        }
        let what_if = self.recorder.what_if();
        let file_waits = self.recorder.longest_file_waits();
        let sets = self.recorder.set_facts();
        if sets.is_some() {
            totals.retain(|name, _| {
                NOT_WITH_SETS
                    .iter()
                    .all(|&id| events::name(id) != Some(name))
            });
        }
        let delivery = delivery(self.recorder.delivered());
        let wall_s = self.started.elapsed().as_secs_f64();
        let mut seen = self.recorder.notes().to_vec();
        let refused = session
            .refused()
            .into_iter()
            .filter(|refused| refused.0 > 0);
        seen.extend(refused.map(|(count, why)| Note::Unrecorded { count, why }));
        let mut missing = self
            .requested
            .missing(self.recorder.names(), self.recorder.entered());
        missing.allocators = self.recorder.missing_allocators();
        let has_python = self.recorder.has_python();
        let (mut writer, copied) = match &failure {
            None => self.recorder.into_named(output)?,
            Some(_) => (self.recorder.into_writer(), 0),
        };
        let flushed = writer.flush_so_far();
        if let Some(early_end) = &failure {
            writer.free_reserved_space();
            let _ = writer.push(early_end.loss());
            let _ = writer.flush_so_far();
        }
        let (own, program) = (own_usage(), children_usage());
        let [
            program_file_wait_s,
            program_file_write_wait_s,
            program_file_sync_wait_s,
        ] = session.file_waits_s();
        let cost = OwnCost {
            wall_s,
            cpu_s: own.cpu.as_secs_f64(),
            peak_memory_bytes: own.peak_memory_bytes,
            program_cpu_s: program.cpu.as_secs_f64(),
            program_page_faults: program.minor_faults,
            page_fault_ns: page_fault_ns_after(program.minor_faults),
            program_file_wait_s,
            program_file_write_wait_s,
            program_file_sync_wait_s,
            recording_bytes: writer.bytes_written() + copied,
        };
        let finished = writer.finish(|m| {
            if has_python {
                m.source.settings.has_python_calls = true;
            }
            m.end = Some(end.clone());
            m.own_cost = cost;
            m.file_waits = file_waits;
            m.totals = totals;
            m.delivery = delivery;
            m.sets = sets;
            m.what_if = what_if;
        });
        match failure {
            Some(early_end) => Err(early_end.into_error(end)),
            None => Ok(flushed.and(finished).map(|()| (seen, missing))?),
        }
    }
}

fn totals(seen: &ProgressCounts) -> BTreeMap<String, u64> {
    let named = seen
        .counts
        .iter()
        .filter_map(|(id, n)| Some((events::name(id)?.to_owned(), n)));
    named
        .chain([
            ("virtual_ns".to_owned(), seen.virtual_ns),
            ("idle_ns".to_owned(), seen.idle_ns),
        ])
        .collect()
}

/// Facts about delivery, if it had any effect.
fn delivery(delivered: &Delivered) -> Option<DeliveryFacts> {
    (delivered.stops + delivered.rest > 0).then_some(DeliveryFacts {
        rest: delivered.rest,
        records: delivered.records,
        stops: delivered.stops,
        swaps: delivered.swaps,
        cycles: Some(delivered.millicycles / 1000),
    })
}
