/* Runs a program on the modelled machine, and prints its misses of the last-level
 * cache by region of interest and by thread.
 *
 *   cc modelled.c $(pkg-config --cflags --libs memgauge) && ./a.out PROGRAM ARGUMENTS */
#include <memgauge.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX 1000

static void check(int64_t code, const char *what)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s (%lld)\n", what, memgauge_error(), (long long)code);
        exit(1);
    }
}

/* Prints the regions of a sample, such as load/parse. */
static void print_region(const memgauge_profiler *profiler, uint32_t region)
{
    char name[256];
    int64_t outer = region ? memgauge_region_outer(profiler, region) : 0;
    check(outer, "region");
    if (outer) {
        print_region(profiler, (uint32_t)outer);
        printf("/");
    }
    if (region)
        check(memgauge_region_name(profiler, region, name, sizeof name), "region");
    printf("%s", region ? name : "none");
}

int main(int argc, char **argv)
{
    static struct memgauge_sample samples[MAX];
    static uint64_t misses[MAX];
    static struct memgauge_statistics threads[MAX];
    static char notes[4096];
    struct memgauge_settings settings;
    memgauge_profiler *profiler;
    memgauge_reader *reader;
    int64_t n, over = 0;

    if (argc < 2)
        return 2;
    check(memgauge_settings_init(&settings), "settings");
    settings.event = "llc.miss";
    settings.period = 100;
    check(memgauge_profiler_run(&settings, (const char *const *)argv + 1, &profiler), "run");
    check(memgauge_reader_new(profiler, 0, MEMGAUGE_EACH, &reader), "reader");
    while (!over) {
        over = memgauge_ended(profiler);
        check(over, "program");
        check(memgauge_reader_wait(reader, over ? 0 : 100), "wait");
        while ((n = memgauge_reader_read(reader, samples, MAX)) > 0)
            for (int64_t i = 0; i < n; i++)
                misses[samples[i].region < MAX ? samples[i].region : 0] += samples[i].stands_for;
        check(n, "read");
    }
    for (uint32_t region = 0; region < MAX; region++)
        if (misses[region]) {
            printf("%llu in ", (unsigned long long)misses[region]);
            print_region(profiler, region);
            printf("\n");
        }
    n = memgauge_get_all_statistics(profiler, threads, MAX);
    check(n, "threads");
    for (int64_t i = 0; i < n && i < MAX; i++)
        printf("%llu of thread %u\n", (unsigned long long)threads[i].stands_for, threads[i].tid);
    check(memgauge_notes(profiler, notes, sizeof notes), "notes");
    fputs(notes, stdout);
    n = memgauge_wait(profiler);
    check(n, "program");
    memgauge_reader_free(reader);
    memgauge_profiler_free(profiler);
    return (int)n;
}
