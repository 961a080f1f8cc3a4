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
//! A recording has code by address. These files have none, or none that is needed: each line
//! of a function gets an address of its own, and a row of `generated_code` says what it is.

use std::collections::BTreeMap;
use std::collections::HashMap;

use memgauge_trace::{
    EventDef, EventId, GeneratedCode, Pid, Provenance, SiteCount, Unit, VirtAddr, catalogue,
};

use super::text::Lines;
use crate::Result;

/// Where addresses of lines begin: in no program's first pages.
const FIRST: u64 = 1 << 32;

/// More events than any tool counts at once; each has a number of 16 bits.
const MOST_EVENTS: usize = 1000;

/// What the file does not name.
const UNKNOWN: &str = "[unknown]";

/// valgrind's events that the catalogue has, by the name in files.
const KNOWN: [(&str, EventId); 5] = [
    ("Ir", catalogue::INSTRUCTIONS),
    ("Dr", catalogue::LOADS),
    ("Dw", catalogue::STORES),
    ("D1mr", catalogue::L1D_LOAD_MISS),
    ("D1mw", catalogue::L1D_STORE_MISS),
];

/// valgrind's other events.
const OTHERS: [(&str, &str); 11] = [
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

/// Sums of others that the catalogue has: what a level answered, and what it missed.
const SUMS: [(EventId, &[&str], &[&str]); 4] = [
    (catalogue::L1D_MISS, &["D1mr", "D1mw"], &[]),
    (catalogue::L1D_HIT, &["Dr", "Dw"], &["D1mr", "D1mw"]),
    (catalogue::LLC_MISS, &["DLmr", "DLmw"], &[]),
    (catalogue::LLC_HIT, &["D1mr", "D1mw"], &["DLmr", "DLmw"]),
];

/// An object file, a source file, a function, and a line.
type Place = (u32, u32, u32, u32);

/// What a profile holds.
#[derive(Debug, Default)]
pub(super) struct Costs {
    /// The command line.
    pub(super) command: String,
    /// Program that wrote the file.
    pub(super) creator: String,
    /// Caches of the model: what it calls them, and bytes, bytes of a line, ways.
    pub(super) caches: Vec<(String, [u64; 3])>,
    pub(super) pid: Pid,
    /// Names of events, in the order of the columns.
    events: Vec<String>,
    /// What the file says of an event: `event: NAME : text`.
    long_names: BTreeMap<String, String>,
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    places: BTreeMap<Place, Vec<u64>>,
    /// The file's own sums, of all its parts.
    totals: Option<Vec<u64>>,
    /// Calls whose inclusive costs were passed over.
    pub(super) calls: u64,
    /// Lines that make no sense, and the first of them.
    pub(super) unreadable: u64,
    pub(super) first_unreadable: Option<u64>,
}

/// The state of the reading.
#[derive(Debug, Default)]
struct At {
    /// Names that numbers stand for, of objects, files and functions.
    known: [HashMap<u64, u32>; 3],
    object: u32,
    file: u32,
    function: u32,
    /// Which of the positions is the line, and how many there are.
    line_at: usize,
    positions: Vec<u64>,
    is_inclusive: bool,
    /// A part's sums, from `summary:` or `totals:`; they say the same.
    part: Option<Vec<u64>>,
}

impl Costs {
    /// Reads a file.
    pub(super) fn read(lines: &mut Lines) -> Result<Costs> {
        let mut costs = Costs {
            // Process 0 is the kernel; cachegrind names none.
            pid: Pid(1),
            ..Costs::default()
        };
        // The first name stands for what is not told.
        costs.name("");
        let mut at = At {
            positions: vec![0],
            ..At::default()
        };
        loop {
            let number = lines.number + 1;
            let Some(line) = lines.next()? else {
                break;
            };
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') && costs.take(&mut at, line).is_none() {
                costs.unreadable += 1;
                costs.first_unreadable.get_or_insert(number);
            }
        }
        costs.end_part(&mut at);
        Ok(costs)
    }

    /// Whether no line costs anything.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn name(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// `None` for a line that makes no sense.
    fn take(&mut self, at: &mut At, line: &str) -> Option<()> {
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

    fn header(&mut self, at: &mut At, key: &str, value: &str) {
        match key {
            "cmd" => value.clone_into(&mut self.command),
            "creator" => value.clone_into(&mut self.creator),
            "pid" => self.pid = Pid(value.parse().unwrap_or(1)),
            "desc" => self.caches.extend(cache(value)),
            "part" => self.end_part(at),
            "positions" => {
                let words: Vec<&str> = value.split_whitespace().collect();
                at.positions = vec![0; words.len().max(1)];
                let is_line = |word: &str| word == "line";
                at.line_at = words.iter().position(|word| is_line(word)).unwrap_or(0);
            }
            // All parts of a file have the same.
            "events" if self.events.is_empty() => {
                let names = value.split_whitespace().map(str::to_owned);
                self.events = names.take(MOST_EVENTS).collect();
            }
            "event" => {
                if let Some((name, long)) = value.split_once(':') {
                    let name = name.trim().to_owned();
                    self.long_names.insert(name, long.trim().to_owned());
                }
            }
            "summary" | "totals" => at.part = Some(numbers(value)),
            // Others say when and how it was made.
            _ => {}
        }
    }

    fn end_part(&mut self, at: &mut At) {
        let Some(part) = at.part.take() else { return };
        let totals = self.totals.get_or_insert_default();
        add(totals, &part);
    }

    fn assign(&mut self, at: &mut At, key: &str, value: &str) -> Option<()> {
        let kind = match key {
            "ob" | "cob" | "job" => 0,
            "fl" | "fi" | "fe" | "cfi" | "cfl" | "jfi" => 1,
            "fn" | "cfn" | "jfn" => 2,
            "calls" => {
                at.is_inclusive = true;
                self.calls += 1;
                return Some(());
            }
            // Jumps cost nothing.
            "jump" | "jcnd" => return Some(()),
            _ => return None,
        };
        let name = self.numbered(at, kind, value)?;
        match key {
            "ob" => at.object = name,
            "fl" | "fi" | "fe" => at.file = name,
            "fn" => at.function = name,
            _ => {}
        }
        Some(())
    }

    /// A name, which a number may stand for.
    fn numbered(&mut self, at: &mut At, kind: usize, value: &str) -> Option<u32> {
        let number = value
            .strip_prefix('(')
            .and_then(|rest| rest.split_once(')'));
        let number = number.and_then(|(number, name)| Some((number.parse::<u64>().ok()?, name)));
        let Some((number, name)) = number else {
            return Some(self.name(value));
        };
        if name.trim().is_empty() {
            return at.known[kind].get(&number).copied();
        }
        let name = self.name(name.trim());
        at.known[kind].insert(number, name);
        Some(name)
    }

    /// Positions and costs.
    fn cost(&mut self, at: &mut At, line: &str) -> Option<()> {
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
        let place = (at.object, at.file, at.function, line);
        add(self.places.entry(place).or_default(), &costs);
        Some(())
    }

    /// Whether the sums of the lines are the file's own; `None` where it tells none, as one
    /// that is cut off.
    pub(super) fn adds_up(&self) -> Option<bool> {
        let totals = self.totals.as_ref()?;
        let mut sums = Vec::new();
        self.places.values().for_each(|costs| add(&mut sums, costs));
        let columns = 0..self.events.len();
        let at = |sums: &[u64], column| sums.get(column).copied().unwrap_or(0);
        Some(
            columns
                .into_iter()
                .all(|column| at(&sums, column) == at(totals, column)),
        )
    }

    /// The events of the recording, each with what it is the sum of, less what.
    pub(super) fn events(&self) -> Vec<(EventDef, Vec<usize>, Vec<usize>)> {
        let column = |name: &&str| self.events.iter().position(|event| event == name);
        let columns = |names: &[&str]| names.iter().map(column).collect::<Option<Vec<usize>>>();
        let mut all = Vec::new();
        for (at, name) in self.events.iter().enumerate() {
            let free = EventId(catalogue::FIRST_FREE + at as u16);
            all.push((self.definition(name, free), vec![at], Vec::new()));
        }
        for (id, plus, minus) in SUMS {
            if let Some((plus, minus)) = columns(plus).zip(columns(minus)) {
                all.push((catalogued(id), plus, minus));
            }
        }
        all
    }

    fn definition(&self, name: &str, free: EventId) -> EventDef {
        let long = self.long_names.get(name).map_or("", String::as_str);
        // An export of memgauge says which event it was: `llc_miss : llc.miss (modelled)`.
        let own = long.split(' ').next().and_then(catalogue::by_name);
        let known = KNOWN
            .iter()
            .find(|known| known.0 == name)
            .map(|known| known.1);
        if let Some(id) = own.or(known) {
            return catalogued(id);
        }
        let other = OTHERS.iter().find(|other| other.0 == name);
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

    /// Whether the file names the objects (modules) that code is from: cachegrind's does
    /// not.
    pub(super) fn names_objects(&self) -> bool {
        let known = |object: &u32| !matches!(self.names[*object as usize].as_str(), "" | "???");
        self.places.keys().any(|place| known(&place.0))
    }

    /// Counts of events by line, and what the lines are.
    pub(super) fn rows(&self) -> (Vec<SiteCount>, Vec<GeneratedCode>) {
        let events = self.events();
        let (mut sites, mut code) = (Vec::new(), Vec::new());
        for (number, ((object, file, function, line), costs)) in (0..).zip(&self.places) {
            let start = VirtAddr(FIRST + number);
            let at = |&column: &usize| costs.get(column).copied().unwrap_or(0);
            let sum = |columns: &[usize]| columns.iter().map(at).fold(0, u64::saturating_add);
            for (def, plus, minus) in &events {
                let count = sum(plus).saturating_sub(sum(minus));
                let site = SiteCount {
                    pid: self.pid,
                    ip: start,
                    event: def.id,
                    count,
                    set_group: None,
                    code_ns: None,
                };
                sites.extend((count > 0).then_some(site));
            }
            let [object, file, function] = [object, file, function].map(|number| {
                match self.names[*number as usize].as_str() {
                    "???" => "",
                    name => name,
                }
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
                line: Some(*line).filter(|line| *line > 0),
            });
        }
        (sites, code)
    }
}

fn catalogued(id: EventId) -> EventDef {
    let all = catalogue::definitions(Provenance::Modelled);
    // SANITY: ids of the catalogue are its indices.
    all[usize::from(id.0)].clone()
}

/// `fn=…`, `calls=…`: a word of letters before the sign.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once('=')?;
    key.chars()
        .all(|c| c.is_ascii_lowercase())
        .then_some((key, value))
}

/// A position, which may be relative to the one before.
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

/// `D1 cache: 49152 B, 64 B, 12-way associative`.
fn cache(text: &str) -> Option<(String, [u64; 3])> {
    let (name, rest) = text.split_once(" cache:")?;
    let number = |part: &str| {
        let digits = part.trim().split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    let mut parts = rest.split(',').map(number);
    let three = [parts.next()??, parts.next()??, parts.next()??];
    Some((name.to_owned(), three))
}
