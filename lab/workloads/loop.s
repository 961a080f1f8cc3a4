# SPDX-License-Identifier: GPL-2.0-or-later
# 1 000 000 rounds of 3 instructions with one branch each, no access to memory.
# In all 3 000 004 instructions, 1 000 001 branches with the system call.
    .globl _start
_start:
    mov $1000000, %ecx
1:  add $1, %rax
    dec %ecx
    jnz 1b
    mov $60, %eax
    xor %edi, %edi
    syscall
