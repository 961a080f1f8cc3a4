/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * How long a wait lasts that somebody outside of the session ends: a client of a server,
 * who types at a terminal, another host. Only the host's clock can say. But while others of
 * the session work, that clock runs dozens of times faster than theirs: such time is left
 * out. The recorder sees who works (crates/emulate/src/holds.rs) and sums up for how long.
 */
#include "outside.h"

#include <sys/stat.h>

#include "keys.h"
#include "session.h"
#include "timers.h"

static __thread uint64_t began_ns, others_ns;
static __thread uint64_t waited_ns; /* what is read next may have been waited for so long */

/* For how long others have worked so far. */
static uint64_t others_worked(void)
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
    others_ns = others_worked();
}

uint64_t mg_outside_ns(void)
{
    uint64_t took = mg_host_ns() - began_ns, worked = others_worked() - others_ns;
    return worked < took ? took - worked : 0;
}

void mg_outside_end(void)
{
    waited_ns += mg_outside_ns();
}

static bool is_device(uint64_t fd)
{
    struct stat st;
    return fstat((int)fd, &st) == 0 && S_ISCHR(st.st_mode);
}

void mg_outside_tell(uint64_t fd, uint64_t what)
{
    if (!waited_ns || (!what && !is_device(fd)))
        return;
    mg_put_sync(MG_SYNC_OUTSIDE, what ? mg_key_peer(fd) : MG_SYNC_NOBODY, waited_ns);
    waited_ns = 0;
}

void mg_outside_forget(void)
{
    waited_ns = 0;
}
