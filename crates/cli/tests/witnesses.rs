//! Counts are compared with valgrind, which decodes and simulates independently: cachegrind with caches of
//! the same geometry, and lackey for loads and stores.
//!
//! These measures make the runs comparable:
//! - References: cachegrind counts an instruction that reads and writes one operand once, so loads +
//!   stores − modifies.
//! - Levels: cachegrind has two. Its LL gets exactly the misses of D1, as the second level of the modelled
//!   machine does, below which the last level is four times as large.
//! - The environment is padded until both stacks start at the same offset.
//!
//! These differences remain: cachegrind's LL also holds code. An access across a line boundary that
//! misses both lines is one miss there and two here. The two environments differ in a few strings that the
//! program copies or searches.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use object::{Object, ObjectSymbol};

use harness::{PATH, Recorded, assert_near, beyond, needs, workloads, write_machine};

const TOLERANCE: f64 = 0.01;
/// Tolerance for first-level misses. The stacks of both start at the same offset. A shift of the
/// stack by 16 bytes changes the misses by 1 to 10 % in either tool, and a shift by a page by 24 %
/// (sqlite3 3.46).
const TOLERANCE_D1: f64 = 0.05;
const PAGE: u64 = 4096;

/// Features of a processor by which the C library would pick string functions.
const TUNABLES: &str =
    "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-ERMS,-FSRM,-SSE4_2,-SSE4_1,-SSSE3";

/// The environment of both programs, with `padding` additional bytes.
fn environment(padding: usize) -> Vec<(&'static str, String)> {
    vec![
        ("PATH", PATH.to_owned()),
        ("LC_ALL", "C".to_owned()),
        ("GLIBC_TUNABLES", TUNABLES.to_owned()),
        ("PADDING", "x".repeat(padding)),
    ]
}

/// Runs it without its debug server, whose mapping has a name with process and file
/// numbers. A program that reads its own maps would make as many loads as they have
/// digits.
fn valgrind(tool: &[&str], program: &[&str], padding: usize) -> Command {
    let mut command = Command::new("valgrind");
    command
        .env_clear()
        .envs(environment(padding))
        .arg("--vgdb=no")
        .args(tool)
        .args(program)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// Start of the stack under valgrind. It is just above the first store, which the dynamic loader
/// makes when it calls its first function.
fn stack_under_valgrind(program: &[&str]) -> u64 {
    let mut command = valgrind(&["--tool=lackey", "--trace-mem=yes"], program, 0);
    let mut child = command
        .stderr(Stdio::piped())
        .spawn()
        .expect("valgrind runs");
    let log = BufReader::new(child.stderr.take().expect("its log is piped"));
    let store = log
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix(" S ").map(str::to_owned));
    child
        .kill()
        .and_then(|()| child.wait())
        .expect("valgrind can be ended");
    let store = store.expect("a program stores");
    let address = store
        .split(',')
        .next()
        .and_then(|text| u64::from_str_radix(text, 16).ok());
    address.expect("lackey prints addresses") + 8
}

/// Start of the stack under the emulator, from its own log.
fn stack_under_qemu(program: &[&str], folder: &Path) -> u64 {
    let log = folder.join("pages");
    let path = std::env::split_paths(PATH)
        .map(|dir| dir.join(program[0]))
        .find(|path| path.is_file());
    let mut command = Command::new(harness::engine());
    command
        .args(["-d", "page", "-D"])
        .arg(&log)
        .args(["-0", program[0]]);
    command
        .arg(path.expect("the program is on the path"))
        .args(&program[1..]);
    command
        .env_clear()
        .envs(environment(0))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command.status().expect("qemu runs");
    let text = std::fs::read_to_string(log).expect("qemu writes its log");
    let start = text
        .lines()
        .find_map(|line| line.strip_prefix("start_stack"))
        .expect("qemu logs the stack");
    u64::from_str_radix(start.trim().trim_start_matches("0x"), 16)
        .expect("an address in hexadecimal")
}

/// Number of environment bytes that cachegrind's program needs in addition to memgauge's.
/// memgauge's stack does not depend on the environment.
fn padding(program: &[&str], folder: &Path) -> usize {
    let (theirs, ours) = (
        stack_under_valgrind(program),
        stack_under_qemu(program, folder),
    );
    (theirs.wrapping_sub(ours) % PAGE) as usize
}

/// References, D1 misses and LL misses of a whole program.
type Counts = [i64; 3];

fn cachegrind(program: &[&str], input: &Path, padding: usize) -> Counts {
    let tool = [
        "--tool=cachegrind",
        "--cache-sim=yes",
        "--cachegrind-out-file=/dev/null",
        "--D1=32768,8,64",
        "--LL=1048576,16,64",
    ];
    let mut command = valgrind(&tool, program, padding);
    let output = command
        .stdin(std::fs::File::open(input).expect("the input is there"))
        .output();
    let log = String::from_utf8(output.expect("valgrind runs").stderr).expect("its log is text");
    // How many blanks there are depends on valgrind's version.
    let log: Vec<&str> = log.split_whitespace().collect();
    let log = log.join(" ");
    ["D refs:", "D1 misses:", "LLd misses:"].map(|label| {
        let number = log
            .split_once(label)
            .and_then(|(_, rest)| rest.split_whitespace().next());
        number
            .and_then(|number| number.replace(',', "").parse().ok())
            .expect(label)
    })
}

fn memgauge(program: &[&str], input: &Path, folder: &Path) -> Counts {
    let machine = folder.join("machine.json");
    write_machine(&machine, [(32, 8), (1024, 16), (4096, 16)]);
    let options = [
        "--machine",
        machine.to_str().expect("temporary paths are text"),
    ];
    let recorded = Recorded::with(&options, program, |command| {
        command
            .env_clear()
            .envs(environment(0))
            .write_stdin(std::fs::read(input).expect("the input is there"));
    });
    let totals = recorded.totals();
    [
        totals["loads"] + totals["stores"] - totals["modifies"],
        totals["l1d.miss"],
        totals["l2.miss"],
    ]
}

/// Compares a complete program on `input`, in a folder of its own.
fn check(program: &[&str], input: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("input");
    std::fs::write(&path, input).expect("the input can be written");
    let padding = padding(program, folder.path());
    let theirs = cachegrind(program, &path, padding);
    let ours = memgauge(program, &path, folder.path());
    println!("{program:?}: cachegrind {theirs:?}, memgauge {ours:?}");
    let compared = [
        ("references", TOLERANCE),
        ("D1 misses", TOLERANCE_D1),
        ("LL misses", TOLERANCE),
    ];
    for ((what, tolerance), (value, expected)) in
        compared.into_iter().zip(ours.into_iter().zip(theirs))
    {
        assert_near(&format!("{program:?}: {what}"), value, expected, tolerance);
    }
}

/// `count` numbers below a prime in an order without a pattern.
fn scattered(count: u64) -> impl Iterator<Item = u64> {
    (1..=count).map(|i| i * 7_368_787 % 15_485_863)
}

#[test]
fn cachegrind_agrees_on_sort() {
    if needs(&["valgrind", "sort"]) {
        let lines: String = scattered(50_000)
            .map(|number| format!("{number}\n"))
            .collect();
        check(&["sort", "-n"], &lines);
    }
}

#[test]
fn cachegrind_agrees_on_xz() {
    const WORDS: [&str; 8] = [
        "memory ", "cache ", "line ", "the ", "of ", "a ", "moves ", "bytes\n",
    ];
    if needs(&["valgrind", "xz"]) {
        let text: String = scattered(200_000)
            .map(|number| WORDS[(number % 8) as usize])
            .collect();
        check(&["xz", "-T1", "-3", "-c"], &text);
    }
}

#[test]
fn cachegrind_agrees_on_sqlite() {
    if needs(&["valgrind", "sqlite3"]) {
        let rows = scattered(5_000).enumerate().map(|(id, key)| {
            format!(
                "INSERT INTO t VALUES({id}, {key}, 'value {}');\n",
                key % 977
            )
        });
        let fill: String = rows.collect();
        let create = "CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT); BEGIN;\n";
        let query = "COMMIT; SELECT count(*), sum(k) FROM t WHERE v LIKE '%7%';\n";
        check(&["sqlite3", ":memory:"], &format!("{create}{fill}{query}"));
    }
}

/// Address at which valgrind loads a position-independent program.
const PROGRAM_BASE: u64 = 0x10_8000;

/// Address of the first instruction of the workloads' `main` under valgrind.
fn start_of_main() -> u64 {
    let file = std::fs::read(workloads()).expect("the workloads can be read");
    let object = object::File::parse(&*file).expect("the workloads are an ELF file");
    let main = object
        .symbols()
        .find(|symbol| {
            symbol
                .name()
                .is_ok_and(|name| name.contains("18memgauge_workloads4main"))
        })
        .expect("the workloads have a main function");
    PROGRAM_BASE + main.address()
}

/// Loads and stores of one run from the start of `main`, of all operand types. Code
/// before `main` reads the process's own maps, in which valgrind has some of its own.
/// It makes as many loads as those have digits, which differs from run to run and
/// between machines.
fn lackey(arguments: &str) -> [i64; 2] {
    let program: Vec<&str> = std::iter::once(workloads())
        .chain(arguments.split_whitespace())
        .collect();
    let tool = ["--tool=lackey", "--basic-counts=no", "--trace-mem=yes"];
    let output = valgrind(&tool, &program, 0)
        .output()
        .expect("valgrind runs");
    let log = String::from_utf8(output.stderr).expect("its log is text");
    let main = format!("I  {:08x},", start_of_main());
    let (_, since) = log.split_once(&main).expect("main runs");
    let mut counts = [0, 0];
    for line in since.lines() {
        let [loads, stores] = match line.get(..3) {
            Some(" L ") => [1, 0],
            Some(" S ") => [0, 1],
            Some(" M ") => [1, 1],
            _ => [0, 0],
        };
        counts[0] += loads;
        counts[1] += stores;
    }
    counts
}

#[test]
fn lackey_counts_the_same_loads_and_stores() {
    if !needs(&["valgrind"]) {
        return;
    }
    for (with, without) in [
        ("triad --bytes 08007", "triad --bytes 00000"),
        (
            "chase --bytes 64KiB --steps 100",
            "chase --bytes 00KiB --steps 000",
        ),
    ] {
        let extra = beyond(with, without);
        let extra = [extra["loads"], extra["stores"]];
        assert!(extra[0] > 0, "{with}");
        let [more, less] = [lackey(with), lackey(without)];
        assert_eq!(extra, [more[0] - less[0], more[1] - less[1]], "{with}");
    }
}
