/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Operations by which a block stores its words without a call.
 *
 * The block checks once that the ring has room and keeps the position of the next word. Each run
 * stores its word at a constant offset from there. The position is written back where the block may
 * be left or something else may write words: at its exits, and around instructions that call
 * helpers. A fault inside the block takes neither path. QEMU then determines from the host address
 * how many words were stored (mg_words_written).
 *
 * All of this uses operations of our own (host/x86/tcg.c.inc). None of them is a branch for QEMU, which
 * would save and reload all of the program's registers. A run in two lines only gets a flag, and
 * the recorder handles its accesses one by one.
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

/* Distance in bytes by which the ring is prefetched. The recorder was the last to read those lines.
 * Without prefetching, the thread waits for each line, which doubles its time if the recorder keeps
 * up. */
#define AHEAD 1024

#define RING (offsetof(CPUState, neg.memgauge_ring) - sizeof(CPUState))
#define CALLS (offsetof(CPUState, neg.memgauge_calls) - sizeof(CPUState))

/* The block being translated. */
static __thread struct {
    TCGv_ptr next;    /* position when it was last written back; with --sets, the ring */
    bool is_current;  /* the block holds the position */
    unsigned stored;  /* words stored since then */
    TCGOp *start;     /* first operation of the instruction */
    bool inlines;     /* the instruction's accesses store their words inline */
    bool calls;       /* it may call a function that writes words */
    uint32_t done;    /* accesses of the instruction that have stored their words */
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

/* Writes back the position and continues from there. */
static void settle(void)
{
    write_next();
    if (block.stored)
        tcg_gen_addi_ptr(block.next, block.next, 8 * block.stored);
    block.stored = 0;
}

/* With --sets, the block counts its execution. It does not check for room: the top bit of its
 * counts is set if there is none (sets.c). */
static void count_execution(void)
{
    tcg_gen_op5(INDEX_op_memgauge_count, TCG_TYPE_I64, tcgv_ptr_arg(block.next),
                tcgv_ptr_arg(tcg_env), RING, mg_plan.ran, mg_plan.number);
}

/* Keeps a run if it touches a line in a modelled set: looks it up in the table, and calls mg_keep
 * if necessary. */
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
    /* If this faults, no word has been stored. */
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
    /* The first piece of a wide access represents it. */
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

/* The other exits of the block write the same words. */
void mg_emit_exit(void)
{
    write_next();
}

bool mg_emit_goto(const TranslationBlock *tb, uintptr_t pc)
{
    /* A block for a single execution has flags of its own, which the next block lacks. */
    if (tb->cflags != curr_cflags(current_cpu) || tb->cflags & CF_NO_GOTO_PTR ||
        tb->cs_base != (int32_t)tb->cs_base || qemu_loglevel_mask(CPU_LOG_TB_CPU | CPU_LOG_EXEC))
        return false;
    plugin_gen_disable_mem_helpers();
    tcg_gen_op2(INDEX_op_memgauge_goto, TCG_TYPE_I64, tcgv_i64_arg((TCGv_i64)pc), (uintptr_t)tb);
    return true;
}

/* A call has stored its return address at the stack pointer `sp` (a TCGv_i64). */
void mg_emit_call(uintptr_t sp, uint64_t returns_to)
{
    if (!mg_heap_is_on)
        return;
    TCGv_i64 top = tcg_temp_ebb_new_i64();
    tcg_gen_op5(INDEX_op_memgauge_call, TCG_TYPE_I64, tcgv_i64_arg(top), tcgv_ptr_arg(tcg_env),
                tcgv_i64_arg((TCGv_i64)sp), CALLS, returns_to);
    tcg_temp_free_i64(top);
}

/* Shows the address as that of a read, for which the decoder expects a word. Nothing is read. A word
 * has no room for addresses beyond the program's half of memory, so they become 0. */
void mg_emit_prefetch(uintptr_t address)
{
    if (!tcg_ctx->plugin_insn)
        return;
    TCGv_i64 given = (TCGv_i64)address, shown = tcg_temp_ebb_new_i64();
    tcg_gen_movcond_i64(TCG_COND_LTU, shown, given, tcg_constant_i64(MG_NO_ACCESS), given,
                        tcg_constant_i64(0));
    tcg_gen_plugin_mem_cb(shown, make_plugin_meminfo(make_memop_idx(MO_8, 0), QEMU_PLUGIN_MEM_R));
    tcg_temp_free_i64(shown);
}

/* A block is left by a fault. Before the instruction it had stored this many words more than the
 * ring knows. */
void mg_words_written(CPUState *cpu, uint64_t words);

void mg_words_written(CPUState *cpu, uint64_t words)
{
    struct mg_ring *r = cpu->neg.memgauge_ring;
    if (words)
        __atomic_store_n(&r->w, r->w + words, __ATOMIC_RELEASE);
}
