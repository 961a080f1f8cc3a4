/* memgauge_region.h - marks regions of interest and values in a program, for memgauge to
 * record. This header is all that a program needs: there is nothing to link.
 *
 *     memgauge_region_begin("load");
 *     ...
 *     memgauge_value("rows", rows);
 *     memgauge_region_end("load");
 *
 * A region belongs to the thread that begins it. Names have up to 255 bytes. A mark is a
 * jump to the next instruction and a no-op, which the emulator knows: it takes about a
 * nanosecond and may stay in. On other processors than x86-64 there is no mark. */
#ifndef MEMGAUGE_REGION_H
#define MEMGAUGE_REGION_H

#include <stdint.h>

#if defined(__x86_64__)
/*   eb 00                  jmp  .+2
 *   0f 1f 87 KK 00 47 4d   nopl 0x4d4700KK(%rdi)   KK: 1 begins, 2 ends, 3 a value */
#define MEMGAUGE_MARK_(kind, name, value)                                                   \
    __asm__ volatile(".byte 0xeb, 0, 0x0f, 0x1f, 0x87, " #kind ", 0, 0x47, 0x4d"            \
                     : : "D"(name), "S"(value) : "memory")
#else
#define MEMGAUGE_MARK_(kind, name, value) ((void)(name), (void)(value))
#endif

/* The region called `name` begins in this thread. */
static inline void memgauge_region_begin(const char *name)
{
    MEMGAUGE_MARK_(1, name, (uint64_t)0);
}

/* The region called `name` ends in this thread. */
static inline void memgauge_region_end(const char *name)
{
    MEMGAUGE_MARK_(2, name, (uint64_t)0);
}

/* Tells a value. */
static inline void memgauge_value(const char *name, uint64_t x)
{
    MEMGAUGE_MARK_(3, name, x);
}

#endif
