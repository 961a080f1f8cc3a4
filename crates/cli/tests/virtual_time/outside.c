/* Programs that wait for what lies outside of the session: `outside MODE`. Most write a line,
 * when they are about to: the port that they serve, or 0. Then they read until the end comes. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        _exit(1);
    }
}

static void say(int port)
{
    printf("%d\n", port);
    fflush(stdout);
}

static int epoll_of(int fd)
{
    int all = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN };
    check(epoll_ctl(all, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    return all;
}

/* Waits for events of `fd`, as `how` says; `read` does that itself. */
static void wait_for(const char *how, int fd, int all)
{
    struct pollfd one = { .fd = fd, .events = POLLIN };
    struct epoll_event event;
    fd_set some;
    FD_ZERO(&some);
    FD_SET(fd, &some);
    if (!strcmp(how, "poll"))
        check(poll(&one, 1, -1) == 1, "poll");
    else if (!strcmp(how, "epoll"))
        check(epoll_wait(all, &event, 1, -1) == 1, "epoll_wait");
    else if (!strcmp(how, "select"))
        check(select(fd + 1, &some, NULL, NULL, NULL) == 1, "select");
}

static void read_all(const char *how, int fd)
{
    int all = epoll_of(fd);
    char some[16];
    ssize_t n;
    do {
        wait_for(how, fd, all);
        n = read(fd, some, sizeof some);
        check(n >= 0, "read");
    } while (n > 0);
}

static int bound(int family, int type)
{
    struct sockaddr_in inet = { .sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    /* Without a path: the kernel chooses an abstract name of five digits. */
    struct sockaddr_un unix_ = { .sun_family = AF_UNIX };
    int s = socket(family, type, 0);
    check(s >= 0, "socket");
    if (family == AF_UNIX)
        check(bind(s, (struct sockaddr *)&unix_, sizeof unix_.sun_family) == 0, "bind");
    else
        check(bind(s, (struct sockaddr *)&inet, sizeof inet) == 0, "bind");
    return s;
}

static int port_of(int s)
{
    struct sockaddr_in here;
    socklen_t room = sizeof here;
    check(getsockname(s, (struct sockaddr *)&here, &room) == 0, "getsockname");
    return ntohs(here.sin_port);
}

/* The name as a number. */
static int name_of(int s)
{
    struct sockaddr_un here = { 0 };
    socklen_t room = sizeof here;
    check(getsockname(s, (struct sockaddr *)&here, &room) == 0, "getsockname");
    return (int)strtol(here.sun_path + 1, NULL, 16);
}

static void serve(int family)
{
    int s = bound(family, SOCK_STREAM);
    check(listen(s, 5) == 0, "listen");
    say(family == AF_UNIX ? name_of(s) : port_of(s));
    int client = accept(s, NULL, NULL);
    check(client >= 0, "accept");
    read_all("read", client);
}

static void serve_datagrams(void)
{
    int s = bound(AF_INET, SOCK_DGRAM);
    char some[16];
    say(port_of(s));
    while (recv(s, some, sizeof some, 0) > 0)
        ;
}

/* Main waits for events, and another thread reads. */
static sem_t has_events, is_read;
static volatile ssize_t read_last = 1;

static void *read_for_main(void *fd)
{
    char some[16];
    while (read_last > 0) {
        sem_wait(&has_events);
        read_last = read(*(int *)fd, some, sizeof some);
        sem_post(&is_read);
    }
    return NULL;
}

static void hand_on(int fd)
{
    pthread_t reader;
    int all = epoll_of(fd);
    check(pthread_create(&reader, NULL, read_for_main, &fd) == 0, "pthread_create");
    while (read_last > 0) {
        wait_for("epoll", fd, all);
        sem_post(&has_events);
        sem_wait(&is_read);
    }
    pthread_join(reader, NULL);
}

/* ---- both ends in the session ---- */

static volatile long turns;

static void compute(void)
{
    for (turns = 0; turns < 2000000; turns++)
        ;
}

/* Each waits until the other sends no more. */
static void half_closed(void)
{
    int s = bound(AF_INET, SOCK_STREAM);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                              .sin_port = htons(port_of(s)) };
    check(listen(s, 5) == 0, "listen");
    if (fork() == 0) {
        int q = socket(AF_INET, SOCK_STREAM, 0);
        check(connect(q, (struct sockaddr *)&to, sizeof to) == 0, "connect");
        compute();
        shutdown(q, SHUT_WR);
        read_all("read", q);
        _exit(0);
    }
    int client = accept(s, NULL, NULL);
    read_all("read", client);
    compute();
    check(write(client, "done", 4) == 4, "write");
    close(client);
    check(wait(NULL) > 0, "wait");
}

static void terminal(void)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    check(grantpt(master) == 0 && unlockpt(master) == 0, "posix_openpt");
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    check(slave >= 0, "open");
    if (fork() == 0) {
        for (int i = 0; i < 10; i++) {
            compute();
            check(write(master, "line\n", 5) == 5, "write");
        }
        _exit(0);
    }
    char line[16];
    for (int i = 0; i < 10; i++)
        check(read(slave, line, sizeof line) == 5, "read");
    check(wait(NULL) > 0, "wait");
}

static volatile int is_over;

static void *work(void *sum)
{
    while (!is_over)
        ++*(volatile long *)sum;
    return sum;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    pthread_t worker;
    long sum = 0;
    if (!strcmp(mode, "tcp"))
        serve(AF_INET);
    else if (!strcmp(mode, "unix"))
        serve(AF_UNIX);
    else if (!strcmp(mode, "udp"))
        serve_datagrams();
    else if (!strcmp(mode, "half-closed"))
        half_closed();
    else if (!strcmp(mode, "terminal"))
        terminal();
    else if (!strcmp(mode, "handed-on")) {
        say(0);
        hand_on(0);
    } else if (!strcmp(mode, "seen")) {
        say(0);
        wait_for("poll", 0, -1);
    } else if (!strcmp(mode, "beside")) {
        check(pthread_create(&worker, NULL, work, &sum) == 0, "pthread_create");
        say(0);
        read_all("read", 0);
        is_over = 1;
        pthread_join(worker, NULL);
    } else {
        say(0);
        read_all(mode, 0);
    }
    return 0;
}
