/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Keeps a thread that has slept from continuing before the running threads have caught up.
 *
 * The emulated program is dozens of times slower than the modelled one, but the host's clock is
 * not. A thread that polls in a sleep loop would sleep dozens of times more often than on the
 * modelled machine, and virtual time would follow the host's clock. A sleep that has timed out on
 * the host is therefore held until every running thread of the session has reached its end in
 * virtual time. The recorder knows the clocks and decides (crates/emulate/src/time/sleep_gate.rs).
 *
 * Every sleep asks the recorder, even if no other thread seems to run. Rejected: letting the
 * recorder publish which threads ran at its last look, so that threads that sleep alone need not
 * ask. On a busy host, that look is before the program's other threads begin to run. The watcher of
 * a Go program then repeated its sleep of 20 us until it was up to 20 ms ahead of them.
 *
 * After LONGEST_NS the sleep ends in any case. In virtual time it then ends where the other threads
 * are. Otherwise the sleeper's clock would run ahead of theirs, and a thread that waits for the
 * sleeper would be idle without a cause. A signal ends the sleep at once in the same way.
 */
#include "qemu/osdep.h"
#include "hw/core/cpu.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hold.h"
#include "../session.h"
#include "timers.h"

#define LONGEST_NS 1000000000ull
/* A signal may arrive between the test and the wait, which then does not notice it. Test again
 * after this time, and then at doubled intervals. */
#define FIRST_LOOK_NS 2000000u
#define LAST_LOOK_NS 32000000u
/* For this time, the ends of a thread's next sleeps come earlier by the time that the others were
 * ahead of it, since the thread itself makes progress. */
#define AHEAD_FOR_NS 10000000u

static __thread uint32_t holds;
static __thread uint64_t ahead_ns, ahead_until_ns;

/* Number of threads of the process that have made a call and are in none now. */
static atomic_int running;
static __thread bool runs;

static void set_runs(bool now)
{
    if (runs != now)
        atomic_fetch_add_explicit(&running, now ? 1 : -1, memory_order_relaxed);
    runs = now;
}

bool mg_another_runs(void)
{
    return atomic_load_explicit(&running, memory_order_relaxed) > runs;
}

void mg_hold_child_of_fork(void)
{
    atomic_store(&running, runs);
}

void mg_call_begin(enum mg_does does, uint64_t asks_ns)
{
    struct mg_ring *r = mg_recorded_ring();
    if (!r)
        return;
    set_runs(does == MG_RUNS);
    atomic_store_explicit(&r->asks_ns, asks_ns, memory_order_relaxed);
    uint32_t calls = (atomic_load_explicit(&r->calls, memory_order_relaxed) >> MG_DOES_BITS) + 1;
    atomic_store_explicit(&r->calls, calls << MG_DOES_BITS | does, memory_order_release);
}

void mg_call_end(void)
{
    struct mg_ring *r = mg_recorded_ring();
    if (!r)
        return;
    set_runs(true);
    atomic_store_explicit(&r->asks_ns, 0, memory_order_relaxed);
    uint32_t calls = atomic_load_explicit(&r->calls, memory_order_relaxed);
    atomic_store_explicit(&r->calls, calls >> MG_DOES_BITS << MG_DOES_BITS | MG_RUNS,
                          memory_order_release);
}

/* A signal for the program, or another reason to leave the call. */
static bool is_called(void)
{
    return qatomic_read(&current_cpu->exit_request);
}

/* Waits until the recorder releases this sleep. Returns false if something else ended it. */
static bool is_let_go(struct mg_ring *r, uint32_t number, uint64_t began, bool (*has_come)(void))
{
    uint64_t look_ns = FIRST_LOOK_NS;
    uint32_t let_go;
    while ((let_go = atomic_load(&r->let_go)) != number) {
        struct timespec look = { 0, look_ns };
        if (is_called() || has_come() || mg_host_ns() - began > LONGEST_NS || !mg_recorder_lives())
            return false;
        if (syscall(SYS_futex, &r->let_go, FUTEX_WAIT, let_go, &look, NULL, 0) != 0 &&
            errno == EINTR)
            return false;
        look_ns = MIN(2 * look_ns, LAST_LOOK_NS);
    }
    return true;
}

static uint64_t hold(struct mg_ring *r, uint64_t ns, bool (*has_come)(void))
{
    uint64_t began = mg_host_ns();
    if (++holds == 0)
        holds = 1;
    atomic_store(&r->reached_ns, ns);
    atomic_store(&r->asked_ns, ns);
    atomic_store(&r->held, holds);
    bool let_go = is_let_go(r, holds, began, has_come);
    atomic_store(&r->held, 0);
    uint64_t reached = atomic_load(&r->reached_ns);
    if (let_go) {
        ahead_ns = reached > ns ? reached - ns : 0;
        ahead_until_ns = mg_host_ns() + AHEAD_FOR_NS;
        return ns;
    }
    return mg_recorder_lives() && reached < ns ? reached : ns;
}

uint64_t mg_hold(uint64_t ns, bool (*has_come)(void), bool *held)
{
    *held = false;
    struct mg_ring *r = mg_recorded_ring();
    if (!r || !ns || atomic_load(&mg_shared()->stop) || !mg_shared()->models_time)
        return ns;
    if (ns <= ahead_ns && mg_host_ns() < ahead_until_ns) {
        ahead_ns -= ns;
        return ns;
    }
    *held = true;
    return hold(r, ns, has_come);
}
