/* A worker that scans memory, and threads that sleep while it does: `polls MODE [ROUNDS]`. The
 * worker takes as long in each mode. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SCAN_BYTES = 32 << 20, SLEEPS = 400 };

static int rounds = 6;
static char *memory;
static atomic_int done;
volatile char sink;

static void *work(void *unused)
{
    for (int round = 0; round < rounds; round++)
        for (volatile char *p = memory, *end = p + SCAN_BYTES; p < end; p += 64)
            sink += *p;
    atomic_store(&done, 1);
    return unused;
}

static long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000 + now.tv_nsec;
}

static void sleep_once(const char *how)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    struct timespec until;
    if (strcmp(how, "usleep") == 0) {
        usleep(200);
    } else if (strcmp(how, "second") == 0) {
        sleep(1);
    } else if (strcmp(how, "poll") == 0) {
        poll(NULL, 0, 1);
    } else if (strcmp(how, "epoll") == 0) {
        struct epoll_event event;
        int fd = epoll_create1(0);
        epoll_wait(fd, &event, 1, 1);
        close(fd);
    } else if (strcmp(how, "sigwait") == 0) {
        sigset_t set;
        sigemptyset(&set);
        sigtimedwait(&set, NULL, &(struct timespec){ 0, 500000 });
    } else if (strcmp(how, "condition") == 0) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&lock);
        pthread_cond_timedwait(&never, &lock, &until);
        pthread_mutex_unlock(&lock);
    }
}

static void *poll_until_done(void *how)
{
    while (!atomic_load(&done))
        sleep_once(how);
    return NULL;
}

static void *wait_for_ever(void *unused)
{
    pause();
    return unused;
}

static void start(void *(*what)(void *), void *with)
{
    pthread_t thread;
    pthread_create(&thread, NULL, what, with);
    pthread_detach(thread);
}

static void work_beside(void *(*what)(void *), void *with)
{
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    what(with);
    pthread_join(thread, NULL);
}

/* In a process of its own. */
static void wait_for_a_child(int polls)
{
    pid_t child = fork();
    if (child == 0) {
        work(NULL);
        _exit(0);
    }
    while (waitpid(child, NULL, polls ? WNOHANG : 0) == 0)
        usleep(200);
}

/* Lets nobody go on but by a word in memory. */
static void *yield_until_done(void *unused)
{
    while (!atomic_load(&done))
        sched_yield();
    return unused;
}

static void sleep_often(int times, int us)
{
    long began = now_ns();
    for (int i = 0; i < times; i++)
        usleep(us);
    printf("%ld\n", now_ns() - began);
}

static void sleep_beside(void *(*what)(void *), int threads)
{
    for (int i = 0; i < threads; i++)
        start(what, NULL);
    usleep(20000);
    sleep_often(SLEEPS, 100);
    atomic_store(&done, 1);
}

static void *watch(void *unused)
{
    while (!atomic_load(&done))
        usleep(20);
    return unused;
}

/* Sleeps and works in turn. With a watcher, the work begins while the recorder, which started this
 * program, is stopped: it last saw a thread that only sleeps. */
static void work_while_recorder_is_stopped(int is_watched)
{
    enum { ROUNDS = 8 };
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t watcher;
        atomic_store(&done, 0);
        if (is_watched)
            pthread_create(&watcher, NULL, watch, NULL);
        usleep(2000);
        if (is_watched)
            kill(getppid(), SIGSTOP);
        for (volatile char *p = memory, *end = p + SCAN_BYTES / 2; p < end; p += 64)
            sink += *p;
        atomic_store(&done, 1);
        if (is_watched)
            pthread_join(watcher, NULL);
    }
}

static volatile sig_atomic_t signalled;
static long sent_ns;

static void on_signal(int number)
{
    (void)number;
    signalled = 1;
    printf("%ld\n", now_ns() - sent_ns);
}

static pthread_t sleeper;

static void *signal_later(void *unused)
{
    work(unused);
    sent_ns = now_ns();
    pthread_kill(sleeper, SIGUSR1);
    /* Works on: who slept is not let go for another reason. */
    while (!signalled)
        sink += 1;
    return unused;
}

/* The sleep itself is over long before the signal comes. */
static void signal_a_sleeper(void)
{
    sleeper = pthread_self();
    signal(SIGUSR1, on_signal);
    start(signal_later, NULL);
    while (!signalled)
        usleep(500000);
}

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t told;
    int is_told, wait_ms;
};

static void *wait_until_told(void *with)
{
    struct waiter *waiter = with;
    pthread_mutex_lock(&waiter->lock);
    while (!waiter->is_told) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += waiter->wait_ms * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&waiter->told, &waiter->lock, &until);
    }
    pthread_mutex_unlock(&waiter->lock);
    return NULL;
}

/* All waits time out on the host before the work is done. Those of 150 ms are told, one after
 * another, and joined. The one of 100 ms is under way when the process ends, as that of a parked
 * thread of a Java runtime is. */
static void tell_all_but_one(void)
{
    enum { TOLD = 8 };
    static struct waiter parked, told[TOLD];
    pthread_t thread[TOLD];
    parked.wait_ms = 100;
    start(wait_until_told, &parked);
    for (int i = 0; i < TOLD; i++) {
        told[i].wait_ms = 150;
        pthread_create(&thread[i], NULL, wait_until_told, &told[i]);
    }
    work(NULL);
    for (int i = 0; i < TOLD; i++) {
        pthread_mutex_lock(&told[i].lock);
        told[i].is_told = 1;
        pthread_cond_signal(&told[i].told);
        pthread_mutex_unlock(&told[i].lock);
        pthread_join(thread[i], NULL);
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (argc > 2)
        rounds = atoi(argv[2]);
    memory = aligned_alloc(4096, SCAN_BYTES);
    /* A store a line is enough for all of it to be there. */
    for (volatile char *p = memory, *end = p + SCAN_BYTES; p < end; p += 64)
        *p = 1;
    if (strcmp(mode, "alone") == 0)
        work(NULL);
    else if (strcmp(mode, "child") == 0)
        wait_for_a_child(0);
    else if (strcmp(mode, "poll-child") == 0)
        wait_for_a_child(1);
    else if (strcmp(mode, "sleeps") == 0)
        sleep_beside(NULL, 0);
    else if (strcmp(mode, "sleeps-beside-waiting") == 0)
        sleep_beside(wait_for_ever, 4);
    else if (strcmp(mode, "sleeps-beside-yielding") == 0)
        sleep_beside(yield_until_done, 1);
    else if (strcmp(mode, "sleeps-long") == 0)
        sleep_often(8, 25000);
    else if (strcmp(mode, "unwatched") == 0)
        work_while_recorder_is_stopped(0);
    else if (strcmp(mode, "watched") == 0)
        work_while_recorder_is_stopped(1);
    else if (strcmp(mode, "signal") == 0)
        signal_a_sleeper();
    else if (strcmp(mode, "tell") == 0)
        tell_all_but_one();
    else
        work_beside(poll_until_done, argv[1]);
    return 0;
}
