# SPDX-License-Identifier: GPL-2.0-or-later
# Stores to each page of 64 MiB, more than any modelled last level holds. Then loads each of
# its 1 048 576 lines once: 64 bursts of 16 384 lines (1 MiB) each, and 200 000 instructions
# without access to memory after each burst. All loads are from memory.
    .globl _start, lines
_start:
    lea lines(%rip), %rdx
    lea 0x4000000(%rdx), %rsi
1:  mov %rdx, (%rdx)
    add $4096, %rdx
    cmp %rsi, %rdx
    jb 1b
    lea lines(%rip), %rdx
2:  mov $16384, %ecx
3:  mov (%rdx), %rax
    add $64, %rdx
    dec %ecx
    jnz 3b
    mov $100000, %ecx
4:  dec %ecx
    jnz 4b
    cmp %rsi, %rdx
    jb 2b
    mov $60, %eax
    xor %edi, %edi
    syscall
    .bss
    .align 4096
lines: .skip 0x4000000
