/* Programs whose waits a signal ends: `signals MODE`. All wait 200 ms. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MS = 1000000, TICKS = 4 };

static sem_t expired;
static sigset_t alarms;

static void handle(int signal)
{
    (void)signal;
}

static void check(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        _exit(1);
    }
}

static void is_interrupted(int result, const char *what)
{
    check(result == -1 && errno == EINTR, what);
}

static void sleep_ms(int ms)
{
    struct timespec t = { ms / 1000, ms % 1000 * MS };
    nanosleep(&t, NULL);
}

static void block(int how)
{
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    sigprocmask(how, &alarms, NULL);
}

static void set_alarm(int ms, int repeat_ms)
{
    struct itimerval t = { { 0, repeat_ms * 1000 }, { 0, ms * 1000 } };
    check(setitimer(ITIMER_REAL, &t, NULL) == 0, "setitimer");
}

static timer_t make_timer(struct sigevent *event)
{
    timer_t timer;
    check(timer_create(CLOCK_MONOTONIC, event, &timer) == 0, "timer_create");
    return timer;
}

static void set_timer(timer_t timer, int flags, struct timespec first, int repeat_ms)
{
    struct itimerspec t = { { 0, repeat_ms * MS }, first };
    check(timer_settime(timer, flags, &t, NULL) == 0, "timer_settime");
}

static void post(union sigval value)
{
    (void)value;
    sem_post(&expired);
}

static void timer_of_a_thread(void)
{
    struct sigevent event = { .sigev_notify = SIGEV_THREAD, .sigev_notify_function = post };
    sem_init(&expired, 0, 0);
    set_timer(make_timer(&event), 0, (struct timespec){ 0, 200 * MS }, 0);
    while (sem_wait(&expired) != 0)
        ;
}

static void timer_until(void)
{
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
    struct timespec at;
    timer_t timer = make_timer(&event);
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += 200 * MS;
    at.tv_sec += at.tv_nsec / (1000 * MS);
    at.tv_nsec %= 1000 * MS;
    set_timer(timer, TIMER_ABSTIME, at, 0);
    is_interrupted(pause(), "pause");
}

static void timer_ticks(void)
{
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
    set_timer(make_timer(&event), 0, (struct timespec){ 0, 50 * MS }, 50);
    for (int i = 0; i < TICKS; i++)
        is_interrupted(pause(), "pause");
}

static void read_signal(void)
{
    struct signalfd_siginfo info;
    block(SIG_BLOCK);
    int fd = signalfd(-1, &alarms, 0);
    set_alarm(200, 0);
    check(read(fd, &info, sizeof info) == sizeof info, "read");
}

static void wait_for_signal(void)
{
    struct timespec most = { 10, 0 };
    block(SIG_BLOCK);
    set_alarm(200, 0);
    check(sigtimedwait(&alarms, NULL, &most) == SIGALRM, "sigtimedwait");
}

static void suspend(void)
{
    sigset_t none;
    sigemptyset(&none);
    block(SIG_BLOCK);
    set_alarm(200, 0);
    is_interrupted(sigsuspend(&none), "sigsuspend");
}

static void wait_epoll(void)
{
    struct epoll_event event;
    int fd = epoll_create1(0);
    set_alarm(200, 0);
    is_interrupted(epoll_wait(fd, &event, 1, -1), "epoll_wait");
}

static void keep_alarm(char *self)
{
    block(SIG_BLOCK);
    set_alarm(200, 0);
    execl(self, self, "kept", NULL);
}

/* A child that waits, and is sent a signal after 200 ms. */
static void send_child(int signal)
{
    int status;
    pid_t child = fork();
    if (!child) {
        pause();
        _exit(0);
    }
    sleep_ms(200);
    kill(child, signal);
    check(waitpid(child, &status, 0) == child, "waitpid");
}

static void *sleep_long(void *nothing)
{
    sleep_ms(30000);
    return nothing;
}

static void leave_thread(void)
{
    pthread_t other;
    pthread_create(&other, NULL, sleep_long, NULL);
    sleep_ms(200);
    exit(0);
}

/* A signal from outside of the session comes, after a line that says to whom. */
static void outside(void)
{
    printf("%d\n", getpid());
    fflush(stdout);
    sleep_ms(30000);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    struct timespec most = { 30, 0 };
    struct timeval long_time = { 30, 0 };
    struct sigaction action = { .sa_handler = handle };
    if (strcmp(mode, "dies") && strcmp(mode, "outside-dies")) {
        sigaction(SIGALRM, &action, NULL);
        sigaction(SIGUSR1, &action, NULL);
    }
    if (!strcmp(mode, "pause"))
        set_alarm(200, 0), is_interrupted(pause(), mode);
    else if (!strcmp(mode, "sleep"))
        set_alarm(200, 0), is_interrupted(nanosleep(&most, NULL), mode);
    else if (!strcmp(mode, "poll"))
        set_alarm(200, 0), is_interrupted(poll(NULL, 0, -1), mode);
    else if (!strcmp(mode, "select"))
        set_alarm(200, 0), is_interrupted(select(0, NULL, NULL, NULL, &long_time), mode);
    else if (!strcmp(mode, "epoll"))
        wait_epoll();
    else if (!strcmp(mode, "suspend"))
        suspend();
    else if (!strcmp(mode, "sigwait"))
        wait_for_signal();
    else if (!strcmp(mode, "signalfd"))
        read_signal();
    else if (!strcmp(mode, "ticks"))
        for (int i = (set_alarm(50, 50), 0); i < TICKS; i++)
            is_interrupted(pause(), mode);
    else if (!strcmp(mode, "timer-ticks"))
        timer_ticks();
    else if (!strcmp(mode, "timer-until"))
        timer_until();
    else if (!strcmp(mode, "timer-thread"))
        timer_of_a_thread();
    else if (!strcmp(mode, "exec"))
        keep_alarm(argv[0]);
    else if (!strcmp(mode, "kept"))
        check(sigtimedwait((block(SIG_BLOCK), &alarms), NULL, &most) == SIGALRM, mode);
    else if (!strcmp(mode, "woken"))
        send_child(SIGUSR1);
    else if (!strcmp(mode, "killed"))
        send_child(SIGKILL);
    else if (!strcmp(mode, "left"))
        leave_thread();
    else if (!strcmp(mode, "dies"))
        set_alarm(200, 0), sleep_ms(30000);
    else if (!strcmp(mode, "outside") || !strcmp(mode, "outside-dies"))
        outside();
    else
        return 2;
    return 0;
}
