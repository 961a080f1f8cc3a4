/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Streams what a program under QEMU user mode executes and accesses. A
 * callback stores one or two words and returns; everything else is decided
 * when a block of code is translated (decode.c) or by the recorder.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "guest.h"
#include "qemu-api.h"
#include "session.h"

#ifndef MG_QEMU_API
#define MG_QEMU_API 1
#endif
MG_EXPORT int qemu_plugin_version = MG_QEMU_API;

static struct mg_decoded block; /* translation is serialised by translate_lock */
static pthread_mutex_t translate_lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

#define UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline void advance(struct mg_ring *r, uint64_t *w)
{
    __atomic_store_n(&r->w, w, __ATOMIC_RELEASE);
}

/* Where the words of a new code block go. */
static inline uint64_t *begin_block(void)
{
    uint64_t *w = mg_ring->w;
    return UNLIKELY(w >= mg_ring->end) ? mg_ring_turn() : w;
}

static void on_block(unsigned vcpu, void *id)
{
    (void)vcpu;
    uint64_t *w = begin_block();
    w[0] = MG_WORD_BLOCK | (uintptr_t)id;
    advance(mg_ring, w + 1);
}

static void on_block_and_leader(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr,
                                void *id)
{
    (void)vcpu, (void)info;
    uint64_t *w = begin_block();
    w[0] = MG_WORD_BLOCK | (uintptr_t)id;
    w[1] = vaddr;
    advance(mg_ring, w + 2);
}

static void on_leader(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *unused)
{
    (void)vcpu, (void)info, (void)unused;
    struct mg_ring *r = mg_ring;
    uint64_t *w = r->w;
    w[0] = vaddr;
    advance(r, w + 1);
}

/* QEMU splits accesses wider than its registers. Returns whether this is a
 * further piece of the access that began before. */
static inline bool further_piece(qemu_plugin_meminfo_t info, uint64_t vaddr, unsigned size)
{
    struct mg_ring *r = mg_ring;
    unsigned piece = 1u << qemu_plugin_mem_size_shift(info);
    if (r->piece_left && vaddr == r->piece_next) {
        r->piece_left--;
        r->piece_next += piece;
        return true;
    }
    r->piece_left = size / piece - 1;
    r->piece_next = vaddr + piece;
    return false;
}

static void on_wide_leader(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *size)
{
    if (!further_piece(info, vaddr, (uintptr_t)size))
        on_leader(vcpu, info, vaddr, NULL);
}

/* udata: operand size above the block number. */
static void on_block_and_wide_leader(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr,
                                     void *udata)
{
    uintptr_t u = (uintptr_t)udata;
    if (!further_piece(info, vaddr, u >> 32))
        on_block_and_leader(vcpu, info, vaddr, (void *)(u & 0xffffffffu));
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
    w[0] = MG_WORD_PIECE | (uintptr_t)insn |
           (uint64_t)(1u << qemu_plugin_mem_size_shift(info)) << MG_PIECE_SIZE_SHIFT |
           (qemu_plugin_mem_is_store(info) ? MG_PIECE_STORE : 0);
    w[1] = vaddr;
    advance(r, w + 2);
}

static void hook_leader(struct qemu_plugin_insn *insn, const struct mg_hook *h, bool first,
                        uint64_t id)
{
    bool wide = h->size > 8;
    /* A read-modify-write reads once; its write is implied. */
    enum qemu_plugin_mem_rw rw = h->kind == MG_STORE ? QEMU_PLUGIN_MEM_W : QEMU_PLUGIN_MEM_R;
    qemu_plugin_mem_cb_t cb = first ? (wide ? on_block_and_wide_leader : on_block_and_leader)
                                    : (wide ? on_wide_leader : on_leader);
    uint64_t udata = (first ? id : 0) | (wide ? (first ? (uint64_t)h->size << 32 : h->size) : 0);
    qemu_plugin_register_vcpu_mem_cb(insn, cb, QEMU_PLUGIN_CB_NO_REGS, rw,
                                     (void *)(uintptr_t)udata);
}

static void hook_block(struct qemu_plugin_tb *tb, uint64_t id)
{
    bool first = block.leaders > 0 && !block.header_apart;
    if (!first)
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS,
                                             (void *)(uintptr_t)id);
    for (unsigned i = 0; i < block.hooks; i++) {
        const struct mg_hook *h = &block.hook[i];
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, h->insn);
        if (h->varying) {
            qemu_plugin_register_vcpu_mem_cb(insn, on_piece, QEMU_PLUGIN_CB_NO_REGS,
                                             QEMU_PLUGIN_MEM_RW, (void *)(uintptr_t)h->insn);
        } else {
            hook_leader(insn, h, first, id);
            first = false;
        }
    }
}

static void decode_block(struct qemu_plugin_tb *tb, uint64_t guest_base)
{
    uint64_t start = qemu_plugin_tb_vaddr(tb);
    size_t n = qemu_plugin_tb_n_insns(tb);
    mg_decode_begin(&block);
    for (size_t i = 0; i < n; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        uint64_t vaddr = qemu_plugin_insn_vaddr(insn);
        mg_decode_insn(&block, (const uint8_t *)(vaddr + guest_base), qemu_plugin_insn_size(insn),
                       vaddr, vaddr - start);
    }
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
    decode_block(tb, base);
    mg_note_undecoded(block.undecoded);
    struct mg_code code = {
        .record = { MG_REC_CODE, sizeof code + block.accesses * sizeof block.access[0] },
        .vaddr = qemu_plugin_tb_vaddr(tb), .insns = block.insns, .accesses = block.accesses,
        .leaders = block.leaders, .flags = block.flags,
    };
    code.id = mg_new_block_id();
    if (mg_catalogue(&code, sizeof code, block.access, block.accesses * sizeof block.access[0]))
        hook_block(tb, code.id);
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

MG_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
                                  char **argv)
{
    (void)info;
    const char *dir = session_argument(argc, argv);
    if (!dir || !mg_session_open(dir)) {
        fprintf(stderr, "memgauge: the recording session is gone; the program is not recorded\n");
        return 0; /* the program itself must still run */
    }
    mg_process_begin(MG_NO_ENTRY, 0);
    pthread_atfork(NULL, NULL, reset_translate_lock);
    mg_guest_install(id);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    return 0;
}
