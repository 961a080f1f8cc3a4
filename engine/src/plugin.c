/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Streams what a program in QEMU's user mode executes and accesses. Blocks store their words
 * themselves (emit.c). Calls handle accesses by QEMU's helpers, rep instructions and varying
 * accesses. All other decisions are made when a block is translated (decode.c) or by the recorder.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guest/decode.h"
#include "emit.h"
#include "guest/guest.h"
#include "heap.h"
#include "python.h"
#include "region.h"
#include "repeats.h"
#include "runs.h"
#include "seed.h"
#include "session.h"
#include "sets.h"
#include "time/hold.h"
#include "time/sync.h"

/* Translation is serialised by translate_lock: a block and its last instruction. */
static struct mg_decoded block, rep;
static pthread_mutex_t translate_lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

#define UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline void advance(struct mg_ring *r, uint64_t *w)
{
    __atomic_store_n(&r->w, w, __ATOMIC_RELEASE);
}

static uint64_t run_udata(uint64_t id, const struct mg_hook *h)
{
    const struct mg_run *run = &block.run[h->run];
    /* Others are always sent as if they were in two lines. */
    bool fits = run->down + run->up < MG_LINE_BYTES && !run->apart;
    uint64_t down = fits ? run->down : MG_LINE_BYTES;
    uint64_t room = fits ? MG_LINE_BYTES - 1 - run->down - run->up : 0;
    return id << MG_ID_SHIFT | down << MG_DOWN_BITS | room << MG_ROOM_BITS |
           (uint64_t)h->size << MG_SIZE_BITS;
}

static inline bool in_two_lines(uint64_t vaddr, uint64_t udata)
{
    unsigned within = vaddr % MG_LINE_BYTES;
    unsigned down = udata >> MG_DOWN_BITS & 0xff, room = udata >> MG_ROOM_BITS & 0xff;
    return within - down > room; /* a negative difference wraps around */
}

/* The word of a run at `vaddr`, which is below 2^47. */
void mg_on_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *run)
{
    (void)vcpu, (void)info;
    if (mg_sets()) {
        mg_keep_run(vaddr, (uintptr_t)run);
        return;
    }
    struct mg_ring *r = mg_own_ring();
    uint64_t udata = (uintptr_t)run, *w = r->w;
    *w = (udata & MG_ID_BITS) | vaddr | (in_two_lines(vaddr, udata) ? MG_SEVERAL : 0);
    advance(r, w + 1);
}

static inline bool is_store(qemu_plugin_meminfo_t info)
{
    return qemu_plugin_mem_is_store(info);
}

static inline unsigned size_shift(qemu_plugin_meminfo_t info)
{
    return qemu_plugin_mem_size_shift(info);
}

/* Accesses wider than QEMU's registers come in pieces. The first one represents the access. */
static bool begins_wide(qemu_plugin_meminfo_t info, uint64_t vaddr, void *run)
{
    struct mg_ring *r = mg_own_ring();
    unsigned shift = size_shift(info);
    uint64_t next = r->piece_next;
    r->piece_next = vaddr + (1u << shift);
    if (r->piece_left && vaddr == next) {
        r->piece_left--;
        return false;
    }
    r->piece_left = ((uintptr_t)run >> MG_SIZE_BITS & 0xff) / (1u << shift) - 1;
    return true;
}

void mg_on_wide_run(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *run)
{
    if (begins_wide(info, vaddr, run))
        mg_on_run(vcpu, info, vaddr, run);
}

/* A varying access, piece by piece. udata: number of the instruction. */
static void on_piece(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *insn)
{
    (void)vcpu;
    struct mg_ring *r = mg_own_ring();
    uint64_t *w = r->w;
    if (UNLIKELY(w + 2 > r->end + MG_BLOCK_SLACK)) {
        atomic_fetch_add(&r->dropped, 1);
        return;
    }
    w[0] = MG_MARK_PIECE | (uintptr_t)insn |
           (uint64_t)(1u << size_shift(info)) << MG_PIECE_SIZE_SHIFT |
           (is_store(info) ? MG_PIECE_STORE : MG_PIECE_LOAD);
    w[1] = vaddr;
    advance(r, w + 2);
}

/* Comparison of strings: two loads per iteration, in QEMU's order. */
static void on_rep_piece(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *insn)
{
    on_piece(vcpu, info, vaddr, mg_repeats_alone(2) ? NULL : insn);
}

static void hook_run(struct qemu_plugin_insn *insn, const struct mg_hook *h, uint64_t id)
{
    qemu_plugin_vcpu_mem_cb_t callback = h->begins_rep ? mg_on_rep_run
                                         : h->follows_rep ? mg_on_rep_further
                                         : h->size > 8 ? mg_on_wide_run : mg_on_run;
    enum qemu_plugin_mem_rw rw = h->kind & MG_LOAD ? QEMU_PLUGIN_MEM_R : QEMU_PLUGIN_MEM_W;
    qemu_plugin_register_vcpu_mem_cb(insn, callback, QEMU_PLUGIN_CB_NO_REGS, rw,
                                     (void *)(uintptr_t)run_udata(id, h));
}

/* `alone`: if the block ends in a rep instruction, the number of the block with that instruction
 * alone. */
static void hook_block(struct qemu_plugin_tb *tb, uint64_t number, uint64_t alone)
{
    /* A block starts with a run only if all of its runs are certain to occur in order. */
    bool marked = block.flags || number >= MG_MARKS;
    bool first = !marked && block.runs;
    uint64_t word = marked ? MG_MARK_BLOCK | number : number << MG_ID_SHIFT | MG_NO_ACCESS;
    mg_plan = (struct mg_plan){ .active = true, .head = first ? 0 : word };
    for (unsigned i = 0; i < block.hooks; i++) {
        const struct mg_hook *h = &block.hook[i];
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, h->insn);
        if (h->begins_rep)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, mg_on_rep, QEMU_PLUGIN_CB_NO_REGS,
                                                   (void *)(uintptr_t)alone);
        if (h->varying) {
            qemu_plugin_register_vcpu_mem_cb(insn, h->begins_rep ? on_rep_piece : on_piece,
                                             QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW,
                                             (void *)(uintptr_t)h->insn);
        } else {
            bool stores = block.run[h->run].stores;
            hook_run(insn, h, first ? number : stores ? MG_FURTHER_STORES : MG_FURTHER_LOADS);
            first = false;
        }
    }
}

/* Instructions `from` to `end` of a block and their first byte, as a block of their own. */
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

/* Adds a decoded block to the catalogue and returns its number, or 0 if the catalogue is full. */
static uint64_t told(const struct mg_decoded *b, uint64_t vaddr, uint64_t guest_base)
{
    static uint8_t body[sizeof b->access + MG_MAX_INSNS * MG_MAX_INSN_BYTES + 8];
    size_t accesses = b->accesses * sizeof b->access[0];
    size_t bytes = (accesses + b->bytes + 7) & ~(size_t)7;
    memcpy(body, b->access, accesses);
    memcpy(body + accesses, (const uint8_t *)(vaddr + guest_base), b->bytes);
    memset(body + accesses + b->bytes, 0, bytes - accesses - b->bytes);
    struct mg_code code = {
        .record = { MG_REC_CODE, sizeof code + bytes },
        .vaddr = vaddr, .insns = b->insns, .accesses = b->accesses,
        .runs = b->runs, .flags = b->flags, .id = mg_new_block_id(),
        .bytes = b->bytes,
        .ends = b->ends | (b->switches_stack ? MG_SWITCHES_STACK : 0),
    };
    return mg_catalogue(&code, sizeof code, body, bytes) ? code.id : 0;
}

static void on_translate(qemu_plugin_id_t plugin, struct qemu_plugin_tb *tb)
{
    (void)plugin;
    struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, 0);
    uint64_t base = (uint64_t)(uintptr_t)qemu_plugin_insn_haddr(insn) - qemu_plugin_insn_vaddr(insn);
    pthread_mutex_lock(&translate_lock);
    mg_plan.active = false;
    if (!loaded) {
        loaded = true;
        mg_guest_loaded(base);
        mg_python_loaded(base);
    }
    uint64_t vaddr = decode_block(&block, tb, 0, qemu_plugin_tb_n_insns(tb), base);
    mg_note_undecoded(block.undecoded);
    uint64_t number = told(&block, vaddr, base), alone = number;
    if (!number) /* no room, so the block runs unrecorded */
        mg_note_without_room(block.insns);
    if (number && mg_sets()) {
        mg_hook_sets(tb, &block, vaddr, number);
        alone = 0;
    } else if (number && block.loops && block.insns > 1)
        alone = told(&rep, decode_block(&rep, tb, block.insns - 1, block.insns, base), base);
    if (alone)
        hook_block(tb, number, alone);
    mg_region_translate(tb, vaddr, (const uint8_t *)(vaddr + base), qemu_plugin_insn_size(insn),
                        &block);
    mg_heap_translate(tb, vaddr);
    mg_python_translate(tb, vaddr);
    pthread_mutex_unlock(&translate_lock);
}

static void child_of_fork(void)
{
    mg_seed_child_of_fork();
    pthread_mutex_init(&translate_lock, NULL);
    mg_hold_child_of_fork();
    mg_sync_begin();
}

/* Value of the argument NAME=VALUE; `name` ends with "=". */
static const char *argument(int argc, char **argv, const char *name)
{
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], name, strlen(name)) == 0)
            return argv[i] + strlen(name);
    return NULL;
}

int memgauge_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv);

/* Called like a plugin's installation function, see engine/qemu.patch. */
int memgauge_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    (void)info;
    const char *dir = argument(argc, argv, "session=");
    const char *seed = argument(argc, argv, "seed=");
    if (seed)
        mg_seed(seed);
    if (!dir || !mg_session_open(dir)) {
        fprintf(stderr, "memgauge: the recording has ended or is out of reach; the program is not recorded\n");
        return 0; /* the program itself must still run */
    }
    mg_decode_init();
    mg_process_begin(MG_NO_ENTRY, 0);
    if (mg_nothing_is_recorded()) {
        fprintf(stderr, "memgauge: no room in %s: %s; the program is not started\n", dir,
                strerror(errno));
        exit(125);
    }
    pthread_atfork(mg_seed_before_fork, NULL, child_of_fork);
    mg_sync_begin();
    mg_region_install(id);
    mg_heap_install(id);
    mg_python_install();
    mg_guest_install(id);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    return 0;
}
