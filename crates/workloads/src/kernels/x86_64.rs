//! The loops in assembly: variables stay in registers, one 8-byte access each.

use std::arch::asm;

/// Sum of `count` words `stride` bytes apart, read `passes` times.
///
/// # Safety
/// Every word can be read.
pub(super) unsafe fn read(start: *const u8, count: u64, stride: u64, passes: u64) -> u64 {
    let sum: u64;
    // SAFETY: loads only the words the caller vouches for.
    unsafe {
        asm!(
            "xor {sum:e}, {sum:e}",
            "test {passes}, {passes}",
            "jz 5f",
            "2: mov {at}, {start}",
            "mov {left}, {count}",
            "test {left}, {left}",
            "jz 4f",
            "3: add {sum}, qword ptr [{at}]",
            "add {at}, {stride}",
            "dec {left}",
            "jnz 3b",
            "4: dec {passes}",
            "jnz 2b",
            "5:",
            sum = out(reg) sum,
            at = out(reg) _,
            left = out(reg) _,
            passes = inout(reg) passes => _,
            start = in(reg) start,
            count = in(reg) count,
            stride = in(reg) stride,
            options(nostack, readonly),
        );
    }
    sum
}

/// Stores `value` to `count` words `stride` bytes apart, `passes` times.
///
/// # Safety
/// Every word can be written and belongs to the caller.
pub(super) unsafe fn write(start: *mut u8, count: u64, stride: u64, passes: u64, value: u64) {
    // SAFETY: stores only to the words the caller vouches for.
    unsafe {
        asm!(
            "test {passes}, {passes}",
            "jz 5f",
            "2: mov {at}, {start}",
            "mov {left}, {count}",
            "test {left}, {left}",
            "jz 4f",
            "3: mov qword ptr [{at}], {value}",
            "add {at}, {stride}",
            "dec {left}",
            "jnz 3b",
            "4: dec {passes}",
            "jnz 2b",
            "5:",
            at = out(reg) _,
            left = out(reg) _,
            passes = inout(reg) passes => _,
            start = in(reg) start,
            count = in(reg) count,
            stride = in(reg) stride,
            value = in(reg) value,
            options(nostack),
        );
    }
}

/// `a[i] = b[i] + factor × c[i]`, `passes` times.
///
/// # Safety
/// The arrays have `count` words, and `a` belongs to the caller.
pub(super) unsafe fn triad(
    a: *mut u8,
    b: *const u8,
    c: *const u8,
    count: u64,
    factor: u64,
    passes: u64,
) {
    // SAFETY: touches only the words the caller vouches for.
    unsafe {
        asm!(
            "test {passes}, {passes}",
            "jz 5f",
            "2: xor {at:e}, {at:e}",
            "test {count}, {count}",
            "jz 4f",
            "3: mov {term}, qword ptr [{c} + {at}*8]",
            "imul {term}, {factor}",
            "add {term}, qword ptr [{b} + {at}*8]",
            "mov qword ptr [{a} + {at}*8], {term}",
            "inc {at}",
            "cmp {at}, {count}",
            "jb 3b",
            "4: dec {passes}",
            "jnz 2b",
            "5:",
            at = out(reg) _,
            term = out(reg) _,
            passes = inout(reg) passes => _,
            a = in(reg) a,
            b = in(reg) b,
            c = in(reg) c,
            count = in(reg) count,
            factor = in(reg) factor,
            options(nostack),
        );
    }
}

/// Adds 1 to each of `count` words in order, `passes` times.
///
/// # Safety
/// Every word can be written and belongs to the caller.
pub(super) unsafe fn increment(start: *mut u8, count: u64, passes: u64) {
    // SAFETY: touches only the words the caller vouches for.
    unsafe {
        asm!(
            "test {passes}, {passes}",
            "jz 5f",
            "2: xor {at:e}, {at:e}",
            "test {count}, {count}",
            "jz 4f",
            "3: add qword ptr [{start} + {at}*8], 1",
            "inc {at}",
            "cmp {at}, {count}",
            "jb 3b",
            "4: dec {passes}",
            "jnz 2b",
            "5:",
            at = out(reg) _,
            passes = inout(reg) passes => _,
            start = in(reg) start,
            count = in(reg) count,
            options(nostack),
        );
    }
}

/// Adds 1 to `steps` words of `count`, chosen by xorshift64 from `seed`.
///
/// # Safety
/// Every word can be written and belongs to the caller; `count` is not 0 unless `steps` is.
pub(super) unsafe fn increment_random(start: *mut u8, count: u64, steps: u64, seed: u64) {
    // SAFETY: touches only the words the caller vouches for: the index is below `count`.
    unsafe {
        asm!(
            "test {steps}, {steps}",
            "jz 3f",
            "2: mov {shifted}, {state}",
            "shl {shifted}, 13",
            "xor {state}, {shifted}",
            "mov {shifted}, {state}",
            "shr {shifted}, 7",
            "xor {state}, {shifted}",
            "mov {shifted}, {state}",
            "shl {shifted}, 17",
            "xor {state}, {shifted}",
            "mov rax, {state}",
            "mul {count}",
            "add qword ptr [{start} + rdx*8], 1",
            "dec {steps}",
            "jnz 2b",
            "3:",
            state = inout(reg) seed => _,
            shifted = out(reg) _,
            steps = inout(reg) steps => _,
            start = in(reg) start,
            count = in(reg) count,
            out("rax") _,
            out("rdx") _,
            options(nostack),
        );
    }
}

/// Multiplies a matrix with a vector, `passes` times.
///
/// # Safety
/// Matrix and vector can be read; `result` has `rows` words and belongs to the caller.
pub(super) unsafe fn multiply(
    matrix: *const u8,
    vector: *const u8,
    result: *mut u8,
    rows: u64,
    columns: u64,
    passes: u64,
) {
    // SAFETY: touches only the words the caller vouches for.
    unsafe {
        asm!(
            "test {passes}, {passes}",
            "jz 7f",
            "2: mov {line}, {matrix}",
            "xor {row:e}, {row:e}",
            "3: cmp {row}, {rows}",
            "jae 6f",
            "xor {sum:e}, {sum:e}",
            "xor {column:e}, {column:e}",
            "4: cmp {column}, {columns}",
            "jae 5f",
            "mov {term}, qword ptr [{line} + {column}*8]",
            "imul {term}, qword ptr [{vector} + {column}*8]",
            "add {sum}, {term}",
            "inc {column}",
            "jmp 4b",
            "5: mov qword ptr [{result} + {row}*8], {sum}",
            "lea {line}, [{line} + {columns}*8]",
            "inc {row}",
            "jmp 3b",
            "6: dec {passes}",
            "jnz 2b",
            "7:",
            line = out(reg) _,
            row = out(reg) _,
            column = out(reg) _,
            sum = out(reg) _,
            term = out(reg) _,
            passes = inout(reg) passes => _,
            matrix = in(reg) matrix,
            vector = in(reg) vector,
            result = in(reg) result,
            rows = in(reg) rows,
            columns = in(reg) columns,
            options(nostack),
        );
    }
}

/// Links `nodes` lines into one random cycle, by Sattolo's shuffle of pointers.
///
/// # Safety
/// Every line belongs to the caller and is aligned.
pub(super) unsafe fn link_cycle(start: *mut u8, nodes: u64, seed: u64) {
    // SAFETY: touches only the first word of the lines the caller vouches for: the partner's index is below the node's.
    unsafe {
        asm!(
            "test {left}, {left}",
            "jz 4f",
            "mov {at}, {start}",
            "2: mov qword ptr [{at}], {at}",
            "add {at}, 64",
            "dec {left}",
            "jnz 2b",
            "3: dec {nodes}",
            "jz 4f",
            "mov {other}, {state}",
            "shl {other}, 13",
            "xor {state}, {other}",
            "mov {other}, {state}",
            "shr {other}, 7",
            "xor {state}, {other}",
            "mov {other}, {state}",
            "shl {other}, 17",
            "xor {state}, {other}",
            "mov rax, {state}",
            "mul {nodes}",
            "shl rdx, 6",
            "mov {at}, {nodes}",
            "shl {at}, 6",
            "mov {other}, qword ptr [{start} + {at}]",
            "mov rax, qword ptr [{start} + rdx]",
            "mov qword ptr [{start} + {at}], rax",
            "mov qword ptr [{start} + rdx], {other}",
            "jmp 3b",
            "4:",
            at = out(reg) _,
            other = out(reg) _,
            left = inout(reg) nodes => _,
            nodes = inout(reg) nodes => _,
            state = inout(reg) seed => _,
            start = in(reg) start,
            out("rax") _,
            out("rdx") _,
            options(nostack),
        );
    }
}

/// Follows `steps` pointers from `start`; the last.
///
/// # Safety
/// The word at `start`, and at every pointer found there, is a pointer to such a word.
pub(super) unsafe fn follow(start: *const u8, steps: u64) -> *const u8 {
    let mut at = start;
    // SAFETY: loads only the words the caller vouches for.
    unsafe {
        asm!(
            "test {steps}, {steps}",
            "jz 3f",
            "2: mov {at}, qword ptr [{at}]",
            "dec {steps}",
            "jnz 2b",
            "3:",
            at = inout(reg) at,
            steps = inout(reg) steps => _,
            options(nostack, readonly),
        );
    }
    at
}

/// Sum of `words` in order, then of the first word of each of `lines` with
/// `spins` empty turns after it; all that `cycles` times.
///
/// # Safety
/// Every word can be read.
pub(super) unsafe fn alternate(
    start: *const u8,
    words: u64,
    lines: u64,
    spins: u64,
    cycles: u64,
) -> u64 {
    let sum: u64;
    // SAFETY: loads only the words the caller vouches for.
    unsafe {
        asm!(
            "xor {sum:e}, {sum:e}",
            "2: test {cycles}, {cycles}",
            "jz 8f",
            "dec {cycles}",
            "mov {at}, {start}",
            "mov {left}, {words}",
            "3: test {left}, {left}",
            "jz 4f",
            "add {sum}, qword ptr [{at}]",
            "add {at}, 8",
            "dec {left}",
            "jmp 3b",
            "4: mov {at}, {start}",
            "mov {left}, {lines}",
            "5: test {left}, {left}",
            "jz 2b",
            "add {sum}, qword ptr [{at}]",
            "add {at}, 64",
            "dec {left}",
            "mov {turn}, {spins}",
            "6: test {turn}, {turn}",
            "jz 5b",
            "dec {turn}",
            "jmp 6b",
            "8:",
            sum = out(reg) sum,
            at = out(reg) _,
            left = out(reg) _,
            turn = out(reg) _,
            cycles = inout(reg) cycles => _,
            start = in(reg) start,
            words = in(reg) words,
            lines = in(reg) lines,
            spins = in(reg) spins,
            options(nostack, readonly),
        );
    }
    sum
}

/// Adds 1 to `counter` `steps` times.
///
/// # Safety
/// The counter is a word that can be written, and no other thread writes it.
pub(super) unsafe fn increment_own(counter: *mut u64, steps: u64) {
    // SAFETY: touches only the counter.
    unsafe {
        asm!(
            "test {steps}, {steps}",
            "jz 3f",
            "2: add qword ptr [{counter}], 1",
            "dec {steps}",
            "jnz 2b",
            "3:",
            steps = inout(reg) steps => _,
            counter = in(reg) counter,
            options(nostack),
        );
    }
}

/// Adds 1 to `counter` `steps` times with locked increments.
///
/// # Safety
/// The counter is an aligned word that can be written.
pub(super) unsafe fn increment_locked(counter: *mut u64, steps: u64) {
    // SAFETY: touches only the counter.
    unsafe {
        asm!(
            "test {steps}, {steps}",
            "jz 3f",
            "2: lock add qword ptr [{counter}], 1",
            "dec {steps}",
            "jnz 2b",
            "3:",
            steps = inout(reg) steps => _,
            counter = in(reg) counter,
            options(nostack),
        );
    }
}
