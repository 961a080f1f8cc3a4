/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_HOLD_H
#define MG_HOLD_H

#include <stdbool.h>
#include <stdint.h>

#include "../stream.h"

/* The thread begins a system call in this state (not MG_RUNS), which waits at most this long
 * (mg_ring.asks_ns), or ends it. */
void mg_call_begin(enum mg_does does, uint64_t asks_ns);
void mg_call_end(void);

/* True if another thread of the process runs and is in no call. */
bool mg_another_runs(void);
/* The child of a fork has one thread. */
void mg_hold_child_of_fork(void);

/* A thread has slept for `ns`. It continues when the running threads have reached that time, or
 * the object of its wait is ready. Returns how long it has slept in virtual time. */
uint64_t mg_hold(uint64_t ns, bool (*has_come)(void), bool *held);

#endif
