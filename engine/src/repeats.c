/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Iterations of rep string instructions.
 *
 * QEMU repeats an instruction within one execution of its block. Every iteration but the first is
 * recorded as an execution of a block with that instruction alone, or only counted if it stays in
 * the lines of the one before. A helper executes the iterations of rep movs and rep stos that stay in
 * the pages of the one before (engine/qemu.patch). It passes their number here, and the words are
 * those that a call for each access would have written.
 */
#include "qemu/osdep.h"
#include "qemu/plugin.h"

#include "repeats.h"
#include "runs.h"
#include "session.h"
#include "sets.h"

/* The current iteration, if its accesses are runs. */
static __thread struct {
    uint64_t first, second; /* addresses of its load and store, or of its only access */
    uint64_t *again;        /* word that counts iterations like the last recorded one */
    bool skipped;           /* counted there instead of recorded */
} iteration;

void mg_on_rep(unsigned vcpu, void *alone)
{
    (void)vcpu;
    struct mg_ring *r = mg_own_ring();
    r->rep_block = (uintptr_t)alone;
    r->rep_accesses = 0;
    iteration.again = NULL;
}

/* A block begins within one of QEMU's blocks. */
static void begin_block(uint64_t word)
{
    uint64_t *w = mg_own_ring()->w;
    if (unlikely(w >= mg_own_ring()->end)) /* a block cannot begin there */
        w = mg_ring_turn();
    *w = word;
    __atomic_store_n(&mg_own_ring()->w, w + 1, __ATOMIC_RELEASE);
}

bool mg_repeats_alone(uint32_t all)
{
    struct mg_ring *r = mg_own_ring();
    uint32_t before = r->rep_accesses++;
    if (before >= all && before % all == 0)
        begin_block(MG_MARK_BLOCK | r->rep_block);
    return before >= all;
}

/* Number of iterations that stay in the lines of the current one, which changes nothing in any
 * cache. They are only counted. The second iteration is always recorded, so that the instruction
 * has a block. */
static uint64_t staying(int64_t step)
{
    if (mg_own_ring()->rep_accesses <= 1)
        return 0;
    return MIN(mg_rest(iteration.first, step, MG_LINE_BYTES),
               mg_rest(iteration.second, step, MG_LINE_BYTES));
}

/* Counts iterations. The recorder reads the word when the next block begins. */
static void count_iterations(int64_t step, uint64_t times)
{
    struct mg_ring *r = mg_own_ring();
    uint64_t *w = r->w;
    iteration.first += step * times;
    iteration.second += step * times;
    if (iteration.again && w == iteration.again + 1) {
        *iteration.again += times;
        return;
    }
    iteration.again = w;
    *w = MG_MARK_REPEAT | (step < 0 ? MG_REPEAT_DOWN : 0) | times;
    __atomic_store_n(&r->w, w + 1, __ATOMIC_RELEASE);
}

void mg_on_rep_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *run)
{
    int64_t bytes = (uintptr_t)run >> MG_SIZE_BITS & 0xff, step = vaddr - iteration.first;
    iteration.skipped = (step == bytes || step == -bytes) && staying(step);
    if (iteration.skipped) {
        count_iterations(step, 1);
        return;
    }
    iteration.first = iteration.second = vaddr; /* the latter unless another access follows */
    mg_repeats_alone(1);
    mg_on_run(vcpu, info, vaddr, run);
}

void mg_on_rep_further(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *run)
{
    if (iteration.skipped)
        return;
    iteration.second = vaddr;
    mg_on_run(vcpu, info, vaddr, run);
}

/* `run`: of each access of an iteration. */
static void record(struct mg_iterations these, void *run, void *further)
{
    while (these.times) {
        uint64_t times = MIN(staying(these.step), these.times);
        if (times) {
            count_iterations(these.step, times);
        } else {
            times = 1;
            mg_on_rep_run(0, 0, these.from, run);
            if (further)
                mg_on_rep_further(0, 0, these.to, further);
        }
        these.from += these.step * times;
        these.to += these.step * times;
        these.times -= times;
    }
}

void mg_on_iterations(const void *callbacks, struct mg_iterations these)
{
    const GArray *all = callbacks;
    void *load = NULL, *store = NULL;
    for (unsigned i = 0; all && i < all->len; i++) {
        const struct qemu_plugin_regular_cb *one =
            &g_array_index(all, struct qemu_plugin_dyn_cb, i).regular;
        *(one->rw & QEMU_PLUGIN_MEM_R ? &load : &store) = one->userp;
    }
    if (!load && !store) /* not recorded */
        return;
    if (mg_sets())
        mg_keep_iterations(these, load, store);
    else
        record(these, load ? load : store, load ? store : NULL);
}
