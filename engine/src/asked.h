/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_ASKED_H
#define MG_ASKED_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* Nanoseconds of a time that the program gave; a negative one is none. */
uint64_t mg_in_ns(int64_t s, int64_t ns);
/* The same of a time at an address of the program's; 0 where there is none. */
uint64_t mg_read_timespec(uint64_t at);
uint64_t mg_read_timeval(uint64_t at);
/* Time left until the one at `at` of a clock. */
uint64_t mg_until(uint64_t at, clockid_t clock);

/* Time that a call waits if nothing else ends the wait. */
uint64_t mg_asked_ns(int64_t num, const uint64_t arg[6]);
/* Whether that is until a time of the host's clock. */
bool mg_asks_by_deadline(int64_t num, const uint64_t arg[6]);

/* Time that a call on a socket has waited in vain (SO_RCVTIMEO, SO_SNDTIMEO); 0: it has
 * not. */
uint64_t mg_timeout_ns(int64_t num, const uint64_t arg[6], int64_t ret);

#endif
