/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_REPEATS_H
#define MG_REPEATS_H

#include "qemu/qemu-plugin.h"
#include "stream.h"

/* QEMU leaves a block at the latest after an iteration that leaves a multiple of this plus one. */
#define MG_REP_MAX 65535

/* Iterations of a rep movs, or of a rep stos, that the helper of the instruction has executed at once. */
struct mg_iterations {
    uint64_t from;    /* address of the first iteration's load, or of its only access */
    uint64_t to;      /* address of its store */
    int64_t step;     /* from one iteration to the next: an element up or down */
    uint64_t times;
};

/* Records iterations in the same way as a call for each of their accesses. `callbacks` are those of
 * the instruction's accesses (GArray of struct qemu_plugin_dyn_cb). NULL if it is not recorded. */
void mg_on_iterations(const void *callbacks, struct mg_iterations these);

/* Number of elements that follow the one at `at` in the same line or page, of `within` bytes. 0 if
 * this element lies in two of them. */
static inline uint64_t mg_rest(uint64_t at, int64_t step, uint64_t within)
{
    uint64_t bytes = step < 0 ? -step : step, offset = at % within;
    if (offset + bytes > within)
        return 0;
    return (step < 0 ? offset : within - offset - bytes) / bytes;
}

/* ---- calls, as registered for a rep instruction ---- */

/* The instruction begins. `alone`: number of the block that contains only this instruction. */
void mg_on_rep(unsigned vcpu, void *alone);
/* The first access of an iteration, and the second one. */
void mg_on_rep_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *run);
void mg_on_rep_further(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *run);
/* Called before an access of an instruction with `all` accesses per iteration. Returns true if this
 * iteration is recorded as an execution of its own. */
bool mg_repeats_alone(uint32_t all);

#endif
