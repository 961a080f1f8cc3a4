/* Counts the page faults of this thread, and prints the addresses of the first ones.
 *
 *   cc faults.c $(pkg-config --cflags --libs memgauge) && ./a.out */
#define _GNU_SOURCE
#include <memgauge.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGES 1000

static void check(int64_t code, const char *what)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s (%lld)\n", what, memgauge_error(), (long long)code);
        exit(1);
    }
}

int main(void)
{
    struct memgauge_settings settings;
    struct memgauge_statistics counts;
    struct memgauge_sample samples[256];
    memgauge_profiler *profiler;
    memgauge_reader *reader;
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    int64_t n, seen = 0, inside = 0;

    check(memgauge_settings_init(&settings), "settings");
    settings.event = "page-faults:u";
    settings.period = 1;
    check(memgauge_profiler_new(&settings, &profiler), "profiler");
    check(memgauge_reader_new(profiler, 0, MEMGAUGE_EACH, &reader), "reader");

    char *memory = mmap(NULL, PAGES * 4096L, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    madvise(memory, PAGES * 4096L, MADV_NOHUGEPAGE);
    check(memgauge_add_thread(profiler, tid), "add");
    for (int i = 0; i < PAGES; i++) {
        memory[i * 4096L] = 1;
        if (i % 100 == 99)
            usleep(20000);
    }
    check(memgauge_stop(profiler, tid), "stop");

    struct pollfd wait = {.fd = memgauge_reader_fd(reader), .events = POLLIN};
    if (poll(&wait, 1, 10000) != 1)
        return 1;
    while ((n = memgauge_reader_read(reader, samples, 256)) > 0) {
        seen += n;
        for (int i = 0; i < n; i++)
            inside += samples[i].has_addr && samples[i].addr >= (uintptr_t)memory &&
                      samples[i].addr < (uintptr_t)memory + PAGES * 4096L;
    }
    check(n, "read");
    check(memgauge_get_statistics(profiler, tid, &counts), "statistics");
    printf("samples %lld inside %lld counted %llu lost %llu\n", (long long)seen,
           (long long)inside, (unsigned long long)counts.counted, (unsigned long long)counts.lost);
    memgauge_reader_free(reader);
    memgauge_profiler_free(profiler);
    return (uint64_t)seen + counts.lost + counts.overwritten == counts.counted ? 0 : 1;
}
