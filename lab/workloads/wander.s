# SPDX-License-Identifier: GPL-2.0-or-later
# As walk, but each of the ten rounds begins with a move to the other one of the first two
# processors: round r (from 0) runs on processor r mod 2. 327 680 loads of user code, whose
# number n (from 0) is from `lines` + 64 * (n mod 32 768).
    .globl _start, lines
_start:
    lea lines(%rip), %rdx
    lea 0x200000(%rdx), %rsi
1:  mov %rdx, (%rdx)
    add $4096, %rdx
    cmp %rsi, %rdx
    jb 1b
    xor %ebx, %ebx
2:  mov %ebx, %ecx              # the set of processors: 1 or 2
    and $1, %ecx
    mov $1, %eax
    shl %cl, %eax
    mov %rax, set(%rip)
    mov $203, %eax              # sched_setaffinity(0, 8, &set)
    xor %edi, %edi
    mov $8, %esi
    lea set(%rip), %rdx
    syscall
    lea lines(%rip), %rdx
    lea 0x200000(%rdx), %rsi
3:  mov (%rdx), %rax
    add $64, %rdx
    cmp %rsi, %rdx
    jb 3b
    inc %ebx
    cmp $10, %ebx
    jb 2b
    mov $60, %eax
    xor %edi, %edi
    syscall
    .bss
    .align 4096
lines: .skip 0x200000
set: .skip 8
