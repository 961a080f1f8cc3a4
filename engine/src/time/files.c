/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Measures how long calls wait for files on the host: for reads from a disk, for writes that are
 * throttled, and for fsync. Virtual time does not contain these waits, because a disk is not
 * modelled. The recorder reports their sum beside it, and the calls that led to them.
 *
 * A wait is the time of a call without its processor time, if the thread gave up its processor. It
 * includes the time until the thread gets one again. Left out are times in which another thread of
 * the session runs, because the program then makes progress, and in which another one waits for
 * files, so that nothing counts twice. Page faults of mapped files are not included.
 */
#include "files.h"

#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "../emit.h"
#include "../guest/isa.h"
#include "../heap.h"
#include "hold.h"
#include "outside.h"
#include "../session.h"
#include "timers.h"

static __thread struct {
    uint64_t ns; /* on the host's clock; 0: the call does not use a file */
    uint64_t others_ran_ns;
    bool another_runs;
    struct rusage usage;
} before;

static enum mg_file_use use_of(int64_t num)
{
    switch (num) {
    case G_READ: case G_PREAD64: case G_READV: case G_PREADV: case G_PREADV2: case G_GETDENTS64:
    case G_COPY_FILE_RANGE: case G_SENDFILE: return MG_FILE_READ;
    case G_WRITE: case G_PWRITE64: case G_WRITEV: case G_PWRITEV: case G_PWRITEV2:
    case G_FALLOCATE: case G_FTRUNCATE: return MG_FILE_WRITE;
    case G_FSYNC: case G_FDATASYNC: case G_SYNC_FILE_RANGE: case G_SYNC: case G_SYNCFS:
    case G_MSYNC: return MG_FILE_SYNC;
    default: return MG_FILE_NONE;
    }
}

/* Other files are pipes, sockets, terminals and the like, whose other ends may take their time. */
static bool is_stored(int64_t num, const uint64_t arg[6])
{
    struct stat st;
    int fd = (int)arg[num == G_SENDFILE ? 1 : 0];
    return fstat(fd, &st) == 0 &&
           (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) || S_ISBLK(st.st_mode));
}

static uint64_t ns_of(struct timeval t)
{
    return t.tv_sec * 1000000000ull + t.tv_usec * 1000ull;
}

static uint64_t worked_ns(const struct rusage *usage)
{
    return ns_of(usage->ru_utime) + ns_of(usage->ru_stime);
}

/* Host time until which waits have been counted. From now on it is at least `now_ns`. */
static uint64_t counted_until(uint64_t now_ns)
{
    _Atomic uint64_t *until = &mg_shared()->file_waits_until_ns;
    uint64_t before_ns = atomic_load(until);
    while (before_ns < now_ns && !atomic_compare_exchange_weak(until, &before_ns, now_ns))
        ;
    return before_ns;
}

static void put_wait(enum mg_file_use use, uint64_t ns)
{
    uint64_t word[] = {
        MG_MARK_FILE_WAIT | use,
        MG_MARK_FIELD | (ns < MG_FIELD ? ns : MG_FIELD),
        MG_MARK_FIELD | mg_heap_path(),
    };
    mg_put_marks(word, sizeof word / sizeof *word);
}

void mg_files_before(int64_t num)
{
    before.ns = 0;
    if (use_of(num) == MG_FILE_NONE || !mg_shared() || getrusage(RUSAGE_THREAD, &before.usage) != 0)
        return;
    before.others_ran_ns = mg_others_ran_ns();
    before.another_runs = mg_another_runs();
    before.ns = mg_host_ns();
}

void mg_files_after(int64_t num, const uint64_t arg[6])
{
    if (!before.ns)
        return;
    uint64_t began_ns = before.ns, now_ns = mg_host_ns();
    struct rusage now;
    enum mg_file_use use = use_of(num);
    before.ns = 0;
    if (before.another_runs || mg_another_runs() || getrusage(RUSAGE_THREAD, &now) != 0 ||
        now.ru_nvcsw == before.usage.ru_nvcsw ||
        (use != MG_FILE_SYNC && !is_stored(num, arg)))
        return;
    uint64_t counted_ns = counted_until(now_ns);
    uint64_t waited = now_ns - (counted_ns > began_ns ? counted_ns : began_ns);
    uint64_t worked = worked_ns(&now) - worked_ns(&before.usage) + mg_others_ran_ns() -
                      before.others_ran_ns;
    if (counted_ns >= now_ns || waited <= worked)
        return;
    struct mg_control *control = mg_shared();
    atomic_fetch_add(&control->file_wait_ns, waited - worked);
    if (use == MG_FILE_WRITE)
        atomic_fetch_add(&control->file_write_wait_ns, waited - worked);
    if (use == MG_FILE_SYNC)
        atomic_fetch_add(&control->file_sync_wait_ns, waited - worked);
    if (mg_heap_is_on)
        put_wait(use, waited - worked);
}
