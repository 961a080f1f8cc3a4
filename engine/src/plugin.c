/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Streams what a program under QEMU user mode executes and accesses. A
 * callback stores one or two words and returns; everything else is decided
 * when a block of code is translated (decode.c) or by the recorder.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "guest.h"
#include "session.h"

/* Translation is serialised by translate_lock: a block, and its last instruction. */
static struct mg_decoded block, rep;
static pthread_mutex_t translate_lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* How far ahead of the next word the ring is asked for, in words. The recorder has read
 * those lines last. Without asking early, the thread waits for each to come back, which
 * doubles its time where the recorder keeps up. */
#define AHEAD 128

static inline void advance(struct mg_ring *r, uint64_t *w)
{
#ifdef __x86_64__
    __asm__ volatile("prefetchw %0" : : "m"(w[AHEAD]));
#endif
    __atomic_store_n(&r->w, w, __ATOMIC_RELEASE);
}

static inline void put_block(struct mg_ring *r, uint64_t *w, void *word)
{
    *w = (uintptr_t)word;
    advance(r, w + 1);
}

/* Rare work of a callback is a function of its own, called last. So the callback keeps
 * nothing over a call, and saves no registers. */
static __attribute__((noinline)) void block_after_turn(void *word)
{
    uint64_t *w = mg_ring_turn();
    put_block(mg_ring, w, word);
}

static void on_block(unsigned vcpu, void *word)
{
    (void)vcpu;
    struct mg_ring *r = mg_ring;
    uint64_t *w = r->w;
    if (UNLIKELY(w >= r->end)) /* no block begins there */
        return block_after_turn(word);
    put_block(r, w, word);
}

/* Forms of a run in two lines: bit n of each mask is for a second line that begins at
 * the run's byte n. */
struct mg_lines {
    uint64_t two;          /* two words do: no access is in both lines, the last is not in
                            * the first one's, and the id says whether that one is stored to */
    uint64_t first_stores; /* there is a store in the first access's line */
    uint64_t other_stores; /* ... in the other one */
    int8_t last;           /* its last access, from the first */
};

/* Lines of all blocks' runs. The first one is for runs whose lines are not
 * distinguished, as are all that would come after the last one. */
#define LINES (1u << 20)
static struct mg_lines lines[LINES];
static unsigned lines_used = 1;

/* Places of the second line at which a byte at `at` is in it. */
static inline uint64_t in_second(unsigned at)
{
    return at >= 63 ? ~1ull : (2ull << at) - 2;
}

static struct mg_lines lines_of(unsigned number)
{
    const struct mg_run *run = &block.run[number];
    uint64_t first = in_second(run->down), last = first, across = 0, stores[2] = { 0, 0 };
    struct mg_lines l = { 0 };
    for (unsigned i = run->first; i < block.accesses && block.access[i].run == number; i++) {
        const struct mg_access *a = &block.access[i];
        unsigned at = run->down + a->delta;
        last = in_second(at);
        across |= in_second(at + a->size - 1) & ~last;
        if (a->kind & MG_STORE) {
            stores[0] |= ~last;
            stores[1] |= last;
        }
        l.last = a->delta;
    }
    l.two = ~across & (first ^ last);
    l.first_stores = (first & stores[1]) | (~first & stores[0]);
    l.other_stores = (first & stores[0]) | (~first & stores[1]);
    return l;
}

/* Number of a run's lines; `begins` where its word says that it stores if any of its
 * accesses does. */
static unsigned add_lines(unsigned number, bool begins)
{
    struct mg_lines l = lines_of(number);
    if (begins && block.run[number].stores)
        l.two &= l.first_stores;
    if (!l.two || block.flags || lines_used == LINES)
        return 0;
    lines[lines_used] = l;
    return lines_used++;
}

/* udata of a run's callback: its id in place and, at the address' bits, how far below
 * the address the run begins, the room that this leaves in a line, the callback's
 * checks, and the number of its lines. */
enum { DOWN_BITS = 0, SIZE_BITS = 8, ROOM_BITS = 16, KIND_BITS = 24, LINES_BITS = 26 };
_Static_assert((uint64_t)LINES << LINES_BITS <= 1ull << MG_ID_SHIFT, "udata");
#define ID_BITS (~0ull << MG_ID_SHIFT)

static uint64_t run_udata(uint64_t id, const struct mg_hook *h)
{
    const struct mg_run *run = &block.run[h->run];
    bool fits = run->down + run->up < MG_LINE_BYTES; /* if not, it begins below any line */
    uint64_t down = fits ? run->down : MG_LINE_BYTES;
    uint64_t room = fits ? MG_LINE_BYTES - 1 - run->down - run->up : 0;
    uint64_t of_lines = fits ? add_lines(h->run, id >= MG_FIRST_BLOCK) : 0;
    return id << MG_ID_SHIFT | down << DOWN_BITS | room << ROOM_BITS |
           (uint64_t)h->size << SIZE_BITS | (uint64_t)h->kind << KIND_BITS |
           of_lines << LINES_BITS;
}

static inline bool in_two_lines(uint64_t vaddr, uint64_t udata)
{
    unsigned within = vaddr % MG_LINE_BYTES;
    unsigned down = udata >> DOWN_BITS & 0xff, room = udata >> ROOM_BITS & 0xff;
    return within - down > room; /* less than nothing is very much */
}

/* The words of a run in two lines, whose first one is `word`. */
static __attribute__((noinline)) void put_lines(struct mg_ring *r, uint64_t *w, uint64_t word,
                                                uint64_t udata)
{
    const struct mg_lines *l = &lines[(udata >> LINES_BITS) % LINES];
    uint64_t vaddr = word & ~ID_BITS, start = vaddr - (udata >> DOWN_BITS & 0xff);
    unsigned second = -start % MG_LINE_BYTES;
    if (!(l->two >> second & 1)) {
        *w = word | MG_SEVERAL;
        return advance(r, w + 1);
    }
    uint64_t further = l->first_stores >> second & 1 ? MG_FURTHER_STORES : MG_FURTHER_LOADS;
    uint64_t other = l->other_stores >> second & 1 ? MG_OTHER_LINE_STORES : MG_OTHER_LINE_LOADS;
    bool begins = word >> MG_ID_SHIFT >= MG_FIRST_BLOCK;
    w[0] = begins ? word : further << MG_ID_SHIFT | vaddr;
    w[1] = other << MG_ID_SHIFT | (vaddr + l->last);
    advance(r, w + 2);
}

/* The words of a run at `vaddr`, which is below 2^47. */
static inline void put_run(struct mg_ring *r, uint64_t *w, uint64_t vaddr, void *run)
{
    uint64_t udata = (uintptr_t)run, word = (udata & ID_BITS) | vaddr;
    if (UNLIKELY(in_two_lines(vaddr, udata)))
        return put_lines(r, w, word, udata);
    *w = word;
    advance(r, w + 1);
}

static __attribute__((noinline)) void first_run_after_turn(uint64_t vaddr, void *udata)
{
    uint64_t *w = mg_ring_turn();
    put_run(mg_ring, w, vaddr, udata);
}

static void on_first_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *udata)
{
    (void)vcpu, (void)info;
    struct mg_ring *r = mg_ring;
    uint64_t *w = r->w;
    if (UNLIKELY(w >= r->end)) /* no block begins there */
        return first_run_after_turn(vaddr, udata);
    put_run(r, w, vaddr, udata);
}

static void on_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *udata)
{
    (void)vcpu, (void)info;
    struct mg_ring *r = mg_ring;
    put_run(r, r->w, vaddr, udata);
}

static inline bool is_store(qemu_plugin_meminfo_t info)
{
    return qemu_plugin_mem_is_store(info);
}

static inline bool is_load(qemu_plugin_meminfo_t info)
{
    return !is_store(info);
}

static inline unsigned size_shift(qemu_plugin_meminfo_t info)
{
    return qemu_plugin_mem_size_shift(info);
}

/* Whether this callback is of the wanted kind, and not of the other half of a
 * read-modify-write. */
static inline bool is_wanted(qemu_plugin_meminfo_t info, void *run)
{
    return (uintptr_t)run >> KIND_BITS & MG_LOAD ? is_load(info) : is_store(info);
}

static void on_either_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *udata)
{
    if (is_wanted(info, udata))
        on_run(vcpu, info, vaddr, udata);
}

static void on_either_first_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr,
                                void *udata)
{
    if (is_wanted(info, udata))
        on_first_run(vcpu, info, vaddr, udata);
}

/* Accesses wider than QEMU's registers come in pieces; the first one stands for all.
 * Whether this callback is of the wanted kind and of a first piece. */
static inline bool begins_wide(qemu_plugin_meminfo_t info, uint64_t vaddr, void *run)
{
    struct mg_ring *r = mg_ring;
    if (!is_wanted(info, run))
        return false;
    unsigned shift = size_shift(info);
    uint64_t next = r->piece_next;
    r->piece_next = vaddr + (1u << shift);
    if (r->piece_left && vaddr == next) {
        r->piece_left--;
        return false;
    }
    r->piece_left = ((uintptr_t)run >> SIZE_BITS & 0xff) / (1u << shift) - 1;
    return true;
}

static void on_wide_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *udata)
{
    if (begins_wide(info, vaddr, udata))
        on_run(vcpu, info, vaddr, udata);
}

static void on_wide_first_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr,
                              void *udata)
{
    if (begins_wide(info, vaddr, udata))
        on_first_run(vcpu, info, vaddr, udata);
}

/* A rep instruction begins, which QEMU repeats within one execution of its block. Each
 * iteration but the first is told as an execution of a block of that instruction alone
 * (udata: its number). */
static void on_rep(unsigned vcpu, void *alone)
{
    (void)vcpu;
    mg_ring->rep_block = (uintptr_t)alone;
    mg_ring->rep_accesses = 0;
}

/* Before an access of a rep instruction, of which an iteration makes `all`: whether
 * this iteration has an execution of its own. */
static bool repeats_alone(unsigned vcpu, uint32_t all)
{
    uint32_t before = mg_ring->rep_accesses++;
    if (before >= all && before % all == 0)
        on_block(vcpu, (void *)(uintptr_t)(MG_MARK_BLOCK | mg_ring->rep_block));
    return before >= all;
}

static void on_rep_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *udata)
{
    if (!is_wanted(info, udata))
        return;
    repeats_alone(vcpu, 1);
    on_run(vcpu, info, vaddr, udata);
}

/* A varying access, piece by piece; udata: number of the instruction. */
static void on_piece(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *insn)
{
    (void)vcpu;
    struct mg_ring *r = mg_ring;
    uint64_t *w = r->w;
    if (UNLIKELY(w + 2 > r->end + MG_BLOCK_SLACK)) {
        atomic_fetch_add(&r->dropped, 1);
        return;
    }
    w[0] = MG_MARK_PIECE | (uintptr_t)insn |
           (uint64_t)(1u << size_shift(info)) << MG_PIECE_SIZE_SHIFT |
           (is_load(info) ? MG_PIECE_LOAD : 0) | (is_store(info) ? MG_PIECE_STORE : 0);
    w[1] = vaddr;
    advance(r, w + 2);
}

/* Compared strings: two loads an iteration, in the order QEMU makes them. */
static void on_rep_piece(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *insn)
{
    on_piece(vcpu, info, vaddr, repeats_alone(vcpu, 2) ? NULL : insn);
}

static qemu_plugin_vcpu_mem_cb_t callback_of(const struct mg_hook *h, bool first)
{
    if (h->begins_rep)
        return on_rep_run;
    if (h->size > 8)
        return first ? on_wide_first_run : on_wide_run;
    if (h->filtered)
        return first ? on_either_first_run : on_either_run;
    return first ? on_first_run : on_run;
}

static void hook_run(struct qemu_plugin_insn *insn, const struct mg_hook *h, bool first,
                     uint64_t id)
{
    qemu_plugin_register_vcpu_mem_cb(insn, callback_of(h, first), QEMU_PLUGIN_CB_NO_REGS,
                                     QEMU_PLUGIN_MEM_RW,
                                     (void *)(uintptr_t)run_udata(id, h));
}

/* `alone`: number of the block of its rep instruction alone, if it ends in one. */
static void hook_block(struct qemu_plugin_tb *tb, uint64_t number, uint64_t alone)
{
    /* Only a block all of whose runs surely come, in order, begins with one. */
    bool marked = block.flags || number >= MG_MARKS;
    bool first = !marked && block.runs;
    uint64_t word = marked ? MG_MARK_BLOCK | number : number << MG_ID_SHIFT | MG_NO_ACCESS;
    if (!first)
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS,
                                             (void *)(uintptr_t)word);
    for (unsigned i = 0; i < block.hooks; i++) {
        const struct mg_hook *h = &block.hook[i];
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, h->insn);
        if (h->begins_rep)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_rep, QEMU_PLUGIN_CB_NO_REGS,
                                                   (void *)(uintptr_t)alone);
        if (h->varying) {
            qemu_plugin_register_vcpu_mem_cb(insn, h->begins_rep ? on_rep_piece : on_piece,
                                             QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW,
                                             (void *)(uintptr_t)h->insn);
        } else {
            bool stores = block.run[h->run].stores;
            hook_run(insn, h, first, first ? number : stores ? MG_FURTHER_STORES
                                                             : MG_FURTHER_LOADS);
            first = false;
        }
    }
}

/* Instructions `from` to `end` of a block, as a block of their own, and their
 * first byte. */
static uint64_t decode_block(struct mg_decoded *b, struct qemu_plugin_tb *tb, size_t from,
                             size_t end, uint64_t guest_base)
{
    uint64_t start = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, from));
    mg_decode_begin(b);
    for (size_t i = from; i < end; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        uint64_t vaddr = qemu_plugin_insn_vaddr(insn);
        mg_decode_insn(b, (const uint8_t *)(vaddr + guest_base), qemu_plugin_insn_size(insn),
                       vaddr, vaddr - start);
    }
    return start;
}

/* The number by which the recorder knows a decoded block from now on; 0: it does
 * not, the catalogue is full. */
static uint64_t told(const struct mg_decoded *b, uint64_t vaddr)
{
    struct mg_code code = {
        .record = { MG_REC_CODE, sizeof code + b->accesses * sizeof b->access[0] },
        .vaddr = vaddr, .insns = b->insns, .accesses = b->accesses,
        .runs = b->runs, .flags = b->flags, .id = mg_new_block_id(),
    };
    bool fits = mg_catalogue(&code, sizeof code, b->access, b->accesses * sizeof b->access[0]);
    return fits ? code.id : 0;
}

static void on_translate(qemu_plugin_id_t plugin, struct qemu_plugin_tb *tb)
{
    (void)plugin;
    struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, 0);
    uint64_t base = (uint64_t)(uintptr_t)qemu_plugin_insn_haddr(insn) - qemu_plugin_insn_vaddr(insn);
    pthread_mutex_lock(&translate_lock);
    if (!loaded) {
        loaded = true;
        mg_guest_loaded(base);
    }
    uint64_t vaddr = decode_block(&block, tb, 0, qemu_plugin_tb_n_insns(tb), base);
    mg_note_undecoded(block.undecoded);
    uint64_t number = told(&block, vaddr), alone = number;
    if (!number) /* no room: the block runs unrecorded */
        mg_note_undecoded(block.insns);
    if (number && block.loops && block.insns > 1)
        alone = told(&rep, decode_block(&rep, tb, block.insns - 1, block.insns, base));
    if (alone)
        hook_block(tb, number, alone);
    pthread_mutex_unlock(&translate_lock);
}

static void reset_translate_lock(void)
{
    pthread_mutex_init(&translate_lock, NULL);
}

static const char *session_argument(int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "session=", 8) == 0)
            return argv[i] + 8;
    return NULL;
}

int memgauge_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv);

/* Called as a plugin's function of installation is, see engine/qemu.patch. */
int memgauge_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    (void)info;
    const char *dir = session_argument(argc, argv);
    if (!dir || !mg_session_open(dir)) {
        fprintf(stderr, "memgauge: the recording session is gone; the program is not recorded\n");
        return 0; /* the program itself must still run */
    }
    mg_decode_init();
    mg_process_begin(MG_NO_ENTRY, 0);
    pthread_atfork(NULL, NULL, reset_translate_lock);
    mg_guest_install(id);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    return 0;
}
