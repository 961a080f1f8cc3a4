/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Words that a block stores by itself, without a call.
 *
 * The block asks once for room in the ring and keeps the place of the next word. Each run
 * stores its word at a constant distance from there. The place is written back where the
 * block may be left or something else may write words: at its exits, and around
 * instructions that call helpers. A fault within the block goes neither way; then QEMU
 * finds by the host's address how many words had been stored (mg_words_written).
 *
 * All of this is done by operations of our own (host.c.inc). None of them is a branch to
 * QEMU, which would store and load again all of the program's registers there. A run in
 * two lines only gets a flag, and the recorder takes its accesses one by one.
 */
#include "qemu/osdep.h"
#include "qemu/plugin.h"
#include "qemu/log.h"
#include "exec/translation-block.h"
#include "exec/plugin-gen.h"
#include "hw/core/cpu.h"
#include "tcg/tcg.h"
#include "tcg/tcg-op-common.h"
#include "tcg/tcg-temp-internal.h"
#include "../../tcg/tcg-internal.h"
#include "../../accel/tcg/internal-common.h"

#include "emit.h"
#include "runs.h"
#include "session.h"
#include "sets.h"

__thread struct mg_plan mg_plan;

/* How far ahead of the next word the ring is asked for, in bytes. The recorder has read
 * those lines last. Without asking early, the thread waits for each to come back, which
 * doubles its time where the recorder keeps up. */
#define AHEAD 1024

#define RING (offsetof(CPUState, neg.memgauge_ring) - sizeof(CPUState))
#define CALLS (offsetof(CPUState, neg.memgauge_calls) - sizeof(CPUState))

/* The block under translation. */
static __thread struct {
    TCGv_ptr next;    /* where the next word was to go when the place was last written; where
                       * some sets are followed, the ring */
    bool is_current;  /* it has the place */
    unsigned stored;  /* words since then */
    TCGOp *start;     /* of the instruction */
    bool inlines;     /* the instruction's accesses make their words inline */
    bool calls;       /* it may call something that writes words */
    uint32_t done;    /* accesses of the instruction that have their words */
} block;

static void load_next(void)
{
    TCGv_ptr ring = tcg_temp_ebb_new_ptr();
    tcg_gen_ld_ptr(ring, tcg_env, RING);
    tcg_gen_ld_ptr(block.next, ring, offsetof(struct mg_ring, w));
    tcg_temp_free_ptr(ring);
    block.is_current = true;
    block.stored = 0;
}

static void write_next(void)
{
    if (!block.stored)
        return;
    TCGv_ptr ring = tcg_temp_ebb_new_ptr();
    tcg_gen_op4(INDEX_op_memgauge_stored, TCG_TYPE_I64, tcgv_ptr_arg(ring), tcgv_ptr_arg(tcg_env),
                RING, 8 * block.stored);
    tcg_temp_free_ptr(ring);
}

/* Writes the place and goes on from there. */
static void settle(void)
{
    write_next();
    if (block.stored)
        tcg_gen_addi_ptr(block.next, block.next, 8 * block.stored);
    block.stored = 0;
}

/* Where some sets are followed, the block counts its execution. It does not ask for room;
 * the top bit of what was executed is set where there is none (sets.c). */
static void count_execution(void)
{
    tcg_gen_op5(INDEX_op_memgauge_count, TCG_TYPE_I64, tcgv_ptr_arg(block.next),
                tcgv_ptr_arg(tcg_env), RING, mg_plan.ran, mg_plan.number);
}

/* Keeps a run if it touches a line to follow: a look at the table, and mg_keep where that
 * says so. */
static void keep_run(uint64_t run, TCGv_i64 address)
{
    unsigned room = run >> MG_ROOM_BITS & 0xff;
    TCGv_i64 class = tcg_temp_ebb_new_i64();
    tcg_gen_op6(INDEX_op_memgauge_keep, TCG_TYPE_I64, tcgv_i64_arg(class),
                tcgv_ptr_arg(block.next), tcgv_i64_arg(address),
                room < MG_LINE_BYTES - 1 ? MG_HERE | MG_NEXT : MG_HERE,
                run & 0xffffffff, run >> 32);
    tcg_temp_free_i64(class);
}

void mg_emit_begin(bool may_be_left)
{
    block.is_current = false;
    block.stored = 0;
    if (!mg_plan.active)
        return;
    block.next = tcg_temp_new_ptr();
    if (mg_sets()) {
        count_execution();
        return;
    }
    tcg_gen_op5(INDEX_op_memgauge_begin, TCG_TYPE_I64, tcgv_ptr_arg(block.next),
                tcgv_ptr_arg(tcg_env), RING, AHEAD, mg_plan.head);
    block.is_current = true;
    block.stored = mg_plan.head != 0;
    /* Where that faults, no word is there yet. */
    if (may_be_left)
        settle();
}

void mg_emit_insn_start(TCGOp *op)
{
    block.start = op;
    block.done = 0;
    tcg_set_insn_start_param(op, 2, block.stored);
}

void mg_emit_before_insn(bool calls_helpers, const void *callback)
{
    block.inlines = callback == mg_on_run || callback == mg_on_wide_run;
    block.calls = callback && (calls_helpers || !block.inlines);
    if (!calls_helpers && !block.calls)
        return;
    settle();
    tcg_set_insn_start_param(block.start, 2, 0);
}

static void put_run(uint64_t run, TCGv_i64 address)
{
    unsigned down = run >> MG_DOWN_BITS & 0xff, room = run >> MG_ROOM_BITS & 0xff;
    TCGv_i64 word = tcg_temp_ebb_new_i64();
    if (!block.is_current)
        load_next();
    tcg_gen_op6(INDEX_op_memgauge_run, TCG_TYPE_I64, tcgv_i64_arg(word), tcgv_ptr_arg(block.next),
                tcgv_i64_arg(address), run & MG_ID_BITS, down | room << 8, 8 * block.stored++);
    tcg_temp_free_i64(word);
}

bool mg_emit_access(unsigned index, const struct qemu_plugin_regular_cb *callback, unsigned rw,
                    uintptr_t address)
{
    if (!block.inlines)
        return false;
    /* The first piece of a wide access stands for all. */
    if (!(callback->rw & rw) || block.done >> index & 1)
        return true;
    block.done |= 1u << index;
    if (mg_sets())
        keep_run((uintptr_t)callback->userp, (TCGv_i64)address);
    else
        put_run((uintptr_t)callback->userp, (TCGv_i64)address);
    if (block.calls)
        settle();
    return true;
}

void mg_emit_after_insn(void)
{
    if (block.calls)
        block.is_current = false;
    block.calls = false;
}

/* The other exits of the block have the same words to write. */
void mg_emit_exit(void)
{
    write_next();
}

bool mg_emit_goto(const TranslationBlock *tb, uintptr_t pc)
{
    /* A block made for one execution has flags of its own, which the next one has not. */
    if (tb->cflags != curr_cflags(current_cpu) || tb->cflags & CF_NO_GOTO_PTR ||
        tb->cs_base != (int32_t)tb->cs_base || qemu_loglevel_mask(CPU_LOG_TB_CPU | CPU_LOG_EXEC))
        return false;
    plugin_gen_disable_mem_helpers();
    tcg_gen_op2(INDEX_op_memgauge_goto, TCG_TYPE_I64, tcgv_i64_arg((TCGv_i64)pc), (uintptr_t)tb);
    return true;
}

/* A call has stored its return address where the stack pointer `sp` (a TCGv_i64) is now. */
void mg_emit_call(uintptr_t sp, uint64_t returns_to)
{
    if (!mg_heap_is_on)
        return;
    TCGv_i64 top = tcg_temp_ebb_new_i64();
    tcg_gen_op5(INDEX_op_memgauge_call, TCG_TYPE_I64, tcgv_i64_arg(top), tcgv_ptr_arg(tcg_env),
                tcgv_i64_arg((TCGv_i64)sp), CALLS, returns_to);
    tcg_temp_free_i64(top);
}

/* A block is left by a fault, after an instruction's start before which it had stored so
 * many words more than the ring knows. */
void mg_words_written(CPUState *cpu, uint64_t words);

void mg_words_written(CPUState *cpu, uint64_t words)
{
    struct mg_ring *r = cpu->neg.memgauge_ring;
    if (words)
        __atomic_store_n(&r->w, r->w + words, __ATOMIC_RELEASE);
}
