# SPDX-License-Identifier: GPL-2.0-or-later
# Stores to each page of 2 MiB, then loads each of its 32 768 lines in order, ten times:
# 327 680 loads; load number n (from 0) is from `lines` + 64 * (n mod 32 768).
    .globl _start, lines
_start:
    lea lines(%rip), %rdx
    lea 0x200000(%rdx), %rsi
1:  mov %rdx, (%rdx)
    add $4096, %rdx
    cmp %rsi, %rdx
    jb 1b
    mov $10, %ebx
2:  lea lines(%rip), %rdx
3:  mov (%rdx), %rax
    add $64, %rdx
    cmp %rsi, %rdx
    jb 3b
    dec %ebx
    jnz 2b
    mov $60, %eax
    xor %edi, %edi
    syscall
    .bss
    .align 4096
lines: .skip 0x200000
