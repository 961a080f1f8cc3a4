/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_SYNC_H
#define MG_SYNC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* This process begins, by exec or as a forked child. */
void mg_sync_begin(void);

/* It is about to become another program. */
void mg_sync_exec(void);

/* Marks what a system call may let others go on with, or has waited for. */
void mg_sync_before(int64_t num, const uint64_t arg[6]);
void mg_sync_after(int64_t num, const uint64_t arg[6], int64_t ret);

/* Whether the call that has ended is to be made again: what it waited for has come. */
bool memgauge_call_again(void);

/* Copies from the program's memory without trusting its pointers (guest.c). */
bool mg_guest_read(void *to, uint64_t from, size_t bytes);

#endif
