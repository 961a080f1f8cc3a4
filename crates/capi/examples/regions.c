/* Counts its own page faults by region of interest.
 *
 *   cc regions.c $(pkg-config --cflags --libs memgauge) && ./a.out */
#define _GNU_SOURCE
#include <memgauge.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check(int64_t code, const char *what)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s (%lld)\n", what, memgauge_error(), (long long)code);
        exit(1);
    }
}

static char *fresh(long pages)
{
    char *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        exit(1);
    madvise(memory, pages * 4096, MADV_NOHUGEPAGE);
    return memory;
}

static void touch(char *memory, long pages)
{
    for (long page = 0; page < pages; page++)
        memory[page * 4096] = 1;
}

int main(void)
{
    struct memgauge_settings settings;
    struct memgauge_sample samples[256];
    memgauge_profiler *profiler;
    memgauge_reader *reader;
    uint32_t tid = (uint32_t)getpid();
    long load = 0, parse = 0;
    char *one = fresh(300), *other = fresh(200);
    int64_t n;

    check(memgauge_settings_init(&settings), "settings");
    settings.event = "page-faults:u";
    settings.period = 1;
    settings.regions = 1;
    check(memgauge_profiler_new(&settings, &profiler), "profiler");
    setenv("MEMGAUGE_REGIONS", memgauge_marks_file(profiler), 1);
    memgauge_marks_open_();
    check(memgauge_reader_new(profiler, 0, MEMGAUGE_EACH, &reader), "reader");
    check(memgauge_add_thread(profiler, tid), "add");
    memgauge_region_begin("load");
    touch(one, 300);
    memgauge_region_begin("parse");
    touch(other, 200);
    memgauge_region_end("parse");
    memgauge_region_end("load");
    check(memgauge_stop(profiler, tid), "stop");
    while ((n = memgauge_reader_read(reader, samples, 256)) > 0)
        for (int i = 0; i < n; i++) {
            char name[64] = "";
            if (samples[i].region)
                check(memgauge_region_name(profiler, samples[i].region, name, sizeof name), "name");
            load += strcmp(name, "load") == 0;
            parse += strcmp(name, "parse") == 0;
        }
    check(n, "read");
    printf("load %ld parse %ld\n", load, parse);
    memgauge_reader_free(reader);
    memgauge_profiler_free(profiler);
    return 0;
}
