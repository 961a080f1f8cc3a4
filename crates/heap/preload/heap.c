/* Records the allocations of the process that preloads this library.
 *
 * The library wraps malloc and its relatives. Every call passes on to the next definition of the
 * function, and sampled calls also write a record to a ring in shared memory, which memgauge reads.
 * crates/heap/src/wire.rs draws the records.
 *
 * Sampling: each thread counts allocated bytes down from an exponentially distributed number. The
 * allocation that takes the count below zero is sampled, so an allocation of s bytes is sampled with
 * probability 1 - exp(-s / period), whatever came before it. Addresses of sampled objects are in a
 * set, so that their frees are recorded, too. With a period of 1, all calls are recorded, and the
 * set is not used.
 *
 * The library uses nothing of the C library but `dl_iterate_phdr` and, where they exist, thread
 * keys and fork handlers. It allocates with mmap, so it works before main, inside dlopen and with
 * glibc and musl. dlsym was rejected because it allocates, and is in libdl before glibc 2.34.
 *
 * A process has no shared lock on its way to a record. A thread owns a ring and a cache of stacks.
 * Forked children write to rings of their own: the kernel clears the state of the parent
 * (MADV_WIPEONFORK), and a fork handler draws new random numbers.
 */

#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#if !defined(__x86_64__)
#error "heap recording supports x86-64"
#endif

#define EXPORT __attribute__((visibility("default")))
#define WEAK __attribute__((weak))
#define NOINLINE __attribute__((noinline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

#define LOAD(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define ADD(p, v) __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)
#define SWAP_IF(p, old, new) \
    __atomic_compare_exchange_n((p), (old), (new), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* Libraries of threads are absent in programs without threads before glibc 2.34. */
extern int pthread_key_create(unsigned *key, void (*destructor)(void *)) WEAK;
extern int pthread_setspecific(unsigned key, const void *value) WEAK;
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) WEAK;
extern int pthread_atfork(void (*)(void), void (*)(void), void (*)(void)) WEAK;

/* ---- System calls, which leave errno alone ---- */

static long call6(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static long call3(long number, long a, long b, long c) { return call6(number, a, b, c, 0, 0, 0); }

static void *map(size_t bytes, int fd) {
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    long at = call6(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    return at < 0 && at > -4096 ? NULL : (void *)at;
}

extern int clock_gettime(clockid_t, struct timespec *) WEAK;

/* Through the vDSO where the C library exports it, which all do since glibc 2.17. */
static uint64_t now_ns(void) {
    struct timespec time;
    if (LIKELY(clock_gettime != NULL))
        clock_gettime(CLOCK_MONOTONIC, &time);
    else
        call3(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&time, 0);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* ---- Settings ---- */

/* Maximum number of recorded calls of a stack. */
#define MAX_CALLS 64

static struct {
    uint64_t period;
    uint64_t ring_bytes;
    char folder[512];
} settings;

static int records_all(void) { return settings.period == 1; }

static const char *number(const char *at, uint64_t *value) {
    *value = 0;
    while (*at >= '0' && *at <= '9')
        *value = *value * 10 + (uint64_t)(*at++ - '0');
    return *at == ':' ? at + 1 : at;
}

/* MEMGAUGE_HEAP=PERIOD:RING_BYTES:FOLDER. Read from /proc because the C library's environ is not
 * set yet when the loader makes the first allocation. */
static void read_settings(void) {
    static const char name[] = "MEMGAUGE_HEAP=";
    long fd = call3(SYS_open, (long)"/proc/self/environ", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return;
    size_t matched = 0, length = 0;
    char value[600], bytes[512];
    int state = 0; /* 0: in a name that may match, 1: in another variable, 2: in the value */
    for (long n; state != 3 && (n = call3(SYS_read, fd, (long)bytes, sizeof bytes)) > 0;) {
        for (long i = 0; i < n && state != 3; i++) {
            char c = bytes[i];
            if (state == 2) {
                if (length == sizeof value - 1 || c == 0)
                    state = 3;
                else
                    value[length++] = c;
            } else if (c == 0) {
                state = 0;
                matched = 0;
            } else if (state == 0) {
                state = c == name[matched] ? 0 : 1;
                if (state == 0 && ++matched == sizeof name - 1)
                    state = 2;
            }
        }
    }
    call3(SYS_close, fd, 0, 0);
    value[length] = 0;
    uint64_t period;
    const char *at = number(number(value, &period), &settings.ring_bytes);
    size_t i = 0;
    for (; at[i] && i < sizeof settings.folder - 64; i++)
        settings.folder[i] = at[i];
    settings.folder[i] = 0;
    if (i > 0 && settings.ring_bytes >= 4096)
        settings.period = period;
}

/* ---- The next definitions of the wrapped functions ---- */

static struct {
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    void (*free)(void *);
    int (*posix_memalign)(void **, size_t, size_t);
    void *(*aligned_alloc)(size_t, size_t);
    void *(*memalign)(size_t, size_t);
    void *(*valloc)(size_t);
    void *(*pvalloc)(size_t);
    int (*dlclose)(void *);
} next;

static int equal(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

static uint32_t gnu_hash(const char *name) {
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (uint8_t)*name;
    return hash;
}

struct symbols {
    const Elf64_Sym *table;
    const char *names;
    const uint32_t *gnu, *sysv;
};

/* glibc relocates the addresses of a dynamic section, musl does not. */
static const void *dynamic_address(const struct dl_phdr_info *info, Elf64_Addr value) {
    return (const void *)(value < info->dlpi_addr ? info->dlpi_addr + value : value);
}

static int read_dynamic(const struct dl_phdr_info *info, struct symbols *found) {
    const Elf64_Dyn *dynamic = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        const void *at = dynamic_address(info, dynamic->d_un.d_ptr);
        switch (dynamic->d_tag) {
        case DT_SYMTAB: found->table = at; break;
        case DT_STRTAB: found->names = at; break;
        case DT_GNU_HASH: found->gnu = at; break;
        case DT_HASH: found->sysv = at; break;
        }
    }
    return found->table && found->names && (found->gnu || found->sysv);
}

static void *symbol_at(const struct dl_phdr_info *info, const struct symbols *in, uint32_t index,
                       const char *name) {
    const Elf64_Sym *symbol = &in->table[index];
    int is_function = ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_shndx != SHN_UNDEF;
    if (!is_function || !equal(in->names + symbol->st_name, name))
        return NULL;
    return (void *)(info->dlpi_addr + symbol->st_value);
}

static void *lookup(const struct dl_phdr_info *info, const char *name) {
    struct symbols in = {0};
    if (!read_dynamic(info, &in))
        return NULL;
    if (in.gnu) {
        uint32_t buckets = in.gnu[0], first = in.gnu[1], filter = in.gnu[2], hash = gnu_hash(name);
        const uint32_t *bucket = in.gnu + 4 + 2 * filter, *chain = bucket + buckets;
        uint32_t index = buckets ? bucket[hash % buckets] : 0;
        for (; index >= first && index; index++) {
            void *at = (chain[index - first] | 1) == (hash | 1) ? symbol_at(info, &in, index, name)
                                                                 : NULL;
            if (at || chain[index - first] & 1)
                return at;
        }
        return NULL;
    }
    for (uint32_t index = 1; index < in.sysv[1]; index++) {
        void *at = symbol_at(info, &in, index, name);
        if (at)
            return at;
    }
    return NULL;
}

struct search {
    int position;
    int is_after_us;
};

static int program_has_malloc;

static int find_next(struct dl_phdr_info *info, size_t bytes, void *search_) {
    struct search *search = search_;
    (void)bytes;
    uint64_t us = (uint64_t)&settings;
    if (search->position++ == 0)
        program_has_malloc = lookup(info, "malloc") != NULL;
    for (int i = 0; i < info->dlpi_phnum && !search->is_after_us; i++) {
        const Elf64_Phdr *part = &info->dlpi_phdr[i];
        uint64_t start = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && us >= start && us < start + part->p_memsz) {
            search->is_after_us = 1;
            return 0;
        }
    }
    if (!search->is_after_us)
        return 0;
#define FIND(name) \
    if (!next.name) \
    next.name = lookup(info, #name)
    FIND(calloc);
    FIND(realloc);
    FIND(free);
    FIND(posix_memalign);
    FIND(aligned_alloc);
    FIND(memalign);
    FIND(valloc);
    FIND(pvalloc);
    FIND(dlclose);
    FIND(malloc);
#undef FIND
    return 0;
}

/* ---- Rings ---- */

/* Header of a ring, as in wire.rs. */
struct ring {
    uint64_t magic;
    uint32_t pid, parent;
    uint64_t start_ns; /* with the pid, the process image */
    uint64_t words;
    uint32_t has_own_malloc, unused;
    uint64_t lost;       /* calls without room for a record */
    uint64_t unfollowed; /* sampled objects without room in the set */
    uint64_t broken;     /* stacks that end early */
    uint64_t head __attribute__((aligned(64)));
    uint64_t tail __attribute__((aligned(64)));
    char program[1024] __attribute__((aligned(64)));
};
_Static_assert(offsetof(struct ring, head) == 64 && offsetof(struct ring, tail) == 128 &&
                   offsetof(struct ring, program) == 192 && sizeof(struct ring) <= 4096,
               "as in wire.rs");

#define MAGIC 0x3130504145484d47u /* "GMHEAP01" */
#define HEADER_BYTES 4096

enum { ALLOCATED = 1, FREED = 2, STACK = 3, MAPPINGS = 4, THREAD = 5 };

/* Words that unwinding read. If all of them are the same again, so is the stack. */
#define MAX_READS (2 * MAX_CALLS + 2)
#define WAYS 4
#define SETS 256

struct stack {
    uint64_t pc, sp, fp, generation;
    uint32_t reads, uses_fp;
    struct {
        const uint64_t *at;
        uint64_t value;
    } read[MAX_READS];
};

enum cfa { FROM_SP = 1, FROM_FP, LOADED_FROM_FP, SIGNAL, OUTERMOST, UNKNOWN };
enum saved { SAME, AT_CFA, LOST };

/* How to find the caller of the code at `pc`. */
struct rule {
    uint64_t pc, generation;
    int32_t cfa_offset, return_offset, fp_offset;
    uint8_t cfa, fp;
};

#define RULES 2048

/* What a thread needs to write. Kept for the next thread when it ends. */
struct writer {
    struct ring *ring;
    uint64_t *words;
    uint64_t mask, head, tail;
    uint64_t id;       /* state->id of the process it was made for */
    uint32_t in_use;
    uint32_t victim[SETS];
    struct stack stacks[SETS][WAYS];
    struct rule rules[RULES];
};

/* Slots of a bucket that hold addresses. The last word counts objects that belong here and had to
 * be put into a later bucket. */
#define SLOTS 7
#define BUCKETS (1u << 15)
#define MAX_PROBES 16

struct bucket {
    uint64_t address[SLOTS];
    uint64_t elsewhere;
};

#define MAX_WRITERS 8192

/* Cleared by the kernel in a forked child. */
struct state {
    uint64_t id, start_ns;
    uint32_t pid, parent, stopped, files, lock, writers;
    struct writer *writer[MAX_WRITERS];
    struct bucket set[BUCKETS] __attribute__((aligned(64)));
};

static struct state *state;
static unsigned key;
static int has_key;
/* Changes with each dlclose: other code may be at the same address afterwards. */
static uint64_t generation = 1;

/* Every allocation is recorded: `remaining` stays negative whatever is subtracted from it. */
#define ALWAYS (INT64_MIN / 2)

struct thread {
    int64_t remaining; /* bytes until the next sample */
    struct writer *writer;
    uint64_t random;
    uint64_t latest; /* address of the last recorded object, if no other was allocated since */
    int is_busy;     /* inside of this library */
    int is_ready, has_ended;
};

static __thread struct thread self __attribute__((tls_model("initial-exec")));

static int lock_state(void) {
    uint32_t expected = 0;
    return SWAP_IF(&state->lock, &expected, 1);
}

static void pause_us(long us) {
    struct timespec time = {0, us * 1000};
    call3(SYS_nanosleep, (long)&time, 0, 0);
}

/* Longest wait for room in a ring. memgauge empties rings many times a second, so after this time
 * it is gone, and recording stops. */
#define MAX_WAIT_US 2000000
#define WAIT_US 100

static int has_room(struct writer *w, uint64_t words) {
    if (LIKELY(w->head + words - w->tail <= w->mask + 1))
        return 1;
    for (long waited = 0; waited < MAX_WAIT_US; waited += WAIT_US) {
        w->tail = LOAD(&w->ring->tail);
        if (w->head + words - w->tail <= w->mask + 1)
            return 1;
        if (LOAD(&state->stopped))
            break;
        pause_us(WAIT_US);
    }
    STORE(&state->stopped, 1);
    return 0;
}

static void put(struct writer *w, uint64_t word) { w->words[w->head++ & w->mask] = word; }

static void publish(struct writer *w) { STORE(&w->ring->head, w->head); }

static char *digits(char *to, uint64_t value) {
    char text[20];
    int n = 0;
    do
        text[n++] = (char)('0' + value % 10);
    while (value /= 10);
    while (n)
        *to++ = text[--n];
    return to;
}

/* A new ring in a file of its own. The file is complete when it gets its name without a dot. */
static struct ring *new_ring(void) {
    char hidden[600], name[600];
    for (int i = 0; i < 2; i++) {
        char *to = i ? name : hidden;
        for (const char *from = settings.folder; *from;)
            *to++ = *from++;
        *to++ = '/';
        if (!i)
            *to++ = '.';
        to = digits(to, state->pid);
        *to++ = '-';
        to = digits(to, state->start_ns);
        *to++ = '-';
        to = digits(to, i ? state->files : ADD(&state->files, 1) + 1);
        *to = 0;
    }
    /* Another thread may have counted on since, so take the number of the hidden name. */
    size_t folder = 0;
    while (settings.folder[folder])
        folder++;
    size_t at = folder + 1;
    for (; hidden[at + 1]; at++)
        name[at] = hidden[at + 1];
    name[at] = 0;
    long fd = call3(SYS_open, (long)hidden, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return NULL;
    size_t bytes = HEADER_BYTES + settings.ring_bytes;
    /* Reserve the memory: a full file system must not end the program with SIGBUS. */
    struct ring *ring = call6(SYS_fallocate, fd, 0, 0, (long)bytes, 0, 0) < 0 ? NULL
                                                                             : map(bytes, (int)fd);
    call3(SYS_close, fd, 0, 0);
    if (!ring) {
        call3(SYS_unlink, (long)hidden, 0, 0);
        return NULL;
    }
    call3(SYS_madvise, (long)ring, (long)bytes, MADV_DONTFORK);
    ring->pid = state->pid;
    ring->parent = state->parent;
    ring->start_ns = state->start_ns;
    ring->words = settings.ring_bytes / 8;
    ring->has_own_malloc = (uint32_t)program_has_malloc;
    call3(SYS_readlink, (long)"/proc/self/exe", (long)ring->program, sizeof ring->program - 1);
    STORE(&ring->magic, MAGIC);
    call3(SYS_rename, (long)hidden, (long)name, 0);
    return ring;
}

static void write_mappings(struct writer *w, uint64_t time_ns);

static void name_process(void) {
    while (!lock_state())
        pause_us(WAIT_US);
    if (!state->id) {
        state->pid = (uint32_t)call3(SYS_getpid, 0, 0, 0);
        state->parent = (uint32_t)call3(SYS_getppid, 0, 0, 0);
        state->start_ns = now_ns();
        STORE(&state->id, state->start_ns | 1);
    }
    STORE(&state->lock, 0);
}

static struct writer *idle_writer(void) {
    uint32_t count = LOAD(&state->writers);
    for (uint32_t i = 0; i < count && i < MAX_WRITERS; i++) {
        struct writer *w = LOAD(&state->writer[i]);
        uint32_t expected = 0;
        if (w && !LOAD(&w->in_use) && SWAP_IF(&w->in_use, &expected, 1))
            return w;
    }
    return NULL;
}

static struct writer *new_writer(void) {
    uint32_t number = ADD(&state->writers, 1);
    if (number >= MAX_WRITERS)
        return NULL;
    struct writer *w = map(sizeof *w, -1);
    if (!w)
        return NULL;
    w->ring = new_ring();
    if (!w->ring) {
        call3(SYS_munmap, (long)w, sizeof *w, 0);
        return NULL;
    }
    w->words = (uint64_t *)((char *)w->ring + HEADER_BYTES);
    w->mask = w->ring->words - 1;
    w->id = state->id;
    w->in_use = 1;
    STORE(&state->writer[number], w);
    return w;
}

static NOINLINE struct writer *take_writer(uint64_t time_ns) {
    if (!LOAD(&state->id))
        name_process();
    struct writer *w = idle_writer();
    int is_first = 0;
    if (!w) {
        w = new_writer();
        is_first = w && w == LOAD(&state->writer[0]);
    }
    if (!w)
        return NULL;
    self.writer = w;
    if (has_room(w, 3)) {
        put(w, THREAD | (uint64_t)call3(SYS_gettid, 0, 0, 0) << 32);
        put(w, time_ns);
        publish(w);
    }
    if (is_first)
        write_mappings(w, time_ns);
    if (has_key && !self.has_ended)
        pthread_setspecific(key, w);
    return w;
}

static struct writer *own_writer(uint64_t time_ns) {
    struct writer *w = self.writer;
    if (LIKELY(w && w->id == LOAD(&state->id)))
        return w;
    return take_writer(time_ns);
}

static void release_writer(void) {
    struct writer *w = self.writer;
    self.writer = NULL;
    if (w && w->id == LOAD(&state->id))
        STORE(&w->in_use, 0);
}

static void end_thread(void *unused) {
    (void)unused;
    self.is_busy++;
    self.has_ended = 1;
    release_writer();
    self.is_busy--;
}

/* ---- Code of the process ---- */

struct module {
    uint64_t start, end;
    const uint8_t *header; /* .eh_frame_hdr */
    int is_loader;
};

struct modules {
    uint32_t count, capacity;
    uint64_t changes; /* the loader's counter */
    struct module module[];
};

static struct modules *modules;

/* ld-linux-x86-64.so.2 or ld-musl-x86_64.so.1, in some folder. */
static int is_loader(const char *path) {
    for (; path && *path; path++)
        if (path[0] == '/' && path[1] == 'l' && path[2] == 'd' && path[3] == '-')
            return 1;
    return 0;
}

static int add_module(struct dl_phdr_info *info, size_t bytes, void *to_) {
    struct modules *to = to_;
    if (bytes >= offsetof(struct dl_phdr_info, dlpi_subs))
        to->changes = info->dlpi_adds;
    const uint8_t *header = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_GNU_EH_FRAME)
            header = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    for (int i = 0; i < info->dlpi_phnum && to->count < to->capacity; i++) {
        const Elf64_Phdr *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
            continue;
        uint64_t start = info->dlpi_addr + part->p_vaddr;
        struct module added = {start, start + part->p_memsz, header, is_loader(info->dlpi_name)};
        uint32_t at = to->count++;
        for (; at && to->module[at - 1].start > start; at--)
            to->module[at] = to->module[at - 1];
        to->module[at] = added;
    }
    return 0;
}

static int loader_changes(struct dl_phdr_info *info, size_t bytes, void *changes) {
    if (bytes >= offsetof(struct dl_phdr_info, dlpi_subs))
        *(uint64_t *)changes = info->dlpi_adds;
    return 1;
}

/* Reads the list of modules again if the loader has changed it. Earlier lists stay mapped, because
 * another thread may search them. */
static int reload_modules(void) {
    struct modules *known = LOAD(&modules);
    uint64_t changes = 0;
    dl_iterate_phdr(loader_changes, &changes);
    if (known && known->changes == changes)
        return 0;
    uint32_t capacity = known ? known->capacity + 256 : 1000;
    struct modules *list = map(sizeof *list + capacity * sizeof list->module[0], -1);
    if (!list)
        return 0;
    list->capacity = capacity;
    dl_iterate_phdr(add_module, list);
    STORE(&modules, list);
    return 1;
}

static const struct module *module_of(uint64_t pc) {
    const struct modules *list = LOAD(&modules);
    if (!list)
        return NULL;
    uint32_t low = 0, high = list->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (list->module[middle].start <= pc)
            low = middle + 1;
        else
            high = middle;
    }
    const struct module *found = low ? &list->module[low - 1] : NULL;
    return found && pc < found->end ? found : NULL;
}

#define MAX_MAPPING_BYTES 2048

/* The lines of /proc/self/maps that have code. */
static void write_mappings(struct writer *w, uint64_t time_ns) {
    long fd = call3(SYS_open, (long)"/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return;
    char bytes[2048];
    union {
        char text[MAX_MAPPING_BYTES];
        uint64_t word[MAX_MAPPING_BYTES / 8];
    } line;
    size_t length = 0, spaces = 0, rights = 0;
    int is_code = 0;
    for (long n; (n = call3(SYS_read, fd, (long)bytes, sizeof bytes)) > 0;) {
        for (long i = 0; i < n; i++) {
            char c = bytes[i];
            if (c == ' ' && spaces++ == 0)
                rights = length;
            if (length < sizeof line.text - 1)
                line.text[length++] = c;
            if (spaces == 1 && length == rights + 4)
                is_code = c == 'x';
            if (c != '\n')
                continue;
            uint64_t words = (length + 7) / 8;
            if (is_code && has_room(w, words + 2)) {
                put(w, MAPPINGS | (uint64_t)length << 32);
                put(w, time_ns);
                while (length % 8)
                    line.text[length++] = 0;
                for (uint64_t j = 0; j < words; j++)
                    put(w, line.word[j]);
                publish(w);
            }
            length = spaces = rights = 0;
            is_code = 0;
        }
    }
    call3(SYS_close, fd, 0, 0);
}

/* ---- Unwind tables (.eh_frame) ---- */

static uint64_t uleb(const uint8_t **at) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (!(byte & 128))
            break;
    }
    return value;
}

static int64_t sleb(const uint8_t **at) {
    int64_t value = 0;
    for (int shift = 0; shift < 64;) {
        uint8_t byte = *(*at)++;
        value |= (int64_t)(byte & 127) << shift;
        shift += 7;
        if (!(byte & 128)) {
            if (byte & 64 && shift < 64)
                value |= -((int64_t)1 << shift);
            break;
        }
    }
    return value;
}

#define READ(type, at) (*(const type __attribute__((aligned(1), may_alias)) *)(at))
typedef uint16_t u16;
typedef int16_t i16;
typedef uint32_t u32;
typedef int32_t i32;
typedef uint64_t u64;

static uint64_t encoded(const uint8_t **at, uint8_t encoding, uint64_t data_base) {
    uint64_t start = (uint64_t)*at, value = 0;
    switch (encoding & 15) {
    case 0: case 4: case 12: value = READ(u64, *at); *at += 8; break;
    case 1: value = uleb(at); break;
    case 2: value = READ(u16, *at); *at += 2; break;
    case 3: value = READ(u32, *at); *at += 4; break;
    case 9: value = (uint64_t)sleb(at); break;
    case 10: value = (uint64_t)(int64_t)READ(i16, *at); *at += 2; break;
    case 11: value = (uint64_t)(int64_t)READ(i32, *at); *at += 4; break;
    }
    if ((encoding & 0x70) == 0x10)
        value += start;
    if ((encoding & 0x70) == 0x30)
        value += data_base;
    return value;
}

enum { FP = 6, SP = 7, RETURN = 16 };

struct columns {
    uint8_t cfa, fp, is_return_undefined, is_return_odd;
    int64_t cfa_offset, fp_offset, return_offset;
};

struct program {
    const uint8_t *at, *end;
    uint64_t code_unit;
    int64_t data_unit;
    uint8_t encoding;
};

static void set_column(struct columns *now, uint64_t reg, int64_t offset) {
    if (reg == FP) {
        now->fp = AT_CFA;
        now->fp_offset = offset;
    } else if (reg == RETURN) {
        now->is_return_undefined = now->is_return_odd = 0;
        now->return_offset = offset;
    }
}

static void set_odd(struct columns *now, uint64_t reg) {
    if (reg == FP)
        now->fp = LOST;
    else if (reg == RETURN)
        now->is_return_odd = 1;
}

static void restore(struct columns *now, const struct columns *initial, uint64_t reg) {
    if (reg == FP) {
        now->fp = initial->fp;
        now->fp_offset = initial->fp_offset;
    } else if (reg == RETURN) {
        now->is_return_undefined = initial->is_return_undefined;
        now->is_return_odd = initial->is_return_odd;
        now->return_offset = initial->return_offset;
    }
}

static void set_cfa(struct columns *now, uint64_t reg) {
    now->cfa = reg == SP ? FROM_SP : reg == FP ? FROM_FP : UNKNOWN;
}

#define MAX_REMEMBERED 8

static void run(struct program p, uint64_t location, uint64_t pc, struct columns *now,
                const struct columns *initial) {
    struct columns remembered[MAX_REMEMBERED];
    int depth = 0;
    while (p.at < p.end && location <= pc) {
        uint8_t op = *p.at++, low = op & 63;
        uint64_t reg;
        switch (op >> 6) {
        case 1:
            location += low * p.code_unit;
            continue;
        case 2:
            set_column(now, low, (int64_t)uleb(&p.at) * p.data_unit);
            continue;
        case 3:
            restore(now, initial, low);
            continue;
        }
        switch (op) {
        case 0x00: break;
        case 0x01: location = encoded(&p.at, p.encoding, 0); break;
        case 0x02: location += *p.at++ * p.code_unit; break;
        case 0x03: location += READ(u16, p.at) * p.code_unit; p.at += 2; break;
        case 0x04: location += READ(u32, p.at) * p.code_unit; p.at += 4; break;
        case 0x05: reg = uleb(&p.at); set_column(now, reg, (int64_t)uleb(&p.at) * p.data_unit); break;
        case 0x06: restore(now, initial, uleb(&p.at)); break;
        case 0x07:
            reg = uleb(&p.at);
            if (reg == RETURN)
                now->is_return_undefined = 1;
            else
                set_odd(now, reg);
            break;
        case 0x08:
            if (uleb(&p.at) == FP)
                now->fp = SAME;
            break;
        case 0x09: set_odd(now, uleb(&p.at)); uleb(&p.at); break;
        case 0x0a:
            if (depth < MAX_REMEMBERED)
                remembered[depth] = *now;
            depth++;
            break;
        case 0x0b:
            if (depth > 0 && --depth < MAX_REMEMBERED)
                *now = remembered[depth];
            break;
        case 0x0c: set_cfa(now, uleb(&p.at)); now->cfa_offset = (int64_t)uleb(&p.at); break;
        case 0x0d: set_cfa(now, uleb(&p.at)); break;
        case 0x0e: now->cfa_offset = (int64_t)uleb(&p.at); break;
        case 0x0f: {
            uint64_t length = uleb(&p.at);
            const uint8_t *at = p.at;
            p.at += length;
            /* Functions that align their stack keep the caller's in front of the frame pointer:
             * DW_OP_breg6, DW_OP_deref. */
            now->cfa = UNKNOWN;
            if (length > 2 && *at++ == 0x76) {
                now->cfa_offset = sleb(&at);
                if (at + 1 == p.at && *at == 0x06)
                    now->cfa = LOADED_FROM_FP;
            }
            break;
        }
        case 0x10: case 0x16: {
            set_odd(now, uleb(&p.at));
            uint64_t length = uleb(&p.at);
            p.at += length;
            break;
        }
        case 0x11: reg = uleb(&p.at); set_column(now, reg, sleb(&p.at) * p.data_unit); break;
        case 0x12:
            set_cfa(now, uleb(&p.at));
            now->cfa_offset = sleb(&p.at) * p.data_unit;
            break;
        case 0x13: now->cfa_offset = sleb(&p.at) * p.data_unit; break;
        case 0x14: set_odd(now, uleb(&p.at)); uleb(&p.at); break;
        case 0x15: set_odd(now, uleb(&p.at)); sleb(&p.at); break;
        case 0x2e: uleb(&p.at); break;
        case 0x2f: reg = uleb(&p.at); set_column(now, reg, -(int64_t)uleb(&p.at) * p.data_unit); break;
        default: now->cfa = UNKNOWN; return;
        }
    }
}

/* The entry that may cover `pc`, from the sorted table of .eh_frame_hdr. */
static const uint8_t *entry_of(const uint8_t *header, uint64_t pc) {
    const uint8_t *at = header + 4;
    if (header[0] != 1 || header[3] != 0x3b)
        return NULL;
    encoded(&at, header[1], (uint64_t)header);
    uint64_t count = encoded(&at, header[2], (uint64_t)header);
    struct {
        int32_t start, entry;
    } const *table = (const void *)at;
    int64_t offset = (int64_t)(pc - (uint64_t)header);
    uint64_t low = 0, high = count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (table[middle].start <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? header + table[low - 1].entry : NULL;
}

static struct rule rule_for(uint64_t pc) {
    struct rule rule = {.pc = pc, .generation = generation, .cfa = UNKNOWN};
    const struct module *module = module_of(pc);
    if (!module || !module->header)
        return rule;
    /* The loader's first instructions have no entry, and nothing called them. */
    if (module->is_loader)
        rule.cfa = OUTERMOST;
    const uint8_t *at = entry_of(module->header, pc);
    if (!at)
        return rule;
    uint32_t length = READ(u32, at);
    const uint8_t *end = at + 4 + length;
    at += 4;
    if (length == 0 || length == 0xffffffffu)
        return rule;
    const uint8_t *cie = at - READ(u32, at);
    at += 4;
    const uint8_t *cie_end = cie + 4 + READ(u32, cie);
    cie += 8; /* length and id */
    uint8_t version = *cie++;
    const char *augmentation = (const char *)cie;
    while (*cie++)
        ;
    struct program p = {.encoding = 0};
    p.code_unit = uleb(&cie);
    p.data_unit = sleb(&cie);
    uint64_t return_register = version == 1 ? *cie++ : uleb(&cie);
    int is_signal = 0;
    if (augmentation[0] == 'z') {
        uint64_t bytes = uleb(&cie);
        const uint8_t *data = cie;
        cie += bytes;
        for (const char *c = augmentation + 1; *c; c++) {
            if (*c == 'R')
                p.encoding = *data++;
            else if (*c == 'L')
                data++;
            else if (*c == 'P') {
                uint8_t encoding = *data++;
                encoded(&data, encoding, 0);
            } else if (*c == 'S')
                is_signal = 1;
        }
    }
    if (return_register != RETURN)
        return rule;
    uint64_t start = encoded(&at, p.encoding, 0);
    uint64_t bytes = encoded(&at, p.encoding & 15, 0);
    if (pc < start || pc >= start + bytes)
        return rule;
    rule.cfa = UNKNOWN;
    if (is_signal) {
        rule.cfa = SIGNAL;
        return rule;
    }
    if (augmentation[0] == 'z') {
        uint64_t skipped = uleb(&at);
        at += skipped;
    }
    struct columns initial = {.fp = SAME, .is_return_odd = 1}, now;
    p.at = cie;
    p.end = cie_end;
    run(p, 0, 0, &initial, &initial);
    now = initial;
    p.at = at;
    p.end = end;
    run(p, start, pc, &now, &initial);
    if (now.is_return_undefined) {
        rule.cfa = OUTERMOST;
    } else if (!now.is_return_odd && (int32_t)now.cfa_offset == now.cfa_offset) {
        rule.cfa = now.cfa;
        rule.cfa_offset = (int32_t)now.cfa_offset;
        rule.return_offset = (int32_t)now.return_offset;
        rule.fp = now.fp;
        rule.fp_offset = (int32_t)now.fp_offset;
    }
    return rule;
}

static uint64_t mixed(uint64_t value) {
    value *= 0x9e3779b97f4a7c15u;
    return value ^ value >> 32;
}

/* ---- Stacks ---- */

/* Largest frame that is believed. Damaged stacks must not lead to other memory. */
#define MAX_FRAME_BYTES (8u << 20)

/* Offsets of registers from the stack pointer of a signal's frame: the kernel's ucontext. */
enum { SIGNAL_FP = 120, SIGNAL_SP = 160, SIGNAL_PC = 168 };

struct frame {
    uint64_t pc, sp, fp;
};

/* Unwinds from the caller of the wrapper. Returns the number of calls. */
static NOINLINE uint32_t unwind(struct writer *w, struct frame at, struct stack *reads, uint64_t *calls,
                                uint64_t time_ns) {
    const uint64_t *fp_read = NULL; /* where the current fp was read */
    int is_initial_fp = 1, is_exact = 0, is_complete = 0;
    uint32_t count = 0;
    reads->reads = reads->uses_fp = 0;
#define NOTE(address) \
    reads->read[reads->reads].at = (address), reads->read[reads->reads++].value = *(address)
    while (count < MAX_CALLS) {
        /* A return address can be behind the end of the calling function. */
        uint64_t pc = at.pc - !is_exact;
        calls[count++] = pc;
        struct rule *rule = &w->rules[mixed(pc) % RULES];
        if (rule->pc != pc || rule->generation != LOAD(&generation)) {
            if (!module_of(pc) && reload_modules())
                write_mappings(w, time_ns);
            *rule = rule_for(pc);
        }
        if (rule->cfa == SIGNAL) {
            const uint64_t *fp = (const uint64_t *)(at.sp + SIGNAL_FP);
            const uint64_t *sp = (const uint64_t *)(at.sp + SIGNAL_SP);
            const uint64_t *ip = (const uint64_t *)(at.sp + SIGNAL_PC);
            if (reads->reads + 3 > MAX_READS)
                break;
            NOTE(sp);
            NOTE(ip);
            at = (struct frame){*ip, *sp, *fp};
            fp_read = fp;
            is_initial_fp = 0;
            is_exact = 1;
            count--; /* the frame of the signal is not a call */
            continue;
        }
        is_exact = 0;
        if (rule->cfa == OUTERMOST) {
            is_complete = 1;
            break;
        }
        if (rule->cfa == UNKNOWN || reads->reads + 3 > MAX_READS)
            break;
        uint64_t cfa = at.sp + (uint64_t)(int64_t)rule->cfa_offset;
        if (rule->cfa != FROM_SP) {
            if (is_initial_fp)
                reads->uses_fp = 1;
            else if (fp_read)
                NOTE(fp_read);
            fp_read = NULL;
            cfa = at.fp + (uint64_t)(int64_t)rule->cfa_offset;
            if (rule->cfa == LOADED_FROM_FP) {
                if (cfa < at.sp || cfa % 8 || cfa - at.sp > MAX_FRAME_BYTES)
                    break;
                const uint64_t *place = (const uint64_t *)cfa;
                NOTE(place);
                cfa = *place;
            }
        }
        if (cfa <= at.sp || cfa % 8 || cfa - at.sp > MAX_FRAME_BYTES)
            break;
        const uint64_t *back = (const uint64_t *)(cfa + (uint64_t)(int64_t)rule->return_offset);
        NOTE(back);
        if (rule->fp == AT_CFA) {
            fp_read = (const uint64_t *)(cfa + (uint64_t)(int64_t)rule->fp_offset);
            at.fp = *fp_read;
            is_initial_fp = 0;
        } else if (rule->fp == LOST) {
            at.fp = 0;
            fp_read = NULL;
            is_initial_fp = 0;
        }
        at.pc = *back;
        at.sp = cfa;
        if (at.pc == 0) {
            is_complete = 1;
            break;
        }
    }
#undef NOTE
    w->ring->broken += !is_complete && count < MAX_CALLS;
    return count;
}

static int is_same(const struct stack *known, const struct frame *at) {
    if (known->pc != at->pc || known->sp != at->sp || (known->uses_fp && known->fp != at->fp) ||
        known->generation != LOAD(&generation))
        return 0;
    for (uint32_t i = 0; i < known->reads; i++)
        if (*known->read[i].at != known->read[i].value)
            return 0;
    return 1;
}

#define NO_STACK UINT32_MAX

/* Number of the caller's stack in the ring. Writes the stack if it is not the last one of this
 * number. */
static uint32_t stack_number(struct writer *w, struct frame at, uint64_t time_ns) {
    uint32_t set = (uint32_t)(mixed(at.pc ^ at.sp) % SETS);
    for (uint32_t way = 0; way < WAYS; way++)
        if (is_same(&w->stacks[set][way], &at))
            return set * WAYS + way;
    uint32_t way = w->victim[set]++ % WAYS;
    struct stack *stack = &w->stacks[set][way];
    uint64_t calls[MAX_CALLS];
    stack->generation = LOAD(&generation);
    uint32_t count = unwind(w, at, stack, calls, time_ns);
    stack->pc = 0;
    if (!has_room(w, count + 1))
        return NO_STACK;
    stack->pc = at.pc;
    stack->sp = at.sp;
    stack->fp = at.fp;
    uint32_t number = set * WAYS + way;
    put(w, STACK | (uint64_t)count << 8 | (uint64_t)number << 32);
    for (uint32_t i = 0; i < count; i++)
        put(w, calls[i]);
    publish(w);
    return number;
}

/* ---- Sampled objects ---- */

/* Objects of the same KiB share a bucket, so that looking for one costs little more than the
 * program's own access to the object. */
static uint32_t home_of(uint64_t address) { return (uint32_t)(mixed(address >> 10) % BUCKETS); }

static int insert(uint64_t address) {
    uint32_t home = home_of(address);
    for (uint32_t probe = 0; probe < MAX_PROBES; probe++) {
        struct bucket *bucket = &state->set[(home + probe) % BUCKETS];
        if (probe == 1)
            __atomic_fetch_add(&state->set[home].elsewhere, 1, __ATOMIC_ACQ_REL);
        for (int i = 0; i < SLOTS; i++) {
            uint64_t expected = 0;
            if (!LOAD(&bucket->address[i]) && SWAP_IF(&bucket->address[i], &expected, address))
                return 1;
        }
    }
    __atomic_fetch_sub(&state->set[home].elsewhere, 1, __ATOMIC_ACQ_REL);
    return 0;
}

static int remove_from(struct bucket *bucket, uint64_t address) {
    for (int i = 0; i < SLOTS; i++)
        if (LOAD(&bucket->address[i]) == address) {
            STORE(&bucket->address[i], 0);
            return 1;
        }
    return 0;
}

static NOINLINE int remove_elsewhere(uint32_t home, uint64_t address) {
    for (uint32_t probe = 1; probe < MAX_PROBES; probe++)
        if (remove_from(&state->set[(home + probe) % BUCKETS], address)) {
            __atomic_fetch_sub(&state->set[home].elsewhere, 1, __ATOMIC_ACQ_REL);
            return 1;
        }
    return 0;
}

/* Only the owner of an object inserts and removes its address, so no two threads do it at once. */
static int take_out(uint64_t address) {
    uint32_t home = home_of(address);
    struct bucket *bucket = &state->set[home];
    if (remove_from(bucket, address))
        return 1;
    return UNLIKELY(LOAD(&bucket->elsewhere)) && remove_elsewhere(home, address);
}

/* ---- Sampling ---- */

static uint64_t random_word(void) {
    uint64_t x = self.random;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    self.random = x;
    return x * 0x2545f4914f6cdd1du;
}

/* Natural logarithm of a positive number, to 11 digits. */
static double ln(double x) {
    union {
        double number;
        uint64_t bits;
    } u = {x};
    int exponent = (int)(u.bits >> 52) - 1023;
    u.bits = (u.bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    if (u.number > 1.4142135623730951) {
        u.number /= 2;
        exponent++;
    }
    double t = (u.number - 1) / (u.number + 1), s = t * t;
    double series = 1 + s * (1.0 / 3 + s * (1.0 / 5 + s * (1.0 / 7 + s * (1.0 / 9 + s / 11))));
    return exponent * 0.6931471805599453 + 2 * t * series;
}

static int64_t bytes_to_next_sample(void) {
    double uniform = (double)((random_word() >> 11) + 1) * 0x1p-53;
    return (int64_t)(-ln(uniform) * (double)settings.period);
}

static void prepare_thread(void) {
    self.is_ready = 1;
    if (records_all()) {
        self.remaining = ALWAYS;
        return;
    }
    if (call3(SYS_getrandom, (long)&self.random, sizeof self.random, 0) < 0 || !self.random)
        self.random = mixed(now_ns() ^ (uint64_t)&self) | 1;
    self.remaining = bytes_to_next_sample();
}

static void in_child(void) {
    self.is_busy++;
    self.writer = NULL;
    self.latest = 0;
    self.has_ended = 0;
    /* On kernels before 4.14, the state is still the parent's. */
    if (state && state->id) {
        struct state *fresh = map(sizeof *state, -1);
        if (fresh)
            state = fresh;
        else
            settings.period = 0;
    }
    if (settings.period)
        prepare_thread();
    self.is_busy--;
}

/* Records an object. Sizes of 0 are sampled like those of 1. */
static NOINLINE void record_allocation(void *memory, size_t bytes, uint32_t function,
                                       const uint64_t *fp) {
    self.is_busy++;
    if (!self.is_ready) {
        prepare_thread();
        if (!records_all() && (self.remaining -= bytes ? (int64_t)bytes : 1) >= 0)
            goto end;
    }
    self.remaining = records_all() ? ALWAYS : bytes_to_next_sample();
    uint64_t time_ns = now_ns();
    struct writer *w = own_writer(time_ns);
    if (!w)
        goto end;
    struct frame caller = {fp[1], (uint64_t)(fp + 2), fp[0]};
    uint32_t stack = LOAD(&state->stopped) ? NO_STACK : stack_number(w, caller, time_ns);
    if (stack == NO_STACK || !has_room(w, 4)) {
        ADD(&w->ring->lost, 1);
    } else if (!records_all() && !insert((uint64_t)memory)) {
        ADD(&w->ring->unfollowed, 1);
    } else {
        put(w, ALLOCATED | (uint64_t)function << 8 | (uint64_t)stack << 32);
        put(w, time_ns);
        put(w, (uint64_t)memory);
        put(w, bytes);
        publish(w);
        self.latest = (uint64_t)memory;
    }
    if (self.has_ended)
        release_writer();
end:
    self.is_busy--;
}

static NOINLINE void record_free(uint64_t address, uint64_t time_ns, int is_temporary) {
    self.is_busy++;
    struct writer *w = own_writer(time_ns);
    if (w) {
        if (!LOAD(&state->stopped) && has_room(w, 3)) {
            put(w, FREED | (uint64_t)is_temporary << 8);
            put(w, time_ns);
            put(w, address);
            publish(w);
        } else {
            ADD(&w->ring->lost, 1);
        }
        if (self.has_ended)
            release_writer();
    }
    self.is_busy--;
}

/* ---- Start ---- */

static uint32_t start_lock;

static NOINLINE void start(void) {
    if (LOAD(&start_lock) == 2)
        return;
    uint32_t expected = 0;
    if (!SWAP_IF(&start_lock, &expected, 1)) {
        while (LOAD(&start_lock) != 2)
            pause_us(WAIT_US);
        return;
    }
    struct search search = {0, 0};
    dl_iterate_phdr(find_next, &search);
    read_settings();
    if (settings.period) {
        struct state *fresh = map(sizeof *fresh, -1);
        if (fresh) {
            call3(SYS_madvise, (long)fresh, sizeof *fresh, MADV_WIPEONFORK);
            state = fresh;
        } else {
            settings.period = 0;
        }
    }
    STORE(&start_lock, 2);
}

static __attribute__((constructor)) void prepare(void) {
    self.is_busy++;
    start();
    if (settings.period) {
        reload_modules();
        if (pthread_key_create && pthread_setspecific)
            has_key = pthread_key_create(&key, end_thread) == 0;
        if (__register_atfork)
            __register_atfork(NULL, NULL, in_child, NULL);
        else if (pthread_atfork)
            pthread_atfork(NULL, NULL, in_child);
        own_writer(now_ns());
    }
    self.is_busy--;
}

/* ---- Wrapped functions ---- */

enum { MALLOC, CALLOC, REALLOC, POSIX_MEMALIGN, ALIGNED_ALLOC, MEMALIGN, VALLOC, REALLOCARRAY, PVALLOC };

static inline __attribute__((always_inline)) void allocated(void *memory, size_t bytes,
                                                            uint32_t function,
                                                            const uint64_t *fp) {
    self.latest = 0;
    if (LIKELY((self.remaining -= bytes ? (int64_t)bytes : 1) >= 0))
        return;
    if (settings.period && memory && !self.is_busy)
        record_allocation(memory, bytes, function, fp);
    else if (!settings.period)
        self.remaining = INT64_MAX;
    else if (!records_all())
        self.remaining += bytes ? (int64_t)bytes : 1; /* not a candidate */
}

#define FRAME ((const uint64_t *)__builtin_frame_address(0))

EXPORT void *malloc(size_t bytes) {
    if (UNLIKELY(!next.malloc))
        start();
    void *memory = next.malloc(bytes);
    allocated(memory, bytes, MALLOC, FRAME);
    return memory;
}

/* Nested calls of wrapped functions are not recorded. */
#define OUTER(call) (self.is_busy++, result = (call), self.is_busy--)

EXPORT void *calloc(size_t count, size_t bytes) {
    void *result;
    if (UNLIKELY(!next.calloc))
        start();
    OUTER(next.calloc(count, bytes));
    allocated(result, count * bytes, CALLOC, FRAME);
    return result;
}

/* Whether the object is recorded. Its address must be out of the set before another thread can get
 * the same memory. */
static inline __attribute__((always_inline)) int is_recorded(void *memory) {
    if (!memory || !state || self.is_busy)
        return 0;
    return records_all() || take_out((uint64_t)memory);
}

static inline __attribute__((always_inline)) void freed(void *memory) {
    if (is_recorded(memory))
        record_free((uint64_t)memory, now_ns(), self.latest == (uint64_t)memory);
}

EXPORT void free(void *memory) {
    freed(memory);
    if (UNLIKELY(!next.free))
        start();
    next.free(memory);
}

EXPORT void free_sized(void *memory, size_t bytes) {
    (void)bytes;
    freed(memory);
    next.free(memory);
}

EXPORT void free_aligned_sized(void *memory, size_t alignment, size_t bytes) {
    (void)alignment, (void)bytes;
    freed(memory);
    next.free(memory);
}

static inline __attribute__((always_inline)) void *reallocated(void *memory, size_t bytes,
                                                               uint32_t function,
                                                               const uint64_t *fp) {
    void *result;
    if (UNLIKELY(!next.realloc))
        start();
    int was_recorded = is_recorded(memory);
    uint64_t time_ns = was_recorded ? now_ns() : 0;
    int is_temporary = self.latest == (uint64_t)memory;
    OUTER(next.realloc(memory, bytes));
    if (UNLIKELY(!result && bytes)) {
        if (was_recorded && !records_all())
            insert((uint64_t)memory);
        return NULL;
    }
    if (was_recorded)
        record_free((uint64_t)memory, time_ns, is_temporary);
    if (result)
        allocated(result, bytes, function, fp);
    return result;
}

EXPORT void *realloc(void *memory, size_t bytes) { return reallocated(memory, bytes, REALLOC, FRAME); }

EXPORT void *reallocarray(void *memory, size_t count, size_t bytes) {
    size_t product;
    if (__builtin_mul_overflow(count, bytes, &product))
        product = SIZE_MAX; /* which realloc refuses */
    return reallocated(memory, product, REALLOCARRAY, FRAME);
}

EXPORT int posix_memalign(void **place, size_t alignment, size_t bytes) {
    int result;
    if (UNLIKELY(!next.posix_memalign))
        start();
    OUTER(next.posix_memalign(place, alignment, bytes));
    if (result == 0)
        allocated(*place, bytes, POSIX_MEMALIGN, FRAME);
    return result;
}

EXPORT void *aligned_alloc(size_t alignment, size_t bytes) {
    void *result;
    if (UNLIKELY(!next.aligned_alloc))
        start();
    OUTER(next.aligned_alloc(alignment, bytes));
    allocated(result, bytes, ALIGNED_ALLOC, FRAME);
    return result;
}

EXPORT void *memalign(size_t alignment, size_t bytes) {
    void *result;
    if (UNLIKELY(!next.memalign))
        start();
    OUTER(next.memalign(alignment, bytes));
    allocated(result, bytes, MEMALIGN, FRAME);
    return result;
}

EXPORT void *valloc(size_t bytes) {
    void *result;
    if (UNLIKELY(!next.valloc))
        start();
    OUTER(next.valloc(bytes));
    allocated(result, bytes, VALLOC, FRAME);
    return result;
}

EXPORT void *pvalloc(size_t bytes) {
    void *result;
    if (UNLIKELY(!next.pvalloc))
        start();
    OUTER(next.pvalloc(bytes));
    allocated(result, bytes, PVALLOC, FRAME);
    return result;
}

EXPORT int dlclose(void *library) {
    if (UNLIKELY(!next.dlclose))
        start();
    int result = next.dlclose(library);
    __atomic_fetch_add(&generation, 1, __ATOMIC_ACQ_REL);
    return result;
}
