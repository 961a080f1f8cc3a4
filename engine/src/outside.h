/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_OUTSIDE_H
#define MG_OUTSIDE_H

#include <stdint.h>

/* The thread begins to wait for what somebody outside of the session may be the cause of. */
void mg_outside_begin(void);

/* How long that took by the host's clock, without the time in which others of the session
 * worked. */
uint64_t mg_outside_ns(void);

/* The wait has ended: with something to read at `fd`, from who has the other end of `from`;
 * or with events, which the call `num` has returned. */
void mg_outside_read(int fd, int from, uint64_t what);
void mg_outside_events(int64_t num, const uint64_t arg[6]);

#endif
