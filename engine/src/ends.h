/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_ENDS_H
#define MG_ENDS_H

#include <stdbool.h>

/* Descriptors from here on are not looked for: what is inherited has low ones. */
enum { MG_ENDS_INHERITED = 64 };

/* Whether this process writes by `fd` to a pipe or socket, and by no other descriptor. */
bool mg_ends_is_last(int fd);

enum mg_ends { MG_ENDS_ALL, MG_ENDS_CLOSED_BY_EXEC };

/* Calls `found` with one descriptor of each pipe and socket that this process may write to;
 * or of each to which it will not write any more once it is another program. */
void mg_ends_each(enum mg_ends which, void (*found)(int fd));

#endif
