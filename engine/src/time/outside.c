/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Measures waits that are ended by something outside the session: a client of a server, a user at a
 * terminal, another host. Their length is only known by the host's clock. While other threads of
 * the session work, that clock runs dozens of times faster than theirs, so such time is left out.
 * The recorder sees which threads work (crates/emulate/src/time/sleep_gate.rs) and sums up that time.
 *
 * The recorder finds the cause from the objects that were ready: no thread of the session has ever
 * written there. After a wait for events, all readable objects are recorded, since another thread
 * may read them, or nobody.
 */
#include "outside.h"

#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>

#include "../guest/isa.h"
#include "keys.h"
#include "../session.h"
#include "sync.h"
#include "timers.h"

static __thread uint64_t began_ns, others_ns;

uint64_t mg_others_ran_ns(void)
{
    struct mg_ring *r = mg_recorded_ring();
    if (!r)
        return 0;
    return atomic_load_explicit(&mg_shared()->worked_ns, memory_order_relaxed) -
           atomic_load_explicit(&r->alone_ns, memory_order_relaxed);
}

void mg_outside_begin(void)
{
    began_ns = mg_host_ns();
    others_ns = mg_others_ran_ns();
}

uint64_t mg_outside_ns(void)
{
    uint64_t took = mg_host_ns() - began_ns, worked = mg_others_ran_ns() - others_ns;
    return worked < took ? took - worked : 0;
}

/* ---- what was waited for ---- */

enum { MOST_WATCHED = 1024, MOST_READY = 16 };

static bool is_device(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISCHR(st.st_mode);
}

static bool tell_ready(int fd, int from, uint64_t what)
{
    if (!what && !is_device(fd))
        return false;
    mg_put_sync(MG_SYNC_READY, what ? what : MG_SYNC_NOBODY, what ? mg_key_peer(from) : 0);
    return true;
}

void mg_outside_read(int fd, int from, uint64_t what)
{
    mg_put_sync(MG_SYNC_OUTSIDE, 0, mg_outside_ns());
    tell_ready(fd, from, what);
}

/* True if there is something to read. A pipe without writers is only hung up. */
static bool is_readable(short events)
{
    return events & (POLLIN | POLLHUP);
}

/* Records the objects that poll found readable. */
static void tell_polled(const struct pollfd *some, int n)
{
    int told = 0;
    for (int i = 0; i < n && told < MOST_READY; i++)
        if (is_readable(some[i].revents))
            told += tell_ready(some[i].fd, some[i].fd, mg_key_fd(some[i].fd, MG_COMES));
}

static void tell_polled_at(uint64_t at, uint64_t count)
{
    struct pollfd some[MOST_WATCHED];
    int n = count < MOST_WATCHED ? (int)count : MOST_WATCHED;
    if (mg_guest_read(some, at, n * sizeof some[0]))
        tell_polled(some, n);
}

static void tell_selected(uint64_t at, uint64_t fds)
{
    uint64_t bits;
    int told = 0;
    for (uint64_t fd = 0; fd < fds && fd < MOST_WATCHED && told < MOST_READY; fd++) {
        if (fd % 64 == 0 && !mg_guest_read(&bits, at + fd / 8, sizeof bits))
            return;
        if (bits >> fd % 64 & 1)
            told += tell_ready(fd, fd, mg_key_fd(fd, MG_COMES));
    }
}

/* The returned events carry numbers of the program's choice. The kernel shows which descriptors
 * they belong to. */
static void tell_watched(int epoll)
{
    struct pollfd some[MOST_WATCHED];
    char path[64], line[256];
    int n = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", epoll);
    FILE *info = fopen(path, "re");
    while (info && n < MOST_WATCHED && fgets(line, sizeof line, info)) {
        some[n].events = POLLIN;
        n += sscanf(line, "tfd: %d", &some[n].fd) == 1;
    }
    if (info)
        fclose(info);
    if (poll(some, n, 0) > 0)
        tell_polled(some, n);
}

void mg_outside_events(int64_t num, const uint64_t arg[6])
{
    mg_put_sync(MG_SYNC_OUTSIDE, 0, mg_outside_ns());
    switch (num) {
    case G_POLL: case G_PPOLL: return tell_polled_at(arg[0], arg[1]);
    case G_SELECT: case G_PSELECT6: return arg[1] ? tell_selected(arg[1], arg[0]) : (void)0;
    default: return tell_watched((int)arg[0]);
    }
}
