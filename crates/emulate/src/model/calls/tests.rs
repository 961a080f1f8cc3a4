use proptest::prelude::*;

use super::*;
use crate::engine::catalogue::tests::{access, code};
use memgauge_trace::AccessKind::{Load, Store};

/// Last instruction of a block of 16 bytes.
#[derive(Clone, Copy, Debug)]
enum Step {
    Plain,
    /// With its slot.
    Call(u64),
    Return(u64),
    /// The stack pointer gets another value, then it ends in this.
    SwitchAndCall(u64),
    SwitchAndReturn(u64),
    Switch,
    /// A call whose store faults.
    Fault,
}
use Step::*;

#[derive(Default)]
struct Process {
    catalogue: Catalogue,
    calls: ProcessCalls,
    blocks: u32,
}

impl Process {
    /// Words of the execution of a block.
    fn words(&mut self, vaddr: u64, step: Step) -> Vec<AtomicU64> {
        let number = wire::FIRST_BLOCK as u32 + self.blocks;
        self.blocks += 1;
        let (ends, kind, slot) = match step {
            Plain => (0, Load, None),
            Call(slot) => (wire::ENDS_CALL, Store, Some(slot)),
            Return(slot) => (wire::ENDS_RETURN, Load, Some(slot)),
            SwitchAndCall(slot) => (wire::ENDS_CALL | wire::SWITCHES_STACK, Store, Some(slot)),
            SwitchAndReturn(slot) => (wire::ENDS_RETURN | wire::SWITCHES_STACK, Load, Some(slot)),
            Switch => (wire::SWITCHES_STACK, Load, None),
            Fault => (wire::ENDS_CALL, Store, None),
        };
        // Another access comes first, so the slot is at a constant distance.
        let accesses = [
            access(0, 0, 8, Load),
            access(1, 0, 8, Load),
            access(1, -8, 8, kind),
        ];
        let mut record = code(number, vaddr, 3, 0, &accesses);
        record[28..30].copy_from_slice(&16_u16.to_le_bytes());
        record[30..32].copy_from_slice(&ends.to_le_bytes());
        self.catalogue.read(&record).expect("as written");
        let first = match u64::from(number) {
            n if n < wire::MARKS => [Some(n << wire::ID_SHIFT | 0x5000), None],
            n => [Some(wire::MARK_BLOCK | n), Some(0x5000)],
        };
        let further = wire::FURTHER_STORES << wire::ID_SHIFT;
        let last = slot.map(|slot| further | (slot + 8));
        let words = [first[0], first[1], last];
        words.into_iter().flatten().map(AtomicU64::new).collect()
    }

    fn go(&mut self, path: &mut CallPath, steps: &[(u64, Step)]) {
        for &(vaddr, step) in steps {
            let words = self.words(vaddr, step);
            path.at = 0;
            path.follow(&self.catalogue, &mut self.calls, &words, words.len());
        }
    }
}

fn returns(path: &CallPath) -> Vec<u64> {
    path.open.iter().map(|call| call.returns_to).collect()
}

/// The return addresses that are open after some blocks, from an empty stack on.
fn open(steps: &[(u64, Step)]) -> Vec<u64> {
    let (mut process, mut path) = (Process::default(), CallPath::default());
    process.go(&mut path, steps);
    returns(&path)
}

const TOP: u64 = 0x7000_0000;

#[test]
fn calls_are_open_until_they_return() {
    let into_two = [(0x10, Call(TOP)), (0x100, Call(TOP - 0x20)), (0x200, Plain)];
    assert_eq!(open(&into_two), [0x20, 0x110]);
    let back_once = [
        &into_two[..],
        &[(0x210, Return(TOP - 0x20)), (0x110, Plain)],
    ]
    .concat();
    assert_eq!(open(&back_once), [0x20]);
    let back_twice = [&back_once[..], &[(0x120, Return(TOP)), (0x20, Plain)]].concat();
    assert_eq!(open(&back_twice), [0_u64; 0]);
}

#[test]
fn a_call_is_open_only_when_its_target_begins() {
    assert_eq!(open(&[(0x10, Call(TOP))]), [0_u64; 0]);
    assert_eq!(open(&[(0x10, Fault), (0x900, Plain)]), [0_u64; 0]);
}

#[test]
fn a_call_of_what_follows_it_opens_none() {
    assert_eq!(open(&[(0x10, Call(TOP)), (0x20, Plain)]), [0_u64; 0]);
}

#[test]
fn a_function_reached_by_a_jump_returns_for_the_one_that_jumped() {
    let tail = [
        (0x10, Call(TOP)),
        (0x100, Plain),
        (0x200, Return(TOP)),
        (0x20, Plain),
    ];
    assert_eq!(open(&tail), [0_u64; 0]);
}

#[test]
fn calls_that_a_jump_left_are_over_at_the_next_call() {
    // longjmp leaves two functions; the one that it goes to calls again and again.
    let mut steps = vec![(0x10, Call(TOP)), (0x100, Call(TOP - 0x20))];
    for _ in 0..3 {
        steps.extend([
            (0x180, Call(TOP - 0x40)),
            (0x200, Call(TOP - 0x60)),
            (0x300, Switch),
            (0x190, Call(TOP - 0x40)),
            (0x400, Plain),
        ]);
        assert_eq!(open(&steps), [0x20, 0x110, 0x1a0]);
        steps.extend([(0x400, Return(TOP - 0x40)), (0x1a0, Plain)]);
        assert_eq!(open(&steps), [0x20, 0x110]);
    }
}

#[test]
fn a_handlers_return_ends_none_of_what_it_interrupted() {
    let handled = [
        (0x10, Call(TOP)),
        (0x100, Plain),
        (0x900, Call(TOP - 0x408)),
        (0x990, Return(TOP - 0x408)),
        (0x910, Return(TOP - 0x400)),
        (0xa00, Plain),
    ];
    assert_eq!(open(&handled), [0x20]);
}

#[test]
fn a_handler_with_a_stack_of_its_own_leaves_the_other_as_it_is() {
    for other in [TOP + 0x4000, TOP - 0x4000, TOP + (1 << 30), TOP - (1 << 30)] {
        let mut steps = vec![(0x10, Call(TOP)), (0x100, Plain), (0x900, Call(other))];
        steps.push((0x990, Plain));
        assert_eq!(open(&steps).last(), Some(&0x910));
        steps.extend([
            (0x990, Return(other)),
            (0x910, Return(other + 0x20)),
            (0x100, Call(TOP - 0x620)),
            (0x200, Plain),
        ]);
        assert_eq!(open(&steps), [0x20, 0x110], "{other:#x}");
    }
}

/// Two stacks that lie side by side, as those of goroutines do.
const LOW: u64 = 0xc000_1000;
const HIGH: u64 = 0xc000_1800;

/// `first` runs in one stack and hands over; `second` runs in the other one.
fn hand_over(first: u64, second: u64) -> Vec<(u64, Step)> {
    vec![
        (0x10, Call(first)),
        (0x100, Call(first - 0x20)),
        // Hands over to a function that never ran: its stack is another one.
        (0x500, SwitchAndCall(second)),
        (0x600, Call(second - 0x20)),
        (0x700, Plain),
    ]
}

#[test]
fn each_stack_keeps_its_calls() {
    for (first, second) in [(LOW, HIGH), (HIGH, LOW)] {
        let mut steps = hand_over(first, second);
        assert_eq!(open(&steps), [0x510, 0x610], "{first:#x}");
        // Back in the first one, by a return from where it handed over.
        steps.extend([
            (0x700, Call(second - 0x40)),
            (0x500, SwitchAndReturn(first - 0x20)),
            (0x110, Call(first - 0x20)),
            (0x800, Plain),
        ]);
        assert_eq!(open(&steps), [0x20, 0x120], "{first:#x}");
        // And in the second, by a jump; it calls a little below.
        steps.extend([
            (0x500, Switch),
            (0x710, Call(second - 0x58)),
            (0x900, Plain),
        ]);
        assert_eq!(open(&steps), [0x510, 0x610, 0x710, 0x720], "{first:#x}");
    }
}

#[test]
fn memory_that_was_given_back_to_the_stack_switches_none() {
    let given = [
        (0x10, Call(TOP)),
        (0x100, Call(TOP - 0x8000)),
        (0x200, Return(TOP - 0x8000)),
        (0x110, SwitchAndCall(TOP - 0x100)),
        (0x300, Plain),
    ];
    assert_eq!(open(&given), [0x20, 0x120]);
}

#[test]
fn another_thread_takes_up_a_stack() {
    let (mut process, mut one, mut other) = <(Process, CallPath, CallPath)>::default();
    process.go(&mut one, &hand_over(HIGH, LOW));
    process.go(&mut other, &[(0x50, Call(TOP)), (0x800, Plain)]);
    let taken = [(0x500, SwitchAndReturn(HIGH - 0x20)), (0x110, Plain)];
    process.go(&mut other, &taken);
    assert_eq!(returns(&other), [0x20]);
    assert_eq!(returns(&one), [0x510, 0x610]);
    assert_eq!(process.calls.parked.len(), 1, "that of the other thread");
}

#[test]
fn current_calls_of_a_thread_that_is_behind_are_used() {
    let (mut process, mut one, mut other) = <(Process, CallPath, CallPath)>::default();
    // It is going to call its scheduler, which another thread waits for.
    process.go(
        &mut one,
        &[
            (0x10, Call(HIGH)),
            (0x100, Call(HIGH - 0x20)),
            (0x200, Plain),
        ],
    );
    one.suspend(1, &mut process.calls);
    other.resume(2, &mut process.calls, 0);
    process.go(
        &mut other,
        &[(0x500, SwitchAndReturn(HIGH - 0x200)), (0x200, Plain)],
    );
    assert_eq!(returns(&other), [0x20, 0x110]);
    other.suspend(2, &mut process.calls);
    one.resume(1, &mut process.calls, 0);
    process.go(
        &mut one,
        &[
            (0x210, Call(HIGH - 0x200)),
            (0x500, SwitchAndCall(TOP)),
            (0x600, Plain),
        ],
    );
    assert_eq!(returns(&one), [0x510]);
}

#[test]
fn a_new_stack_in_place_of_an_old_one_has_its_own_calls() {
    let (mut process, mut path) = <(Process, CallPath)>::default();
    process.go(&mut path, &hand_over(HIGH, LOW));
    process.go(
        &mut path,
        &[(0x500, SwitchAndReturn(HIGH - 0x20)), (0x110, Plain)],
    );
    // The coroutine is gone; another one begins higher up in the same memory.
    let again = [
        (0x500, SwitchAndCall(LOW + 0x10)),
        (0xb00, Call(LOW - 0x10)),
    ];
    process.go(&mut path, &again);
    assert_eq!(returns(&path), [0x510]);
    process.go(
        &mut path,
        &[(0x500, SwitchAndCall(HIGH - 0x20)), (0xc00, Plain)],
    );
    assert_eq!(process.calls.parked.len(), 1);
}

#[test]
fn a_recursion_beyond_those_kept_comes_back_in_order() {
    let (mut process, mut path) = <(Process, CallPath)>::default();
    process.go(&mut path, &[(0x10, Call(TOP))]);
    let slots: Vec<u64> = (1..MAX_CALL_DEPTH as u64 + 100)
        .map(|n| TOP - 32 * n)
        .collect();
    for &slot in &slots {
        process.go(&mut path, &[(0x100, Call(slot))]);
    }
    for &slot in slots.iter().rev().take(slots.len() - 1) {
        process.go(&mut path, &[(0x180, Return(slot))]);
    }
    process.go(&mut path, &[(0x110, Plain)]);
    assert_eq!(returns(&path), [0x20, 0x110]);
}

#[test]
fn frames_are_asked_for_once() {
    let (mut process, mut path) = <(Process, CallPath)>::default();
    let mut stacks = Stacks::new();
    let mut written = Vec::new();
    let mut ask = |path: &mut CallPath| {
        let write = |frame: Frame| {
            written.push(frame.ip.0);
            Ok::<(), ()>(())
        };
        path.caller(&mut stacks, (Pid(1), 0), write).unwrap()
    };
    assert_eq!(ask(&mut path), None);
    let called = [(0x10, Call(TOP)), (0x100, Call(TOP - 0x20)), (0x200, Plain)];
    process.go(&mut path, &called);
    assert_eq!(ask(&mut path), Some(FrameId(1)));
    let returned = [
        (0x210, Return(TOP - 0x20)),
        (0x110, Call(TOP - 0x20)),
        (0x300, Plain),
    ];
    process.go(&mut path, &returned);
    assert_eq!(ask(&mut path), Some(FrameId(2)));
    assert_eq!(written, [0x1f, 0x10f, 0x11f]);
}

proptest! {
    /// In any order of calls, returns and switches, the slots of open calls fall and parked stacks
    /// stay intact.
    #[test]
    fn slots_of_open_calls_go_down(
        steps in prop::collection::vec((0u64..4, 0u64..64, 0u8..7), 0..80),
    ) {
        let (mut process, mut path) = <(Process, CallPath)>::default();
        for (stack, slot, kind) in steps {
            let slot = TOP + (stack << 9) + 8 * slot;
            let step = [
                Plain, Call(slot), Return(slot), SwitchAndCall(slot), SwitchAndReturn(slot),
                Switch, Fault,
            ][usize::from(kind)];
            process.go(&mut path, &[(0x100 + 16 * slot % 4096, step)]);
            let all = process.calls.parked.values().chain([&path.open]);
            for calls in all {
                prop_assert!(calls.is_sorted_by(|above, below| above.slot > below.slot));
            }
            for (lowest, calls) in &process.calls.parked {
                prop_assert_eq!(calls.last().map(|call| call.slot), Some(*lowest));
            }
        }
    }

    #[test]
    fn no_words_make_it_panic(words in prop::collection::vec(any::<u64>(), 0..60)) {
        let (mut process, mut path) = <(Process, CallPath)>::default();
        process.go(&mut path, &[(0x10, Call(TOP))]);
        let words: Vec<AtomicU64> = words.into_iter().map(AtomicU64::new).collect();
        path.at = 0;
        path.follow(&process.catalogue, &mut process.calls, &words, words.len());
    }
}
