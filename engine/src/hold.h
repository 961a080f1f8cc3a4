/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_HOLD_H
#define MG_HOLD_H

#include <stdbool.h>
#include <stdint.h>

/* The thread begins a system call, which sleeps or may do so, or ends it. */
void mg_call_begin(bool sleeps);
void mg_call_end(void);

/* A thread has slept for `ns`, and goes on when those that work have come as far, or what
 * it waited for has come meanwhile. How much of that it has slept in virtual time. */
uint64_t mg_hold(uint64_t ns, bool (*has_come)(void), bool *held);

#endif
