# SPDX-License-Identifier: GPL-2.0-or-later
# Stores to 1000 pages never touched before, so that each store faults once; reads each
# back and moves 100 bytes within it by one string instruction.
# In all 1000 * 9 + 5 = 9 005 instructions, 3000 of them load or store twice over:
# 2000 load (mov, rep movsb), 2000 store (mov, rep movsb).
    .globl _start
_start:
    mov $1000, %ebx
    lea pages(%rip), %rdx
1:  mov %rdx, (%rdx)
    mov (%rdx), %rax
    mov %rdx, %rsi
    lea 200(%rdx), %rdi
    mov $100, %ecx
    rep movsb
    add $4096, %rdx
    dec %ebx
    jnz 1b
    mov $60, %eax
    xor %edi, %edi
    syscall
    .bss
    .align 4096
pages: .skip 4096 * 1000
