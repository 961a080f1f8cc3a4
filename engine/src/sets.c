/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * With memgauge's --sets, only some cache sets are modelled. The ring gets the runs of lines in
 * those sets, and all others are skipped. Sets do not influence each other, so the recorder models
 * them exactly. The lowest six bits of a line's number are its class: a set of any level only
 * contains lines of one class.
 *
 * Executed instructions are counted here, since the recorder no longer sees each block. A block
 * adds its counts to mg_ring.ran and one to its own count. When ran is full, its top bit is set,
 * which the next block notices. The same bit says that the ring is full, so that a block needs only
 * one test.
 */
#include "sets.h"

#include "qemu/osdep.h"
#include "hw/core/cpu.h"

#include "emit.h"
#include "runs.h"
#include "session.h"

/* States of mg_ring.narrowed. */
enum { NARROWED = 1, TO_NARROW, PEEKING };

/* Number of runs in a short look at all lines. Longer looks with as many runs in total were less
 * informative. */
enum { PEEK_RUNS = 4096 };

/* Mean number of instructions between two looks of a thread. It doubles after every PEEK_DOUBLING
 * looks of the process, so that a short program has a few dozen looks and a long one spends little
 * time on them. A thread that starts later begins with the current distance. Frequent looks of its
 * own would put it out of step with the others. */
enum { PEEK_FIRST_GAP = 1 << 15, PEEK_DOUBLING = 4, PEEK_DOUBLINGS = 7 };

/* Number of looks planned by this process. */
static atomic_uint planned_peeks;

static uint8_t *table(struct mg_ring *r)
{
    return (uint8_t *)r + MG_TABLE_AT;
}

static void follow_all(struct mg_ring *r)
{
    memset(table(r), MG_HERE | MG_NEXT, MG_CLASSES);
}

/* Number of instructions until the next look: random between half and one and a half times the
 * mean. Otherwise, looks could always hit the same part of a loop. */
static uint32_t next_gap(void)
{
    uint32_t number = atomic_fetch_add(&planned_peeks, 1);
    uint32_t mean = PEEK_FIRST_GAP << MIN(number / PEEK_DOUBLING, PEEK_DOUBLINGS);
    uint32_t random = (number + 1) * 2654435761u;
    return mean / 2 + (random ^ random >> 15) % mean;
}

void mg_begin_sets(struct mg_ring *r)
{
    follow_all(r);
    r->peek_gap = next_gap();
}

static void narrow(struct mg_ring *r)
{
    uint64_t sets = mg_own_sets();
    for (unsigned class = 0; class < MG_CLASSES; class++)
        table(r)[class] = (sets >> class & 1 ? MG_HERE : 0) |
                          (sets >> (class + 1) % MG_CLASSES & 1 ? MG_NEXT : 0);
    r->narrowed = NARROWED;
}

/* mg_keep must preserve all registers, so neither it nor its callees may use vector registers. */
#define REGISTERS __attribute__((target("general-regs-only")))
#define PART static inline __attribute__((always_inline, target("general-regs-only")))

PART void ask_for_attention(struct mg_ring *r)
{
    if (!r->full)
        r->ran += MG_ATTENTION;
    r->full = 1;
}

PART uint64_t executed(const struct mg_ring *r)
{
    return r->full ? r->ran - MG_ATTENTION : r->ran;
}

PART void put(struct mg_ring *r, uint64_t address, uint64_t run, bool several)
{
    uint64_t *w = r->w, ran = executed(r);
    w[0] = (several ? MG_SEVERAL : 0) | (run >> MG_RUN_BITS & 0xfff) << MG_ID_SHIFT | address;
    w[1] = ran;
    /* Multiplied, also MG_KEPT_PIECE and MG_KEPT_APART. */
    w[2] = run >> MG_BLOCK_BITS | (run >> MG_STORES_BIT & 7) * MG_KEPT_STORES;
    __atomic_store_n(&r->w, w + 3, __ATOMIC_RELEASE);
    r->ran = r->full ? MG_ATTENTION : 0;
    r->since_peek += ran >> MG_RAN_INSNS_SHIFT;
    if (w + 3 >= r->end || r->since_peek >= r->peek_gap || (r->peek && !--r->peek))
        ask_for_attention(r);
    if (!r->narrowed && run >> MG_STORES_BIT & 1) {
        r->narrowed = TO_NARROW;
        ask_for_attention(r);
    }
}

PART void keep(struct mg_ring *r, uint64_t address, uint64_t run)
{
    uint64_t first = address - (run >> MG_DOWN_BITS & 0xff);
    uint8_t what = ((uint8_t *)r + MG_TABLE_AT)[first / MG_LINE_BYTES % MG_CLASSES];
    bool several = first % MG_LINE_BYTES > (run >> MG_ROOM_BITS & 0xff);
    if (what & MG_HERE || (several && what & MG_NEXT))
        put(r, address, run, several);
}

/* Called through mg_keep_call if the table has MG_HERE or MG_NEXT for the run. */
REGISTERS __attribute__((used, no_caller_saved_registers))
void mg_keep(uint64_t address, uint64_t run);

void mg_keep(uint64_t address, uint64_t run)
{
    keep(current_cpu->neg.memgauge_ring, address, run);
}

/* True if the ring has room for the words of a call, which can make any number of them. */
static bool has_room(struct mg_ring *r)
{
    if (r->data && r->w + 3 <= r->end + MG_BLOCK_SLACK)
        return true;
    atomic_fetch_add(&r->dropped, 1);
    return false;
}

void mg_keep_run(uint64_t vaddr, uint64_t run)
{
    struct mg_ring *r = mg_own_ring();
    if (has_room(r))
        keep(r, vaddr, run);
}

/* A rep instruction has progressed to this address. */
static void note_rep(struct mg_ring *r)
{
    r->rep_w = r->w;
    r->rep_ran = executed(r);
}

/* Writes a mark and the counts of executed instructions. */
static void put_mark(struct mg_ring *r, uint64_t mark)
{
    uint64_t ran = executed(r);
    bool after_rep = r->rep_w == r->w && r->rep_ran == ran;
    r->since_peek += ran >> MG_RAN_INSNS_SHIFT;
    r->w[0] = mark;
    r->w[1] = ran;
    __atomic_store_n(&r->w, r->w + 2, __ATOMIC_RELEASE);
    r->ran = r->full ? MG_ATTENTION : 0;
    if (after_rep)
        note_rep(r);
}

void mg_put_sum(void)
{
    struct mg_ring *r = mg_own_ring();
    if (r->data && executed(r))
        put_mark(r, MG_MARK_SUM);
}

/* Starts or ends a look at all lines. */
static void peek(struct mg_ring *r)
{
    bool due = r->since_peek >= r->peek_gap;
    if (due) /* also if no look can start now, or each run would ask again */
        r->since_peek = 0;
    if (r->narrowed == NARROWED && due) {
        put_mark(r, MG_MARK_PEEK | 1);
        r->since_peek = 0;
        r->peek_gap = next_gap();
        follow_all(r);
        r->narrowed = PEEKING;
        r->peek = PEEK_RUNS;
    } else if (r->narrowed == PEEKING && !r->peek) {
        put_mark(r, MG_MARK_PEEK);
        r->since_peek = 0;
        narrow(r);
    }
}

void mg_attention(void)
{
    struct mg_ring *r = mg_own_ring();
    if (!r->data) { /* the thread has no ring yet */
        mg_ring_turn();
        return;
    }
    mg_put_sum();
    if (r->narrowed == TO_NARROW)
        narrow(r);
    peek(r);
    if (r->w >= r->end) {
        bool after_rep = r->rep_w == r->w;
        mg_ring_turn();
        if (after_rep)
            note_rep(mg_own_ring());
    } else if (r->full) {
        r->full = 0;
        r->ran -= MG_ATTENTION;
    }
}

/* ---- rep instructions and varying accesses ---- */

/* An instruction whose accesses are recorded one by one. It is never freed. */
struct site {
    uint64_t at;     /* address of the instruction */
    uint32_t block;  /* number of the instruction's block */
    uint32_t load;   /* its loads as a block; the block of its stores has the next number */
    uint32_t bytes;  /* size of its operand */
    bool alone;      /* its block contains nothing else */
};

static uint64_t *count_of(struct mg_ring *r, uint32_t block)
{
    return (uint64_t *)((uint8_t *)r + MG_COUNTS_AT) + block;
}

/* Counts accesses that are not part of a block's counts. */
static void count_accesses(const struct site *site, bool stores, uint64_t times)
{
    struct mg_ring *r = mg_own_ring();
    *count_of(r, site->load + stores) += times;
    r->ran += times * (stores ? MG_RAN(0, 0, 1, 0) : MG_RAN(0, 1, 0, 0));
    if (r->ran & (stores ? MG_RAN(0, 0, 0x8000, 0) : MG_RAN(0, 0x8000, 0, 0)))
        mg_put_sum();
}

/* Records the lines of a piece that its access has not touched yet. */
static void keep_lines(const struct site *site, uint64_t vaddr, unsigned size, bool stores)
{
    struct mg_ring *r = mg_own_ring();
    uint64_t run = (uint64_t)(site->load + stores) << MG_BLOCK_BITS |
                   (uint64_t)stores << MG_STORES_BIT | 1u << MG_PIECE_BIT |
                   (MG_LINE_BYTES - 1) << MG_ROOM_BITS;
    uint64_t at = vaddr, end = vaddr + size;
    if (r->piece_lines) /* the line of the previous byte was recorded already */
        at = (vaddr + MG_LINE_BYTES - 1) / MG_LINE_BYTES * MG_LINE_BYTES;
    for (; at < end; at = (at / MG_LINE_BYTES + 1) * MG_LINE_BYTES) {
        uint64_t line = MIN(r->piece_lines++, MG_PIECE_FURTHER_LINE);
        if (r->w >= r->end) {
            mg_ring_turn();
            r = mg_own_ring();
        }
        keep(r, at, run | line << MG_RUN_BITS);
    }
}

/* One access of a rep instruction. */
static void on_element(const struct site *site, uint64_t vaddr, unsigned size, bool stores)
{
    count_accesses(site, stores, 1);
    mg_own_ring()->piece_lines = 0;
    keep_lines(site, vaddr, size, stores);
    note_rep(mg_own_ring());
}

static void on_rep_access(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *of)
{
    (void)vcpu;
    on_element(of, vaddr, 1u << qemu_plugin_mem_size_shift(info), qemu_plugin_mem_is_store(info));
}

/* Number of elements from `vaddr` on that can only be counted: in a line that is not simulated, and
 * before the sum is full. */
static uint64_t only_counted(uint64_t vaddr, int64_t step, bool stores)
{
    struct mg_ring *r = mg_own_ring();
    uint32_t room = 0x7fff - (r->ran >> (stores ? 16 : 32) & 0x7fff);
    unsigned bytes = step < 0 ? -step : step;
    if (table(r)[vaddr / MG_LINE_BYTES % MG_CLASSES] & MG_HERE ||
        vaddr % MG_LINE_BYTES + bytes > MG_LINE_BYTES)
        return 0;
    return MIN(1 + mg_rest(vaddr, step, MG_LINE_BYTES), room);
}

void mg_keep_iterations(struct mg_iterations these, const void *load, const void *store)
{
    unsigned bytes = these.step < 0 ? -these.step : these.step;
    while (these.times) {
        uint64_t times = these.times;
        if (load)
            times = MIN(times, only_counted(these.from, these.step, false));
        if (store)
            times = MIN(times, only_counted(these.to, these.step, true));
        if (times) {
            if (load)
                count_accesses(load, false, times);
            if (store)
                count_accesses(store, true, times);
            note_rep(mg_own_ring());
        } else {
            times = 1;
            if (load)
                on_element(load, these.from, bytes, false);
            if (store)
                on_element(store, these.to, bytes, true);
        }
        these.from += these.step * times;
        these.to += these.step * times;
        these.times -= times;
    }
}

/* A rep instruction begins. QEMU repeats it about ten thousand times and then executes it again as
 * a block, which does not count as a further instruction. */
static void on_rep(unsigned vcpu, void *of)
{
    (void)vcpu;
    const struct site *site = of;
    struct mg_ring *r = mg_own_ring();
    bool goes_on = site->alone && r->rep_at == site->at && r->rep_w == r->w &&
                   executed(r) - r->rep_ran == MG_RAN(1, 0, 0, 0);
    if (goes_on) {
        r->ran -= MG_RAN(1, 0, 0, 0);
        --*count_of(r, site->block);
    }
    r->rep_at = site->at;
    note_rep(r);
}

/* A varying access begins. */
static void on_varying(unsigned vcpu, void *of)
{
    (void)vcpu, (void)of;
    mg_own_ring()->piece_bytes = 0;
}

/* Consecutive pieces of one kind, up to the operand's size, are one access. */
static void on_piece(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *of)
{
    (void)vcpu;
    const struct site *site = of;
    struct mg_ring *r = mg_own_ring();
    bool stores = qemu_plugin_mem_is_store(info);
    unsigned size = 1u << qemu_plugin_mem_size_shift(info);
    bool goes_on = r->piece_bytes && r->piece_stores == stores && r->piece_next == vaddr &&
                   r->piece_bytes + size <= site->bytes;
    if (!goes_on) {
        count_accesses(site, stores, 1);
        r->piece_bytes = r->piece_lines = 0;
        r->piece_stores = stores;
    }
    r->piece_bytes += size;
    r->piece_next = vaddr + size;
    keep_lines(site, vaddr, size, stores);
}

/* Registers an access of the block being translated as a block of its own. Returns false if there
 * is no room. */
static bool tell_access(uint64_t vaddr, const struct mg_access *access, unsigned bytes,
                        enum mg_access_kind kind, uint32_t *number)
{
    struct mg_access alone = { .offset = access->offset, .size = MIN(bytes, 64), .kind = kind };
    struct mg_code code = {
        .record = { MG_REC_CODE, sizeof code + sizeof alone },
        .vaddr = vaddr, .id = mg_new_block_id(), .accesses = 1, .runs = 1,
        .flags = MG_CODE_PIECE,
    };
    *number = code.id;
    return code.id < MG_COUNTED && mg_catalogue(&code, sizeof code, &alone, sizeof alone);
}

static const struct mg_access *first_access(const struct mg_decoded *b, unsigned insn)
{
    const struct mg_access *access = b->access;
    while (access->insn != insn)
        access++;
    return access;
}

static struct site *new_site(const struct mg_decoded *b, const struct mg_hook *h, uint64_t vaddr,
                             uint32_t number)
{
    const struct mg_access *access = first_access(b, h->insn);
    unsigned bytes = h->varying ? access->delta : h->size;
    uint32_t store;
    struct site *site = g_new0(struct site, 1);
    *site = (struct site){ .at = vaddr + access->offset, .block = number, .bytes = bytes,
                           .alone = b->insns == 1 };
    if (tell_access(vaddr, access, bytes, MG_LOAD, &site->load) &&
        tell_access(vaddr, access, bytes, MG_STORE, &store))
        return site;
    g_free(site);
    mg_note_undecoded(1);
    return NULL;
}

static void hook_site(struct qemu_plugin_insn *insn, const struct mg_hook *h, bool repeats,
                      struct site *site)
{
    enum qemu_plugin_mem_rw rw = h->varying ? QEMU_PLUGIN_MEM_RW
                                 : h->kind & MG_LOAD ? QEMU_PLUGIN_MEM_R : QEMU_PLUGIN_MEM_W;
    if (h->begins_rep)
        qemu_plugin_register_vcpu_insn_exec_cb(insn, on_rep, QEMU_PLUGIN_CB_NO_REGS, site);
    else if (h->varying && !repeats)
        qemu_plugin_register_vcpu_insn_exec_cb(insn, on_varying, QEMU_PLUGIN_CB_NO_REGS, site);
    qemu_plugin_register_vcpu_mem_cb(insn, repeats ? on_rep_access : on_piece,
                                     QEMU_PLUGIN_CB_NO_REGS, rw, site);
}

static void hook_plain(struct qemu_plugin_insn *insn, const struct mg_decoded *b,
                       const struct mg_hook *h, uint32_t number)
{
    const struct mg_run *run = &b->run[h->run];
    uint64_t what = (uint64_t)number << MG_BLOCK_BITS | (uint64_t)h->run << MG_RUN_BITS |
                    (uint64_t)run->stores << MG_STORES_BIT |
                    (uint64_t)run->apart << MG_APART_BIT |
                    (MG_LINE_BYTES - 1 - run->down - run->up) << MG_ROOM_BITS |
                    (uint64_t)h->size << MG_SIZE_BITS | run->down << MG_DOWN_BITS;
    qemu_plugin_register_vcpu_mem_cb(insn, h->size > 8 ? mg_on_wide_run : mg_on_run,
                                     QEMU_PLUGIN_CB_NO_REGS,
                                     h->kind & MG_LOAD ? QEMU_PLUGIN_MEM_R : QEMU_PLUGIN_MEM_W,
                                     (void *)(uintptr_t)what);
}

static bool repeats(const struct mg_decoded *b, unsigned insn)
{
    return b->flags & MG_CODE_ENDS_REP && insn + 1 == b->insns;
}

/* Counts of one execution of a block, without the accesses that are recorded one by one. */
static uint64_t ran_by(const struct mg_decoded *b)
{
    uint64_t ran = MG_RAN(b->insns, 0, 0, 0);
    for (const struct mg_access *a = b->access; a < b->access + b->accesses; a++)
        if (a->run != MG_RUN_VARYING && !repeats(b, a->insn))
            ran += MG_RAN(0, (a->kind & MG_LOAD) != 0, (a->kind & MG_STORE) != 0,
                          a->kind == MG_MODIFY);
    return ran;
}

void mg_hook_sets(struct qemu_plugin_tb *tb, const struct mg_decoded *b, uint64_t vaddr,
                  uint32_t number)
{
    if (number >= MG_COUNTED) { /* no room, so the block runs unrecorded */
        mg_note_without_room(b->insns);
        return;
    }
    mg_plan = (struct mg_plan){ .active = true, .number = number, .ran = ran_by(b) };
    for (unsigned i = 0; i < b->hooks; i++) {
        const struct mg_hook *h = &b->hook[i];
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, h->insn);
        bool rep = repeats(b, h->insn);
        if (!rep && !h->varying) {
            hook_plain(insn, b, h, number);
            continue;
        }
        struct site *site = new_site(b, h, vaddr, number);
        if (site)
            hook_site(insn, h, rep, site);
    }
}
