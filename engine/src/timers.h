/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_TIMERS_H
#define MG_TIMERS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* Time of the host's clock that sleeps go by. */
uint64_t mg_host_ns(void);

/* This process begins; a timer that `key` names may be set already: alarm's outlives
 * exec. A forked child has none. */
void mg_timers_begin(uint64_t key);

/* A timer of the program is set to fire in `ns` (0: never) and every `repeat` after that
 * (0: once). */
void mg_timer_set(uint64_t key, uint64_t ns, uint64_t repeat);

/* The key of a timer that has fired and whose signal nobody has taken until now, and
 * whether it fires again; 0: none. It counts as taken. */
uint64_t mg_timer_fired(bool *repeats);

/* A handler has returned: it has taken what fired. */
void mg_timers_taken(void);

/* The key of the timer that fires next, and in how long; 0: none is set. */
uint64_t mg_timer_next(uint64_t *ns);

/* The clock of a timer that the program made; false if it does not show time. */
void mg_timer_made(uint64_t key, clockid_t clock);
bool mg_timer_clock(uint64_t key, clockid_t *clock);

#endif
