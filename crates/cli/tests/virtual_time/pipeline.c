/* A writer and a reader of a pipe, each with work for every block:
 * `pipeline BLOCK BLOCKS WRITER_LINES READER_LINES [ONE]`. The work is a scan of so many lines
 * of memory, all of which miss. With ONE only the one named (`writer`, `reader`) works, and
 * without a pipe. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 64 << 20 };

static char *memory;
volatile char sink;

static void work(long lines)
{
    static long at;
    for (long line = 0; line < lines; line++) {
        sink += *(volatile char *)(memory + at);
        at = (at + 64) % BYTES;
    }
}

static void write_all(int fd, long block, long blocks, long lines)
{
    char *bytes = calloc(1, block);
    for (long n = 0; n < blocks; n++) {
        work(lines);
        for (long done = 0; done < block;) {
            ssize_t wrote = write(fd, bytes + done, block - done);
            if (wrote <= 0)
                _exit(1);
            done += wrote;
        }
    }
}

static void read_all(int fd, long block, long blocks, long lines)
{
    char *bytes = malloc(block);
    for (long n = 0; n < blocks; n++) {
        for (long done = 0; done < block;) {
            ssize_t got = read(fd, bytes + done, block - done);
            if (got <= 0)
                _exit(1);
            done += got;
        }
        work(lines);
    }
}

int main(int argc, char **argv)
{
    int ends[2];
    if (argc < 5 || pipe(ends) != 0)
        return 2;
    long block = atol(argv[1]), blocks = atol(argv[2]);
    long writes = atol(argv[3]), reads = atol(argv[4]);
    memory = aligned_alloc(4096, BYTES);
    if (argc > 5) {
        for (long n = 0; n < blocks; n++)
            work(strcmp(argv[5], "writer") == 0 ? writes : reads);
        return 0;
    }
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        write_all(ends[1], block, blocks, writes);
        _exit(0);
    }
    close(ends[1]);
    read_all(ends[0], block, blocks, reads);
    close(ends[0]);
    waitpid(child, NULL, 0);
    return 0;
}
