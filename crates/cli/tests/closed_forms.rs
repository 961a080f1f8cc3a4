//! Modelled counts are compared with closed forms of the workloads: accesses exactly, last-level misses
//! and memory traffic within one part in a thousand.
//!
//! The counts of a loop are the difference to the same program without iterations. The rest of the program
//! adds a few hundred misses: lines that the loop evicts and the end of the program reads again, and dirty
//! lines of the start that the loop evicts to memory. Sizes are chosen so that this is less than the
//! tolerance.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use harness::{Recorded, Totals, assert_near, beyond, expectation, needs};

const MIB: i64 = 1 << 20;
const LINE: i64 = 64;
/// Last-level cache of the small machine.
const LLC: i64 = MIB;
const TOLERANCE: f64 = 0.001;

/// Instructions that reading a size other than 0 from the command line may cost
/// beyond reading 0.
const PARSING: i64 = 16;

/// Checks accesses and splits against the workload's own numbers, and that each of `units` turns of
/// the loop takes `each` instructions.
fn check(with: &str, without: &str, units: i64, each: i64) -> Totals {
    let extra = beyond(with, without);
    let [loads, stores, splits] = expectation(with);
    assert_eq!((extra["loads"], extra["stores"]), (loads, stores), "{with}");
    assert_eq!(extra["splits"], splits, "{with}");
    let rest = extra["instructions"] - units * each;
    assert!(
        (0..=PARSING).contains(&rest),
        "{with}: {rest} instructions beyond {each} each"
    );
    extra
}

#[test]
fn linear_loads_once_a_stride_and_splits_where_a_word_crosses_a_line() {
    if !needs(&[]) {
        return;
    }
    check("linear --bytes 1MiB", "linear --bytes 0MiB", MIB / 8, 4);
    check(
        "linear --stride 24 --bytes 1MiB",
        "linear --stride 24 --bytes 0MiB",
        MIB / 24,
        4,
    );
    check(
        "linear --stride 4096 --bytes 9MiB",
        "linear --stride 4096 --bytes 0MiB",
        9 * MIB / 4096,
        4,
    );
    let three_passes = "linear --stride 64 --align 60 --passes 3 --bytes 1MiB";
    let split = check(
        three_passes,
        "linear --stride 64 --align 60 --passes 3 --bytes 0MiB",
        3 * MIB / 64,
        4,
    );
    assert_eq!(split["splits"], 3 * MIB / 64);
}

#[test]
fn write_stores_once_a_stride() {
    if !needs(&[]) {
        return;
    }
    let extra = check("write --bytes 1MiB", "write --bytes 0MiB", MIB / 8, 4);
    assert_eq!(extra["modifies"], 0);
}

#[test]
fn triad_makes_two_loads_and_a_store_an_element() {
    if !needs(&[]) {
        return;
    }
    check(
        "triad --passes 2 --bytes 80007",
        "triad --passes 2 --bytes 00000",
        2 * 10_000,
        7,
    );
}

#[test]
fn an_increment_in_memory_is_a_load_a_store_and_a_modify() {
    if !needs(&[]) {
        return;
    }
    let random = check("rand --steps 12345", "rand --steps 00000", 12_345, 14);
    assert_eq!(random["modifies"], 12_345);
    let ordered = check(
        "bigarray --passes 5 --bytes 08192",
        "bigarray --passes 5 --bytes 00000",
        5 * 1024,
        4,
    );
    assert_eq!(ordered["modifies"], 5 * 1024);
}

#[test]
fn chase_loads_once_a_step() {
    if !needs(&[]) {
        return;
    }
    let extra = check(
        "chase --bytes 1MiB --steps 20000",
        "chase --bytes 1MiB --steps 00000",
        20_000,
        3,
    );
    assert_eq!(extra["instructions"], 3 * 20_000);
}

/// Ten instructions a row (with the check that ends it) and six a pass beside the
/// seven of an element.
#[test]
fn randmatmult_makes_two_loads_an_element_and_a_store_a_row() {
    if !needs(&[]) {
        return;
    }
    let (with, without) = (
        "randmatmult --columns 1000 --passes 3",
        "randmatmult --columns 1000 --passes 0",
    );
    let extra = check(with, without, 3 * (7 * 8 * 1000 + 10 * 8 + 6), 1);
    assert_eq!(extra["loads"], 3 * 2 * 8 * 1000);
}

#[test]
fn a_scan_far_beyond_the_last_level_reads_each_line_once_from_memory() {
    if !needs(&[]) {
        return;
    }
    let bytes = 64 * MIB;
    let extra = beyond("linear --bytes 64MiB", "linear --bytes 00MiB");
    assert_near("LLC misses", extra["llc.miss"], bytes / LINE, TOLERANCE);
    assert_near("bytes read", extra["dram.read_bytes"], bytes, TOLERANCE);
}

/// The last-level cache keeps the last lines written, so they are not written back.
#[test]
fn stores_far_beyond_the_last_level_are_written_back_but_for_what_it_holds() {
    if !needs(&[]) {
        return;
    }
    let bytes = 256 * MIB;
    let extra = beyond(
        "write --stride 64 --bytes 256MiB",
        "write --stride 64 --bytes 000MiB",
    );
    assert_near("LLC misses", extra["llc.miss"], bytes / LINE, TOLERANCE);
    assert_near("bytes read", extra["dram.read_bytes"], bytes, TOLERANCE);
    assert_near(
        "bytes written",
        extra["dram.write_bytes"],
        bytes - LLC,
        TOLERANCE,
    );
}

#[test]
fn every_pass_over_an_array_beyond_the_last_level_misses_all_of_it() {
    if !needs(&[]) {
        return;
    }
    let bytes = 5 * 16 * MIB;
    let extra = beyond(
        "bigarray --passes 5 --bytes 16MiB",
        "bigarray --passes 5 --bytes 00MiB",
    );
    assert_near("LLC misses", extra["llc.miss"], bytes / LINE, TOLERANCE);
}

/// A row of the matrix and the vector, 256 KiB each, fit together: the vector is
/// missed once, the matrix (8 MiB) in every pass.
#[test]
fn a_vector_that_fits_is_missed_once_and_the_matrix_in_every_pass() {
    if !needs(&[]) {
        return;
    }
    let (rows, columns, passes) = (32, 32_768, 4);
    let extra = beyond(
        "randmatmult --rows 32 --columns 32768 --passes 4",
        "randmatmult --rows 32 --columns 32768 --passes 0",
    );
    let lines = |words: i64| words * 8 / LINE;
    let misses = passes * lines(rows * columns) + lines(columns) + lines(rows);
    assert_near("LLC misses", extra["llc.miss"], misses, TOLERANCE);
}

/// A vector of 2 MiB is gone again by the next row.
#[test]
fn a_vector_that_does_not_fit_is_missed_once_a_row() {
    if !needs(&[]) {
        return;
    }
    let (rows, columns, passes) = (4, 262_144, 2);
    let extra = beyond(
        "randmatmult --rows 4 --columns 262144 --passes 2",
        "randmatmult --rows 4 --columns 262144 --passes 0",
    );
    let misses = passes * 2 * rows * columns * 8 / LINE;
    assert_near("LLC misses", extra["llc.miss"], misses, TOLERANCE);
}

/// A whole program without a library. Fifty times, a child makes a hundred stores in
/// blocks that it runs once, while its parent makes 200 000 loads.
const FORKS: &str = "
.globl _start
_start: mov $50, %r12d
fork:   mov $57, %eax
        syscall
        test %eax, %eax
        jnz parent
        .rept 100
        mov %rax, -8(%rsp)
        jmp 1f
1:
        .endr
        xor %edi, %edi
        mov $60, %eax
        syscall
parent: mov $200000, %ecx
busy:   add -8(%rsp), %rax
        dec %ecx
        jnz busy
        dec %r12d
        jnz fork
        mov $50, %r12d
wait:   mov $61, %eax
        mov $-1, %rdi
        xor %esi, %esi
        xor %edx, %edx
        xor %r10d, %r10d
        syscall
        dec %r12d
        jnz wait
        xor %edi, %edi
        mov $60, %eax
        syscall
";

/// From the first to the last: nothing is subtracted here. Children this short are
/// over before the recorder first looks at them.
#[test]
fn every_instruction_of_a_program_and_its_children_is_counted() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, program) = (folder.path().join("forks.s"), folder.path().join("forks"));
    std::fs::write(&source, FORKS).expect("the source can be written");
    let mut cc = std::process::Command::new("cc");
    cc.args(["-nostdlib", "-static", "-o"])
        .arg(&program)
        .arg(&source);
    assert!(cc.status().expect("cc runs").success());
    let (children, stores, loads) = (50, 100, 200_000);
    let child = 2 + 2 * stores + 3;
    let parent = 4 + 1 + 3 * loads + 2 + 8;
    for _ in 0..8 {
        let totals =
            Recorded::new(&[], &[program.to_str().expect("temporary paths are text")]).totals();
        assert_eq!(totals["loads"], children * loads);
        assert_eq!(totals["stores"], children * stores);
        assert_eq!(
            totals["instructions"],
            1 + children * (child + parent) + 1 + 3
        );
    }
}
