/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_ASKED_H
#define MG_ASKED_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* Returns a time of the program in nanoseconds. A negative time is 0. */
uint64_t mg_in_ns(int64_t s, int64_t ns);
/* As mg_in_ns, for a time at an address in the program's memory. 0 if there is none. */
uint64_t mg_read_timespec(uint64_t at);
uint64_t mg_read_timeval(uint64_t at);
/* Returns the time left until a time of a clock. */
uint64_t mg_until(uint64_t at, clockid_t clock);

/* Returns the time for which a call waits if nothing else ends the wait. */
uint64_t mg_asked_ns(int64_t num, const uint64_t arg[6]);
/* Returns true if that is until a time of the host clock. */
bool mg_asks_by_deadline(int64_t num, const uint64_t arg[6]);

/* Returns the time for which a call on a socket has waited in vain (SO_RCVTIMEO, SO_SNDTIMEO),
 * or 0. */
uint64_t mg_timeout_ns(int64_t num, const uint64_t arg[6], int64_t ret);

#endif
