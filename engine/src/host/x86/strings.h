/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Copies and fills with the host's string instructions. They process elements in the program's
 * order, so overlapping elements of any size give the same result. `shift` is log2 of the size.
 * `step` is negative if the addresses fall.
 */
#ifndef MG_HOST_STRINGS_H
#define MG_HOST_STRINGS_H

#include <stdint.h>

#define MG_REP(name, ...) \
    if (step < 0) \
        asm volatile("std; rep " name "; cld" : __VA_ARGS__ : "memory", "cc"); \
    else \
        asm volatile("rep " name : __VA_ARGS__ : "memory", "cc")

static inline void mg_copy_elements(void *to, const void *from, uint64_t times, unsigned shift,
                                    int64_t step)
{
#define MG_MOVS(name) MG_REP(name, "+D"(to), "+S"(from), "+c"(times) :)
    switch (shift) {
    case 0: MG_MOVS("movsb"); break;
    case 1: MG_MOVS("movsw"); break;
    case 2: MG_MOVS("movsl"); break;
    default: MG_MOVS("movsq"); break;
    }
#undef MG_MOVS
}

static inline void mg_fill_elements(void *to, uint64_t value, uint64_t times, unsigned shift,
                                    int64_t step)
{
#define MG_STOS(name) MG_REP(name, "+D"(to), "+c"(times) : "a"(value))
    switch (shift) {
    case 0: MG_STOS("stosb"); break;
    case 1: MG_STOS("stosw"); break;
    case 2: MG_STOS("stosl"); break;
    default: MG_STOS("stosq"); break;
    }
#undef MG_STOS
}
#undef MG_REP

#endif
