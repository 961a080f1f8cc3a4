//! Names of the code in a recording, as rows of its table `symbols`.
//!
//! Names are resolved when the recording ends, while the files exist, and only for instructions
//! that occur. Other programs can therefore read functions from the tables without a symbol reader,
//! and a report on another machine has names.
//!
//! Memory: 56 bytes for each instruction of each process. Names are stored once for each location
//! in a file.

use std::collections::{BTreeMap, HashMap};

use memgauge_recording::{Recording, Result, Selection};
use memgauge_trace::{Frame, Pid, Sample, SiteCount, SymbolRow};

use crate::code::address_spaces::address_spaces;
use crate::code::address_spaces::{AddressSpaces, CodeLocation, PathId, When, is_file};
use crate::code::hotspots::{module_of, place_symbol};
use crate::resolve::{Caller, Resolve};

/// An instruction of a process and the code it belonged to.
type InstructionKey = (Pid, u64, PathId, u64);

/// Names the instructions of samples, calls and exact counts, sorted by process and address.
///
/// # Errors
/// The file system failed.
/// The file system failed.
pub fn symbol_rows(recording: &Recording, symbols: &mut dyn Resolve) -> Result<Vec<SymbolRow>> {
    // Reports name the parts that cannot be read.
    let mut problems = Vec::new();
    let spaces = address_spaces(recording, &mut problems)?;
    let mut seen = Seen {
        spaces: &spaces,
        since: HashMap::new(),
    };
    let of_samples = Selection::all().columns(&["time_ns", "pid", "ip"]);
    recording.for_each_intact_batch(&of_samples, &mut problems, |rows: &[Sample]| {
        for row in rows {
            seen.add(row.pid, row.ip.0, When::At(row.time_ns));
        }
    })?;
    recording.for_each_intact_batch(&Selection::all(), &mut problems, |rows: &[Frame]| {
        for row in rows {
            seen.add(row.pid, row.ip.0, When::At(row.time_ns));
        }
    })?;
    recording.for_each_intact_batch(&Selection::all(), &mut problems, |rows: &[SiteCount]| {
        for row in rows {
            seen.add(
                row.pid,
                row.ip.0,
                row.code_ns.map_or(When::Latest, When::At),
            );
        }
    })?;
    let in_order: BTreeMap<InstructionKey, u64> = seen.since.into_iter().collect();
    let mut names: HashMap<CodeLocation, SymbolRow> = HashMap::new();
    let rows = in_order
        .into_iter()
        .map(|((pid, ip, path, offset), time_ns)| {
            let place = (path, offset);
            let named = names.entry(place);
            let named = named.or_insert_with(|| name(symbols, &spaces, place));
            let mut row = named.clone();
            (row.pid, row.ip.0, row.time_ns) = (pid, ip, time_ns);
            row
        });
    Ok(rows.collect())
}

struct Seen<'a> {
    spaces: &'a AddressSpaces,
    /// Time at which each was first seen.
    since: HashMap<InstructionKey, u64>,
}

impl Seen<'_> {
    fn add(&mut self, pid: Pid, ip: u64, when: When) {
        let (path, offset) = self.spaces.code_at(pid, ip, when);
        let time_ns = match when {
            When::At(time_ns) => time_ns,
            When::Latest => 0,
        };
        let since = self.since.entry((pid, ip, path, offset)).or_insert(time_ns);
        *since = time_ns.min(*since);
    }
}

/// A row without its instruction.
fn name(symbols: &mut dyn Resolve, spaces: &AddressSpaces, place: (PathId, u64)) -> SymbolRow {
    let symbol = place_symbol(symbols, spaces, place).unwrap_or_default();
    let file = spaces.file(place.0);
    SymbolRow {
        module: module_of(spaces, place).to_owned(),
        build_id: file.build_id.clone(),
        offset: is_file(&file.path).then_some(place.1),
        function: symbol.name,
        file: symbol.file.unwrap_or_default(),
        line: symbol.line,
        inlined_into: in_json(&symbol.inlined_into),
        ..SymbolRow::default()
    }
}

fn in_json(callers: &[Caller]) -> String {
    match callers.is_empty() {
        true => String::new(),
        false => {
            serde_json::to_string(callers).expect("SANITY: texts and numbers have a JSON form")
        }
    }
}

#[cfg(test)]
mod tests {
    use memgauge_recording::Writer;
    use memgauge_trace::{EventId, GeneratedCode, Manifest, Module, VirtAddr};

    use super::*;
    use crate::resolve::{ModuleFile, Symbol};

    /// Names each offset of one file. Odd offsets are in an inlined function.
    struct Offsets;

    impl Resolve for Offsets {
        fn resolve(&mut self, file: &ModuleFile, offset: u64) -> Option<Symbol> {
            let caller = Caller {
                function: "outer".to_owned(),
                file: None,
                line: Some(3),
            };
            (file.path == "/bin/p").then(|| Symbol {
                name: format!("f{offset:x}"),
                file: Some("p.c".to_owned()),
                line: Some(7),
                inlined_into: if offset % 2 == 1 {
                    vec![caller]
                } else {
                    Vec::new()
                },
            })
        }

        fn resolve_data(&mut self, _: &ModuleFile, _: u64) -> Option<String> {
            None
        }
    }

    fn mapped(time_ns: u64, path: &str) -> Module {
        Module {
            pid: Pid(1),
            time_ns,
            start: VirtAddr(0x1000),
            end: VirtAddr(0x2000),
            file_offset: 0x100,
            path: path.to_owned(),
            executable: true,
            build_id: "ab".to_owned(),
            ..Module::default()
        }
    }

    fn sampled(time_ns: u64, ip: u64) -> Sample {
        Sample {
            time_ns,
            pid: Pid(1),
            ip: VirtAddr(ip),
            ..Sample::default()
        }
    }

    #[test]
    fn each_instruction_that_occurs_has_a_row_for_each_code_that_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.mg");
        let mut writer = Writer::create(&path, Manifest::default()).unwrap();
        // Another file takes the place of the first.
        writer
            .extend([mapped(0, "/bin/p"), mapped(50, "/lib/unnamed.so")])
            .unwrap();
        writer
            .push(GeneratedCode {
                pid: Pid(1),
                start: VirtAddr(0x9000),
                bytes: 0x10,
                name: "jitted".to_owned(),
                ..GeneratedCode::default()
            })
            .unwrap();
        writer
            .extend([
                sampled(20, 0x1001),
                sampled(10, 0x1001),
                sampled(60, 0x1001),
                sampled(61, 0x9004),
            ])
            .unwrap();
        writer
            .push(Frame {
                pid: Pid(1),
                time_ns: 5,
                ip: VirtAddr(0x1008),
                ..Frame::default()
            })
            .unwrap();
        writer
            .push(SiteCount {
                pid: Pid(1),
                ip: VirtAddr(0x1010),
                event: EventId(1),
                count: 3,
                code_ns: Some(0),
                ..SiteCount::default()
            })
            .unwrap();
        writer.finish(|_| {}).unwrap();
        let rows = symbol_rows(&Recording::open(&path).unwrap(), &mut Offsets).unwrap();
        let text = |row: &SymbolRow| {
            format!(
                "{:x} {} {}+{:x?} {} {}:{:?} {}",
                row.ip.0,
                row.time_ns,
                row.module,
                row.offset,
                row.function,
                row.file,
                row.line,
                row.inlined_into
            )
        };
        let found: Vec<String> = rows.iter().map(text).collect();
        let inlined = r#"[{"function":"outer","file":null,"line":3}]"#;
        let expected = [
            format!("1001 10 /bin/p+Some(101) f101 p.c:Some(7) {inlined}"),
            "1001 60 /lib/unnamed.so+Some(101)  :None ".to_owned(),
            "1008 5 /bin/p+Some(108) f108 p.c:Some(7) ".to_owned(),
            "1010 0 /bin/p+Some(110) f110 p.c:Some(7) ".to_owned(),
            "9004 61 [jit]+None jitted :None ".to_owned(),
        ];
        assert_eq!(found, expected);
    }
}
