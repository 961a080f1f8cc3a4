use super::*;
use crate::engine::catalogue::tests::{access, code};
use memgauge_host::python_lines::LineTable;
use memgauge_trace::AccessKind::Load;

/// A block with a load of the next instruction, and one that first reads what the current
/// instruction has cached.
const FETCHES: u64 = wire::FIRST_BLOCK;
const READS_CACHE: u64 = wire::FIRST_BLOCK + 1;
/// Where the instructions of code `n` are: `n * CODE`.
const CODE: u64 = 0x10_0000;

#[derive(Default)]
struct Process {
    catalogue: Catalogue,
    calls: ProcessCalls,
    python: PythonProgram,
}

impl Process {
    /// A process with code objects 1 to 3, each with lines 11, 12 and 13 of two instructions.
    fn new() -> Process {
        let mut process = Process::default();
        let blocks = [
            (FETCHES, vec![access(1, 0, 2, Load)]),
            (
                READS_CACHE,
                vec![access(1, 0, 2, Load), access(1, 4, 2, Load)],
            ),
        ];
        for (number, mut accesses) in blocks {
            accesses.iter_mut().for_each(|access| access.run = 0);
            let record = code(number as u32, 0x1000, 10, 0, &accesses);
            process.catalogue.read(&record).expect("as written");
        }
        for number in 1..4 {
            process.python.add(
                number,
                PythonCode {
                    instructions: number * CODE,
                    bytes: 12,
                    file: "/x/p.py".to_owned(),
                    name: format!("f{number}"),
                    lines: LineTable::new(10, 10, &[4, 1, 4, 1, 4, 1]),
                },
            );
        }
        process
    }

    fn follow(&mut self, path: &mut PythonPath, words: &[u64]) {
        let words: Vec<AtomicU64> = words.iter().map(|&word| AtomicU64::new(word)).collect();
        let mut process = FollowedProcess {
            catalogue: &self.catalogue,
            calls: &mut self.calls,
            python: &mut self.python,
            is_outside: false,
        };
        path.resume(0);
        path.follow(&mut process, &mut None, &words, words.len());
    }

    /// Instructions by function and line.
    fn instructions(&mut self) -> Vec<(String, u32, u64)> {
        let lines = self.python.take();
        lines
            .map(|l| (l.code.name.clone(), l.line.unwrap_or(0), l.instructions))
            .filter(|line| line.2 > 0)
            .collect()
    }
}

fn mark(code: u64, frame: u64, previous: u64) -> [u64; 3] {
    let field = |value| wire::MARK_FIELD | value;
    [wire::MARK_PYTHON | code, field(frame), field(previous)]
}

fn load_of(block: u64, code: u64, offset: u64) -> u64 {
    block << wire::ID_SHIFT | (code * CODE + offset)
}

/// Functions and lines of the current calls, outermost first.
fn calls(path: &mut PythonPath) -> Vec<String> {
    let mut rows = Vec::new();
    path.frames.iter_mut().for_each(|frame| frame.named = None);
    let calls = path.calls(Pid(1), &mut LineAddresses::default(), |row| rows.push(row));
    let name = |call: &PythonCall| {
        let row = rows
            .iter()
            .find(|row: &&GeneratedCode| row.start == call.ip);
        row.map_or_else(String::new, |row| {
            format!("{}:{}", row.name, row.line.unwrap_or(0))
        })
    };
    calls.iter().map(name).collect()
}

#[test]
fn addresses_of_loads_are_the_line() {
    let (mut process, mut path) = (Process::new(), PythonPath::default());
    let mut words = mark(1, 0x900, 0).to_vec();
    words.extend([load_of(FETCHES, 1, 0), load_of(FETCHES, 1, 4)]);
    // A load of something else.
    words.push(FETCHES << wire::ID_SHIFT | 0x5000);
    process.follow(&mut path, &words);
    assert_eq!(calls(&mut path), ["f1:12"]);
    process.follow(&mut path, &[load_of(READS_CACHE, 1, 4)]);
    assert_eq!(calls(&mut path), ["f1:13"]);
    let of = |line, count| ("f1".to_owned(), line, count);
    assert_eq!(process.instructions(), [of(11, 20), of(12, 20)]);
}

#[test]
fn frames_are_called_and_left() {
    let (mut process, mut path) = (Process::new(), PythonPath::default());
    let mut words = mark(1, 0x900, 0).to_vec();
    words.push(load_of(FETCHES, 1, 4));
    words.extend(mark(2, 0xa00, 0x900));
    words.push(load_of(FETCHES, 2, 8));
    // The same code again, in a frame of its own.
    words.extend(mark(2, 0xb00, 0xa00));
    process.follow(&mut path, &words);
    assert_eq!(calls(&mut path), ["f1:12", "f2:13", "f2:11"]);
    process.follow(&mut path, &mark(2, 0xa00, 0x900));
    assert_eq!(calls(&mut path), ["f1:12", "f2:13"]);
    // A frame at the address of one that has been left.
    process.follow(&mut path, &mark(3, 0xb00, 0x900));
    assert_eq!(calls(&mut path), ["f1:12", "f3:11"]);
    // An exception leaves several.
    process.follow(&mut path, &mark(1, 0x900, 0));
    assert_eq!(calls(&mut path), ["f1:12"]);
    process.follow(&mut path, &mark(3, 0xf00, 0xe00));
    assert_eq!(calls(&mut path), ["f3:11"], "a frame of another stack");
}

#[test]
fn frame_of_unknown_code_has_no_line() {
    let (mut process, mut path) = (Process::new(), PythonPath::default());
    process.follow(&mut path, &mark(1, 0x900, 0));
    process.follow(&mut path, &mark(9, 0xa00, 0x900));
    assert_eq!(calls(&mut path), ["f1:11"]);
    // Marks that end early, or have other words in place of their fields.
    process.follow(&mut path, &[wire::MARK_PYTHON | 2, 0, wire::MARK_PYTHON]);
    assert_eq!(calls(&mut path), ["f1:11"]);
}
