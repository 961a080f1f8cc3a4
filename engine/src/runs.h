/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Description of a run of accesses for the code that writes its word. The id is at its position in
 * the word. The bits of the address contain the distance from the begin of the run to the address,
 * the room that the run leaves in a line, and the number of bytes that QEMU accesses.
 *
 * If only some sets are simulated, the numbers of run and block replace the id. Further bits tell
 * whether the run stores, whether it is a line of an access that is a block of its own, and whether
 * it is apart (non-temporal stores or a prefetch).
 */
#ifndef MG_RUNS_H
#define MG_RUNS_H

#include "qemu/qemu-plugin.h"
#include "stream.h"

enum { MG_DOWN_BITS = 0, MG_SIZE_BITS = 8, MG_ROOM_BITS = 16, MG_STORES_BIT = 24, MG_PIECE_BIT = 25,
       MG_APART_BIT = 26, MG_RUN_BITS = 28, MG_BLOCK_BITS = 40 };
#define MG_ID_BITS (~0ull << MG_ID_SHIFT)

/* Calls for accesses that QEMU's helpers perform. The words of all others are written inline
 * (emit.c). */
void mg_on_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *run);
void mg_on_wide_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *run);

#endif
