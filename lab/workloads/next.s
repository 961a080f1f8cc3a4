# SPDX-License-Identifier: GPL-2.0-or-later
# 100 000 rounds with four branches, of which three go to the very next instruction: `jmp`,
# `jz` taken, `jnz` not taken, and `jnz` of the round.
# In all 100 000 * 6 + 4 = 600 004 instructions, 400 001 branches with the system call. 300 000 are
# conditional; of these the `jz` of each round and the `jnz` of all rounds but the last are taken,
# 199 999, and 100 001 are not. With the `jmp`, 299 999 near branches are taken.
    .globl _start
_start:
    mov $100000, %ecx
1:  cmp %eax, %eax
    jmp 2f
2:  jz 3f
3:  jnz 4f
4:  dec %ecx
    jnz 1b
    mov $60, %eax
    xor %edi, %edi
    syscall
