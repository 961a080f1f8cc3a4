/* memgauge_region.h - marks regions of interest and reports values in a program that memgauge
 * records. A program needs only this header: there is no library to link.
 *
 *     memgauge_region_begin("load");
 *     ...
 *     memgauge_value("rows", rows);
 *     memgauge_region_end("load");
 *
 * A region belongs to the thread that begins it. Names have up to 255 bytes; if the program runs
 * natively, 87 of them are kept. A mark is a jump to the next instruction and a no-op, which the
 * emulator recognises, and a check of one variable. It takes about a nanosecond, so marks can stay
 * in production code. While memgauge records the program natively, marks are written to the shared
 * file named by MEMGAUGE_REGIONS.
 *
 * On processors other than x86-64, the emulator does not see marks. With a strict ISO C mode
 * (-std=c99 without _GNU_SOURCE), only the emulator sees them. */
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

#if defined(__linux__) && defined(__GNUC__)
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

#if defined(CLOCK_MONOTONIC) && (defined(_DEFAULT_SOURCE) || defined(_BSD_SOURCE) ||        \
                                 defined(_GNU_SOURCE))
#ifdef __cplusplus
extern "C" {
#endif

/* Layout of the file. Keep it the same as in crates/live/src/sampling/roi_marks.rs. */
struct memgauge_slot_ {
    uint64_t number; /* index of the mark plus 1; written last */
    uint64_t time_ns;
    uint32_t pid, tid;
    uint64_t value;
    uint32_t kind, pad;
    char name[88];
};
struct memgauge_marks_ {
    char magic[8]; /* MGREGION */
    uint64_t slots;
    uint8_t pad0[48];
    uint64_t begun, refused;
    uint8_t pad1[48];
    uint64_t read; /* number of marks that memgauge has read */
    uint8_t pad2[4096 - 136];
};

/* Weak, so that a program has one, however many of its files include this header. NULL if the
 * program is not recorded. */
__attribute__((weak)) struct memgauge_marks_ *memgauge_marks_ = 0;

__attribute__((weak, constructor)) void memgauge_marks_open_(void)
{
    const char *path = getenv("MEMGAUGE_REGIONS");
    struct stat st;
    int fd = path && !memgauge_marks_ ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *at = MAP_FAILED;
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && st.st_size > 4096)
        at = mmap(0, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        return;
    struct memgauge_marks_ *marks = (struct memgauge_marks_ *)at;
    if (memcmp(marks->magic, "MGREGION", 8) == 0 &&
        (uint64_t)st.st_size >= 4096 + marks->slots * sizeof(struct memgauge_slot_))
        memgauge_marks_ = marks;
    else
        munmap(at, (size_t)st.st_size);
}

__attribute__((weak, noinline)) void memgauge_mark_live_(uint32_t kind, const char *name,
                                                         uint64_t value)
{
    struct memgauge_marks_ *marks = memgauge_marks_;
    uint64_t at = __atomic_load_n(&marks->begun, __ATOMIC_RELAXED);
    struct timespec now;
    do {
        if (at - __atomic_load_n(&marks->read, __ATOMIC_ACQUIRE) >= marks->slots) {
            __atomic_fetch_add(&marks->refused, 1, __ATOMIC_RELAXED);
            return;
        }
    } while (!__atomic_compare_exchange_n(&marks->begun, &at, at + 1, 1, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    struct memgauge_slot_ *slot = (struct memgauge_slot_ *)(marks + 1) + at % marks->slots;
    clock_gettime(CLOCK_MONOTONIC, &now);
    slot->time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    slot->pid = (uint32_t)getpid();
    slot->tid = (uint32_t)syscall(SYS_gettid);
    slot->value = value;
    slot->kind = kind;
    strncpy(slot->name, name, sizeof slot->name - 1);
    __atomic_store_n(&slot->number, at + 1, __ATOMIC_RELEASE);
}

#ifdef __cplusplus
}
#endif

#define MEMGAUGE_LIVE_(kind, name, value)                                                   \
    do {                                                                                    \
        if (__builtin_expect(memgauge_marks_ != 0, 0))                                      \
            memgauge_mark_live_(kind, name, value);                                         \
    } while (0)
#else
#define MEMGAUGE_LIVE_(kind, name, value) ((void)0)
#endif

#if defined(__GNUC__) /* a call would be counted as part of the region */
#define MEMGAUGE_INLINE_ static inline __attribute__((always_inline))
#else
#define MEMGAUGE_INLINE_ static inline
#endif

/* Begins the region `name` in this thread. */
MEMGAUGE_INLINE_ void memgauge_region_begin(const char *name)
{
    MEMGAUGE_LIVE_(1, name, (uint64_t)0);
    MEMGAUGE_MARK_(1, name, (uint64_t)0);
}

/* Ends the region `name` in this thread. */
MEMGAUGE_INLINE_ void memgauge_region_end(const char *name)
{
    MEMGAUGE_MARK_(2, name, (uint64_t)0);
    MEMGAUGE_LIVE_(2, name, (uint64_t)0);
}

/* Reports a value. */
MEMGAUGE_INLINE_ void memgauge_value(const char *name, uint64_t x)
{
    MEMGAUGE_MARK_(3, name, x);
    MEMGAUGE_LIVE_(3, name, x);
}

#endif
