/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_REGISTERS_H
#define MG_REGISTERS_H

/* Include QEMU's headers (qemu/osdep.h, hw/core/cpu.h) before. */
#include "isa.h"

/* Returns a register of the program in the calling thread. */
static inline uint64_t mg_reg(unsigned number)
{
    return ((uint64_t *)cpu_env(current_cpu))[number];
}

#endif
