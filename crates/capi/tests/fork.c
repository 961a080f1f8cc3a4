/* A forked child has its parent's handles: none works there, and the parent's go on. */
#include <memgauge.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 500 };

static void require(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s: %s\n", what, memgauge_error());
        exit(1);
    }
}

static void touch(void)
{
    long page = sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, PAGES * page, MADV_NOHUGEPAGE);
    for (int i = 0; i < PAGES; i++)
        memory[i * page] = 1;
}

int main(void)
{
    struct memgauge_settings settings;
    struct memgauge_sample sample;
    memgauge_profiler *profiler;
    memgauge_reader *reader;
    memgauge_settings_init(&settings);
    settings.event = "page-faults:u";
    settings.period = 1;
    require(memgauge_profiler_new(&settings, &profiler) == 0, "new");
    require(memgauge_reader_new(profiler, 0, MEMGAUGE_EACH, &reader) == 0, "reader");
    pid_t own = getpid(), child = -1;
    require(memgauge_add_thread(profiler, own) == 0, "add");
    if ((child = fork()) == 0) {
        require(memgauge_off(profiler) == MEMGAUGE_BAD_ARGUMENT, "off");
        require(memgauge_stop(profiler, own) == MEMGAUGE_BAD_ARGUMENT, "stop");
        require(memgauge_delete_process(profiler, own) == MEMGAUGE_BAD_ARGUMENT, "delete");
        require(memgauge_add_thread(profiler, getpid()) == MEMGAUGE_BAD_ARGUMENT, "add");
        require(memgauge_reader_read(reader, &sample, 1) == MEMGAUGE_BAD_ARGUMENT, "read");
        memgauge_reader_free(reader);
        memgauge_profiler_free(profiler);
        puts(memgauge_error());
        fflush(stdout);
        _exit(0);
    }
    int status;
    require(waitpid(child, &status, 0) == child && status == 0, "the child");
    while (memgauge_reader_read(reader, &sample, 1) == 1)
        ;
    touch();
    long samples = 0;
    while (samples < PAGES && memgauge_reader_wait(reader, 5000) == 1)
        while (memgauge_reader_read(reader, &sample, 1) == 1)
            samples++;
    require(samples >= PAGES, "the parent's samples");
    memgauge_reader_free(reader);
    memgauge_profiler_free(profiler);
    return 0;
}
