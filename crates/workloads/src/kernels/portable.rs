//! The loops with volatile accesses, for processors without an assembly version
//! and as the oracle of the assembly in tests.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::closed_form::LINE;

/// # Safety
/// The word at `index` from `start` can be read.
unsafe fn load(start: *const u8, index: u64) -> u64 {
    // SAFETY: the caller vouches for the word.
    unsafe { ptr::read_volatile(start.cast::<u64>().add(index as usize)) }
}

/// # Safety
/// The word at `index` from `start` can be written and belongs to the caller.
unsafe fn store(start: *mut u8, index: u64, value: u64) {
    // SAFETY: the caller vouches for the word.
    unsafe { ptr::write_volatile(start.cast::<u64>().add(index as usize), value) }
}

/// The state of xorshift64 after `state`.
fn xorshift(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ state << 17
}

/// A number below `bound` from 64 random bits.
fn below(bound: u64, random: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

/// # Safety
/// As the assembly version of this name; a split word is read byte by byte on
/// processors that cannot load it at once.
pub(super) unsafe fn read(start: *const u8, count: u64, stride: u64, passes: u64) -> u64 {
    let mut sum: u64 = 0;
    for _ in 0..passes {
        for index in 0..count {
            let at = start.wrapping_add((index * stride) as usize);
            // SAFETY: the caller vouches for the word.
            let value = unsafe { ptr::read_volatile(at.cast::<Unaligned>()) };
            sum = sum.wrapping_add(value.0);
        }
    }
    sum
}

/// # Safety
/// As the assembly version of this name.
pub(super) unsafe fn write(start: *mut u8, count: u64, stride: u64, passes: u64, value: u64) {
    for _ in 0..passes {
        for index in 0..count {
            let at = start.wrapping_add((index * stride) as usize);
            // SAFETY: the caller vouches for the word.
            unsafe { ptr::write_volatile(at.cast::<Unaligned>(), Unaligned(value)) };
        }
    }
}

/// A word at any address.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Unaligned(u64);

/// # Safety
/// As the assembly version of this name.
pub(super) unsafe fn triad(
    a: *mut u8,
    b: *const u8,
    c: *const u8,
    count: u64,
    factor: u64,
    passes: u64,
) {
    for _ in 0..passes {
        for index in 0..count {
            // SAFETY: the caller vouches for word `index` of each array.
            let (b, c) = unsafe { (load(b, index), load(c, index)) };
            let sum = b.wrapping_add(factor.wrapping_mul(c));
            // SAFETY: as above.
            unsafe { store(a, index, sum) };
        }
    }
}

/// # Safety
/// As the assembly version of this name.
pub(super) unsafe fn increment(start: *mut u8, count: u64, passes: u64) {
    for _ in 0..passes {
        for index in 0..count {
            // SAFETY: the caller vouches for the word.
            unsafe { store(start, index, load(start, index).wrapping_add(1)) };
        }
    }
}

/// # Safety
/// As the assembly version of this name.
pub(super) unsafe fn increment_random(start: *mut u8, count: u64, steps: u64, seed: u64) {
    let mut state = seed;
    for _ in 0..steps {
        state = xorshift(state);
        let index = below(count, state);
        // SAFETY: the caller vouches for every word below `count`.
        unsafe { store(start, index, load(start, index).wrapping_add(1)) };
    }
}

/// # Safety
/// As the assembly version of this name.
pub(super) unsafe fn multiply(
    matrix: *const u8,
    vector: *const u8,
    result: *mut u8,
    rows: u64,
    columns: u64,
    passes: u64,
) {
    for _ in 0..passes {
        for row in 0..rows {
            let mut sum: u64 = 0;
            for column in 0..columns {
                // SAFETY: the caller vouches for matrix and vector.
                let (entry, factor) =
                    unsafe { (load(matrix, row * columns + column), load(vector, column)) };
                sum = sum.wrapping_add(entry.wrapping_mul(factor));
            }
            // SAFETY: the caller vouches for the result.
            unsafe { store(result, row, sum) };
        }
    }
}

/// # Safety
/// As the assembly version of this name.
pub(super) unsafe fn link_cycle(start: *mut u8, nodes: u64, seed: u64) {
    const WORDS: u64 = LINE / 8;
    for node in 0..nodes {
        let address = start.wrapping_add((node * LINE) as usize);
        // SAFETY: the caller vouches for the line.
        unsafe { store(start, node * WORDS, address.expose_provenance() as u64) };
    }
    let mut state = seed;
    for node in (1..nodes).rev() {
        state = xorshift(state);
        let partner = below(node, state);
        // SAFETY: the caller vouches for both lines.
        unsafe {
            let (own, other) = (load(start, node * WORDS), load(start, partner * WORDS));
            store(start, node * WORDS, other);
            store(start, partner * WORDS, own);
        }
    }
}

/// # Safety
/// As the assembly version of this name.
pub(super) unsafe fn follow(start: *const u8, steps: u64) -> *const u8 {
    let mut at = start;
    for _ in 0..steps {
        // SAFETY: the caller vouches for the chain.
        at = ptr::with_exposed_provenance(unsafe { load(at, 0) } as usize);
    }
    at
}

/// # Safety
/// As the assembly version of this name.
pub(super) unsafe fn alternate(
    start: *const u8,
    words: u64,
    lines: u64,
    spins: u64,
    cycles: u64,
) -> u64 {
    let mut sum: u64 = 0;
    for _ in 0..cycles {
        // SAFETY: the caller vouches for the words.
        sum = sum.wrapping_add(unsafe { read(start, words, 8, 1) });
        for line in 0..lines {
            // SAFETY: the caller vouches for the lines.
            sum = sum.wrapping_add(unsafe { load(start, line * LINE / 8) });
            for turn in 0..spins {
                std::hint::black_box(turn);
            }
        }
    }
    sum
}

/// # Safety
/// As the assembly version of this name.
pub(super) unsafe fn increment_own(counter: *mut u64, steps: u64) {
    for _ in 0..steps {
        // SAFETY: the caller vouches for the counter.
        unsafe { store(counter.cast(), 0, load(counter.cast(), 0).wrapping_add(1)) };
    }
}

/// # Safety
/// As the assembly version of this name.
pub(super) unsafe fn increment_locked(counter: *mut u64, steps: u64) {
    // SAFETY: the caller vouches for an aligned counter.
    let counter = unsafe { AtomicU64::from_ptr(counter) };
    for _ in 0..steps {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
