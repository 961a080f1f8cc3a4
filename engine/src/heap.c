/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Records allocations: the results of a thread's calls of allocation functions, and the call paths
 * that led to them.
 *
 * The session's file `allocators` lists the functions, one on each line: KIND FIRST SECOND ARENA
 * NAME. The kinds are those of enum kind. FIRST, SECOND and ARENA are numbers of arguments (0 to 5,
 * - for none).
 * NAME may be several names, separated by spaces, and patterns with *, ? and [...]. The catalogue
 * gets the line number of each function that
 * is found, once per process.
 *
 * A call begins with a block at the function's address. It ends when the block at its return
 * address executes with the stack pointer above the location of that address. Blocks at return
 * addresses are watched from the first call that returns there. Most have not been translated by
 * then; the others are translated again. Calls from one listed function to another belong to the
 * outer one, which owns the memory.
 *
 * A function with an ARENA allocates from it. The addresses in each arena are listed until they are
 * freed or allocated again, and a reset of the arena frees all that are left. A reset is no call of
 * its own: what the arena frees in it with other functions is freed, too.
 *
 * Every call instruction appends its return address to a list of the thread's open calls
 * (mg_out_open_call). It first removes calls whose locations are at or below its own, since these
 * have been left. Returns, longjmp and exceptions therefore need no handling. The path of an
 * allocation consists of the innermost calls, since with all calls a recursive program would have
 * as many paths as allocations. A coroutine appears to be called by the code above its stack.
 */
#include "qemu/osdep.h"
#include "qemu/qemu-plugin.h"
#include "exec/page-protection.h"
#include "hw/core/cpu.h"

#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

#include "emit.h"
#include "guest/registers.h"
#include "heap.h"
#include "session.h"
#include "symbols.h"
#include "time/sync.h"

enum kind {
    ALLOCATES = 'a',   /* FIRST bytes */
    MULTIPLIES = 'm',  /* FIRST times SECOND bytes */
    REALLOCATES = 'r', /* the memory FIRST to SECOND bytes */
    RESIZES = 'R',     /* the memory FIRST to SECOND times the third argument bytes */
    STORES = 's',      /* SECOND bytes; their address to where FIRST points */
    FREES = 'f',       /* the memory FIRST */
    RESETS = 'x',      /* everything in ARENA */
};

struct allocator {
    char kind;
    int8_t first, second, arena;
    uint16_t number; /* its line number in the file */
    bool is_found;
    const char *pattern; /* NULL: a plain name */
};


enum { MOST_PATHS = 1 << 20, OPEN_CALLS = 1 << 16 };

/* A call that has not returned. mg_out_open_call writes these. */
struct open_call {
    uint64_t slot; /* address of its return address */
    uint64_t returns_to;
};
static_assert(sizeof(struct open_call) == MG_OPEN_CALL_BYTES, "host/x86/tcg.c.inc");

bool mg_heap_is_on;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static GHashTable *by_name;    /* struct allocator by function name */
static GPtrArray *patterns;    /* struct allocator of those with a pattern */
static GHashTable *by_address; /* struct allocator by address */
static GHashTable *returns;    /* addresses to which allocation functions have returned */
static GHashTable *paths;      /* path numbers by struct path */
static bool has_arenas;
static GHashTable *arena_of;   /* arena by address of memory in it */
static GHashTable *arenas;     /* sets of these addresses by arena */
/* Number of allocations and frees of the process so far. The recorder may read one thread's free
 * before another thread's allocation. */
static _Atomic uint64_t events;

/* The call of an allocation function that the thread is executing. */
static __thread struct {
    const struct allocator *callee; /* NULL: none */
    uint64_t slot, returns_to, bytes, old, stored_at, arena;
    uint64_t freed; /* number of the event that frees the old memory */
} call;

/* Return addresses of the calls of a path, innermost first; 0 beyond the outermost. */
struct path {
    uint64_t returns_to[MG_PATH_CALLS];
};

static guint hash_path(const void *path)
{
    const struct path *p = path;
    uint64_t hash = 0;
    for (unsigned i = 0; i < MG_PATH_CALLS; i++)
        hash = (hash ^ p->returns_to[i]) * 0x9e3779b97f4a7c15u + (hash >> 29);
    return hash >> 32;
}

static gboolean same_path(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct path)) == 0;
}

/* An argument of a function that the thread is about to execute. */
static uint64_t arg(int number)
{
    return number < 0 ? 0 : mg_reg(mg_reg_argument[number]);
}

/* ---- paths of calls ---- */

static void begin_calls(CPUState *cpu)
{
    size_t bytes = OPEN_CALLS * sizeof(struct open_call);
    struct open_call *calls = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (calls == MAP_FAILED) {
        fprintf(stderr, "memgauge: no memory for the calls of a thread\n");
        exit(125);
    }
    calls[0].slot = UINT64_MAX; /* never removed */
    cpu->neg.memgauge_calls[0] = calls;
    cpu->neg.memgauge_calls[1] = calls + OPEN_CALLS - 2;
}

static void on_thread(qemu_plugin_id_t id, unsigned vcpu)
{
    CPUState *cpu = qemu_get_cpu(vcpu);
    (void)id;
    if (cpu && !cpu->neg.memgauge_calls[0])
        begin_calls(cpu);
}

static void on_thread_end(qemu_plugin_id_t id, unsigned vcpu)
{
    CPUState *cpu = qemu_get_cpu(vcpu);
    (void)id;
    if (cpu && cpu->neg.memgauge_calls[1]) {
        struct open_call *last = cpu->neg.memgauge_calls[1];
        munmap(last + 2 - OPEN_CALLS, OPEN_CALLS * sizeof *last);
        cpu->neg.memgauge_calls[0] = cpu->neg.memgauge_calls[1] = NULL;
    }
}

/* Returns the number of a path. Adds a new path to the catalogue. 0 if there is no room. */
static uint64_t number_of(const struct path *path)
{
    pthread_mutex_lock(&lock);
    uint64_t number = (uintptr_t)g_hash_table_lookup(paths, path);
    uint64_t next = g_hash_table_size(paths) + 1;
    if (!number && next < MOST_PATHS) {
        struct mg_path p = { .record = { MG_REC_PATH, sizeof p }, .number = next };
        memcpy(p.returns_to, path, sizeof p.returns_to);
        if (mg_catalogue(&p, sizeof p, NULL, 0)) {
            number = next;
            g_hash_table_insert(paths, g_memdup2(path, sizeof *path), (void *)(uintptr_t)number);
        }
    }
    pthread_mutex_unlock(&lock);
    return number;
}

/* The innermost open call with a location at or above `slot`. */
static const struct open_call *open_call_at(uint64_t slot)
{
    const struct open_call *at = current_cpu->neg.memgauge_calls[0];
    while (at->slot < slot)
        at--;
    return at;
}

/* Path of the open calls with locations at or above `slot`. */
static uint64_t path_to(uint64_t slot)
{
    const struct open_call *at = open_call_at(slot);
    struct path path = { 0 };
    for (unsigned i = 0; i < MG_PATH_CALLS && at->slot != UINT64_MAX; i++, at--)
        path.returns_to[i] = at->returns_to;
    return number_of(&path);
}

uint64_t mg_heap_path(void)
{
    return path_to(mg_reg(MG_REG_SP));
}

/* ---- allocations ---- */

/* Number the event before another thread can get the memory. */
static uint64_t next_event(void)
{
    return atomic_fetch_add(&events, 1) + 1;
}

/* The memory leaves its arena, if it is in one. The caller holds the lock. */
static void leave_arena(uint64_t address)
{
    void *arena = g_hash_table_lookup(arena_of, (void *)address);
    if (!arena)
        return;
    GHashTable *members = g_hash_table_lookup(arenas, arena);
    g_hash_table_remove(members, (void *)address);
    if (!g_hash_table_size(members))
        g_hash_table_remove(arenas, arena);
    g_hash_table_remove(arena_of, (void *)address);
}

/* Moves memory into an arena, or out of its arena if `arena` is 0. */
static void enter_arena(uint64_t address, uint64_t arena)
{
    if (!has_arenas)
        return;
    pthread_mutex_lock(&lock);
    leave_arena(address);
    if (arena) {
        GHashTable *members = g_hash_table_lookup(arenas, (void *)arena);
        if (!members) {
            members = g_hash_table_new(NULL, NULL);
            g_hash_table_insert(arenas, (void *)arena, members);
        }
        g_hash_table_add(members, (void *)address);
        g_hash_table_insert(arena_of, (void *)address, (void *)arena);
    }
    pthread_mutex_unlock(&lock);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void put_freed(const struct allocator *by, uint64_t address, uint64_t number)
{
    uint64_t word[] = {
        MG_MARK_FREED | by->number,
        MG_MARK_FIELD | (address & MG_FIELD),
        MG_MARK_FIELD | number,
    };
    if (!address)
        return;
    enter_arena(address, 0);
    mg_put_marks(word, ARRAY_SIZE(word));
}

/* Frees all remaining memory of an arena. The order of addresses makes runs reproducible. */
static void reset_arena(const struct allocator *by, uint64_t arena)
{
    pthread_mutex_lock(&lock);
    GHashTable *members = g_hash_table_lookup(arenas, (void *)arena);
    guint count = 0;
    uint64_t *addresses = members ? (uint64_t *)g_hash_table_get_keys_as_array(members, &count) : NULL;
    pthread_mutex_unlock(&lock);
    if (count)
        qsort(addresses, count, sizeof *addresses, by_value);
    for (guint n = 0; n < count; n++)
        put_freed(by, addresses[n], next_event());
    g_free(addresses);
}

static void put_allocated(uint64_t address, uint64_t bytes)
{
    uint64_t word[] = {
        MG_MARK_ALLOCATED | call.callee->number,
        MG_MARK_FIELD | (address & MG_FIELD),
        MG_MARK_FIELD | MIN(bytes, MG_FIELD),
        MG_MARK_FIELD | path_to(call.slot),
        MG_MARK_FIELD | next_event(),
    };
    enter_arena(address, call.arena);
    mg_put_marks(word, ARRAY_SIZE(word));
}

/* The call returns. */
static void on_return(unsigned vcpu, void *unused)
{
    (void)vcpu, (void)unused;
    if (!call.callee || mg_reg(MG_REG_SP) != call.slot + 8)
        return;
    uint64_t result = mg_reg(MG_REG_RESULT);
    int saved = errno;
    switch (call.callee->kind) {
    case STORES:
        if ((int)result || !mg_guest_read(&result, call.stored_at, sizeof result))
            result = 0;
        break;
    case REALLOCATES:
    case RESIZES:
        if (result || !call.bytes)
            put_freed(call.callee, call.old, call.freed);
        break;
    case FREES:
        result = 0;
        break;
    }
    if (result)
        put_allocated(result, call.bytes);
    call.callee = NULL;
    errno = saved;
}

/* Watches the block at a return address. */
static void watch(uint64_t returns_to)
{
    pthread_mutex_lock(&lock);
    bool is_new = g_hash_table_add(returns, (void *)returns_to);
    pthread_mutex_unlock(&lock);
    if (is_new) {
        mmap_lock();
        tb_invalidate_phys_range(returns_to, returns_to);
        mmap_unlock();
    }
}

/* True if the thread is still in its last call. It may have left it by longjmp or an exception. */
static bool is_within(uint64_t slot)
{
    if (!call.callee || slot > call.slot)
        return false;
    const struct open_call *open = open_call_at(call.slot);
    return open->slot == call.slot && open->returns_to == call.returns_to;
}

static void on_call(unsigned vcpu, void *allocator)
{
    const struct allocator *a = allocator;
    uint64_t slot = mg_reg(MG_REG_SP);
    const struct open_call *open = open_call_at(slot);
    (void)vcpu;
    /* Without a call instruction, the function does not return to the address on the stack. */
    if (open->slot == slot && a->kind == RESETS) {
        reset_arena(a, arg(a->arena));
    } else if (open->slot == slot && !is_within(slot)) {
        call.callee = a;
        call.slot = slot;
        call.returns_to = open->returns_to;
        call.bytes = arg(a->first);
        call.old = call.stored_at = call.freed = 0;
        call.arena = arg(a->arena);
        switch (a->kind) {
        case MULTIPLIES: call.bytes *= arg(a->second); break;
        case REALLOCATES: call.old = arg(a->first); call.bytes = arg(a->second); break;
        case RESIZES: call.old = arg(a->first); call.bytes = arg(a->second) * arg(2); break;
        case STORES: call.stored_at = arg(a->first); call.bytes = arg(a->second); break;
        case FREES: put_freed(a, arg(a->first), next_event()); break;
        }
        if (call.old)
            call.freed = next_event();
        watch(call.returns_to);
    }
}

static bool is_watched(uint64_t vaddr, void **allocator)
{
    pthread_mutex_lock(&lock);
    *allocator = g_hash_table_lookup(by_address, (void *)vaddr);
    bool is_return = g_hash_table_contains(returns, (void *)vaddr);
    pthread_mutex_unlock(&lock);
    return is_return;
}

void mg_heap_translate(struct qemu_plugin_tb *tb, uint64_t vaddr)
{
    void *allocator;
    if (!mg_heap_is_on)
        return;
    if (!current_cpu->neg.memgauge_calls[0])
        begin_calls(current_cpu);
    /* A block can be both: the end of one call comes before the start of the next. */
    if (is_watched(vaddr, &allocator))
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_return, QEMU_PLUGIN_CB_NO_REGS, NULL);
    if (allocator)
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_call, QEMU_PLUGIN_CB_NO_REGS, allocator);
}

/* ---- which functions ---- */

/* Returns the function with this name. If several lines match, the last one counts. */
static struct allocator *function_of(const char *name)
{
    struct allocator *found = g_hash_table_lookup(by_name, name);
    for (unsigned n = 0; n < patterns->len; n++) {
        struct allocator *a = patterns->pdata[n];
        if ((!found || found->number < a->number) && fnmatch(a->pattern, name, 0) == 0)
            found = a;
    }
    return found;
}

static bool is_wanted(const char *name)
{
    return function_of(name);
}

static void add_function(const char *name, uint64_t vaddr, uint64_t bytes)
{
    (void)bytes;
    struct allocator *a = function_of(name);
    pthread_mutex_lock(&lock);
    if (!g_hash_table_contains(by_address, (void *)vaddr))
        g_hash_table_insert(by_address, (void *)vaddr, a);
    bool is_new = !a->is_found;
    a->is_found = true;
    pthread_mutex_unlock(&lock);
    struct mg_map m = { .record = { MG_REC_ALLOCATOR, sizeof m }, .start = a->number };
    if (is_new)
        mg_catalogue(&m, sizeof m, NULL, 0);
}

struct range {
    uint64_t start, end;
};

static gboolean lies_in(void *vaddr, void *value, void *range)
{
    const struct range *r = range;
    (void)value;
    return (uint64_t)vaddr >= r->start && (uint64_t)vaddr < r->end;
}

static void forget_functions(uint64_t start, uint64_t end)
{
    struct range range = { start, end };
    pthread_mutex_lock(&lock);
    g_hash_table_foreach_remove(by_address, lies_in, &range);
    pthread_mutex_unlock(&lock);
}

static void child_of_fork(void)
{
    pthread_mutex_init(&lock, NULL);
}

static int8_t argument_number(const char *word)
{
    return word[0] == '-' ? -1 : (int8_t)(word[0] - '0');
}

void mg_heap_install(uint64_t plugin)
{
    char path[256], *line = NULL;
    size_t room = 0;
    uint16_t number = 0;
    snprintf(path, sizeof path, "%s/allocators", mg_session_dir);
    FILE *f = mg_sets() ? NULL : fopen(path, "re");
    if (!f)
        return;
    by_name = g_hash_table_new(g_str_hash, g_str_equal);
    patterns = g_ptr_array_new();
    by_address = g_hash_table_new(NULL, NULL);
    returns = g_hash_table_new(NULL, NULL);
    paths = g_hash_table_new(hash_path, same_path);
    arena_of = g_hash_table_new(NULL, NULL);
    arenas = g_hash_table_new_full(NULL, NULL, NULL, (GDestroyNotify)g_hash_table_destroy);
    while (getline(&line, &room, f) > 0) {
        char kind, first[2], second[2], arena[2];
        int name = 0;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%c %1s %1s %1s %n", &kind, first, second, arena, &name) == 4 && name) {
            struct allocator a = { kind, argument_number(first), argument_number(second),
                                   argument_number(arena), number };
            has_arenas |= kind == RESETS;
            char *rest = NULL;
            for (char *one = strtok_r(line + name, " ", &rest); one; one = strtok_r(NULL, " ", &rest)) {
                a.pattern = strpbrk(one, "*?[") ? g_strdup(one) : NULL;
                if (a.pattern)
                    g_ptr_array_add(patterns, g_memdup2(&a, sizeof a));
                else
                    g_hash_table_insert(by_name, g_strdup(one), g_memdup2(&a, sizeof a));
            }
        }
        number++;
    }
    free(line);
    fclose(f);
    mg_heap_is_on = true;
    pthread_atfork(NULL, NULL, child_of_fork);
    qemu_plugin_register_vcpu_init_cb(plugin, on_thread);
    qemu_plugin_register_vcpu_exit_cb(plugin, on_thread_end);
    mg_symbols_ask((struct mg_symbol_user){ is_wanted, add_function, forget_functions });
}
