/* memgauge.h - samples of running threads, while they run. See memgauge(3).
 *
 * Functions that return int or int64_t return 0 or a count, or a negative code of
 * enum memgauge_code; memgauge_error() then says why. All may be called from any
 * thread, but for those that free. */
#ifndef MEMGAUGE_H
#define MEMGAUGE_H

#include <stddef.h>
#include <stdint.h>

#include "memgauge_region.h" /* marks in the program, which need no library */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct memgauge_profiler memgauge_profiler;
typedef struct memgauge_reader memgauge_reader;

enum memgauge_code {
    MEMGAUGE_BAD_ARGUMENT = -1, /* what was asked for makes no sense */
    MEMGAUGE_MISSING = -2,      /* this machine lacks something */
    MEMGAUGE_REFUSED = -3,      /* not allowed, or there is no such thread */
    MEMGAUGE_SYSTEM = -4,       /* the system refused */
    MEMGAUGE_PANICKED = -5      /* a defect of memgauge */
};

enum { MEMGAUGE_OVERWRITE_OLDEST = 0, MEMGAUGE_REFUSE_NEWEST = 1 };
enum { MEMGAUGE_EACH = 0, MEMGAUGE_QUEUE = 1 };
enum { MEMGAUGE_STARTED = 0, MEMGAUGE_STOPPED = 1, MEMGAUGE_ENDED = 2, MEMGAUGE_DELETED = 3 };
/* kind, source and derivation of a sample */
enum { MEMGAUGE_UNKNOWN = 0, MEMGAUGE_LOAD = 1, MEMGAUGE_STORE = 2, MEMGAUGE_MODIFY = 3 };
enum {
    MEMGAUGE_L1D = 1, MEMGAUGE_L2 = 2, MEMGAUGE_LLC = 3, MEMGAUGE_DRAM = 4,
    MEMGAUGE_FILL_BUFFER = 5, MEMGAUGE_REMOTE_CACHE = 6, MEMGAUGE_REMOTE_DRAM = 7
};
enum { MEMGAUGE_REPORTED = 0, MEMGAUGE_EXACT = 1, MEMGAUGE_PREVIOUS = 2, MEMGAUGE_NEXT = 3 };

struct memgauge_settings {
    size_t size;        /* bytes of this structure: memgauge_settings_init fills it in */
    const char *event;  /* as in `memgauge record -e`; NULL: a timer, addresses rebuilt */
    uint64_t period;    /* events between two samples, of timers ns; 0: the usual one */
    uint64_t buffer;    /* samples that a thread's buffer holds */
    int kernel;         /* 1: samples of the kernel, too */
    int physical;       /* 1: physical addresses, where allowed */
    int when_full;      /* MEMGAUGE_OVERWRITE_OLDEST, MEMGAUGE_REFUSE_NEWEST */
    int latency_ms;     /* 10 or 1: within it a sample can be read */
    int regions;        /* 1: samples tell regions of interest (memgauge_marks_file) */
    int phases;         /* 1: more of the overhead where what a thread does has just changed */
    double overhead;    /* part of a thread's processor time that sampling may take, 0.01 for
                         * 1 %: its period is changed to keep to that; 0: any */
};

struct memgauge_sample {
    uint64_t time_ns;   /* CLOCK_MONOTONIC; of PEBS events the kernel's own clock; of a
                         * modelled machine virtual time */
    uint64_t ip;
    uint64_t addr;      /* valid where has_addr */
    uint64_t phys;      /* valid where has_phys */
    uint64_t period;    /* the one that was set when it was taken */
    uint64_t stands_for; /* events; of timers what was really counted */
    uint64_t data_src;  /* as the kernel packs it; 0: not told */
    uint32_t pid, tid, cpu;
    uint32_t latency_cycles; /* 0: not told */
    uint16_t size_bytes;     /* 0: not told */
    uint8_t kind, source, derivation;
    uint8_t has_addr, has_phys, in_kernel;
    uint32_t region;    /* 0: none; memgauge_region_name, memgauge_region_outer */
    uint32_t reserved;
};

/* samples = delivered + waiting + overwritten + refused; produced = samples + lost */
struct memgauge_statistics {
    uint32_t pid, tid, state, reserved;
    uint64_t samples, kernel_samples, memory_samples;
    uint64_t delivered, waiting, overwritten, refused, lost;
    uint64_t unwanted;  /* samples of the kernel that the processor took for nothing */
    uint64_t throttled; /* times the kernel stopped sampling for a moment */
    uint64_t stands_for, counted, period, buffer;
    uint64_t processor_ns; /* the thread's, since it was added */
    uint64_t own_ns;       /* memgauge's, for reading this thread's samples */
    uint64_t changes;      /* times it was seen to do something else, with `phases` */
};

const char *memgauge_error(void);

int memgauge_settings_init(struct memgauge_settings *into);
int memgauge_profiler_new(const struct memgauge_settings *settings, memgauge_profiler **into);
/* In a child that is forked later, all functions refuse a profiler and its readers, and this
 * lets go of nothing. */
void memgauge_profiler_free(memgauge_profiler *profiler);

/* Starts a program on the modelled machine, and samples it from its first instruction on.
 * `event` of the settings is the model's, as "llc.miss" (NULL) or "llc.miss/tagged"; `argv`
 * ends with NULL. */
int memgauge_profiler_run(const struct memgauge_settings *settings, const char *const *argv,
                          memgauge_profiler **into);
/* Waits for its end: its exit code, or 128 and the number of its signal. */
int64_t memgauge_wait(const memgauge_profiler *profiler);
/* 1: it has ended, and all its samples can be read; 0: it runs. */
int64_t memgauge_ended(const memgauge_profiler *profiler);

int64_t memgauge_on(const memgauge_profiler *profiler);
int64_t memgauge_off(const memgauge_profiler *profiler);
int64_t memgauge_add_thread(const memgauge_profiler *profiler, uint32_t tid);
int64_t memgauge_add_process(const memgauge_profiler *profiler, uint32_t pid);
int64_t memgauge_delete_thread(const memgauge_profiler *profiler, uint32_t tid);
int64_t memgauge_delete_process(const memgauge_profiler *profiler, uint32_t pid);
int64_t memgauge_start(const memgauge_profiler *profiler, uint32_t tid);
int64_t memgauge_stop(const memgauge_profiler *profiler, uint32_t tid);
int64_t memgauge_set_period(const memgauge_profiler *profiler, uint32_t tid, uint64_t period);
int64_t memgauge_set_period_of_new(const memgauge_profiler *profiler, uint64_t period);
int64_t memgauge_set_buffer_of_new(const memgauge_profiler *profiler, uint64_t samples);
int64_t memgauge_missed(const memgauge_profiler *profiler);
int64_t memgauge_clean(const memgauge_profiler *profiler, int all);
/* What MEMGAUGE_REGIONS is to be in the environment of programs whose marks samples are to
 * tell; NULL without `regions`. A program that profiles itself sets it, then calls
 * memgauge_marks_open_. Valid until the profiler is freed. */
const char *memgauge_marks_file(const memgauge_profiler *profiler);
/* The name of a sample's region: its bytes without the NUL, of which `room` bytes with a
 * NUL are written. */
int64_t memgauge_region_name(const memgauge_profiler *profiler, uint32_t region, char *into,
                             size_t room);
/* The region around it; 0: none. */
int64_t memgauge_region_outer(const memgauge_profiler *profiler, uint32_t region);
int memgauge_get_statistics(const memgauge_profiler *profiler, uint32_t tid,
                            struct memgauge_statistics *into);
/* Of at most so many threads, in the order in which they were added. How many threads there
 * are and were: with `most` 0 it only counts them. A tid comes twice where it was used again. */
int64_t memgauge_get_all_statistics(const memgauge_profiler *profiler,
                                    struct memgauge_statistics *into, size_t most);
/* What had to be changed or given up of the settings, and what went wrong with threads that
 * were to be followed: a line each. Bytes without the NUL, as memgauge_region_name. */
int64_t memgauge_notes(const memgauge_profiler *profiler, char *into, size_t room);

/* tid 0: all threads, also those that are added later */
int memgauge_reader_new(const memgauge_profiler *profiler, uint32_t tid, int sharing,
                        memgauge_reader **into);
void memgauge_reader_free(memgauge_reader *reader);
int memgauge_reader_fd(const memgauge_reader *reader);
int memgauge_reader_wait(const memgauge_reader *reader, uint32_t longest_ms);
int64_t memgauge_reader_read(const memgauge_reader *reader, struct memgauge_sample *into,
                             size_t most);

#ifdef __cplusplus
}
#endif
#endif
