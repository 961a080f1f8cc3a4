/* Programs whose order in time the kernel keeps without a call that says so: `order MODE
 * [NUMBER]`. What each takes follows from what it scans and how long it sleeps. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { UNIT_BYTES = 1 << 20, UNITS = 16, OWN_UNITS = 8, SHORT_LIVES = 30, THREADS = 4, ROUNDS = 20 };

static char *memory;
static atomic_int done;

/* Writes each line, so that all of it is there; `memset` would store 16 million bytes one by one. */
static void fill(char *from, int units)
{
    for (volatile char *p = from, *end = p + units * UNIT_BYTES; p < end; p += 64)
        *p = 1;
}

/* Scans `units`, each of which takes 122 µs at the memory's latency. */
static void scan(char *from, int units)
{
    char sum = 0;
    for (int unit = 0; unit < units; unit++)
        for (volatile char *p = from + unit % UNITS * UNIT_BYTES, *end = p + UNIT_BYTES; p < end;
             p += 64)
            sum += *p;
    (void)sum;
}

static void work(int units)
{
    scan(memory, units);
}

static void sleep_ms(long ms)
{
    struct timespec left = { ms / 1000, ms % 1000 * 1000000 };
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

/* ---- births ---- */

static long ticks;

static void *tick(void *unused)
{
    while (!atomic_load(&done)) {
        sleep_ms(1);
        ticks++;
    }
    return unused;
}

static void *short_life(void *unused)
{
    work(7);
    return unused;
}

static void live_as(const char *what)
{
    pthread_t thread;
    pid_t child;
    if (strcmp(what, "threads") == 0) {
        pthread_create(&thread, NULL, short_life, NULL);
        pthread_join(thread, NULL);
    } else if (strcmp(what, "processes") == 0) {
        if ((child = fork()) == 0) {
            work(7);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    } else {
        work(7);
    }
}

static void births(const char *what, int with_ticker)
{
    pthread_t ticker;
    if (with_ticker)
        pthread_create(&ticker, NULL, tick, NULL);
    for (int i = 0; i < SHORT_LIVES; i++)
        live_as(what);
    atomic_store(&done, 1);
    if (with_ticker)
        pthread_join(ticker, NULL);
    printf("%ld\n", ticks);
}

/* ---- the end of a pipe or connection ---- */

/* The writer has it open, and never uses it. */
static void until_the_end(const char *how)
{
    int ends[2], is_socket = strstr(how, "socket") != NULL, units = 24;
    char byte;
    if (is_socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends))
        exit(1);
    int reader = ends[0], writer = ends[1];
    pid_t child = fork();
    if (child == 0) {
        close(reader);
        if (strstr(how, "killed")) {
            signal(SIGTERM, SIG_DFL);
            work(units);
            kill(getpid(), SIGKILL);
        } else if (strstr(how, "stopped")) {
            pause();
        } else if (strstr(how, "exec")) {
            fcntl(writer, F_SETFD, FD_CLOEXEC);
            work(units);
            execl("/bin/sleep", "sleep", "0.5", NULL);
        } else if (strstr(how, "close")) {
            work(units);
            close(writer);
            sleep_ms(500);
        }
        work(units);
        _exit(0);
    }
    close(writer);
    pid_t killer = -1;
    if (strstr(how, "stopped") && (killer = fork()) == 0) {
        close(reader);
        work(units);
        kill(child, SIGKILL);
        _exit(0);
    }
    if (read(reader, &byte, 1) != 0)
        exit(1);
    /* As long again, by which the end is seen in the total. */
    work(units);
    kill(child, SIGKILL);
}

/* ---- barriers ---- */

static pthread_barrier_t barrier;

/* Takes the host long, and the model little: hits of the first level. */
static void hit(char *own)
{
    for (int i = 0; i < 400000; i++)
        *(volatile char *)own += 1;
}

/* In each round another thread takes longest, and is the first to come on the host. */
static void *meet(void *number)
{
    int thread = (int)(long)number;
    char *own = aligned_alloc(4096, OWN_UNITS * UNIT_BYTES);
    fill(own, OWN_UNITS);
    pthread_barrier_wait(&barrier);
    for (int round = 0; round < ROUNDS; round++) {
        if (round % THREADS == thread)
            scan(own, OWN_UNITS);
        else
            hit(own);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

/* The slowest of each round, one after another. */
static void meet_alone(void)
{
    char *own = aligned_alloc(4096, OWN_UNITS * UNIT_BYTES);
    fill(own, OWN_UNITS);
    for (int round = 0; round < ROUNDS; round++)
        scan(own, OWN_UNITS);
}

static void meet_all(void)
{
    pthread_t thread[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (long i = 1; i < THREADS; i++)
        pthread_create(&thread[i], NULL, meet, (void *)i);
    meet(NULL);
    for (int i = 1; i < THREADS; i++)
        pthread_join(thread[i], NULL);
}

/* ---- timeouts of sockets ---- */

static void time_out(const char *how)
{
    int ends[2], option = strstr(how, "send") ? SO_SNDTIMEO : SO_RCVTIMEO;
    struct timeval time = { 0, 200000 };
    static char bytes[4096];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) ||
        setsockopt(ends[0], SOL_SOCKET, option, &time, sizeof time))
        exit(1);
    ssize_t moved = 1;
    while (moved > 0) {
        if (option == SO_SNDTIMEO)
            moved = strstr(how, "write") ? write(ends[0], bytes, sizeof bytes)
                                         : send(ends[0], bytes, sizeof bytes, 0);
        else
            moved = strstr(how, "read") ? read(ends[0], bytes, sizeof bytes)
                                        : recv(ends[0], bytes, sizeof bytes, 0);
    }
    if (errno != EAGAIN)
        exit(1);
}

/* ---- a sleep that is held for too long ---- */

static void *work_until_done(void *unused)
{
    while (!atomic_load(&done))
        work(1);
    return unused;
}

static void sleep_beside_work(void)
{
    pthread_t worker;
    pthread_create(&worker, NULL, work_until_done, NULL);
    sleep_ms(1000);
    atomic_store(&done, 1);
    pthread_join(worker, NULL);
}

/* ---- a wait that is over on the host before its event ---- */

static int event[2];

static void *wait_for_event(void *unused)
{
    struct pollfd one = { .fd = event[0], .events = POLLIN };
    if (poll(&one, 1, 150) != 1)
        exit(1);
    return unused;
}

/* The work takes the host longer than the other thread waits. */
static void send_after_sleep(void)
{
    pthread_t waiter;
    if (pipe(event))
        exit(1);
    pthread_create(&waiter, NULL, wait_for_event, NULL);
    work(60);
    sleep_ms(100);
    if (write(event[1], "", 1) != 1)
        exit(1);
    pthread_join(waiter, NULL);
}

/* ---- threads whose own memory has room in the last level, and all of it together has not ---- */

enum { SHARERS = 8, PASSES = 5, STEPS = 300 };

static pthread_barrier_t all_here;

/* Computes at each line, so that misses hardly change how fast it is. */
static void *scan_and_compute(void *own)
{
    volatile char *from = own;
    unsigned long sum = 1;
    pthread_barrier_wait(&all_here);
    for (int pass = 0; pass < PASSES; pass++)
        for (volatile char *p = from; p < from + UNIT_BYTES; p += 64) {
            sum += *p;
            for (int step = 0; step < STEPS; step++)
                sum = sum * 6364136223846793005 + 1442695040888963407;
        }
    return sum == 7 ? own : NULL; /* so that it is computed */
}

static void share(void)
{
    pthread_t threads[SHARERS];
    pthread_barrier_init(&all_here, NULL, SHARERS);
    for (int i = 0; i < SHARERS; i++)
        pthread_create(&threads[i], NULL, scan_and_compute, memory + i * UNIT_BYTES);
    for (int i = 0; i < SHARERS; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "", *how = argc > 2 ? argv[2] : "";
    memory = aligned_alloc(4096, UNITS * UNIT_BYTES);
    fill(memory, UNITS);
    if (!strcmp(mode, "births"))
        births(how, argc > 3);
    else if (!strcmp(mode, "work"))
        work(atoi(how));
    else if (!strcmp(mode, "end"))
        until_the_end(how);
    else if (!strcmp(mode, "barrier"))
        meet_all();
    else if (!strcmp(mode, "no-barrier"))
        meet_alone();
    else if (!strcmp(mode, "cut"))
        sleep_beside_work();
    else if (!strcmp(mode, "event"))
        send_after_sleep();
    else if (!strcmp(mode, "share"))
        share();
    else if (!strcmp(mode, "timeout"))
        time_out(how);
    else
        return 2;
    return 0;
}
