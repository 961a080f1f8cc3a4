/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The call of a block for a run of which a line may be in a modelled set (sets.c).
 */

/* Blocks call this with the address, the two halves of the run on the stack, and the table's entry
 * in the flags. It is not zero if the line is in a modelled set. Otherwise the next line is, and
 * most runs do not reach it. */
asm(".text\n"
    ".globl mg_keep_call\n"
    "mg_keep_call:\n"
    "  pushq %rdi\n"
    "  pushq %rsi\n"
    "  movl 0x18(%rsp), %esi\n"
    "  movq 0x28(%rsp), %rdi\n"
    "  jnz 1f\n"
    "  pushq %rdi\n"
    "  pushq %rcx\n"
    "  movzbl %sil, %ecx\n"
    "  subl %ecx, %edi\n"
    "  andl $63, %edi\n"
    "  movl %esi, %ecx\n"
    "  shrl $16, %ecx\n"
    "  cmpb %cl, %dil\n"
    "  popq %rcx\n"
    "  popq %rdi\n"
    "  jbe 2f\n"
    "1: pushq %rax\n"
    "  movl 0x28(%rsp), %eax\n"
    "  shlq $32, %rax\n"
    "  orq %rax, %rsi\n"
    "  call mg_keep\n"
    "  popq %rax\n"
    "2: popq %rsi\n"
    "  popq %rdi\n"
    "  ret $24\n");
