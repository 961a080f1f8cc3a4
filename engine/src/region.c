/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Regions of interest: named parts of a thread's execution.
 *
 * A program marks them itself (memgauge_region.h): a jump to the next instruction, so that a block
 * begins there, and a long no-op whose displacement encodes the mark. rdi points to the name, rsi
 * holds a value.
 *
 *   eb 00                  jmp  .+2
 *   0f 1f 87 KK 00 47 4d   nopl 0x4d4700KK(%rdi)   KK: 1 begin, 2 end, 3 value
 *
 * Alternatively, functions are regions. The session's file `functions` has a pattern on each line.
 * A region begins with a block at a function's address. It ends with the first block whose stack
 * pointer is above the location of the return address: after a return, longjmp, or the end of a
 * function that was entered by a tail call. Nested calls have no effect.
 *
 * All marks are written before the words of their block, so a region consists of whole blocks.
 */
#include "qemu/osdep.h"
#include "qemu/qemu-plugin.h"
#include "hw/core/cpu.h"

#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guest/decode.h"
#include "guest/registers.h"
#include "region.h"
#include "session.h"
#include "symbols.h"
#include "time/sync.h"

enum { MOST_NAMES = 65535, MOST_FRAMES = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static GHashTable *names;     /* numbers from 1 by name */
static GHashTable *functions; /* numbers of their names by address */
static GPtrArray *patterns;   /* NULL if no function is a region */

/* Functions that the thread has entered, outermost first. */
static __thread struct { uint32_t name; uint64_t sp; } frame[MOST_FRAMES];
static __thread unsigned frames;
/* Stack pointer before a block that may switch stacks, or 0. If the stack pointer is lower by more
 * than far_below afterwards, the block switched to a lower stack. */
static __thread uint64_t sp_before, far_below;
/* A block that loads the stack pointer may push before. One that computes it may allocate on the
 * current stack, as compilers do for arrays. */
enum { LOADED_BELOW = 256, COMPUTED_BELOW = 64 << 10 };
/* A copy for each virtual processor, so that a block can test it without a call. */
static struct qemu_plugin_scoreboard *board;
static qemu_plugin_u64 in_functions;

/* Number of a name, added to the catalogue if new; 0 if there is no room. */
static uint32_t number_of(const char *text)
{
    char name[MG_REGION_NAME] = "";
    memcpy(name, text, strnlen(text, MG_REGION_NAME - 1));
    pthread_mutex_lock(&lock);
    uint32_t number = GPOINTER_TO_UINT(g_hash_table_lookup(names, name));
    if (!number && g_hash_table_size(names) < MOST_NAMES) {
        uint32_t next = g_hash_table_size(names) + 1;
        struct mg_map m = {
            .record = { MG_REC_REGION, sizeof m + MG_REGION_NAME }, .start = next,
            .path_bytes = strlen(name),
        };
        if (mg_catalogue(&m, sizeof m, name, MG_REGION_NAME)) {
            number = next;
            g_hash_table_insert(names, g_strdup(name), GUINT_TO_POINTER(number));
        }
    }
    pthread_mutex_unlock(&lock);
    return number;
}

static void put(enum mg_region_kind kind, uint32_t number, uint64_t value)
{
    uint64_t *w = mg_own_ring()->w;
    if (w >= mg_own_ring()->end)
        w = mg_ring_turn();
    if (!number) {
        atomic_fetch_add(&mg_own_ring()->dropped, 1);
        return;
    }
    *w++ = MG_MARK_REGION | (uint64_t)kind << MG_REGION_KIND_SHIFT | number;
    if (kind == MG_REGION_VALUE) {
        *w++ = MG_MARK_VALUE_HIGH | value >> 32;
        *w++ = MG_MARK_VALUE_LOW | (value & 0xffffffff);
    }
    __atomic_store_n(&mg_own_ring()->w, w, __ATOMIC_RELEASE);
}

/* ---- marked by the program ---- */

static void read_name(char name[MG_REGION_NAME], uint64_t from)
{
    size_t to_page_end = MG_PAGE - from % MG_PAGE, bytes = MG_REGION_NAME - 1;
    size_t first = bytes < to_page_end ? bytes : to_page_end;
    memset(name, 0, MG_REGION_NAME);
    if (!mg_guest_read(name, from, first))
        snprintf(name, MG_REGION_NAME, "(unreadable)");
    else if (first < bytes && !memchr(name, 0, first))
        mg_guest_read(name + first, from + first, bytes - first);
}

static void on_marker(unsigned vcpu, void *kind)
{
    char name[MG_REGION_NAME];
    int saved = errno;
    (void)vcpu;
    read_name(name, mg_reg(mg_reg_argument[0]));
    put((uintptr_t)kind, number_of(name), mg_reg(mg_reg_argument[1]));
    errno = saved;
}

/* Kind of mark that an instruction is, or 0. */
static unsigned marker(const uint8_t *code, size_t bytes)
{
    unsigned kind = mg_marker(code, bytes);
    return kind <= MG_REGION_VALUE ? kind : 0;
}

/* ---- functions ---- */

static void set_frames(unsigned vcpu, unsigned count)
{
    frames = count;
    qemu_plugin_u64_set(in_functions, vcpu, count);
}

static void before_switch(unsigned vcpu, void *below)
{
    (void)vcpu;
    sp_before = mg_reg(MG_REG_SP);
    far_below = (uintptr_t)below;
}

/* Leaves the functions whose return addresses are below the stack pointer. After a switch to
 * another stack, leaves all. */
static void on_block_within(unsigned vcpu, void *unused)
{
    uint64_t sp = mg_reg(MG_REG_SP);
    bool is_elsewhere = far_below && sp + far_below < sp_before;
    unsigned left = frames;
    (void)unused;
    far_below = 0;
    while (left && (is_elsewhere || sp > frame[left - 1].sp))
        put(MG_REGION_END, frame[--left].name, 0);
    if (left != frames)
        set_frames(vcpu, left);
}

static void on_entry(unsigned vcpu, void *name)
{
    uint32_t number = (uintptr_t)name;
    for (unsigned i = 0; i < frames; i++)
        if (frame[i].name == number)
            return;
    if (!number || frames == MOST_FRAMES) {
        put(MG_REGION_BEGIN, 0, 0); /* counted as dropped */
        return;
    }
    frame[frames].name = number;
    frame[frames].sp = mg_reg(MG_REG_SP);
    set_frames(vcpu, frames + 1);
    put(MG_REGION_BEGIN, number, 0);
}

/* A new thread takes the place of an ended one. Called by its parent. */
static void on_thread(qemu_plugin_id_t id, unsigned vcpu)
{
    (void)id;
    qemu_plugin_u64_set(in_functions, vcpu, 0);
}

/* The child has a single thread, which is outside all regions. */
static void child_of_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    if (patterns && current_cpu)
        set_frames(current_cpu->cpu_index, 0);
}

static bool is_wanted(const char *name)
{
    for (unsigned i = 0; i < patterns->len; i++)
        if (fnmatch(patterns->pdata[i], name, 0) == 0)
            return true;
    return false;
}

/* A function with an address in both symbol tables keeps its first name. */
static void add_function(const char *name, uint64_t vaddr, uint64_t bytes)
{
    (void)bytes;
    uint32_t number = number_of(name);
    pthread_mutex_lock(&lock);
    if (!g_hash_table_contains(functions, (void *)vaddr))
        g_hash_table_insert(functions, (void *)vaddr, GUINT_TO_POINTER(number));
    pthread_mutex_unlock(&lock);
}

struct range {
    uint64_t start, end;
};

static gboolean lies_in(void *vaddr, void *number, void *range)
{
    const struct range *r = range;
    (void)number;
    return (uint64_t)vaddr >= r->start && (uint64_t)vaddr < r->end;
}

static void forget_functions(uint64_t start, uint64_t end)
{
    struct range range = { start, end };
    pthread_mutex_lock(&lock);
    g_hash_table_foreach_remove(functions, lies_in, &range);
    pthread_mutex_unlock(&lock);
}

static bool is_function(uint64_t vaddr, void **number)
{
    pthread_mutex_lock(&lock);
    bool is_one = g_hash_table_lookup_extended(functions, (void *)vaddr, NULL, number);
    pthread_mutex_unlock(&lock);
    return is_one;
}

/* ---- */

void mg_region_translate(struct qemu_plugin_tb *tb, uint64_t vaddr, const uint8_t *code,
                         size_t bytes, const struct mg_decoded *block)
{
    if (mg_sets()) /* such rings have other words, and no mark may come between them */
        return;
    unsigned kind = marker(code, bytes);
    if (kind)
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_marker, QEMU_PLUGIN_CB_NO_REGS,
                                             (void *)(uintptr_t)kind);
    if (!patterns)
        return;
    qemu_plugin_register_vcpu_tb_exec_cond_cb(tb, on_block_within, QEMU_PLUGIN_CB_NO_REGS,
                                              QEMU_PLUGIN_COND_NE, in_functions, 0, NULL);
    if (block->switches_stack) {
        uintptr_t below = block->loads_stack ? LOADED_BELOW : COMPUTED_BELOW;
        qemu_plugin_register_vcpu_tb_exec_cond_cb(tb, before_switch, QEMU_PLUGIN_CB_NO_REGS,
                                                  QEMU_PLUGIN_COND_NE, in_functions, 0,
                                                  (void *)below);
    }
    void *name;
    if (is_function(vaddr, &name))
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_entry, QEMU_PLUGIN_CB_NO_REGS, name);
}

void mg_region_install(uint64_t plugin)
{
    char path[256], *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    pthread_atfork(NULL, NULL, child_of_fork);
    names = g_hash_table_new(g_str_hash, g_str_equal);
    snprintf(path, sizeof path, "%s/functions", mg_session_dir);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    patterns = g_ptr_array_new();
    functions = g_hash_table_new(NULL, NULL);
    while ((bytes = getline(&line, &room, f)) > 0) {
        line[strcspn(line, "\n")] = 0;
        g_ptr_array_add(patterns, g_strdup(line));
    }
    free(line);
    fclose(f);
    board = qemu_plugin_scoreboard_new(sizeof(uint64_t));
    in_functions = qemu_plugin_scoreboard_u64(board);
    qemu_plugin_register_vcpu_init_cb(plugin, on_thread);
    mg_symbols_ask((struct mg_symbol_user){ is_wanted, add_function, forget_functions });
}
