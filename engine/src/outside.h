/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_OUTSIDE_H
#define MG_OUTSIDE_H

#include <stdint.h>

/* The thread begins to wait for what somebody outside of the session may be the cause of. */
void mg_outside_begin(void);

/* How long that took by the host's clock, without the time in which others of the session
 * worked. */
uint64_t mg_outside_ns(void);

/* The wait has ended with what it was for. Whether others of the session were the cause,
 * only what is read shows: after a wait for events the next read does. */
void mg_outside_end(void);

/* Tells of such waits, before the acquire of the key `what` that is read at `fd`. */
void mg_outside_tell(uint64_t fd, uint64_t what);

/* Nothing was read after a wait for events. */
void mg_outside_forget(void);

#endif
