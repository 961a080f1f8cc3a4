/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Timers by which the program sends itself a signal: alarm, setitimer, timer_settime. A signal does
 * not name its timer, so the host's clock decides: the signal comes from a timer that has expired
 * since its last signal was taken.
 *
 * Only the cause of a wait's end is determined here. The length of the wait follows from the
 * timer's setting in virtual time (crates/emulate/src/time/waits.rs), so that it is the same in each
 * run.
 */
#include "timers.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/time.h>

enum { MOST_TIMERS = 64 };

static struct timer {
    uint64_t key;    /* 0: none */
    uint64_t due;    /* expiry on the host's clock, or 0 */
    uint64_t repeat;
    uint64_t taken;  /* number of expiries whose signal was taken */
    clockid_t clock;
} timers[MOST_TIMERS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t mg_host_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint64_t ns_of(struct timeval t)
{
    return ((uint64_t)t.tv_sec * 1000000 + t.tv_usec) * 1000;
}

/* The timer with that key, or a free one. NULL if there are too many timers. These end no wait. */
static struct timer *find(uint64_t key)
{
    struct timer *free = NULL;
    for (size_t i = 0; i < MOST_TIMERS; i++) {
        if (timers[i].key == key)
            return &timers[i];
        if (!timers[i].key && !free)
            free = &timers[i];
    }
    if (free)
        *free = (struct timer){ .key = key, .clock = CLOCK_MONOTONIC };
    return free;
}

static uint64_t times_fired(const struct timer *t, uint64_t now)
{
    if (!t->due || now < t->due)
        return 0;
    return t->repeat ? (now - t->due) / t->repeat + 1 : 1;
}

void mg_timers_begin(uint64_t key)
{
    struct itimerval left;
    pthread_mutex_init(&lock, NULL); /* another thread may have held it at a fork */
    memset(timers, 0, sizeof timers);
    if (getitimer(ITIMER_REAL, &left) == 0 && ns_of(left.it_value))
        mg_timer_set(key, ns_of(left.it_value), ns_of(left.it_interval));
}

void mg_timer_set(uint64_t key, uint64_t ns, uint64_t repeat)
{
    pthread_mutex_lock(&lock);
    struct timer *t = find(key);
    if (t) {
        t->due = ns ? mg_host_ns() + ns : 0;
        t->repeat = repeat;
        t->taken = 0;
    }
    pthread_mutex_unlock(&lock);
}

uint64_t mg_timer_fired(bool *repeats)
{
    uint64_t now = mg_host_ns(), earliest = UINT64_MAX;
    struct timer *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct timer *t = timers; t < timers + MOST_TIMERS; t++) {
        if (times_fired(t, now) > t->taken && t->due + t->taken * t->repeat < earliest) {
            earliest = t->due + t->taken * t->repeat;
            found = t;
        }
    }
    if (found) {
        found->taken = times_fired(found, now);
        *repeats = found->repeat;
    }
    pthread_mutex_unlock(&lock);
    return found ? found->key : 0;
}

void mg_timers_taken(void)
{
    pthread_mutex_lock(&lock);
    uint64_t now = mg_host_ns();
    for (struct timer *t = timers; t < timers + MOST_TIMERS; t++)
        t->taken = times_fired(t, now);
    pthread_mutex_unlock(&lock);
}

uint64_t mg_timer_next(uint64_t *ns)
{
    uint64_t now = mg_host_ns(), key = 0;
    pthread_mutex_lock(&lock);
    for (struct timer *t = timers; t < timers + MOST_TIMERS; t++) {
        uint64_t due = t->due + times_fired(t, now) * t->repeat;
        if (!t->due || due <= now || (key && due - now >= *ns))
            continue;
        key = t->key;
        *ns = due - now;
    }
    pthread_mutex_unlock(&lock);
    return key;
}

void mg_timer_made(uint64_t key, clockid_t clock)
{
    pthread_mutex_lock(&lock);
    struct timer *t = find(key);
    if (t)
        *t = (struct timer){ .key = key, .clock = clock };
    pthread_mutex_unlock(&lock);
}

bool mg_timer_clock(uint64_t key, clockid_t *clock)
{
    pthread_mutex_lock(&lock);
    struct timer *t = find(key);
    *clock = t ? t->clock : CLOCK_MONOTONIC;
    pthread_mutex_unlock(&lock);
    return *clock != CLOCK_PROCESS_CPUTIME_ID && *clock != CLOCK_THREAD_CPUTIME_ID && *clock >= 0;
}
