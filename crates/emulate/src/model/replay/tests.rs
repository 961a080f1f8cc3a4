use super::*;
use crate::engine::catalogue::tests::{access, code};
use AccessKind::{Load, Modify, Store};
use memgauge_machine::{Config, Counts, Machine, PmuConfig, SampleSpec};
use memgauge_trace::catalogue as events;
use proptest::prelude::*;

struct Ignore;

impl OverflowSink for Ignore {
    fn take(&mut self, core: &mut Core, _ip: VirtAddr) {
        core.take_overflows(|_| {});
        core.take_ticks(|_| {});
    }
}

const LOAD_AND_STORE: u64 = 4;
const MODIFY: u64 = 5;
const REP_MOVSB: u64 = 6;
const VARYING: u64 = 7;
const NOTHING: u64 = 8;
const TWO_RUNS: u64 = 9;
/// Number of a block that has no ID.
const FAR: u64 = 0xff10;
const THERE_AND_BACK: u64 = 10;
const TWO_LINES: u64 = 11;
const REP_SCASB: u64 = 12;

fn program() -> ReplayedProgram {
    let mut program = ReplayedProgram::default();
    let rep = wire::CODE_BEGINS_REP | wire::CODE_ENDS_REP;
    let blocks = [
        (
            LOAD_AND_STORE,
            5,
            0,
            vec![access(0, 0, 8, Load), access(0, 8, 8, Store)],
        ),
        (MODIFY, 2, 0, vec![access(0, 0, 4, Modify)]),
        (
            REP_MOVSB,
            1,
            rep,
            vec![access(0, 0, 1, Load), access(1, 0, 1, Store)],
        ),
        (REP_SCASB, 1, rep, vec![access(0, 0, 1, Load)]),
        (VARYING, 3, 4, vec![access(wire::RUN_VARYING, 16, 0, Load)]),
        (NOTHING, 7, 0, vec![]),
        (
            TWO_RUNS,
            4,
            0,
            vec![access(0, 0, 8, Load), access(1, 0, 8, Store)],
        ),
        (FAR, 4, 0, vec![access(0, 0, 8, Store)]),
        (
            THERE_AND_BACK,
            3,
            0,
            vec![
                access(0, 0, 8, Load),
                access(0, 8, 8, Load),
                access(0, 0, 8, Load),
            ],
        ),
        (
            TWO_LINES,
            5,
            0,
            [0, 8, 16, 24].map(|at| access(0, at, 8, Load)).to_vec(),
        ),
    ];
    for (number, insns, flags, accesses) in blocks {
        let bytes = code(number as u32, 0x1000 * number, insns, flags, &accesses);
        program.catalogue.read(&bytes).unwrap();
    }
    program
}

fn block(number: u64, addr: u64) -> u64 {
    number << wire::ID_SHIFT | addr
}

fn marked(number: u64) -> u64 {
    wire::MARK_BLOCK | number
}

fn further(addr: u64) -> u64 {
    block(wire::FURTHER_STORES, addr)
}

fn other_line(addr: u64) -> u64 {
    block(wire::OTHER_LINE_LOADS, addr)
}

fn piece(size: u64) -> u64 {
    wire::MARK_PIECE | wire::PIECE_LOAD | size << wire::PIECE_SIZE_SHIFT
}

struct Model {
    machine: Machine,
    id: memgauge_machine::CoreId,
}

impl Model {
    fn new() -> Model {
        let config = Config::preset("skylake-sp").unwrap();
        let mut machine = Machine::new(config, PmuConfig::default()).unwrap();
        let id = machine.add_core(0);
        Model { machine, id }
    }

    fn access(&mut self, addr: u64, size: u8, kind: AccessKind) {
        let (core, shared) = self.machine.core_mut(self.id);
        core.access(shared, addr, u32::from(size), kind);
        let (loads, stores) = (kind != Store, kind != Load);
        core.retire(0, loads.into(), stores.into(), (loads && stores).into());
    }

    fn counts(&mut self) -> Counts {
        self.machine.core_mut(self.id).0.counts()
    }
}

struct Ran {
    counts: Counts,
    cursor: Cursor,
    program: ReplayedProgram,
    /// Index of the word at which the replay stopped.
    at: usize,
}

/// Replays the words up to each of `ends` in turn.
fn run_in_slices(words: &[u64], ends: &[usize], whole: bool) -> Ran {
    let mut model = Model::new();
    let (core, shared) = model.machine.core_mut(model.id);
    let (mut program, mut cursor) = (program(), Cursor::default());
    let words: Vec<AtomicU64> = words.iter().map(|&w| AtomicU64::new(w)).collect();
    let mut at = 0;
    for &end in ends {
        let last = end == words.len();
        at = Replay::new(core, shared, &mut program, &mut cursor, &mut Ignore).run(
            &words[..end],
            at,
            whole && last,
        );
    }
    Ran {
        counts: core.counts(),
        cursor,
        program,
        at,
    }
}

fn check(words: &[u64], expected: &[(memgauge_trace::EventId, u64)]) -> Ran {
    let ran = run_in_slices(words, &[words.len()], true);
    assert_eq!(ran.at, words.len());
    for &(event, value) in expected {
        assert_eq!(ran.counts.get(event), value, "{:?}", events::name(event));
    }
    ran
}

#[test]
fn a_word_stands_for_its_block_and_a_run_of_accesses() {
    let far = wire::SEVERAL;
    let mut ran = check(
        &[
            block(LOAD_AND_STORE, 0x10_0000),
            far | block(LOAD_AND_STORE, 0x10_0038),
            block(MODIFY, 0x9000),
            block(NOTHING, wire::NO_ACCESS),
        ],
        &[
            (events::INSTRUCTIONS, 5 + 5 + 2 + 7),
            (events::LOADS, 3),
            (events::STORES, 3),
            (events::MODIFIES, 1),
            (events::SPLITS, 0),
            (events::L1D_MISS, 3), // 0x100000, 0x100040, 0x9000
            (events::DTLB_WALK, 2),
        ],
    );
    assert_eq!(
        ran.program.catalogue.entries.take(LOAD_AND_STORE as usize),
        2
    );
    assert_eq!((ran.program.sites[0].l1d, ran.program.sites[1].l1d), (1, 1));
    assert_eq!(ran.cursor.stray, 0);
}

#[test]
fn a_further_run_belongs_to_the_block_before_it() {
    let words = [block(TWO_RUNS, 0x10_0000), further(0x20_0000)];
    let ran = check(
        &words,
        &[(events::INSTRUCTIONS, 4), (events::L1D_STORE_MISS, 1)],
    );
    let store = ran
        .program
        .catalogue
        .block(TWO_RUNS as u32)
        .unwrap()
        .accesses
        .end
        - 1;
    assert_eq!(ran.program.sites[store as usize].l1d, 1);
}

#[test]
fn a_block_without_an_id_comes_as_a_mark() {
    let words = [
        marked(FAR),
        further(0x10_0000),
        marked(FAR),
        further(0x10_0000),
    ];
    let mut ran = check(
        &words,
        &[
            (events::INSTRUCTIONS, 8),
            (events::STORES, 2),
            (events::L1D_MISS, 1),
        ],
    );
    let block = ran.program.catalogue.block_mut(FAR as u32).unwrap();
    assert_eq!((block.execs, block.further_runs(FAR as usize)), (2, 1));
}

#[test]
fn a_split_that_hits_is_counted_once() {
    let split = wire::SEVERAL | block(MODIFY, 0x10_003e);
    let warm = [block(MODIFY, 0x10_0000), block(MODIFY, 0x10_0040)];
    check(
        &[warm[0], warm[1], split, split],
        &[
            (events::SPLITS, 2),
            (events::L1D_MISS, 2),
            (events::L1D_HIT, 4),
        ],
    );
}

#[test]
fn a_run_that_returns_to_its_first_line_looks_up_the_other_one_too() {
    let run = wire::SEVERAL | block(THERE_AND_BACK, 0x10_0038);
    let others = (1..9).map(|page| block(MODIFY, 0x10_0040 + (page << 12)));
    let words: Vec<u64> = [run].into_iter().chain(others).chain([run]).collect();
    check(
        &words,
        &[
            (events::LOADS, 3 + 8 + 3),
            (events::L1D_MISS, 2 + 8 + 1),
            (events::SPLITS, 0),
        ],
    );
}

#[test]
fn a_run_s_other_line_is_charged_to_its_first_access_there() {
    let words = [
        block(TWO_LINES, 0x10_0030),
        other_line(0x10_0048),
        block(TWO_RUNS, 0x10_0000),
        further(0x20_0000),
    ];
    let ran = check(
        &words,
        &[
            (events::LOADS, 4 + 1),
            (events::L1D_MISS, 3),
            (events::SPLITS, 0),
        ],
    );
    let first = ran
        .program
        .catalogue
        .block(TWO_LINES as u32)
        .unwrap()
        .accesses
        .start;
    let misses: Vec<u32> = ran.program.sites[first as usize..][..4]
        .iter()
        .map(|site| site.l1d)
        .collect();
    assert_eq!(misses, [1, 0, 1, 0]);
    let stray = run_in_slices(&[other_line(0x10_0048)], &[1], true);
    assert_eq!(stray.cursor.stray, 1);
}

#[test]
fn a_repeated_string_instruction_is_one_instruction() {
    let rep = [marked(REP_MOVSB), block(0, 0x10_0000), further(0x20_0000)];
    let words = [
        &rep[..],
        &rep[..],
        &[marked(REP_MOVSB)],
        &[block(MODIFY, 0x9000)],
        &rep[..],
        &[marked(REP_MOVSB)],
    ]
    .concat();
    check(
        &words,
        &[
            (events::INSTRUCTIONS, 1 + 2 + 1),
            (events::LOADS, 4),
            (events::STORES, 4),
        ],
    );
}

/// A copy takes a cycle for 32 bytes, and a scan two cycles for each element.
#[test]
fn elements_of_a_string_instruction_take_time() {
    let line = |n: u64| {
        let (from, to) = (0x10_0000 + n * LINE, 0x20_0000 + n * LINE);
        [
            marked(REP_MOVSB),
            block(0, from),
            further(to),
            wire::MARK_REPEAT | (LINE - 1),
        ]
    };
    let copy: Vec<u64> = (0..100).flat_map(line).collect();
    let scan = [
        marked(REP_SCASB),
        block(0, 0x10_0000),
        wire::MARK_REPEAT | (LINE - 1),
    ];
    let after = [block(MODIFY, 0x9000)];
    let run = |words: &[&[u64]]| {
        let words = words.concat();
        run_in_slices(&words, &[words.len()], true)
    };
    let string = |ran: &Ran, number: u64| {
        let block = ran.program.catalogue.block(number as u32).unwrap();
        block.sums.string_millicycles
    };
    // The second copy hits in the first level.
    let once = run(&[&copy, &after]);
    let twice = run(&[&copy, &copy, &after]);
    assert_eq!(string(&twice, REP_MOVSB), 2 * 100 * LINE * 31);
    let cycles = twice.counts.get(events::CYCLES) - once.counts.get(events::CYCLES);
    assert!((198..=199).contains(&cycles), "{cycles}");
    let scanned = run(&[&copy, &scan, &after]);
    assert_eq!(string(&scanned, REP_SCASB), LINE * 2000);
}

/// A copy of 200 bytes. Each iteration has a word, or the iterations in the lines of the previous
/// one are only counted.
#[test]
fn counted_iterations_equal_separate_ones() {
    let iteration = |n| {
        let (from, to) = (0x10_0010 + n, 0x20_0030 + n);
        [marked(REP_MOVSB), block(0, from), further(to)]
    };
    let separate: Vec<u64> = (0..200).flat_map(iteration).collect();
    let mut counted: Vec<u64> = Vec::new();
    for n in 0..200 {
        let is_new = |address: u64| (address + n).is_multiple_of(LINE);
        if n == 0 || is_new(0x10_0010) || is_new(0x20_0030) {
            counted.extend(iteration(n));
        } else if wire::mark(counted[counted.len() - 1]) == wire::MARK_REPEAT {
            *counted.last_mut().expect("it is there") += 1;
        } else {
            counted.push(wire::MARK_REPEAT | 1);
        }
    }
    let after = [block(MODIFY, 0x9000)];
    let run = |words: Vec<u64>| {
        let words = [&words[..], &after[..]].concat();
        let ran = run_in_slices(&words, &[words.len()], true);
        let block = ran.program.catalogue.block(REP_MOVSB as u32).unwrap();
        let sites: Vec<u32> = ran.program.sites.iter().map(|site| site.l1d).collect();
        let of_block = (block.execs, block.sums);
        (ran.counts, of_block, sites, ran.cursor.stray)
    };
    assert!(counted.len() < separate.len() / 10);
    assert_eq!(run(counted), run(separate));
}

#[test]
fn pieces_that_continue_one_another_are_one_access() {
    let words = [
        marked(VARYING),
        piece(8),
        0x5000,
        piece(8),
        0x5008,
        piece(8),
        0x6000,
    ];
    check(
        &words,
        &[
            (events::INSTRUCTIONS, 3),
            (events::LOADS, 2),
            (events::DTLB_WALK, 2),
        ],
    );
}

#[test]
fn words_of_no_block_are_counted_as_stray() {
    let ran = check(
        &[
            further(0x1234),
            block(MODIFY, 0x9000),
            marked(77),
            block(77, 0x9000),
        ],
        &[(events::INSTRUCTIONS, 2)],
    );
    assert_eq!(ran.cursor.stray, 2);
    let mut entries = ran.program.catalogue.entries;
    assert_eq!(entries.take(77), 1, "seen when the block turns out unknown");
}

#[test]
fn a_special_block_waits_for_the_next_one() {
    let words = [
        block(NOTHING, wire::NO_ACCESS),
        marked(REP_MOVSB),
        block(0, 0x1000),
    ];
    let ran = run_in_slices(&words, &[words.len()], false);
    assert_eq!((ran.at, ran.counts.get(events::INSTRUCTIONS)), (1, 7));
}

#[test]
fn samples_of_instructions_lie_in_the_block_that_executes_them() {
    struct Ips(Vec<VirtAddr>);
    impl OverflowSink for Ips {
        fn take(&mut self, core: &mut Core, ip: VirtAddr) {
            core.take_overflows(|_| self.0.push(ip));
        }
    }
    let samples = vec![SampleSpec {
        event: events::INSTRUCTIONS,
        period: 1,
    }];
    let pmu = PmuConfig {
        samples,
        ..PmuConfig::default()
    };
    let mut machine = Machine::new(Config::preset("skylake-sp").unwrap(), pmu).unwrap();
    let id = machine.add_core(0);
    let rep = [marked(REP_MOVSB), block(0, 0x10_0000), further(0x20_0000)];
    let cases = [
        (REP_MOVSB, &rep[..]),
        (FAR, &[marked(FAR), further(0x10_0000)]),
        (FAR, &[marked(FAR)]),
        (NOTHING, &[block(NOTHING, wire::NO_ACCESS)]),
    ];
    for (number, words) in cases {
        let words: Vec<AtomicU64> = words.iter().map(|&w| AtomicU64::new(w)).collect();
        let (core, shared) = machine.core_mut(id);
        let (mut program, mut cursor, mut ips) = (program(), Cursor::default(), Ips(Vec::new()));
        Replay::new(core, shared, &mut program, &mut cursor, &mut ips).run(&words, 0, true);
        assert!(!ips.0.is_empty());
        let expected = VirtAddr(0x1000 * number);
        assert!(ips.0.iter().all(|&ip| ip == expected), "{:?}", ips.0);
    }
}

/// Blocks as the engine sends them, with their instructions.
fn any_block() -> impl Strategy<Value = (Vec<u64>, u64, u64)> {
    let addr = 0u64..1 << 16;
    (0usize..5, addr).prop_map(|(which, addr)| {
        let addr = addr * 8;
        match which {
            0 => (vec![block(LOAD_AND_STORE, addr)], LOAD_AND_STORE, 5),
            1 => (vec![block(NOTHING, wire::NO_ACCESS)], NOTHING, 7),
            2 => (
                vec![block(TWO_RUNS, addr), further(addr + 640)],
                TWO_RUNS,
                4,
            ),
            3 => (vec![marked(FAR), further(addr)], FAR, 4),
            _ => (
                vec![wire::SEVERAL | block(TWO_LINES, addr + 48)],
                TWO_LINES,
                5,
            ),
        }
    })
}

proptest! {
    /// Compares with the sum of instructions, block by block. Most blocks hit, and only few are
    /// replayed one by one.
    #[test]
    fn overflows_of_instructions_are_of_the_block_that_reaches_the_period(
        blocks in prop::collection::vec(any_block(), 1..600), period in 8u64..400
    ) {
        struct Ips(Vec<u64>);
        impl OverflowSink for Ips {
            fn take(&mut self, core: &mut Core, ip: VirtAddr) {
                core.take_overflows(|_| self.0.push(ip.0 / 0x1000));
            }
        }
        let samples = vec![SampleSpec { event: events::INSTRUCTIONS, period }];
        let pmu = PmuConfig { samples, ..PmuConfig::default() };
        let mut machine = Machine::new(Config::preset("skylake-sp").unwrap(), pmu).unwrap();
        let id = machine.add_core(0);
        let (core, shared) = machine.core_mut(id);
        let (mut program, mut cursor, mut ips) = (program(), Cursor::default(), Ips(Vec::new()));
        let words: Vec<AtomicU64> =
            blocks.iter().flat_map(|b| &b.0).map(|&word| AtomicU64::new(word)).collect();
        Replay::new(core, shared, &mut program, &mut cursor, &mut ips).run(&words, 0, true);
        let (mut sum, mut expected) = (0, Vec::new());
        for &(_, number, instructions) in &blocks {
            let before = sum / period;
            sum += instructions;
            expected.extend((before..sum / period).map(|_| number));
        }
        prop_assert_eq!(ips.0, expected);
    }
}

fn any_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0u64..12, 0u64..1 << 30).prop_map(|(id, addr)| block(id, addr)),
        (0u64..12, 0u64..1 << 30).prop_map(|(id, addr)| wire::SEVERAL | block(id, addr)),
        (0u64..12).prop_map(marked),
        // The loop stops in front of marks that are not the machine's: its caller takes them.
        any::<u64>().prop_filter("a mark of the caller's", |&word| !is_for_caller(word)),
        (0u64..64).prop_map(piece),
    ]
}

/// Accesses of a run, by their offset within 64 bytes.
type AnyRun = Vec<(i64, u8, AccessKind)>;

fn any_run() -> impl Strategy<Value = AnyRun> {
    let kind = prop::sample::select(vec![Load, Store, Modify]);
    let size = prop::sample::select(vec![1u8, 4, 8, 8, 8, 16]);
    let mixed = (0..64i64, size.clone(), kind.clone());
    let mixed = prop::collection::vec(mixed, 1..5);
    let even = (prop::collection::vec(0..64i64, 1..5), size, kind);
    let even = even.prop_map(|(all, size, kind)| {
        let multiple = |at: i64| at / i64::from(size) * i64::from(size);
        all.into_iter()
            .map(|at| (multiple(at), size, kind))
            .collect()
    });
    let within = |(at, size, kind): (i64, u8, _)| (at.min(64 - i64::from(size)), size, kind);
    prop_oneof![mixed, even].prop_map(move |run: AnyRun| run.into_iter().map(within).collect())
}

/// Words of the run that begins at `first`. The first word has this ID. A run in two lines may have
/// a second word.
fn words_of(run: &AnyRun, id: u64, first: u64, may_have_second: bool) -> Vec<u64> {
    let bytes = |&(at, size, _): &(i64, u8, _)| {
        let addr = first.wrapping_add_signed(at - run[0].0);
        (addr, addr + u64::from(size) - 1)
    };
    let other = |addr: u64| addr / LINE != first / LINE;
    let mut all = run.iter().map(bytes);
    if !all.clone().any(|(addr, last)| other(addr) || other(last)) {
        return vec![block(id, first)];
    }
    let whole = all.clone().all(|(addr, last)| addr / LINE == last / LINE);
    let stores = |beyond: bool| {
        let of_line = run.iter().filter(|a| other(bytes(a).0) == beyond);
        of_line.clone().any(|a| a.2 != Load)
    };
    let last = all.next_back().map_or(first, |(addr, _)| addr);
    let says_so = id < wire::FIRST_BLOCK || stores(false) || !stores(true);
    if !(may_have_second && whole && other(last) && says_so) {
        return vec![wire::SEVERAL | block(id, first)];
    }
    let id = match (id < wire::FIRST_BLOCK, stores(false)) {
        (true, true) => wire::FURTHER_STORES,
        (true, false) => wire::FURTHER_LOADS,
        (false, _) => id,
    };
    let id_of_last = if stores(true) {
        wire::OTHER_LINE_STORES
    } else {
        wire::OTHER_LINE_LOADS
    };
    vec![block(id, first), block(id_of_last, last)]
}

proptest! {
    #[test]
    fn runs_leave_what_their_accesses_one_by_one_leave(
        blocks in prop::collection::vec(prop::collection::vec(any_run(), 1..4), 1..4),
        steps in prop::collection::vec((0usize..4, [0u64..12, 0..12, 0..12], 0u64..256), 1..400),
        may_have_second in any::<bool>(),
    ) {
        let (mut ran, mut one_by_one) = (Model::new(), Model::new());
        let (mut program, mut cursor) = (ReplayedProgram::default(), Cursor::default());
        for (number, runs) in (wire::FIRST_BLOCK..).zip(&blocks) {
            let accesses = (0u16..).zip(runs).flat_map(|(n, run)| {
                run.iter().map(move |&(at, size, kind)| access(n, at - run[0].0, size, kind))
            });
            let accesses: Vec<_> = accesses.collect();
            let bytes = code(number as u32, 0x1000 * number, 1, 0, &accesses);
            program.catalogue.read(&bytes).unwrap();
        }
        let mut words = Vec::new();
        for (which, pages, within) in &steps {
            let which = which % blocks.len();
            for (n, (run, page)) in blocks[which].iter().zip(pages).enumerate() {
                let id = match n {
                    0 => wire::FIRST_BLOCK + which as u64,
                    _ if run.iter().any(|a| a.2 != Load) => wire::FURTHER_STORES,
                    _ => wire::FURTHER_LOADS,
                };
                // Pages and lines of one set each, in the first level and beyond.
                let first = 0x1000_0000 + (page << 16) + within;
                let of_run = words_of(run, id, first, may_have_second);
                words.extend(of_run.into_iter().map(AtomicU64::new));
                for &(at, size, kind) in run {
                    let addr = first.wrapping_add_signed(at - run[0].0);
                    one_by_one.access(addr, size, kind);
                }
            }
        }
        let (core, shared) = ran.machine.core_mut(ran.id);
        let mut ignore = Ignore;
        let mut replay = Replay::new(core, shared, &mut program, &mut cursor, &mut ignore);
        prop_assert_eq!(replay.run(&words, 0, true), words.len());
        let (ran, expected) = (ran.counts(), one_by_one.counts());
        for event in [
            events::LOADS, events::STORES, events::MODIFIES, events::SPLITS, events::L1D_HIT,
            events::L1D_MISS, events::L1D_LOAD_MISS, events::L1D_STORE_MISS,
            events::L1D_WRITEBACK, events::L2_HIT, events::L2_MISS, events::LLC_MISS,
            events::DTLB_MISS, events::DTLB_WALK,
        ] {
            prop_assert_eq!(ran.get(event), expected.get(event), "{:?}", events::name(event));
        }
        prop_assert_eq!(cursor.stray, 0);
    }

    #[test]
    fn no_words_make_the_loop_panic_or_stand_still(
        words in prop::collection::vec(any_word(), 0..100),
    ) {
        prop_assert_eq!(run_in_slices(&words, &[words.len()], true).at, words.len());
    }

    #[test]
    fn slicing_the_words_changes_nothing(
        words in prop::collection::vec(any_word(), 1..100),
        cut in 0usize..100,
    ) {
        let once = run_in_slices(&words, &[words.len()], true);
        let twice = run_in_slices(&words, &[cut.min(words.len()), words.len()], true);
        prop_assert_eq!(once.counts, twice.counts);
        prop_assert_eq!(once.cursor.stray, twice.cursor.stray);
    }
}
