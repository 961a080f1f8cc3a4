/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_SEED_H
#define MG_SEED_H

#include <stddef.h>

/* Fixes the program's random numbers. `seed` is a decimal number. */
void mg_seed(const char *seed);

/* Appends ",seed=N" to the plugin's option for a program that this one executes, if its random
 * numbers are fixed. N is the next random number, so that the two programs' numbers differ. */
void mg_seed_option(char *option, size_t room);

/* Called around a fork, so that parent and child get different random numbers. */
void mg_seed_before_fork(void);
void mg_seed_child_of_fork(void);

#endif
