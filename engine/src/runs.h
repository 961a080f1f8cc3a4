/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * How a run of accesses is told to whoever makes its word: its id in place and, at the
 * address' bits, how far below the address the run begins, the room that this leaves in a
 * line, and the bytes that QEMU accesses.
 *
 * Where only some sets are followed, it is told the run's number and the block's instead
 * of the id, and whether the run stores or is the line of an access that is a block.
 */
#ifndef MG_RUNS_H
#define MG_RUNS_H

#include "qemu/qemu-plugin.h"
#include "stream.h"

enum { MG_DOWN_BITS = 0, MG_SIZE_BITS = 8, MG_ROOM_BITS = 16, MG_STORES_BIT = 24, MG_PIECE_BIT = 25,
       MG_RUN_BITS = 28, MG_BLOCK_BITS = 40 };
#define MG_ID_BITS (~0ull << MG_ID_SHIFT)

/* Calls for accesses that helpers of QEMU perform; all others make their words inline
 * (emit.c). */
void mg_on_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *run);
void mg_on_wide_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *run);

#endif
