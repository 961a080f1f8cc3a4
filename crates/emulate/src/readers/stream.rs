//! Passes the references of a running program to a caller, without modelling a machine and without
//! storing anything.
//!
//! Threads are read in turn, each up to a block of its ring (a few thousand references). A thread
//! that waited for another, or mapped memory, is read after everything that the others did before.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Instant;

use memgauge_trace::{CommandEnd, LossKind};

use crate::MissingNames;
use crate::engine::catalogue::{Catalogue, CatalogueEvent};
use crate::engine::launch::not_started;
use crate::engine::launch::{Emulator, resolve, spawn};
use crate::engine::session::{EngineSession, ProcessEntry, ThreadRing};
use crate::follow::pace::PollPace;
use crate::follow::pace::REAP_EVERY;
use crate::follow::{self, Followed, Origin, ReplayProgress, ThreadWords, WordReader};
use crate::readers::parts::{Inside, PartNames, PartsBy, ProcessParts, RegionNames};
use crate::readers::references::{ReferenceWalk, ThreadReferences, WalkState};
use crate::{Error, Result};
use memgauge_host::roi::RequestedNames;
use memgauge_host::running_program::RunningProgram;

/// References of one thread in order.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceBatch<'a> {
    /// Process ID.
    pub pid: u32,
    /// Thread ID.
    pub tid: u32,
    /// Address of each. Address spaces of different processes, and of a process before and after an
    /// exec, differ in the bits from 47 on.
    pub addresses: &'a [u64],
    /// Indices and sizes of references that cross a multiple of the granule.
    pub crossing: &'a [(usize, u32)],
    /// Address of the instruction of each, if requested.
    pub ips: &'a [u64],
    /// Number of instructions in their blocks.
    pub instructions: u64,
    /// Sets of parts and the references from which they apply. Empty unless requested.
    pub parts: &'a [(usize, u32)],
    /// Number of instructions in each of these ranges. Only for regions of interest.
    pub part_instructions: &'a [u64],
    /// Part numbers of each set.
    pub part_sets: &'a [Vec<u32>],
    /// Names of the parts by number.
    pub part_names: &'a [String],
}

/// Requested facts about each reference.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// List references that cross a multiple of this number of bytes, a power of two.
    pub granule: u64,
    /// Parts of the program to assign references to.
    pub parts: Option<PartsBy>,
    /// List the instruction of each.
    pub ips: bool,
    /// Functions that are regions of interest, as in [`crate::Options::functions`].
    pub functions: Vec<String>,
    /// Seed of the program's random numbers, as in [`crate::Options::seed`].
    pub seed: Option<u64>,
}

/// Result of a streamed run.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// How the command ended.
    pub end: CommandEnd,
    /// Number of executed instructions.
    pub instructions: u64,
    /// Number of references passed on.
    pub references: u64,
    /// Losses by kind, count and detail.
    pub losses: Vec<(LossKind, u64, String)>,
    /// Requested functions that no process had.
    pub missing: MissingNames,
}

/// Number of address spaces that are distinguished. Later processes share numbers.
const SPACES: u64 = 1 << 10;
/// First bit of an address space's number, just above user space.
const SPACE_SHIFT: u32 = 47;

type Process = follow::EmulatedProcess<Streaming>;
type Thread = follow::EmulatedThread<Walking>;

/// State of a process.
#[derive(Default)]
struct Streaming {
    catalogue: Catalogue,
    parts: ProcessParts,
    regions: RegionNames,
}

/// State of a thread.
#[derive(Default)]
struct Walking {
    place: WalkState,
    has_begun: bool,
    inside: Inside,
}

type BatchSink<'a> = &'a mut dyn FnMut(&ReferenceBatch<'_>) -> ControlFlow<()>;

/// Converts words to references and passes them on.
struct ReferenceReader<'a> {
    sink: BatchSink<'a>,
    /// True if the sink needs no further references.
    refused: bool,
    wanted: StreamOptions,
    references: ThreadReferences,
    /// Parts and the references from which they apply.
    parts: Vec<(usize, u32)>,
    part_instructions: Vec<u64>,
    part_names: PartNames,
    /// Names of regions of interest that processes had.
    seen: BTreeSet<String>,
    given: u64,
    losses: BTreeMap<(LossKind, String), u64>,
}

/// Runs the command under the emulator and passes its references to `sink`. If that fails, kills
/// the command.
///
/// # Errors
/// Returns errors of `sink`. The program cannot be executed, or the emulator is missing.
pub fn stream<E: From<Error>>(
    command: &[String],
    wanted: StreamOptions,
    sink: &mut dyn FnMut(&ReferenceBatch<'_>) -> std::result::Result<(), E>,
) -> std::result::Result<Streamed, E> {
    let mut failure = None;
    let streamed = stream_while(command, wanted, &mut |batch| match sink(batch) {
        Ok(()) => ControlFlow::Continue(()),
        Err(e) => {
            failure = Some(e);
            ControlFlow::Break(())
        }
    });
    match failure {
        Some(failure) => Err(failure),
        None => Ok(streamed?),
    }
}

fn stream_while(
    command: &[String],
    wanted: StreamOptions,
    sink: BatchSink<'_>,
) -> Result<Streamed> {
    resolve(command)?;
    let asked = RequestedNames::new("--function", &wanted.functions)?;
    let emulator = Emulator::find()?;
    let mut session = EngineSession::create(0)?;
    session.name_functions(&wanted.functions)?;
    let mut run = StreamRun {
        program: spawn(command, &emulator, &session, wanted.seed)?,
        followed: Followed::new(ReferenceReader::new(wanted, sink), follow::turn_words(None)),
    };
    let end = run.until_the_end(&mut session);
    if end.is_err() {
        session.stop();
        run.program.kill();
    }
    run.close(&mut session, end?, &asked)
}

/// A streamed run in progress.
struct StreamRun<'a> {
    program: RunningProgram,
    followed: Followed<ReferenceReader<'a>>,
}

impl StreamRun<'_> {
    fn until_the_end(&mut self, session: &mut EngineSession) -> Result<CommandEnd> {
        let (mut pace, mut reaped) = (PollPace::default(), Instant::now());
        loop {
            let busy = self.followed.poll(session, pace.is_eager());
            if self.followed.reader.refused {
                self.program.kill();
                return Ok(CommandEnd::Interrupted);
            }
            if let Some(sleep) = pace.after(busy) {
                std::thread::sleep(sleep);
            }
            if reaped.elapsed() < REAP_EVERY {
                continue;
            }
            reaped = Instant::now();
            self.followed.reap(session, false);
            let (program, followed) = (&mut self.program, &self.followed);
            let first = program.pid();
            let others = &mut |signal| followed.signal_others(first, signal);
            if let Some(end) = program.ended_with(others)? {
                return Ok(end);
            }
        }
    }

    fn close(
        mut self,
        session: &mut EngineSession,
        end: CommandEnd,
        asked: &RequestedNames,
    ) -> Result<Streamed> {
        let running = self.followed.read_to_the_end(session);
        // A killed program may not have come this far.
        if self.followed.appeared.processes == 0 && matches!(end, CommandEnd::Exited(_)) {
            return Err(not_started());
        }
        let mut giving = self.followed.reader;
        giving.lose(None, LossKind::StillRunning, running, "");
        for (refused, why) in session.refused() {
            giving.lose(None, LossKind::ThreadNotRecorded, refused, why);
        }
        let losses = giving.losses.into_iter();
        Ok(Streamed {
            end,
            instructions: giving.references.instructions,
            references: giving.given,
            missing: MissingNames {
                functions: asked.unmatched(giving.seen.iter().map(String::as_str)),
                seen: giving.seen.into_iter().collect(),
                ..MissingNames::default()
            },
            losses: losses
                .map(|((kind, detail), count)| (kind, count, detail))
                .collect(),
        })
    }
}

impl ReferenceReader<'_> {
    fn new(wanted: StreamOptions, sink: BatchSink<'_>) -> ReferenceReader<'_> {
        ReferenceReader {
            sink,
            refused: false,
            wanted,
            references: ThreadReferences::default(),
            parts: Vec::new(),
            part_instructions: Vec::new(),
            part_names: PartNames::default(),
            seen: BTreeSet::new(),
            given: 0,
            losses: BTreeMap::new(),
        }
    }

    /// Assigns the references of a thread to parts, if requested.
    fn find_parts(&mut self, process: &mut Process, thread: &mut Walking, space: u64, before: u64) {
        let Some(by) = self.wanted.parts else {
            return;
        };
        self.parts.clear();
        self.part_instructions.clear();
        let Streaming {
            catalogue,
            parts,
            regions,
        } = &mut process.state;
        let addresses = &self.references.addresses;
        let (names, out) = (&mut self.part_names, &mut self.parts);
        if let (false, Some(first)) = (thread.has_begun, addresses.first()) {
            thread.has_begun = true;
            if by != PartsBy::CodeRegion {
                parts.name_stack(first ^ space, names);
            }
        }
        match by {
            PartsBy::Module => parts.of_code(&self.references.blocks, catalogue, names, out),
            PartsBy::Region => {
                parts.of_data((addresses, space), &self.references.mapped, names, out);
            }
            PartsBy::CodeRegion => thread.inside.of_marks(
                &self.references.marks,
                (before, self.references.instructions),
                (regions, names),
                (out, &mut self.part_instructions),
            ),
        }
    }

    /// Passes on the references, which belong to this number of instructions.
    fn give(&mut self, pid: u32, tid: u32, instructions: u64) {
        let batch = ReferenceBatch {
            pid,
            tid,
            addresses: &self.references.addresses,
            crossing: &self.references.crossing,
            ips: &self.references.ips,
            instructions,
            parts: &self.parts,
            part_instructions: &self.part_instructions,
            part_sets: &self.part_names.sets,
            part_names: &self.part_names.all,
        };
        self.given += batch.addresses.len() as u64;
        self.refused |= (self.sink)(&batch).is_break();
    }
}

impl WordReader for ReferenceReader<'_> {
    type Process = Streaming;
    type Thread = Walking;

    fn catalogue(state: &mut Streaming) -> &mut Catalogue {
        &mut state.catalogue
    }

    fn begin_process(&mut self, _: &ProcessEntry, origin: Origin<'_, Streaming>) -> Streaming {
        let forked = origin.parent.map(|(parent, blocks)| Streaming {
            catalogue: parent.state.catalogue.inherited(blocks),
            parts: parent.state.parts.inherited(blocks),
            regions: parent.state.regions.clone(),
        });
        forked.unwrap_or_default()
    }

    fn begin_thread(&mut self, process: &Process, ring: &ThreadRing) -> Walking {
        Walking {
            has_begun: process.continues_parent_stack(ring),
            ..Walking::default()
        }
    }

    fn observe(&mut self, process: &mut Process, catalogue_event: CatalogueEvent, bytes: u64) {
        let Streaming {
            catalogue, parts, ..
        } = &mut process.state;
        match self.wanted.parts {
            Some(PartsBy::Module) => {
                parts.observe_for_code(&catalogue_event, catalogue, &mut self.part_names);
            }
            Some(PartsBy::Region) => {
                parts.observe_for_data(&catalogue_event, bytes, &mut self.part_names);
            }
            Some(PartsBy::CodeRegion) | None => {}
        }
        match catalogue_event {
            CatalogueEvent::NotFollowed(what) => {
                self.lose(None, LossKind::ProgramNotFollowed, 1, &what);
            }
            CatalogueEvent::Region(number, name) => {
                self.seen.insert(name.clone());
                process.state.regions.insert(number, name);
            }
            _ => {}
        }
    }

    fn read(
        &mut self,
        process: &mut Process,
        tid: u32,
        thread: &mut Walking,
        words: &ThreadWords<'_>,
    ) -> ReplayProgress {
        let before = self.references.instructions;
        self.references.clear();
        let space = (u64::from(process.entry.number) % SPACES) << SPACE_SHIFT;
        let mut walk = ReferenceWalk {
            catalogue: &process.state.catalogue,
            place: &mut thread.place,
            out: &mut self.references,
            space,
            granule: self.wanted.granule,
            by_block: self.wanted.parts == Some(PartsBy::Module),
            by_instruction: self.wanted.ips,
            granted: words.granted,
        };
        let (to, blocked_at) = walk.run(words.all, words.from, words.whole);
        self.find_parts(process, thread, space, before);
        self.give(
            process.entry.pid,
            tid,
            self.references.instructions - before,
        );
        ReplayProgress {
            to,
            passed: self.references.passed,
            blocked_at,
            contends: false,
        }
    }

    fn end_thread(&mut self, _: &mut Process, thread: Thread) {
        let place = &thread.state.place;
        let stray = place.stray + u64::from(thread.ring.dropped());
        let missing = place.missing.max(0).unsigned_abs();
        self.lose(None, LossKind::BlockCut, missing, "");
        self.lose(None, LossKind::StrayAccess, stray, "");
    }

    fn end_process(&mut self, process: Process) {
        let unseen = process.entry.undecoded() + process.entry.without_room();
        self.lose(None, LossKind::Undecoded, unseen.into(), "");
    }

    fn lose(&mut self, _: Option<&Process>, kind: LossKind, count: u64, detail: &str) {
        if count > 0 {
            *self.losses.entry((kind, detail.to_owned())).or_default() += count;
        }
    }

    fn has_enough(&self) -> bool {
        self.refused
    }
}
