/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Shared memory with the recorder: entries, rings, the catalogue. No file descriptor stays open,
 * because the emulated program owns all descriptors and may close any of them.
 */
#include "session.h"
#include "sets.h"
#include "time/timers.h"

#include "qemu/osdep.h"
#include "hw/core/cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

char mg_session_dir[200];

/* w == end == NULL: the first use replaces it */
static struct mg_ring dummy = { .ran = MG_ATTENTION };
extern void *const mg_no_ring; /* ring of a new virtual processor */
void *const mg_no_ring = &dummy;

static uint64_t scratch[MG_BLOCK_WORDS]; /* unrecorded threads write here */
static struct mg_control *control;
static struct mg_process *process;
static uint8_t *catalogue;
static uint64_t catalogue_room; /* size of the part that is backed by memory */
static uint32_t process_entry = MG_NO_ENTRY;
static uint32_t next_block = MG_FIRST_BLOCK;
static pthread_mutex_t catalogue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t thread_end;

/* Maximum time for which a thread waits until the recorder reaches its start. */
#define LONGEST_NS 1000000000ull

/* Number of further blocks whose counts get memory together with a thread's ring. */
#define COUNTS_AHEAD 65536u

/* Starts of threads: the current one, and the latest ones by thread. */
static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t start_under_way;
static struct { _Atomic uint32_t tid; _Atomic uint64_t number; } starts[1024];
/* Number of the thread or process that the thread is starting. After a fork, the child has its
 * parent's number. */
static __thread uint64_t start_id;

/* Creates a file of `bytes` whose first `reserved` bytes are backed by memory. Otherwise, a store
 * would kill the program (SIGBUS). The memory is reserved before the file gets its size, which
 * tells the recorder that it may open the file. */
static bool make_room(int fd, size_t bytes, size_t reserved)
{
    struct timespec at_once = { 0, 0 };
    sigset_t too_large, before;
    int error;
    /* The program may have limited its file sizes. Our files must not get it killed. */
    sigemptyset(&too_large);
    sigaddset(&too_large, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &too_large, &before);
    while ((error = posix_fallocate(fd, 0, reserved)) == EINTR)
        ;
    if (error == 0 && ftruncate(fd, bytes) != 0)
        error = errno;
    if (error == EFBIG)
        sigtimedwait(&too_large, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return error == 0;
}

static void *map_file(const char *path, int flags, size_t bytes, size_t reserved)
{
    int fd = open(path, flags | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return NULL;
    void *p = MAP_FAILED;
    if (!(flags & O_CREAT) || make_room(fd, bytes, reserved))
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (p == MAP_FAILED) {
        int why = errno;
        if (flags & O_CREAT)
            unlink(path);
        errno = why;
        return NULL;
    }
    return p;
}

/* Backs a part of a shared file with memory. Otherwise, a store would kill the program. */
static bool give_memory(void *from, size_t bytes)
{
    if (madvise(from, bytes, MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno != EINVAL) /* Linux before 5.14 does not know the advice */
        return false;
    for (size_t at = 0; at < bytes; at += MG_PAGE)
        if (syscall(SYS_clock_gettime, CLOCK_MONOTONIC, (uint8_t *)from + at) != 0)
            return false;
    return true;
}

bool mg_session_open(const char *dir)
{
    char path[256];
    snprintf(mg_session_dir, sizeof mg_session_dir, "%s", dir);
    snprintf(path, sizeof path, "%s/control", dir);
    control = map_file(path, 0, MG_PAGE, 0);
    return control && control->magic == MG_MAGIC && control->version == MG_WIRE_VERSION;
}

/* True if the program that the process is about to execute will find the session. It may have
 * another user, root or mounts by then. Capabilities that it kept end with exec. */
bool mg_session_is_in_reach(void)
{
    char path[256];
    struct stat page;
    snprintf(path, sizeof path, "%s/control", mg_session_dir);
    return stat(path, &page) == 0 && (geteuid() == 0 || geteuid() == page.st_uid) &&
           faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) == 0 &&
           faccessat(AT_FDCWD, mg_session_dir, W_OK | X_OK, AT_EACCESS) == 0;
}

/* PID namespace of the process, or 0 if unknown. */
static uint64_t own_pid_space(void)
{
    struct stat space;
    return stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
}

uint64_t mg_sets(void)
{
    return control ? control->sets : 0;
}

static void entry_path(char path[256], uint32_t number)
{
    snprintf(path, 256, "%s/e%08x", mg_session_dir, number);
}

static int refused_by; /* errno of the last failure */

/* Creates an entry file of `bytes`. On failure, counts the refusal and returns NULL. */
static void *new_entry(uint32_t kind, size_t bytes, size_t reserved, uint32_t owner,
                       uint32_t first, uint32_t *number)
{
    char path[256];
    *number = atomic_fetch_add(&control->entries, 1);
    entry_path(path, *number);
    struct mg_entry *e = map_file(path, O_CREAT | O_EXCL, bytes, reserved);
    if (!e) {
        refused_by = errno;
        bool apart = errno == EACCES || errno == EPERM || errno == ENOENT;
        atomic_fetch_add(apart ? &control->apart : &control->refused, 1);
        return NULL;
    }
    e->magic = MG_MAGIC;
    e->kind = kind;
    e->pid = getpid();
    e->tid = syscall(SYS_gettid);
    e->owner = owner;
    e->first_block = first;
    return e;
}

static void publish(struct mg_entry *e)
{
    atomic_store_explicit(&e->ready, 1, memory_order_release);
}

struct mg_ring *mg_own_ring(void)
{
    return current_cpu->neg.memgauge_ring;
}

struct mg_ring *mg_recorded_ring(void)
{
    struct mg_ring *r = mg_own_ring();
    return r == &dummy || r->data == scratch ? NULL : r;
}

struct mg_control *mg_shared(void)
{
    return control;
}

static void use_ring(struct mg_ring *r)
{
    current_cpu->neg.memgauge_ring = r;
}

/* A ring without a reader: the thread continues and overwrites its words. */
static void unrecorded(void)
{
    static __thread struct mg_ring own;
    struct mg_ring *blind = &own;
    if (mg_sets()) { /* the counts follow the ring, and the table selects no sets */
        blind = mmap(NULL, MG_SETS_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (blind == MAP_FAILED)
            abort();
    }
    blind->w = blind->data = scratch;
    blind->end = scratch + MG_BLOCK_WORDS - MG_BLOCK_SLACK;
    use_ring(blind);
}

void mg_start_lock(void)
{
    pthread_mutex_lock(&start_lock);
}

void mg_start_begin(uint64_t number)
{
    start_id = number;
    atomic_store(&start_under_way, number);
}

void mg_start_end(int64_t tid)
{
    if (tid > 0) {
        size_t at = tid % (sizeof starts / sizeof starts[0]);
        atomic_store(&starts[at].tid, 0);
        atomic_store(&starts[at].number, start_id);
        atomic_store(&starts[at].tid, tid);
    }
    pthread_mutex_unlock(&start_lock);
}

/* Records the start of the calling thread. Its parent starts no other thread before it has noted
 * this one. */
static uint64_t own_start_id(void)
{
    uint64_t under_way = atomic_load(&start_under_way);
    uint32_t tid = syscall(SYS_gettid);
    size_t at = tid % (sizeof starts / sizeof starts[0]);
    if (start_id)
        return start_id;
    return atomic_load(&starts[at].tid) == tid ? atomic_load(&starts[at].number) : under_way;
}

static void refuse(void)
{
    atomic_fetch_add(&control->refused, 1);
}

/* Backs the thread's next block with memory on first use. */
static bool has_memory(struct mg_ring *r, uint32_t head)
{
    if (head >= MG_BLOCKS || give_memory(r->data + (uint64_t)head * MG_BLOCK_WORDS, MG_BLOCK_BYTES))
        return true;
    refuse();
    return false;
}

bool mg_nothing_is_recorded(void)
{
    errno = refused_by;
    return !process && atomic_load(&control->entries) == 1 && !atomic_load(&control->stop);
}

/* True if the recorder holds its lock on the control page, which works across namespaces. A process
 * that cannot reach the session cannot tell. */
static bool recorder_has_lock(void)
{
    char path[256];
    snprintf(path, sizeof path, "%s/control", mg_session_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    bool is_free = flock(fd, LOCK_SH | LOCK_NB) == 0;
    close(fd);
    return !is_free;
}

/* When the recorder has ended, nobody frees blocks. */
bool mg_recorder_lives(void)
{
    if (atomic_load(&control->stop))
        return false;
    if (process && process->pid_space && process->pid_space != control->pid_space)
        return recorder_has_lock();
    return kill(control->recorder_pid, 0) == 0 || errno == EPERM;
}

/* True if the recorder reads the ring or may still open it. The recorder removes the name of every
 * ring, but marks those that it could open first. */
static bool is_wanted(struct mg_ring *r)
{
    char path[256];
    if (atomic_load(&r->taken))
        return atomic_load(&r->taken) == MG_TAKEN;
    entry_path(path, r->number);
    return access(path, F_OK) == 0 || atomic_load(&r->taken) == MG_TAKEN;
}

/* True if the recorder has not opened many earlier entries yet. It cannot report this itself
 * (control->crowded) while it waits for a CPU. */
static bool is_far_ahead(const struct mg_ring *r)
{
    return (int32_t)(r->number - atomic_load(&control->seen)) >= MG_MOST_UNSEEN;
}

/* If sleeps are or were lately held, or many threads were just started, the program waits until the recorder has
 * reached this thread's start. Otherwise, a program that starts one short thread or process after
 * another would finish while the recorder, and with it the sleeping threads, is at the first one,
 * and the recorder would need memory for all. */
static void wait_for_turn(struct mg_ring *r)
{
    uint64_t began = mg_host_ns();
    while (r->start_id &&
           (atomic_load(&control->holds) || atomic_load(&control->crowded) || is_far_ahead(r)) &&
           !atomic_load(&r->begun) &&
           mg_host_ns() - began < LONGEST_NS && mg_recorder_lives() && is_wanted(r)) {
        struct timespec look = { 0, 20 * 1000 * 1000 };
        syscall(SYS_futex, &r->begun, FUTEX_WAIT, 0, &look, NULL, 0);
    }
}

static void ring_begin(void)
{
    uint32_t number;
    size_t bytes = mg_sets() ? MG_SETS_BYTES : MG_RING_BYTES;
    struct mg_ring *r = NULL;
    /* Most programs are short. Further blocks get memory when they are reached. */
    if (process && !atomic_load(&control->stop))
        r = new_entry(MG_THREAD, bytes, MG_PAGE + MG_BLOCK_BYTES, process_entry, 0, &number);
    if (r && mg_sets()) {
        size_t counts = 8ull * MIN(next_block + COUNTS_AHEAD, MG_COUNTED);
        if (!give_memory((uint8_t *)r + MG_TABLE_AT, MG_PAGE + counts)) {
            refuse();
            munmap(r, bytes);
            r = NULL;
        }
    }
    if (!r) {
        unrecorded();
        return;
    }
    r->start_id = own_start_id();
    r->data = r->w = (uint64_t *)((uint8_t *)r + MG_PAGE);
    r->end = r->w + MG_BLOCK_WORDS - MG_BLOCK_SLACK;
    r->number = number;
    if (mg_sets())
        mg_begin_sets(r);
    publish(&r->entry);
    use_ring(r);
    pthread_setspecific(thread_end, r);
    wait_for_turn(r);
}

/* Waits until a block is free. Returns false if nobody will free one. */
static bool wait_for_room(struct mg_ring *r)
{
    for (;;) {
        uint32_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);
        if (atomic_load(&r->head) - tail < MG_BLOCKS)
            return true;
        if (!mg_recorder_lives()) {
            atomic_store(&control->stop, 1); /* no further catalogue entries or rings */
            return false;
        }
        if (!is_wanted(r))
            return false;
        atomic_store(&r->waiting, 1);
        struct timespec timeout = { 0, 20 * 1000 * 1000 };
        syscall(SYS_futex, &r->tail, FUTEX_WAIT, tail, &timeout, NULL, 0);
        atomic_store(&r->waiting, 0);
    }
}

uint64_t *mg_ring_turn(void)
{
    struct mg_ring *r = mg_own_ring();
    int saved = errno;
    if (r == &dummy) {
        ring_begin();
    } else if (r->data == scratch) {
        r->w = scratch;
    } else {
        uint32_t head = atomic_load(&r->head);
        uint64_t *block = r->data + (uint64_t)(head % MG_BLOCKS) * MG_BLOCK_WORDS;
        r->used[head % MG_BLOCKS] = r->w - block;
        atomic_store_explicit(&r->head, head + 1, memory_order_release);
        if (wait_for_room(r) && has_memory(r, head + 1)) {
            r->w = r->data + (uint64_t)((head + 1) % MG_BLOCKS) * MG_BLOCK_WORDS;
            r->end = r->w + MG_BLOCK_WORDS - MG_BLOCK_SLACK;
            if (r->full)
                r->ran -= MG_ATTENTION;
            r->full = 0;
        } else {
            unrecorded();
        }
    }
    errno = saved;
    return mg_own_ring()->w;
}

void mg_put_marks(const uint64_t *word, unsigned words)
{
    uint64_t *w = mg_own_ring()->w;
    if (w >= mg_own_ring()->end)
        w = mg_ring_turn();
    memcpy(w, word, words * sizeof *word);
    __atomic_store_n(&mg_own_ring()->w, w + words, __ATOMIC_RELEASE);
}

uint64_t mg_put_sync(enum mg_sync_kind kind, uint64_t key, uint64_t ns)
{
    if (mg_sets())
        mg_put_sum();
    uint64_t *w = mg_own_ring()->w;
    if (w >= mg_own_ring()->end)
        w = mg_ring_turn();
    uint64_t number = atomic_fetch_add(&control->sequence, 1) + 1;
    w[0] = MG_MARK_SYNC | number;
    w[1] = MG_MARK_SYNC_KIND | (uint64_t)kind << MG_SYNC_KIND_SHIFT | (key & MG_SYNC_KEY);
    w[2] = MG_MARK_SYNC_NS | (ns < MG_SYNC_NS ? ns : MG_SYNC_NS);
    __atomic_store_n(&mg_own_ring()->w, w + 3, __ATOMIC_RELEASE);
    atomic_store_explicit(&mg_own_ring()->marked, number, memory_order_release);
    return number;
}

/* True if the catalogue can be written up to `end`. The kernel stores something in each new page
 * for us, which fails where our own store would kill the program. The recorder only releases
 * earlier pages. */
static bool has_room(uint64_t end)
{
    while (catalogue_room < end && end <= MG_CATALOGUE_BYTES) {
        if (syscall(SYS_clock_gettime, CLOCK_MONOTONIC, catalogue + catalogue_room) != 0)
            return false;
        catalogue_room += MG_PAGE;
    }
    return end <= MG_CATALOGUE_BYTES;
}

bool mg_catalogue(const void *head, size_t head_bytes, const void *tail, size_t tail_bytes)
{
    if (!process || atomic_load_explicit(&control->stop, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&catalogue_lock);
    uint64_t at = atomic_load(&process->used);
    size_t bytes = (head_bytes + tail_bytes + 7) & ~7ull;
    bool fits = has_room(at + bytes);
    if (fits) {
        memcpy(catalogue + at, head, head_bytes);
        memcpy(catalogue + at + head_bytes, tail, tail_bytes);
        atomic_store_explicit(&process->used, at + bytes, memory_order_release);
    }
    pthread_mutex_unlock(&catalogue_lock);
    return fits;
}

uint64_t mg_catalogue_bytes(void)
{
    return process ? atomic_load(&process->used) : 0;
}

void mg_note_undecoded(uint32_t count)
{
    /* Code is not recorded after the end of the recording. */
    if (process && count && !atomic_load(&control->stop))
        atomic_fetch_add(&process->undecoded, count);
}

void mg_note_without_room(uint32_t count)
{
    if (process && !atomic_load(&control->stop))
        atomic_fetch_add(&process->without_room, count);
}

uint32_t mg_new_block_id(void)
{
    return next_block++;
}

uint64_t mg_own_sets(void)
{
    unsigned by = process_entry % MG_SPACES * MG_SPACE_STEP % MG_CLASSES;
    uint64_t sets = mg_sets();
    return by ? sets >> by | sets << (MG_CLASSES - by) : sets;
}

/* The thread's virtual processor is gone, and with it the pointer to the ring. */
static void end_thread(void *ring)
{
    struct mg_ring *r = ring;
    atomic_store_explicit(&r->entry.finished, 1, memory_order_release);
}

static void before_fork(void)
{
    if (process)
        atomic_fetch_add(&process->forks, 1);
}

/* The child shares the parent's rings until it gets its own. Leave them at once. */
static void child_of_fork(void)
{
    uint32_t owner = process_entry, first = next_block;
    pthread_mutex_init(&catalogue_lock, NULL);
    pthread_mutex_init(&start_lock, NULL);
    for (size_t at = 0; at < sizeof starts / sizeof starts[0]; at++)
        atomic_store(&starts[at].tid, 0);
    use_ring(&dummy);
    pthread_setspecific(thread_end, NULL);
    if (owner != MG_NO_ENTRY)
        mg_process_begin(owner, first);
}

void mg_process_begin(uint32_t owner, uint32_t first_block)
{
    uint32_t number;
    struct mg_process *p = NULL;
    if (!atomic_load(&control->stop))
        p = new_entry(MG_PROCESS, MG_PAGE + MG_CATALOGUE_BYTES, MG_PAGE, owner, first_block,
                      &number);
    if (!process && owner == MG_NO_ENTRY) {
        pthread_key_create(&thread_end, end_thread);
        pthread_atfork(before_fork, NULL, child_of_fork);
    }
    if (process) {
        munmap(process, MG_PAGE + MG_CATALOGUE_BYTES);
        process = NULL;
        process_entry = MG_NO_ENTRY;
    }
    if (!p)
        return;
    p->start_id = start_id;
    p->pid_space = own_pid_space();
    process = p;
    process_entry = number;
    catalogue = (uint8_t *)p + MG_PAGE;
    catalogue_room = 0;
    publish(&p->entry);
}
