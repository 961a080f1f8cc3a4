/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_ENDS_H
#define MG_ENDS_H

#include <stdbool.h>

/* Descriptors from this number on are not searched, because inherited ones are low. */
enum { MG_ENDS_INHERITED = 64 };

/* Returns true if `fd` is the only descriptor by which this process writes to a pipe or socket. */
bool mg_ends_is_last(int fd);

enum mg_ends { MG_ENDS_ALL, MG_ENDS_CLOSED_BY_EXEC };

/* Calls `found` with one descriptor of each pipe and socket to which this process may write, or
 * of each to which it will no longer write once it executes another program. */
void mg_ends_each(enum mg_ends which, void (*found)(int fd));

#endif
