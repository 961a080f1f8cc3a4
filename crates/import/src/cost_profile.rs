//! Profiles of callgrind and cachegrind: costs by line of each function.
//!
//! ```text
//! ob=(1) /lib/libc.so     the object file, the source file and the function that follow;
//! fl=(2) malloc.c         a number stands for the name that it had first
//! fn=(3) malloc
//! 3281 5 1                line, then own costs in the order of `events:`
//! calls=1 3300            what was called: the next line has its costs too, which are
//! * 1828 214              passed over, since they are that function's own elsewhere
//! ```
//!
//! A recording has code by address. These files have no addresses or do not need them, so each line
//! of a function gets a synthetic address, and a row of `generated_code` describes it.

use std::collections::BTreeMap;
use std::collections::HashMap;

use memgauge_trace::{
    EventDef, EventId, GeneratedCode, Pid, Provenance, SiteCount, Unit, VirtAddr, catalogue,
};

use super::text_format::LineReader;
use crate::Result;

/// First synthetic address. It is above the first pages of any program.
const FIRST_ADDRESS: u64 = 1 << 32;

/// Maximum number of events. Event IDs have 16 bits, and no tool counts this many.
const MAX_EVENTS: usize = 1000;

/// Name of something that the file does not name.
const UNKNOWN: &str = "[unknown]";

/// valgrind's events that are in the catalogue, by their names in files.
const CATALOGUE_EVENTS: [(&str, EventId); 5] = [
    ("Ir", catalogue::INSTRUCTIONS),
    ("Dr", catalogue::LOADS),
    ("Dw", catalogue::STORES),
    ("D1mr", catalogue::L1D_LOAD_MISS),
    ("D1mw", catalogue::L1D_STORE_MISS),
];

/// valgrind's other events.
const OTHER_EVENTS: [(&str, &str); 11] = [
    (
        "I1mr",
        "Instruction fetches that missed the first-level instruction cache",
    ),
    (
        "ILmr",
        "Instruction fetches that missed the last-level cache",
    ),
    ("DLmr", "Loads that missed the last-level cache"),
    ("DLmw", "Stores that missed the last-level cache"),
    ("Bc", "Conditional branches executed"),
    ("Bcm", "Conditional branches mispredicted"),
    ("Bi", "Indirect branches executed"),
    ("Bim", "Indirect branches mispredicted"),
    ("sysCount", "System calls"),
    ("sysTime", "Time of system calls, in the file's unit"),
    (
        "sysCpuTime",
        "Processor time of system calls, in the file's unit",
    ),
];

/// Catalogue events that are sums of the file's events, minus others.
const SUMS: [(EventId, &[&str], &[&str]); 4] = [
    (catalogue::L1D_MISS, &["D1mr", "D1mw"], &[]),
    (catalogue::L1D_HIT, &["Dr", "Dw"], &["D1mr", "D1mw"]),
    (catalogue::LLC_MISS, &["DLmr", "DLmw"], &[]),
    (catalogue::LLC_HIT, &["D1mr", "D1mw"], &["DLmr", "DLmw"]),
];

/// A line of code. Object file, source file and function are indices of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CodeLine {
    object: u32,
    file: u32,
    function: u32,
    line: u32,
}

/// A cache that the tool simulated.
#[derive(Debug)]
pub(super) struct SimulatedCache {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) line_bytes: u64,
    pub(super) ways: u64,
}

/// An event of the recording: the sum of the columns `plus`, minus the columns `minus`.
pub(super) struct ImportedEvent {
    pub(super) definition: EventDef,
    plus: Vec<usize>,
    minus: Vec<usize>,
}

/// The content of a profile.
#[derive(Debug, Default)]
pub(super) struct CostProfile {
    /// Command line.
    pub(super) command: String,
    /// Program that wrote the file.
    pub(super) creator: String,
    /// Simulated caches.
    pub(super) caches: Vec<SimulatedCache>,
    pub(super) pid: Pid,
    /// Names of events in the order of columns.
    events: Vec<String>,
    /// Descriptions of events: `event: NAME : text`.
    long_names: BTreeMap<String, String>,
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    costs_by_line: BTreeMap<CodeLine, Vec<u64>>,
    /// Sums given in the file, over all its parts.
    totals: Option<Vec<u64>>,
    /// Number of calls whose inclusive costs were skipped.
    pub(super) calls: u64,
    /// Number of invalid lines, and the number of the first one.
    pub(super) unreadable: u64,
    pub(super) first_unreadable: Option<u64>,
}

/// State of the parser.
#[derive(Debug, Default)]
struct ParserState {
    /// Names by their number in the file, for objects, files and functions.
    known: [HashMap<u64, u32>; 3],
    object: u32,
    file: u32,
    function: u32,
    /// Index of the line number among the positions, and the last position of each kind.
    line_at: usize,
    positions: Vec<u64>,
    is_inclusive: bool,
    /// Sums of the current part, from `summary:` or `totals:`, which are equal.
    part: Option<Vec<u64>>,
}

impl CostProfile {
    /// Parses a file.
    pub(super) fn read(lines: &mut LineReader) -> Result<CostProfile> {
        let mut costs = CostProfile {
            // Process 0 is the kernel; cachegrind gives no process ID.
            pid: Pid(1),
            ..CostProfile::default()
        };
        // Index 0 is the empty name, for positions that the file does not give.
        costs.intern("");
        let mut at = ParserState {
            positions: vec![0],
            ..ParserState::default()
        };
        loop {
            let number = lines.number + 1;
            let Some(line) = lines.next()? else {
                break;
            };
            let line = line.trim();
            if !line.is_empty()
                && !line.starts_with('#')
                && costs.parse_line(&mut at, line).is_none()
            {
                costs.unreadable += 1;
                costs.first_unreadable.get_or_insert(number);
            }
        }
        costs.end_part(&mut at);
        Ok(costs)
    }

    /// Returns whether no line has costs.
    pub(super) fn is_empty(&self) -> bool {
        self.costs_by_line.is_empty()
    }

    fn intern(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// Parses a line. Returns `None` if it is invalid.
    fn parse_line(&mut self, at: &mut ParserState, line: &str) -> Option<()> {
        if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            return self.cost(at, line);
        }
        if let Some((key, value)) = assignment(line) {
            return self.assign(at, key, value);
        }
        let (key, value) = line.split_once(':')?;
        self.header(at, key, value.trim());
        Some(())
    }

    fn header(&mut self, at: &mut ParserState, key: &str, value: &str) {
        match key {
            "cmd" => value.clone_into(&mut self.command),
            "creator" => value.clone_into(&mut self.creator),
            "pid" => self.pid = Pid(value.parse().unwrap_or(1)),
            "desc" => self.caches.extend(parse_cache(value)),
            "part" => self.end_part(at),
            "positions" => {
                let words: Vec<&str> = value.split_whitespace().collect();
                at.positions = vec![0; words.len().max(1)];
                let is_line = |word: &str| word == "line";
                at.line_at = words.iter().position(|word| is_line(word)).unwrap_or(0);
            }
            // All parts of a file have the same events.
            "events" if self.events.is_empty() => {
                let names = value.split_whitespace().map(str::to_owned);
                self.events = names.take(MAX_EVENTS).collect();
            }
            "event" => {
                if let Some((name, long)) = value.split_once(':') {
                    let name = name.trim().to_owned();
                    self.long_names.insert(name, long.trim().to_owned());
                }
            }
            "summary" | "totals" => at.part = Some(numbers(value)),
            // The others describe how the file was made.
            _ => {}
        }
    }

    fn end_part(&mut self, at: &mut ParserState) {
        let Some(part) = at.part.take() else { return };
        let totals = self.totals.get_or_insert_default();
        add(totals, &part);
    }

    fn assign(&mut self, at: &mut ParserState, key: &str, value: &str) -> Option<()> {
        let kind = match key {
            "ob" | "cob" | "job" => 0,
            "fl" | "fi" | "fe" | "cfi" | "cfl" | "jfi" => 1,
            "fn" | "cfn" | "jfn" => 2,
            "calls" => {
                at.is_inclusive = true;
                self.calls += 1;
                return Some(());
            }
            // Jumps have no costs.
            "jump" | "jcnd" => return Some(()),
            _ => return None,
        };
        let name = self.name_index(at, kind, value)?;
        match key {
            "ob" => at.object = name,
            "fl" | "fi" | "fe" => at.file = name,
            "fn" => at.function = name,
            _ => {}
        }
        Some(())
    }

    /// Returns the index of a name, which may be given as a number.
    fn name_index(&mut self, at: &mut ParserState, kind: usize, value: &str) -> Option<u32> {
        let number = value
            .strip_prefix('(')
            .and_then(|rest| rest.split_once(')'));
        let number = number.and_then(|(number, name)| Some((number.parse::<u64>().ok()?, name)));
        let Some((number, name)) = number else {
            return Some(self.intern(value));
        };
        if name.trim().is_empty() {
            return at.known[kind].get(&number).copied();
        }
        let name = self.intern(name.trim());
        at.known[kind].insert(number, name);
        Some(name)
    }

    /// Parses a line with positions and costs.
    fn cost(&mut self, at: &mut ParserState, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        for last in &mut at.positions {
            *last = position(words.next()?, *last)?;
        }
        let costs: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
        let costs = costs.filter(|costs| costs.len() <= self.events.len())?;
        if std::mem::take(&mut at.is_inclusive) || costs.is_empty() {
            return Some(());
        }
        let line = u32::try_from(at.positions[at.line_at]).unwrap_or(0);
        let line = CodeLine {
            object: at.object,
            file: at.file,
            function: at.function,
            line,
        };
        add(self.costs_by_line.entry(line).or_default(), &costs);
        Some(())
    }

    /// Returns whether the sums of the lines equal those in the file. `None` if the file has no
    /// sums, for example because it is truncated.
    pub(super) fn sums_match(&self) -> Option<bool> {
        let totals = self.totals.as_ref()?;
        let mut sums = Vec::new();
        self.costs_by_line
            .values()
            .for_each(|costs| add(&mut sums, costs));
        let columns = 0..self.events.len();
        let at = |sums: &[u64], column| sums.get(column).copied().unwrap_or(0);
        Some(
            columns
                .into_iter()
                .all(|column| at(&sums, column) == at(totals, column)),
        )
    }

    /// Returns the events of the recording.
    pub(super) fn events(&self) -> Vec<ImportedEvent> {
        let column = |name: &&str| self.events.iter().position(|event| event == name);
        let columns = |names: &[&str]| names.iter().map(column).collect::<Option<Vec<usize>>>();
        let mut all = Vec::new();
        for (at, name) in self.events.iter().enumerate() {
            let free = EventId(catalogue::FIRST_FREE + at as u16);
            all.push(ImportedEvent {
                definition: self.definition(name, free),
                plus: vec![at],
                minus: Vec::new(),
            });
        }
        for (id, plus, minus) in SUMS {
            if let Some((plus, minus)) = columns(plus).zip(columns(minus)) {
                all.push(ImportedEvent {
                    definition: catalogue_event(id),
                    plus,
                    minus,
                });
            }
        }
        all
    }

    fn definition(&self, name: &str, free: EventId) -> EventDef {
        let long = self.long_names.get(name).map_or("", String::as_str);
        // An export of memgauge has the event's name in the description: `llc_miss : llc.miss
        // (modelled)`.
        let own = long.split(' ').next().and_then(catalogue::by_name);
        let known = CATALOGUE_EVENTS
            .iter()
            .find(|known| known.0 == name)
            .map(|known| known.1);
        if let Some(id) = own.or(known) {
            return catalogue_event(id);
        }
        let other = OTHER_EVENTS.iter().find(|other| other.0 == name);
        EventDef {
            id: free,
            name: name.to_owned(),
            unit: Unit::Count,
            provenance: match other {
                Some(_) => Provenance::Modelled,
                None => Provenance::Estimated,
            },
            description: other.map_or(long, |other| other.1).to_owned(),
        }
    }

    /// Returns whether the file names the objects (modules) of the code. cachegrind's files do not.
    pub(super) fn has_object_names(&self) -> bool {
        let known = |object: &u32| !matches!(self.names[*object as usize].as_str(), "" | "???");
        self.costs_by_line.keys().any(|line| known(&line.object))
    }

    /// Returns the counts of events by line, and descriptions of the lines.
    pub(super) fn rows(&self) -> (Vec<SiteCount>, Vec<GeneratedCode>) {
        let events = self.events();
        let (mut sites, mut code) = (Vec::new(), Vec::new());
        for (number, (code_line, costs)) in (0..).zip(&self.costs_by_line) {
            let start = VirtAddr(FIRST_ADDRESS + number);
            let at = |&column: &usize| costs.get(column).copied().unwrap_or(0);
            let sum = |columns: &[usize]| columns.iter().map(at).fold(0, u64::saturating_add);
            for event in &events {
                let count = sum(&event.plus).saturating_sub(sum(&event.minus));
                let site = SiteCount {
                    pid: self.pid,
                    ip: start,
                    event: event.definition.id,
                    count,
                    set_group: None,
                    code_ns: None,
                };
                sites.extend((count > 0).then_some(site));
            }
            let CodeLine {
                object,
                file,
                function,
                line,
            } = *code_line;
            let [object, file, function] =
                [object, file, function].map(|number| match self.names[number as usize].as_str() {
                    "???" => "",
                    name => name,
                });
            let or_unknown = |name: &str| match name {
                "" => UNKNOWN.to_owned(),
                name => name.to_owned(),
            };
            code.push(GeneratedCode {
                pid: self.pid,
                start,
                bytes: 1,
                name: or_unknown(function),
                module: or_unknown(object),
                file: file.to_owned(),
                line: Some(line).filter(|line| *line > 0),
            });
        }
        (sites, code)
    }
}

fn catalogue_event(id: EventId) -> EventDef {
    let all = catalogue::definitions(Provenance::Modelled);
    // SANITY: IDs of the catalogue are its indices.
    all[usize::from(id.0)].clone()
}

/// Splits an assignment such as `fn=…` or `calls=…`.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once('=')?;
    key.chars()
        .all(|c| c.is_ascii_lowercase())
        .then_some((key, value))
}

/// Parses a position, which can be relative to the previous one.
fn position(word: &str, last: u64) -> Option<u64> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    match word.as_bytes().first()? {
        b'*' => Some(last),
        b'+' => Some(last.saturating_add(number(&word[1..])?)),
        b'-' => Some(last.saturating_sub(number(&word[1..])?)),
        _ => number(word),
    }
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect()
}

fn add(sums: &mut Vec<u64>, more: &[u64]) {
    sums.resize(sums.len().max(more.len()), 0);
    for (sum, value) in sums.iter_mut().zip(more) {
        *sum = sum.saturating_add(*value);
    }
}

/// Parses a description such as `D1 cache: 49152 B, 64 B, 12-way associative`.
fn parse_cache(text: &str) -> Option<SimulatedCache> {
    let (name, rest) = text.split_once(" cache:")?;
    let number = |part: &str| {
        let digits = part.trim().split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    let mut parts = rest.split(',').map(number);
    Some(SimulatedCache {
        name: name.to_owned(),
        bytes: parts.next()??,
        line_bytes: parts.next()??,
        ways: parts.next()??,
    })
}
