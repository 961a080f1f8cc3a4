/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_X86_ISA_H
#define MG_X86_ISA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Programs that the engine follows: name, and machine in the ELF header. */
#define MG_GUEST_NAME "x86-64"
#define MG_GUEST_MACHINE EM_X86_64

/* Registers as indices in QEMU's state of the processor: rax, rsp, and those of the arguments of a
 * function (System V ABI). */
enum { MG_REG_RESULT = 0, MG_REG_SP = 4 };
static const uint8_t mg_reg_argument[] = { 7, 6, 2, 1, 8, 9 };

/* Kind of the mark of a region of interest (region.c) that an instruction is, or 0:
 *   0f 1f 87 KK 00 47 4d   nopl 0x4d4700KK(%rdi) */
enum { MG_MARKER_BYTES = 7 };
static inline unsigned mg_marker(const uint8_t *code, size_t bytes)
{
    static const uint8_t head[] = { 0x0f, 0x1f, 0x87 }, tail[] = { 0x00, 0x47, 0x4d };
    bool is_one = bytes >= MG_MARKER_BYTES && memcmp(code, head, sizeof head) == 0 &&
                  memcmp(code + 4, tail, sizeof tail) == 0;
    return is_one ? code[3] : 0;
}

#endif
