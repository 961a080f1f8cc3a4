/* A writer and a reader of a pipe, each with work for every block:
 * `pipeline BLOCK BLOCKS WRITER_LINES READER_LINES [HOW]`. The work is a scan of so many lines
 * of memory, all of which miss. HOW is `writer` or `reader`: that one alone works, without a
 * pipe; `late`: all fits in the pipe, and the reader begins when it has been written;
 * `unready`: the writer does not wait for room but looks for it again and again. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
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
            if (wrote < 0 && errno == EAGAIN) {
                struct pollfd room = { .fd = fd, .events = POLLOUT };
                poll(&room, 1, -1);
                continue;
            }
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
    const char *how = argc > 5 ? argv[5] : "";
    if (strcmp(how, "writer") == 0 || strcmp(how, "reader") == 0) {
        for (long n = 0; n < blocks; n++)
            work(how[0] == 'w' ? writes : reads);
        return 0;
    }
    if (strcmp(how, "late") == 0 && fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) < block * blocks)
        return 3;
    if (strcmp(how, "unready") == 0)
        fcntl(ends[1], F_SETFL, O_NONBLOCK);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        write_all(ends[1], block, blocks, writes);
        _exit(0);
    }
    close(ends[1]);
    /* Calls take no virtual time, these take some on the host. */
    for (int waiting = 0; strcmp(how, "late") == 0 && waiting < block * blocks;)
        if (getrandom(memory, 1 << 20, 0) < 0 || ioctl(ends[0], FIONREAD, &waiting) < 0)
            return 4;
    read_all(ends[0], block, blocks, reads);
    close(ends[0]);
    waitpid(child, NULL, 0);
    return 0;
}
