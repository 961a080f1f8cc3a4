/* memgauge.h - samples running threads while they run. See memgauge(3).
 *
 * Functions that return int or int64_t return 0 or a count, or a negative code of
 * enum memgauge_code; memgauge_error() then returns the reason. All functions except those
 * that free an object can be called from any thread. */
#ifndef MEMGAUGE_H
#define MEMGAUGE_H

#include <stddef.h>
#include <stdint.h>

#include "memgauge_region.h" /* marks for programs; needs no library */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct memgauge_profiler memgauge_profiler;
typedef struct memgauge_reader memgauge_reader;

enum memgauge_code {
    MEMGAUGE_BAD_ARGUMENT = -1, /* an argument is invalid */
    MEMGAUGE_MISSING = -2,      /* this machine lacks something */
    MEMGAUGE_REFUSED = -3,      /* permission denied, or no such thread */
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
    size_t size;        /* size of this structure, set by memgauge_settings_init */
    const char *event;  /* as for `memgauge record -e`; NULL: a timer with derived addresses */
    uint64_t period;    /* events between two samples, ns for timers; 0: default */
    uint64_t buffer;    /* size of a thread's buffer in samples */
    int kernel;         /* 1: sample the kernel as well */
    int physical;       /* 1: record physical addresses, if permitted */
    int when_full;      /* MEMGAUGE_OVERWRITE_OLDEST, MEMGAUGE_REFUSE_NEWEST */
    int latency_ms;     /* 10 or 1: time until a sample can be read */
    int regions;        /* 1: record regions of interest (memgauge_marks_file) */
    int phases;         /* 1: spend more of the overhead when a thread changes its behaviour */
    double overhead;    /* maximum share of a thread's CPU time that sampling may take, 0.01 for
                         * 1 %; the period is adjusted to it; 0: no limit */
};

struct memgauge_sample {
    uint64_t time_ns;   /* CLOCK_MONOTONIC; the kernel's own clock for PEBS events;
                         * virtual time on the modelled machine */
    uint64_t ip;
    uint64_t addr;      /* valid if has_addr */
    uint64_t phys;      /* valid if has_phys */
    uint64_t period;    /* period when the sample was taken */
    uint64_t stands_for; /* number of events; for timers the time counted */
    uint64_t data_src;  /* in the kernel's encoding; 0: unknown */
    uint32_t pid, tid, cpu;
    uint32_t latency_cycles; /* 0: unknown */
    uint16_t size_bytes;     /* 0: unknown */
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
    uint64_t unwanted;  /* kernel samples taken although not requested */
    uint64_t throttled; /* number of times the kernel throttled sampling */
    uint64_t stands_for, counted, period, buffer;
    uint64_t processor_ns; /* CPU time of the thread since it was added */
    uint64_t own_ns;       /* CPU time of memgauge for reading its samples */
    uint64_t changes;      /* number of phase changes, with `phases` */
};

const char *memgauge_error(void);

int memgauge_settings_init(struct memgauge_settings *into);
int memgauge_profiler_new(const struct memgauge_settings *settings, memgauge_profiler **into);
/* In a child that is forked later, all functions refuse a profiler and its readers, and this
 * frees nothing. */
void memgauge_profiler_free(memgauge_profiler *profiler);

/* Starts a program on the modelled machine and samples it from its first instruction. The
 * `event` of the settings is one of the model, such as "llc.miss" (default) or
 * "llc.miss/tagged". `argv` ends with NULL. */
int memgauge_profiler_run(const struct memgauge_settings *settings, const char *const *argv,
                          memgauge_profiler **into);
/* Waits for the program. Returns its exit code, or 128 plus its signal. */
int64_t memgauge_wait(const memgauge_profiler *profiler);
/* Returns 1 if the program has ended and all its samples can be read, 0 if it runs. */
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
/* Value of the environment variable MEMGAUGE_REGIONS for programs whose regions are recorded;
 * NULL without `regions`. A program that profiles itself sets the variable and then calls
 * memgauge_marks_open_. Valid until the profiler is freed. */
const char *memgauge_marks_file(const memgauge_profiler *profiler);
/* Writes the name of a region: at most `room` bytes including a NUL. Returns the length of
 * the whole name. */
int64_t memgauge_region_name(const memgauge_profiler *profiler, uint32_t region, char *into,
                             size_t room);
/* Returns the region around a region; 0 if there is none. */
int64_t memgauge_region_outer(const memgauge_profiler *profiler, uint32_t region);
int memgauge_get_statistics(const memgauge_profiler *profiler, uint32_t tid,
                            struct memgauge_statistics *into);
/* Writes the counts of at most `most` threads, in the order in which they were added. Returns
 * the number of all threads. A tid that was reused occurs twice. */
int64_t memgauge_get_all_statistics(const memgauge_profiler *profiler,
                                    struct memgauge_statistics *into, size_t most);
/* Writes settings that had to be changed or dropped, and problems with followed threads, one
 * per line. Returns the length, as memgauge_region_name. */
int64_t memgauge_notes(const memgauge_profiler *profiler, char *into, size_t room);

/* tid 0: all threads, including those added later */
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
