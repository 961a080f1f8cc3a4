/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_TIMERS_H
#define MG_TIMERS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* Time of the host clock that determines sleeps. */
uint64_t mg_host_ns(void);

/* Called when this process begins. A timer named by `key` may be set already, because that of
 * alarm survives exec. A forked child has none. */
void mg_timers_begin(uint64_t key);

/* A timer of the program is set to expire in `ns` (0: never) and every `repeat` after that (0:
 * once). */
void mg_timer_set(uint64_t key, uint64_t ns, uint64_t repeat);

/* Returns the key of an expired timer whose signal has not been handled, and whether it repeats.
 * 0: none. The signal counts as handled from now on. */
uint64_t mg_timer_fired(bool *repeats);

/* A handler has returned: it has handled the expired timers. */
void mg_timers_taken(void);

/* Returns the key of the timer that expires next, and the time until then. 0: none is set. */
uint64_t mg_timer_next(uint64_t *ns);

/* Returns the clock of a timer that the program created, or false if it does not show time. */
void mg_timer_made(uint64_t key, clockid_t clock);
bool mg_timer_clock(uint64_t key, clockid_t *clock);

#endif
