//! Accesses of single instructions. QEMU may split an operand, load more than the operand, or access
//! memory itself; none of this may be counted.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use harness::{Recorded, assert_near, drawn, exact_curves, memgauge, needs};

const LIST: &str = include_str!("instructions/list.txt");
const STRINGS: &str = include_str!("instructions/strings.s");
const SIGNALS: &str = include_str!("instructions/signals.c");
const TURNS: i64 = 100;

/// An instruction, and the number of loads, stores and modifies of one execution.
struct Case {
    code: String,
    counts: [i64; 3],
}

fn cases() -> Vec<Case> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#'));
    let case = |line: &str| {
        let (does, code) = line.split_once(' ').expect("a word and an instruction");
        let counts = match does {
            "loads" => [1, 0, 0],
            "stores" => [0, 1, 0],
            "modifies" => [1, 1, 1],
            other => panic!("{other}"),
        };
        Case {
            code: code.replace(';', "\n"),
            counts,
        }
    };
    lines.map(case).collect()
}

/// Builds a program that executes each case [`TURNS`] times per argument, after `before`. It has no
/// start-up code, whose accesses would count.
fn program(folder: &Path, cases: &[Case], before: &str) -> String {
    let mut text = format!(
        ".globl _start\n_start: mov (%rsp), %r12\n dec %r12\n imul ${TURNS}, %r12\n\
         lea buffer(%rip), %rdi\n"
    );
    for Case { code, .. } in cases {
        write!(
            text,
            "mov %r12, %rbx\n test %rbx, %rbx\n jz 2f\n\
             1: mov $1, %eax\n mov $2, %ecx\n mov $3, %edx\n{before}\n{code}\n\
             dec %rbx\n jnz 1b\n2:\n"
        )
        .expect("text can be written");
    }
    // Control words of the units, for instructions of the list that load them.
    text += "xor %edi, %edi\n mov $60, %eax\n syscall\n.data\n.balign 4096\n\
             buffer: .zero 48\n .long 0x1f80, 0\n .word 0x37f\n .zero 4038\n";
    assembled(folder, &text)
}

/// Path of the program that `text` is the source of.
fn assembled(folder: &Path, text: &str) -> String {
    let (source, program) = (folder.join("each.s"), folder.join("each"));
    std::fs::write(&source, text).expect("the source can be written");
    let mut cc = Command::new("cc");
    cc.args(["-nostdlib", "-static", "-o"])
        .args([&program, &source]);
    assert!(cc.status().expect("cc runs").success());
    program
        .to_str()
        .expect("temporary paths are text")
        .to_owned()
}

/// Loads, stores and modifies of `program` with `arguments`.
fn done(program: &str, arguments: &[&str]) -> [i64; 3] {
    let run = Recorded::new(&[], &[&[program], arguments].concat());
    let losses = &run.report()["losses"];
    assert_eq!(losses.as_array().map(Vec::len), Some(0), "{losses}");
    let totals = run.totals();
    ["loads", "stores", "modifies"].map(|name| totals[name])
}

/// Returns the cases whose counts per turn are wrong. Searches them by bisection.
fn wrong(cases: &[Case], before: &str, more_loads: i64) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = program(folder.path(), cases, before);
    let (none, some) = (done(&program, &[]), done(&program, &["x"]));
    let each = |i: usize| {
        let once: i64 = cases.iter().map(|case| case.counts[i]).sum();
        let more = if i == 0 { more_loads } else { 0 };
        (once + more * cases.len() as i64) * TURNS
    };
    let extra: [i64; 3] = std::array::from_fn(|i| some[i] - none[i]);
    match cases {
        _ if extra == std::array::from_fn(each) => Vec::new(),
        [one] => vec![format!("{}: {extra:?}", one.code)],
        _ => {
            let (left, right) = cases.split_at(cases.len() / 2);
            let mut all = wrong(left, before, more_loads);
            all.extend(wrong(right, before, more_loads));
            all
        }
    }
}

#[test]
fn every_instruction_accesses_its_operand_once() {
    if needs(&["cc"]) {
        assert_eq!(wrong(&cases(), "", 0), [""; 0]);
    }
}

/// An operand in a run that another instruction began.
#[test]
fn every_instruction_accesses_its_operand_once_beside_another() {
    if needs(&["cc"]) {
        assert_eq!(wrong(&cases(), "movl 32(%rdi), %r8d", 1), [""; 0]);
    }
}

/// Each repetition is an access, but there is only one instruction, however QEMU divides it. A
/// curve receives the accesses one by one.
#[test]
fn string_instructions_access_each_element_once() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = assembled(folder.path(), STRINGS);
    assert_eq!(done(&program, &[]), [581_001, 170_002, 0]);
    let run = Recorded::new(&[], &[&program]);
    let listed = STRINGS.lines().filter(|line| line.starts_with(' '));
    assert_eq!(run.totals()["instructions"], listed.count() as i64 + 1);
    let curve = folder.path().join("curve.json");
    let json = format!("--json={}", curve.display());
    let mut curves = memgauge();
    curves.args(["mrc", "--exact", &json, "--", &program]);
    let output = curves.output().expect("memgauge runs");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&curve).expect("a curve");
    let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(shown["curves"][0]["references"].as_f64(), Some(751_003.0));
}

/// The runs lie in two lines. Each one comes first in its block, or after another run. A line is
/// dirty if an access to this line stores. The last access uses another register and repeats one.
#[test]
fn stores_of_a_run_in_two_lines_make_their_own_lines_dirty() {
    const LINES: i64 = 16384;
    let cases = [
        ("mov (%rdi), %rax; mov 24(%rdi), %ecx", 0),
        (
            "mov (%rdi), %rax; mov %eax, 24(%rdi); mov %eax, 32(%rdx)",
            1,
        ),
        (
            "mov %rax, (%rdi); mov 24(%rdi), %ecx; mov %eax, -8(%rdx)",
            1,
        ),
        ("mov %rax, (%rdi); mov %ecx, 24(%rdi)", 2),
    ];
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (before, (code, dirty)) in ["", "mov (%rsi), %r8"]
        .into_iter()
        .flat_map(|before| cases.map(|case| (before, case)))
    {
        let text = format!(
            ".globl _start\n_start: lea buffer+40(%rip), %rdi\n mov %rdi, %rdx\n\
             lea cell(%rip), %rsi\n mov ${LINES}, %ebx\n\
             1: {before}\n{code}\n add $128, %rdi\n add $128, %rdx\n dec %ebx\n jnz 1b\n\
             xor %edi, %edi\n mov $60, %eax\n syscall\n\
             .bss\n.balign 4096\nbuffer: .zero {}\ncell: .zero 8\n",
            128 * (LINES + 1)
        );
        let program = assembled(folder.path(), &text);
        let run = Recorded::new(&["--machine", "skylake-sp"], &[&program]);
        let written = run.totals()["l1d.writeback"];
        // At the end the first level still holds up to all of its 512 lines.
        let all = dirty * LINES;
        assert!(
            (all - 512..=all).contains(&written),
            "{before} {code}: {written} of {all}"
        );
    }
}

#[test]
fn frames_of_signals_are_no_accesses_of_the_program() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, program) = (
        folder.path().join("signals.c"),
        folder.path().join("signals"),
    );
    std::fs::write(&source, SIGNALS).expect("the source can be written");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-mno-red-zone", "-Wl,-z,now", "-o"])
        .args([&program, &source]);
    assert!(cc.status().expect("cc runs").success());
    // Curves receive every access with its instruction, recordings only misses.
    let mut curves = memgauge();
    curves
        .args(["mrc", "--exact", "--"])
        .arg(program)
        .arg("300");
    let output = curves.output().expect("memgauge runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("lost:"), "{said}");
}

/// Non-temporal stores: bytes of each, and the instruction. `xmm1` and `mm1` have all bits set.
const NON_TEMPORAL: [(u64, &str); 13] = [
    (4, "movnti %eax, (%rdi)"),
    (8, "movnti %rax, (%rdi)"),
    (8, "movntq %mm0, (%rdi)"),
    (8, "maskmovq %mm1, %mm0"),
    (16, "movntps %xmm0, (%rdi)"),
    (16, "movntpd %xmm0, (%rdi)"),
    (16, "movntdq %xmm0, (%rdi)"),
    (16, "maskmovdqu %xmm1, %xmm0"),
    (16, "vmovntdq %xmm0, (%rdi)"),
    (16, "vmaskmovdqu %xmm1, %xmm0"),
    (32, "vmovntps %ymm0, (%rdi)"),
    (32, "vmovntpd %ymm0, (%rdi)"),
    (32, "vmovntdq %ymm0, (%rdi)"),
];

/// A program that fills a buffer of `bytes` with each of the instructions.
fn fills(folder: &Path, instructions: &[(u64, &str)], bytes: u64) -> String {
    let mut text = ".globl _start\n_start: pcmpeqb %xmm1, %xmm1\n pcmpeqb %mm1, %mm1\n".to_owned();
    for (size, code) in instructions {
        write!(
            text,
            "lea buffer(%rip), %rdi\n mov ${}, %rbx\n\
             1: {code}\n add ${size}, %rdi\n dec %rbx\n jnz 1b\n",
            bytes / size
        )
        .expect("text can be written");
    }
    text += "xor %edi, %edi\n mov $60, %eax\n syscall\n.bss\n.balign 4096\n";
    writeln!(text, "buffer: .zero {bytes}").expect("text can be written");
    assembled(folder, &text)
}

#[test]
fn non_temporal_stores_write_whole_lines_and_read_none() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bytes = 4096 * drawn("pages", 16, 64);
    for instruction in NON_TEMPORAL {
        let program = fills(folder.path(), &[instruction], bytes);
        let totals = Recorded::new(&[], &[&program]).totals();
        let (size, code) = instruction;
        let expected = [
            ("stores", bytes / size),
            ("l1d.hit", 0),
            ("l1d.miss", 0),
            ("dram.read_bytes", 0),
            ("dram.write_bytes", bytes),
        ];
        for (event, count) in expected {
            assert_eq!(totals[event], count as i64, "{event} of {code}");
        }
    }
}

#[test]
fn some_sets_estimate_what_non_temporal_stores_write() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plain: Vec<_> = NON_TEMPORAL
        .into_iter()
        .filter(|(_, code)| !code.contains("mask"))
        .collect();
    let bytes = 4096 * drawn("pages", 64, 128);
    let program = fills(folder.path(), &plain, bytes);
    let totals = Recorded::new(&["--sets", "1/8"], &[&program]).totals();
    // Each class of lines has an eighth of each page.
    let expected = plain.len() as i64 * bytes as i64;
    assert_eq!(totals["dram.write_bytes"], expected);
    assert_eq!(totals["dram.read_bytes"], 0);
}

/// Prefetches of the line at `rdi`.
const PREFETCHES: [&str; 9] = [
    "prefetcht0 (%rdi)",
    "prefetcht1 63(%rdi)",
    "prefetcht2 (%rdi)",
    "prefetchnta (%rdi)",
    "prefetchw (%rdi)",
    "prefetchwt1 (%rdi)",
    ".byte 0x0f, 0x0d, 0x07", // prefetch (%rdi)
    "prefetcht0 (%rdi,%rbp,8)",
    "xchg %rdi, %rsi\n prefetcht0 (%rsi)\n xchg %rdi, %rsi",
];

/// A program that executes `code` for each line of a buffer of `lines` lines, and then loads them.
fn scans(folder: &Path, code: &str, lines: u64) -> String {
    let each_line = |code: &str| {
        format!(
            "lea buffer(%rip), %rdi\n mov ${lines}, %rbx\n\
             1: {code}\n add $64, %rdi\n dec %rbx\n jnz 1b\n"
        )
    };
    let text = format!(
        ".globl _start\n_start: xor %ebp, %ebp\n {}{}\
         xor %edi, %edi\n mov $60, %eax\n syscall\n\
         .bss\n.balign 4096\nbuffer: .zero {}\n",
        each_line(code),
        each_line("mov (%rdi), %rax"),
        lines * 64
    );
    assembled(folder, &text)
}

#[test]
fn prefetches_fetch_lines_before_they_are_loaded() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pages = drawn("pages", 16, 64);
    let lines = 64 * pages;
    for code in PREFETCHES {
        let program = scans(folder.path(), code, lines);
        let totals = Recorded::new(&["--machine", "zen4"], &[&program]).totals();
        let expected = [
            ("loads", lines),
            ("stores", 0),
            ("prefetches", lines),
            ("prefetch.hits", lines),
            ("l1d.miss", lines),
            ("l2.hit", lines),
            ("llc.miss", 0),
            ("dram.read_bytes", 64 * lines),
        ];
        for (event, count) in expected {
            assert_eq!(totals[event], count as i64, "{event} of {code}");
        }
        // Each class of lines has an eighth of each page.
        let sets = Recorded::new(&["--machine", "zen4", "--sets", "1/8"], &[&program]).totals();
        for event in ["prefetches", "prefetch.hits", "dram.read_bytes"] {
            assert_eq!(sets[event], totals[event], "{event} of {code}");
        }
    }
}

#[test]
fn prefetches_without_memory_do_nothing() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Nothing is mapped there, no program may map it, or it is no address at all.
    let addresses = [
        0u64,
        0xffff,
        0x10_0000_0000,
        0x7fff_ffff_f000,
        0x8000_0000_0000,
        1 << 63,
        u64::MAX,
    ];
    let mut text = ".globl _start\n_start: lea buffer(%rip), %rdi\n".to_owned();
    for address in addresses {
        // Between accesses of one line, which otherwise need a single word.
        let code = "mov (%rdi), %rcx\n prefetcht0 (%rax)\n mov 8(%rdi), %rdx\n";
        writeln!(text, "mov ${address:#x}, %rax\n{code}").expect("text can be written");
    }
    // An instruction that repeats, and one with a mask.
    text += "prefetcht0 (%rax)\n lea 64(%rdi), %rsi\n mov $8, %ecx\n rep movsb\n\
             vpcmpeqb %ymm0, %ymm0, %ymm0\n prefetcht0 128(%rsi)\n vpmaskmovd (%rsi), %ymm0, %ymm1\n\
             prefetcht0 (%rax)\n xor %edi, %edi\n mov $60, %eax\n syscall\n\
             .bss\n.balign 4096\nbuffer: .zero 4096\n";
    let program = assembled(folder.path(), &text);
    let run = Recorded::new(&["--machine", "zen4"], &[&program]);
    let totals = run.totals();
    let expected = [
        ("prefetches", 1),
        ("loads", 2 * addresses.len() as i64 + 8 + 1),
        ("stores", 8),
        ("l1d.miss", 2),
        ("dram.read_bytes", 3 * 64),
    ];
    for (event, count) in expected {
        assert_eq!(totals[event], count, "{event}");
    }
    assert_eq!(
        run.report()["losses"].as_array().map(Vec::len),
        Some(0),
        "{}",
        run.said()
    );
}

#[test]
fn prefetches_are_no_references_of_a_curve() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lines = 64 * drawn("pages", 16, 64);
    let curve = |code: &str| exact_curves(&scans(folder.path(), code, lines));
    assert_eq!(curve("prefetcht0 (%rdi)"), curve("nopl (%rdi)"));
}

#[test]
fn elements_that_string_instructions_only_load_take_two_cycles_each() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rounds = drawn("rounds", 50, 100);
    let cycles = |code: &str, rounds: u64| {
        let text = format!(
            ".globl _start\n_start: mov ${rounds}, %ebx\n mov $1, %eax\n\
             1: lea buffer(%rip), %rsi\n mov %rsi, %rdi\n mov $1000, %ecx\n {code}\n\
             mov $1, %eax\n dec %ebx\n jnz 1b\n\
             xor %edi, %edi\n mov $60, %eax\n syscall\n\
             .bss\n.balign 4096\nbuffer: .zero 4096\n"
        );
        let program = assembled(folder.path(), &text);
        Recorded::new(&["--machine", "zen4"], &[&program]).totals()["cycles"]
    };
    for code in ["rep lodsb", "repne scasb", "repe cmpsb"] {
        let more = cycles(code, 2 * rounds) - cycles(code, rounds);
        // Eight other instructions of a third of a cycle.
        let expected = rounds as i64 * (2 * 1000 + 3);
        assert_near(code, more, expected, 0.002);
    }
}
