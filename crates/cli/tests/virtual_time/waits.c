/* Programs whose threads and processes wait: `waits MODE [NUMBER]`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SCAN_BYTES = 16 << 20, TURN_BYTES = 4 << 20, TURNS = 6 };

static char *memory[16];
volatile char sink;

static void *scan(void *bytes)
{
    char sum = 0;
    for (volatile char *p = bytes, *end = p + SCAN_BYTES; p < end; p += 64)
        sum += *p;
    sink = sum;
    return NULL;
}

static void scan_part(char *bytes)
{
    char sum = 0;
    for (volatile char *p = bytes, *end = p + TURN_BYTES; p < end; p += 64)
        sum += *p;
    sink = sum;
}

static void reserve(int count)
{
    for (int i = 0; i < count; i++)
        memory[i] = aligned_alloc(4096, SCAN_BYTES);
}

static void scan_in_threads(int count, int together)
{
    pthread_t thread[16];
    reserve(together ? count : 1);
    for (int i = 0; i < count; i++) {
        pthread_create(&thread[i], NULL, scan, memory[together ? i : 0]);
        if (!together)
            pthread_join(thread[i], NULL);
    }
    for (int i = 0; together && i < count; i++)
        pthread_join(thread[i], NULL);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int turn;

static void *take_turns(void *number)
{
    int mine = (int)(long)number;
    for (int n = 0; n < TURNS; n++) {
        pthread_mutex_lock(&lock);
        while (turn != mine)
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        scan_part(memory[mine]);
        pthread_mutex_lock(&lock);
        turn = !mine;
        pthread_mutex_unlock(&lock);
        pthread_cond_signal(&changed);
    }
    return NULL;
}

/* The same through pipes, which are asked at each turn: nothing but the turns decides
 * which instructions are made. */
static int ways[2][2];

static void *take_turns_by_pipe(void *number)
{
    int mine = (int)(long)number;
    char byte = 0;
    for (int n = 0; n < TURNS; n++) {
        if ((mine || n) && read(ways[mine][0], &byte, 1) != 1)
            exit(1);
        scan_part(memory[mine]);
        if (write(ways[!mine][1], &byte, 1) != 1)
            exit(1);
    }
    return NULL;
}

static void turns(void *(*take)(void *))
{
    pthread_t other;
    reserve(2);
    if (pipe(ways[0]) || pipe(ways[1]))
        exit(1);
    pthread_create(&other, NULL, take, (void *)1L);
    take((void *)0L);
    pthread_join(other, NULL);
}

/* The same work by one thread. */
static void alone(void)
{
    reserve(2);
    for (int n = 0; n < 2 * TURNS; n++)
        scan_part(memory[n % 2]);
}

/* Two processes that give each other the turn through `to[0]` and `to[1]`. */
static void ping_pong(int first[2], int second[2])
{
    char byte = 0;
    reserve(1);
    pid_t child = fork();
    int from = child ? second[0] : first[0], to = child ? first[1] : second[1];
    for (int n = 0; n < TURNS; n++) {
        if (!child && read(from, &byte, 1) != 1)
            _exit(1);
        scan_part(memory[0]);
        if (write(to, &byte, 1) != 1)
            _exit(1);
        if (child && read(from, &byte, 1) != 1)
            _exit(1);
    }
    if (!child)
        _exit(0);
    waitpid(child, NULL, 0);
}

static void pipes(void)
{
    int first[2], second[2];
    if (pipe(first) || pipe(second))
        exit(1);
    ping_pong(first, second);
}

static void sockets(void)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        exit(1);
    /* One end each: what is written to one is read from the other. */
    int first[2] = { pair[1], pair[0] }, second[2] = { pair[0], pair[1] };
    ping_pong(first, second);
}

static void *notify(void *fd)
{
    uint64_t one = 1;
    scan(memory[0]);
    if (write((int)(long)fd, &one, sizeof one) != sizeof one)
        exit(1);
    return NULL;
}

static void events(void)
{
    pthread_t other;
    uint64_t count;
    int fd = eventfd(0, 0);
    struct pollfd wait = { fd, POLLIN, 0 };
    reserve(1);
    pthread_create(&other, NULL, notify, (void *)(long)fd);
    poll(&wait, 1, -1);
    if (read(fd, &count, sizeof count) != sizeof count)
        exit(1);
    scan(memory[0]);
    pthread_join(other, NULL);
}

static void serve(int times)
{
    for (int i = 0; i < times; i++)
        poll(NULL, 0, 100);
}

static void timer(void)
{
    uint64_t count;
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec times = { { 0, 50000000 }, { 0, 50000000 } };
    timerfd_settime(fd, 0, &times, NULL);
    for (int i = 0; i < 4; i++)
        if (read(fd, &count, sizeof count) != sizeof count)
            exit(1);
}

/* Work, a sleep, work. */
static void apart(void)
{
    struct timespec sleep = { 0, 50000000 };
    reserve(1);
    scan(memory[0]);
    scan(memory[0]);
    nanosleep(&sleep, NULL);
    scan(memory[0]);
    scan(memory[0]);
}

static void timeout(void)
{
    struct timespec until;
    pthread_mutex_lock(&lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_cond_timedwait(&changed, &lock, &until);
}

/* Three processes, each of which holds a lock for 50 ms and ends it in its way. */
static void locks(const char *way)
{
    char name[] = "/tmp/memgauge-lock-XXXXXX";
    struct timespec sleep = { 0, 50000000 };
    close(mkstemp(name));
    for (int i = 0; i < 3; i++)
        if (fork() == 0) {
            int fd = open(name, O_RDWR);
            int taken = strcmp(way, "lockf") ? flock(fd, LOCK_EX) : lockf(fd, F_LOCK, 0);
            nanosleep(&sleep, NULL);
            if (!strcmp(way, "unlock"))
                flock(fd, LOCK_UN);
            if (!strcmp(way, "close"))
                close(fd);
            _exit(taken);
        }
    while (wait(NULL) > 0)
        ;
    unlink(name);
}

/* Children that sleep, one after the other. */
static void children(int count)
{
    for (int i = 0; i < count; i++) {
        siginfo_t ended;
        if (fork() == 0) {
            usleep(50000);
            _exit(0);
        }
        if (waitid(P_ALL, 0, &ended, WEXITED) != 0)
            exit(1);
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    int number = argc > 2 ? atoi(argv[2]) : 1;
    if (!strcmp(mode, "joined"))
        scan_in_threads(number, 0);
    else if (!strcmp(mode, "children"))
        children(3);
    else if (!strcmp(mode, "together"))
        scan_in_threads(number, 1);
    else if (!strcmp(mode, "turns"))
        turns(take_turns);
    else if (!strcmp(mode, "turns-by-pipe"))
        turns(take_turns_by_pipe);
    else if (!strcmp(mode, "alone"))
        alone();
    else if (!strcmp(mode, "pipes"))
        pipes();
    else if (!strcmp(mode, "sockets"))
        sockets();
    else if (!strcmp(mode, "events"))
        events();
    else if (!strcmp(mode, "serve"))
        serve(number);
    else if (!strcmp(mode, "timer"))
        timer();
    else if (!strcmp(mode, "apart"))
        apart();
    else if (!strcmp(mode, "timeout"))
        timeout();
    else if (!strcmp(mode, "locks"))
        locks(argv[2]);
    else
        return 2;
    return 0;
}
