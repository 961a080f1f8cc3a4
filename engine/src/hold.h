/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_HOLD_H
#define MG_HOLD_H

#include <stdbool.h>
#include <stdint.h>

#include "stream.h"

/* The thread begins a system call, in which it does that (not MG_RUNS) and waits at most so
 * long (mg_ring.asks_ns), or ends it. */
void mg_call_begin(enum mg_does does, uint64_t asks_ns);
void mg_call_end(void);

/* A thread has slept for `ns`, and goes on when those that work have come as far, or what
 * it waited for has come meanwhile. How much of that it has slept in virtual time. */
uint64_t mg_hold(uint64_t ns, bool (*has_come)(void), bool *held);

#endif
