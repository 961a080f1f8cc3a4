# SPDX-License-Identifier: GPL-2.0-or-later
# Loads of different forms, each from a page of its own, so that each misses the TLB of a
# Core 2 once the pages are more than its 256 entries. 20 rounds over 1024 pages, 8 forms:
# 20 480 loads that miss, an eighth of each form. Registers and code tell the address of
# six forms: of a plain load, an index, an offset, arithmetic with memory, a load before a
# jump, and a load at whose end a loop's head stands. Two overwrite what they were
# addressed by.
    .globl _start
_start:
    lea pages(%rip), %rdx
    lea 0x400000(%rdx), %rsi
1:  mov %rdx, (%rdx)            # a page points to itself
    add $4096, %rdx
    cmp %rsi, %rdx
    jb 1b
    mov $20, %ebx
2:  lea pages(%rip), %rdx
3:  mov (%rdx), %rax            # plain
    mov $512, %ecx
    mov (%rdx, %rcx, 8), %rax   # index
    mov 0x2000(%rdx), %rax      # offset
    add 0x3000(%rdx), %rax      # arithmetic with memory
    mov 0x4000(%rdx), %rax      # before a jump
    jmp 4f
    nop
4:  lea 0x5000(%rdx), %rdi
    mov (%rdi), %rdi            # overwrites its base
    lea 0x6000(%rdx), %rax
    mov (%rax), %rax            # the same
    lea 0x7000(%rdx), %rdi
    mov $1, %ecx
    mov (%rdi), %rax            # before the head of a loop
5:  dec %ecx
    jnz 5b
    add $0x8000, %rdx
    cmp %rsi, %rdx
    jb 3b
    dec %ebx
    jnz 2b
    mov $60, %eax
    xor %edi, %edi
    syscall
    .bss
    .align 4096
pages: .skip 0x400000
