use memgauge_machine::{Config, Core, Machine, PmuConfig};
use memgauge_trace::{VirtAddr, catalogue as events};

use super::*;
use crate::engine::catalogue::tests::{access, code_of};
use crate::model::replay::{Cursor, OverflowSink, Replay, ReplayedProgram};
use AccessKind::{Load, Modify, Store};

/// Number of loads of a test.
const LOADS: u64 = 400;
const STACK: u64 = 0x7ffd_0000_0008;

struct NoSamples;

impl OverflowSink for NoSamples {
    fn take(&mut self, core: &mut Core, _: VirtAddr) {
        core.take_overflows(|_| ());
    }
}

/// A block of code with its address and accesses.
struct Code {
    vaddr: u64,
    bytes: &'static [u8],
    accesses: Vec<BlockAccess>,
}

/// An access of the instruction with a number, which is a run of its own.
fn of_insn(insn: u16, run: u16, kind: AccessKind) -> BlockAccess {
    BlockAccess {
        insn,
        ..access(run, 0, 8, kind)
    }
}

fn code(bytes: &'static [u8], accesses: &[BlockAccess]) -> Code {
    Code {
        vaddr: 0x10000,
        bytes,
        accesses: accesses.to_vec(),
    }
}

/// Runs blocks from number 4 on. Returns the time that the core waited for lines, in latencies of
/// memory.
fn latencies(blocks: &[Code], words: &[u64]) -> f64 {
    let mut config = Config::preset("zen4").unwrap();
    config.huge_pages = true;
    config.timing.walk_cycles = 0;
    config.timing.instructions_in_flight = 320;
    config.timing.stlb_cycles = 0;
    let timing = config.timing;
    let memory_cycles = f64::from(timing.dram_latency_ns) * config.frequency_hz as f64 / 1e9;
    let exposed = f64::from(timing.exposed_percent) / 100.0;
    let latency = (memory_cycles - f64::from(config.l1d.latency_cycles)) * exposed;
    let mut machine = Machine::new(config, PmuConfig::default()).unwrap();
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    let (mut program, mut cursor) = (ReplayedProgram::default(), Cursor::default());
    for (number, block) in (4..).zip(blocks) {
        let instructions = decode(block.bytes, block.vaddr).len() as u16;
        let record = code_of(
            number,
            block.vaddr,
            instructions,
            block.bytes,
            &block.accesses,
        );
        program.catalogue.read(&record).unwrap();
    }
    let words: Vec<AtomicU64> = words.iter().map(|&word| AtomicU64::new(word)).collect();
    Replay::new(core, shared, &mut program, &mut cursor, &mut NoSamples).run(&words, 0, true);
    let counts = core.counts();
    (counts.get(events::STALL_DRAM) + counts.get(events::STALL_QUEUE)) as f64 / latency
}

fn block(number: u64, addr: u64) -> u64 {
    number << wire::ID_SHIFT | addr
}

fn further_load(addr: u64) -> u64 {
    block(wire::FURTHER_LOADS, addr)
}

fn further_store(addr: u64) -> u64 {
    block(wire::FURTHER_STORES, addr)
}

/// Address in a line that no cache has, in no order with the others.
fn address(number: u64) -> u64 {
    0x5555_0000_0000 + 64 * ((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44)
}

fn each_load(word: impl Fn(u64) -> Vec<u64>) -> Vec<u64> {
    (0..LOADS).flat_map(word).collect()
}

fn assert_dependent(found: f64) {
    let all = LOADS as f64;
    assert!(
        (0.97 * all..1.01 * all).contains(&found),
        "{found} of {all}"
    );
}

/// At most 24 misses of zen4 are in flight.
fn assert_independent(found: f64) {
    assert!(found < LOADS as f64 / 15.0, "{found} of {LOADS}");
}

#[test]
fn a_pointer_chase_waits_for_each_load() {
    // mov rax, [rax]
    let chase = code(&[0x48, 0x8b, 0x00], &[of_insn(0, 0, Load)]);
    let words = each_load(|n| vec![block(4, address(n))]);
    assert_dependent(latencies(&[chase], &words));
}

#[test]
fn loads_at_counted_indices_overlap() {
    // mov rax, [rbx + 8 * rcx]; inc rcx
    let gather = code(
        &[0x48, 0x8b, 0x04, 0xcb, 0x48, 0xff, 0xc1],
        &[of_insn(0, 0, Load)],
    );
    let words = each_load(|n| vec![block(4, address(n))]);
    assert_independent(latencies(&[gather], &words));
}

#[test]
fn two_chases_overlap_each_other() {
    // mov rax, [rax]; mov rbx, [rbx]
    let chases = code(
        &[0x48, 0x8b, 0x00, 0x48, 0x8b, 0x1b],
        &[of_insn(0, 0, Load), of_insn(1, 1, Load)],
    );
    let words = each_load(|n| vec![block(4, address(2 * n)), further_load(address(2 * n + 1))]);
    assert_dependent(latencies(&[chases], &words));
}

#[test]
fn a_pointer_may_pass_through_the_stack() {
    // mov rax, [rsp - 8]; mov rax, [rax]; mov [rsp - 8], rax
    let chase = code(
        &[
            0x48, 0x8b, 0x44, 0x24, 0xf8, 0x48, 0x8b, 0x00, 0x48, 0x89, 0x44, 0x24, 0xf8,
        ],
        &[
            of_insn(0, 0, Load),
            of_insn(1, 1, Load),
            of_insn(2, 2, Store),
        ],
    );
    let words = each_load(|n| {
        vec![
            block(4, STACK),
            further_load(address(n)),
            further_store(STACK),
        ]
    });
    assert_dependent(latencies(&[chase], &words) - 1.0);
}

#[test]
fn another_value_may_pass_through_the_stack() {
    // mov rcx, [rsp - 8]; mov rax, [rbx + 8 * rcx]; mov [rsp - 8], rdx
    let gather = code(
        &[
            0x48, 0x8b, 0x4c, 0x24, 0xf8, 0x48, 0x8b, 0x04, 0xcb, 0x48, 0x89, 0x54, 0x24, 0xf8,
        ],
        &[
            of_insn(0, 0, Load),
            of_insn(1, 1, Load),
            of_insn(2, 2, Store),
        ],
    );
    let words = each_load(|n| {
        vec![
            block(4, STACK),
            further_load(address(n)),
            further_store(STACK),
        ]
    });
    assert_independent(latencies(&[gather], &words));
}

#[test]
fn another_part_of_the_same_node_comes_with_it() {
    // mov rdx, [rax + 8]; mov rax, [rax]: the second load hits the line that the first one waits for.
    let accesses = [
        BlockAccess {
            delta: 0,
            ..of_insn(0, 0, Load)
        },
        BlockAccess {
            delta: -8,
            ..of_insn(1, 0, Load)
        },
    ];
    let chase = code(&[0x48, 0x8b, 0x50, 0x08, 0x48, 0x8b, 0x00], &accesses);
    let words = each_load(|n| vec![block(4, address(n) + 8)]);
    assert_dependent(latencies(&[chase], &words));
}

#[test]
fn locked_instructions_do_not_overlap() {
    // lock add [rbx + 8 * rcx], rdx; inc rcx
    let counters = code(
        &[0xf0, 0x48, 0x01, 0x14, 0xcb, 0x48, 0xff, 0xc1],
        &[of_insn(0, 0, Modify)],
    );
    let words = each_load(|n| vec![block(4, address(n))]);
    assert_dependent(latencies(&[counters], &words));
}

#[test]
fn code_without_instructions_runs_in_order() {
    let unknown = code(&[], &[of_insn(0, 0, Load)]);
    let words = each_load(|n| vec![block(4, address(n))]);
    assert_dependent(latencies(&[unknown], &words));
}

/// A loop over a load and a branch on what it loaded, which goes both ways equally often, with these
/// instructions on either side.
fn search(not_taken: &'static [u8], taken: &'static [u8]) -> f64 {
    let blocks = [
        // mov rcx, [rdi + 8 * rax]; cmp rcx, rdx; jb
        code(
            &[0x48, 0x8b, 0x0c, 0xc7, 0x48, 0x39, 0xd1, 0x72, 0x05],
            &[of_insn(0, 0, Load)],
        ),
        Code {
            vaddr: 0x10009,
            ..code(not_taken, &[])
        },
        Code {
            vaddr: 0x10020,
            ..code(taken, &[])
        },
    ];
    let words = each_load(|n| {
        let side = 5 + (address(n) >> 6 & 1);
        vec![block(4, address(n)), block(side, wire::NO_ACCESS)]
    });
    latencies(&blocks, &words)
}

#[test]
fn a_search_waits_for_its_mispredicted_branches() {
    // add rax, rsi; sub rax, rsi
    let found = search(&[0x48, 0x01, 0xf0], &[0x48, 0x29, 0xf0]);
    let share = found / LOADS as f64;
    assert!((0.35..0.97).contains(&share), "{share}");
}

#[test]
fn a_branch_that_leads_to_the_same_load_either_way_holds_nothing_back() {
    // add rax, 1
    let next = &[0x48, 0x83, 0xc0, 0x01];
    assert_independent(search(next, next));
}
