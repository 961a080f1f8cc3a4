/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_OUTSIDE_H
#define MG_OUTSIDE_H

#include <stdint.h>

/* The thread begins a wait that may end because of a process outside of the session. */
void mg_outside_begin(void);

/* Returns its length on the host's clock, without the time in which other threads of the session
 * ran. */
uint64_t mg_outside_ns(void);

/* Host time in which other threads of the session have run so far. */
uint64_t mg_others_ran_ns(void);

/* The wait has ended, with data at `fd` from the process at the other end of `from`, or with
 * events that the call `num` has returned. */
void mg_outside_read(int fd, int from, uint64_t what);
void mg_outside_events(int64_t num, const uint64_t arg[6]);

#endif
