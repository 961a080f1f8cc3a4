/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_EMIT_H
#define MG_EMIT_H

#include <stdbool.h>
#include <stdint.h>

struct TCGOp;
struct qemu_plugin_regular_cb;
struct TranslationBlock;

/* The inline code of the block that is being translated. Set by plugin.c. */
struct mg_plan {
    bool active;   /* the block is recorded */
    uint64_t head; /* first word, unless that of its first run stands for the block; or 0 */
    uint32_t number; /* if some sets are simulated: its number, */
    uint64_t ran;    /* and the sums that it executes */
};
extern __thread struct mg_plan mg_plan;

/* Called by plugin-gen.c (engine/qemu.patch) in the order of the block's operations. */
/* `may_be_left`: the code before the block's first instruction may fault. */
void mg_emit_begin(bool may_be_left);
void mg_emit_insn_start(struct TCGOp *op);
/* `callback`: first callback of the instruction's accesses, if any. */
void mg_emit_before_insn(bool calls_helpers, const void *callback);
/* Returns true if the access needs no call. `index`: of the callback among those of the
 * instruction. */
bool mg_emit_access(unsigned index, const struct qemu_plugin_regular_cb *callback, unsigned rw,
                    uintptr_t address);
void mg_emit_after_insn(void);
void mg_emit_exit(void);

/* True if the open calls of threads are recorded (heap.c). */
extern bool mg_heap_is_on;
/* Called by the translator after the store of a call (engine/qemu.patch). `sp`: a TCGv_i64. */
void mg_emit_call(uintptr_t sp, uint64_t returns_to);

/* Called by the translator for a prefetch of `address` (a TCGv_i64). */
void mg_emit_prefetch(uintptr_t address);

/* QEMU function (mmap_lock is held): retranslates the blocks with code from `start` to `last`. */
void tb_invalidate_phys_range(uint64_t start, uint64_t last);

/* Jumps to the block at `pc` (a TCGv_i64), which has the flags of this one. Returns false if
 * QEMU must look it up. */
bool mg_emit_goto(const struct TranslationBlock *tb, uintptr_t pc);

#endif
