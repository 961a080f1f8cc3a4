/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_SYNC_H
#define MG_SYNC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Called when this process begins, by exec or as a forked child. */
void mg_sync_begin(void);

/* Called before it executes another program. */
void mg_sync_exec(void);

/* Marks the objects for which a system call lets others continue, or has waited. */
void mg_sync_before(int64_t num, const uint64_t arg[6]);
void mg_sync_after(int64_t num, const uint64_t arg[6], int64_t ret);

/* Returns true if the call that has ended must be repeated, because the object of its wait is
 * ready. */
bool memgauge_call_again(void);

/* Copies from the program's memory without trusting its pointers (guest/guest.c). */
bool mg_guest_read(void *to, uint64_t from, size_t bytes);

#endif
