/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Which thread waits for which, as system calls show it. Before a call that may let
 * others go on, the thread's ring gets a *release* of the object they may wait for.
 * After a call that may have waited, it gets an *acquire*. Both are numbered throughout
 * the session, so the recorder knows which releases came before an acquire.
 *
 * A key stands for the object waited for: a futex, a pipe, a process that ends. Where
 * the kernel does not say which object it is, several share a key
 * (docs/machine-model.md lists them). Then a wait may be taken to last longer, never
 * shorter.
 *
 * Before a call that sleeps until a signal or a time comes, the ring gets a *wait*, so
 * that the recorder knows since when a thread slept that a signal woke or killed. After a
 * sleep that a time ended, the thread may be held until others have come as far (hold.c):
 * the only place where a thread of the program waits for the model.
 *
 * A pipe hands on bytes in order. What a read takes was given by a certain write, and what
 * a write finds room for was made free by a certain read. So writes and reads say how many
 * bytes they are of, and the recorder counts (crates/emulate/src/pipes.rs).
 *
 * Order made in user space alone (a lock that was free) leaves no mark. Marking
 * every locked instruction was rejected: threads that share a counter would be
 * shown one after the other wherever the host runs them so.
 */
#include "sync.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "hold.h"
#include "session.h"
#include "timers.h"

/* Kind of object of a key; a part of it. */
enum space { FUTEX = 1, SHARED_FUTEX, OBJECT, PORTS, UNIX_SOCKETS, TIMER, SIGNAL, SEMAPHORES,
             MESSAGES, ALARM, SIGNAL_TIMER };

#define NS_PER_S 1000000000ull

static __thread uint64_t wait_ns;   /* what the call under way asks to wait at most */
static __thread uint64_t began_ns;  /* when it began to sleep; 0: it does not */
static __thread struct {            /* the pipe that the call under way writes to */
    uint64_t key;                   /* 0: none */
    uint64_t bytes;                 /* asked to be written */
} written;
static __thread bool starts_thread; /* it starts a thread, and has the lock below */

static uint64_t key(enum space space, uint64_t a, uint64_t b)
{
    uint64_t x = (space * 0x9e3779b97f4a7c15ull) ^ a;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 29 ^ b) * 0x94d049bb133111ebull;
    return (x ^ x >> 32) & MG_SYNC_KEY;
}

static uint64_t own(void)
{
    return getpid();
}

static uint64_t signals_of(uint64_t pid)
{
    return key(SIGNAL, (uint32_t)pid, 0);
}

/* `to` as kill has it. */
static uint64_t signals_sent(uint64_t to)
{
    return (int32_t)to > 0 ? signals_of(to) : MG_SYNC_GROUP;
}

static uint64_t alarm_key(void)
{
    return key(ALARM, own(), 0);
}

static uint64_t signal_timer(uint64_t id)
{
    return key(SIGNAL_TIMER, own(), (uint32_t)id);
}

static void release(uint64_t what)
{
    mg_put_sync(MG_SYNC_RELEASE, what, 0);
}

static void acquire(uint64_t what)
{
    mg_put_sync(MG_SYNC_ACQUIRE, what, 0);
}

/* What a thread waits for may come while the end of its sleep is held: to the program the
 * time was over before. It then waited for that, `what` or what it asks for next. */
static bool has_come(void);

static void slept(uint64_t ns, uint64_t what)
{
    bool held;
    if (!ns)
        return;
    uint64_t slept_ns = mg_hold(ns, has_come, &held);
    bool came = held && has_come();
    mg_put_sync(MG_SYNC_SLEEP, 0, came ? 0 : slept_ns);
    if (came && what)
        acquire(what);
}

/* ---- times ---- */

static uint64_t in_ns(int64_t s, int64_t ns)
{
    if (s < 0 || ns < 0)
        return 0;
    return s > 100000 ? MG_SYNC_NS : (uint64_t)s * NS_PER_S + ns;
}

static uint64_t read_timespec(uint64_t at)
{
    int64_t t[2];
    return at && mg_guest_read(t, at, sizeof t) ? in_ns(t[0], t[1]) : 0;
}

static uint64_t read_timeval(uint64_t at)
{
    int64_t t[2];
    return at && mg_guest_read(t, at, sizeof t) ? in_ns(t[0], t[1] * 1000) : 0;
}

/* Time left until `at` of a clock. */
static uint64_t until(uint64_t at, clockid_t clock)
{
    int64_t t[2];
    struct timespec now;
    if (!at || !mg_guest_read(t, at, sizeof t) || clock_gettime(clock, &now) != 0)
        return 0;
    int64_t s = t[0] - now.tv_sec, ns = t[1] - now.tv_nsec;
    if (ns < 0) {
        s -= 1;
        ns += NS_PER_S;
    }
    return in_ns(s, ns);
}

static uint64_t milliseconds(uint64_t arg)
{
    int ms = (int)arg;
    return ms > 0 ? (uint64_t)ms * 1000000 : 0;
}

static uint64_t futex_wait_ns(const uint64_t arg[6])
{
    int op = (int)arg[1];
    clockid_t clock = op & FUTEX_CLOCK_REALTIME ? CLOCK_REALTIME : CLOCK_MONOTONIC;
    switch (op & FUTEX_CMD_MASK) {
    case FUTEX_WAIT: return read_timespec(arg[3]);
    case FUTEX_WAIT_BITSET:
    case FUTEX_WAIT_REQUEUE_PI: return until(arg[3], clock);
    case FUTEX_LOCK_PI: return until(arg[3], CLOCK_REALTIME);
    default: return 0;
    }
}

/* Time that a call waits if nothing else ends the wait. */
static uint64_t asked_ns(int64_t num, const uint64_t arg[6])
{
    switch (num) {
    case G_NANOSLEEP: return read_timespec(arg[0]);
    case G_CLOCK_NANOSLEEP:
        return arg[1] & TIMER_ABSTIME ? until(arg[2], (clockid_t)arg[0]) : read_timespec(arg[2]);
    case G_POLL: return milliseconds(arg[2]);
    case G_EPOLL_WAIT:
    case G_EPOLL_PWAIT: return milliseconds(arg[3]);
    case G_SELECT: return read_timeval(arg[4]);
    case G_PSELECT6: return read_timespec(arg[4]);
    case G_PPOLL: return read_timespec(arg[2]);
    case G_EPOLL_PWAIT2: return read_timespec(arg[3]);
    case G_SIGTIMEDWAIT: return read_timespec(arg[2]);
    case G_FUTEX: return futex_wait_ns(arg);
    default: return 0;
    }
}

/* ---- keys ---- */

/* A futex between processes is known by its place in the page: they may have it at
 * different addresses. */
static uint64_t futex_key(uint64_t addr, int op)
{
    if (op & FUTEX_PRIVATE_FLAG)
        return key(FUTEX, own(), addr);
    return key(SHARED_FUTEX, addr % MG_PAGE, 0);
}

static unsigned port(const struct sockaddr_storage *a)
{
    /* IPv4 and IPv6 have it at the same place. */
    return ntohs(((const struct sockaddr_in *)a)->sin_port);
}

static bool is_inet(const struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET || a->ss_family == AF_INET6;
}

static uint64_t between(unsigned a, unsigned b)
{
    return key(PORTS, a < b ? a : b, a < b ? b : a);
}

/* A connection is known by its two ports, a listening socket by its own. */
static uint64_t socket_key(int fd)
{
    struct sockaddr_storage here = { 0 }, there = { 0 };
    socklen_t room = sizeof here;
    if (getsockname(fd, (struct sockaddr *)&here, &room) != 0 || !is_inet(&here))
        return key(UNIX_SOCKETS, 0, 0);
    room = sizeof there;
    bool connected = getpeername(fd, (struct sockaddr *)&there, &room) == 0;
    return between(port(&here), connected ? port(&there) : 0);
}

/* A socket address of the program; 0 where it has no port. */
static uint64_t address_key(uint64_t at, uint64_t bytes)
{
    struct sockaddr_storage to = { 0 };
    size_t room = bytes < sizeof to ? bytes : sizeof to;
    if (!at || room < sizeof(sa_family_t) || !mg_guest_read(&to, at, room) || !is_inet(&to))
        return 0;
    return between(port(&to), 0);
}

static bool is_anon(int fd, const char *kind)
{
    char link[64], name[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, sizeof name - 1);
    name[n > 0 ? n : 0] = 0;
    return strstr(name, kind) != NULL;
}

static uint64_t anon_key(int fd, const struct stat *st)
{
    if (is_anon(fd, "timerfd"))
        return key(TIMER, own(), fd);
    if (is_anon(fd, "signalfd"))
        return signals_of(own());
    return key(OBJECT, st->st_dev, st->st_ino);
}

/* Key of the object waited for at a descriptor; 0 where nobody in the session can end
 * the wait. */
static uint64_t fd_key_or_pipe(uint64_t arg, bool *pipe)
{
    struct stat st;
    int fd = (int)arg;
    *pipe = false;
    if (fstat(fd, &st) != 0)
        return 0;
    *pipe = S_ISFIFO(st.st_mode);
    if (*pipe)
        return key(OBJECT, st.st_dev, st.st_ino);
    if (S_ISSOCK(st.st_mode))
        return socket_key(fd);
    return (st.st_mode & S_IFMT) == 0 ? anon_key(fd, &st) : 0;
}

static uint64_t fd_key(uint64_t arg)
{
    bool pipe;
    return fd_key_or_pipe(arg, &pipe);
}

/* The same of a file that is locked, or a queue of messages. */
static uint64_t file_key(uint64_t arg)
{
    struct stat st;
    return fstat((int)arg, &st) == 0 ? key(OBJECT, st.st_dev, st.st_ino) : 0;
}

static bool locks(const uint64_t arg[6])
{
    enum { G_SETLK = 6, G_SETLKW = 7, G_OFD_SETLK = 37, G_OFD_SETLKW = 38 };
    return arg[1] == G_SETLK || arg[1] == G_SETLKW || arg[1] == G_OFD_SETLK ||
           arg[1] == G_OFD_SETLKW;
}

/* ---- pipes ---- */

/* Bytes that wait in a pipe. */
static uint64_t waiting_in(uint64_t fd)
{
    int bytes;
    return ioctl((int)fd, FIONREAD, &bytes) == 0 && bytes > 0 ? bytes : 0;
}

/* Before a call that writes `bytes`. */
static void give(uint64_t fd, uint64_t bytes)
{
    bool pipe;
    uint64_t what = fd_key_or_pipe(fd, &pipe);
    if (pipe) {
        written.key = what;
        written.bytes = bytes;
        mg_put_sync(MG_SYNC_GIVE, what, bytes);
    } else if (what) {
        release(what);
    }
}

/* After it: it may have waited for room. */
static void given(uint64_t fd, int64_t ret)
{
    uint64_t bytes = ret > 0 ? ret : 0;
    if (bytes < written.bytes)
        mg_put_sync(MG_SYNC_SHORT, written.key, written.bytes - bytes);
    int room = bytes ? fcntl((int)fd, F_GETPIPE_SZ) : 0;
    if (room > 0)
        mg_put_sync(MG_SYNC_ROOM, written.key, room);
}

static uint64_t few(uint64_t bytes)
{
    return bytes < MG_TAKEN_BYTES ? bytes : MG_TAKEN_BYTES;
}

/* After a read of `bytes` from a pipe. */
static void taken(uint64_t fd, uint64_t pipe, uint64_t bytes)
{
    mg_put_sync(MG_SYNC_TAKE, pipe, few(bytes) << MG_TAKEN_SHIFT | few(waiting_in(fd)));
}

/* Bytes of a list of buffers. */
static uint64_t bytes_of(uint64_t list, uint64_t count)
{
    enum { AT_ONCE = 32 };
    struct iovec some[AT_ONCE];
    uint64_t bytes = 0;
    for (uint64_t at = 0; at < count && at < IOV_MAX; at += AT_ONCE) {
        uint64_t n = count - at < AT_ONCE ? count - at : AT_ONCE;
        if (!mg_guest_read(some, list + at * sizeof some[0], n * sizeof some[0]))
            break;
        for (uint64_t i = 0; i < n; i++)
            bytes += some[i].iov_len;
    }
    return bytes;
}

/* The descriptor that a call may write to a pipe by; -1: none. */
static int64_t writes_to(int64_t num, const uint64_t arg[6])
{
    switch (num) {
    case G_WRITE: case G_WRITEV: case G_SENDFILE: case G_VMSPLICE: return (int)arg[0];
    case G_TEE: return (int)arg[1];
    case G_SPLICE: return (int)arg[2];
    default: return -1;
    }
}

static uint64_t bytes_to_write(int64_t num, const uint64_t arg[6])
{
    switch (num) {
    case G_WRITE: case G_TEE: return arg[2];
    case G_SENDFILE: return arg[3];
    case G_SPLICE: return arg[4];
    default: return bytes_of(arg[1], arg[2]);
    }
}

/* ---- releases ---- */

static void release_any(uint64_t what)
{
    if (what)
        release(what);
}

static void release_futex(const uint64_t arg[6])
{
    int op = (int)arg[1];
    switch (op & FUTEX_CMD_MASK) {
    case FUTEX_WAKE_OP:
    case FUTEX_REQUEUE:
    case FUTEX_CMP_REQUEUE:
    case FUTEX_CMP_REQUEUE_PI:
        release(futex_key(arg[4], op));
        __attribute__((fallthrough));
    case FUTEX_WAKE:
    case FUTEX_WAKE_BITSET:
    case FUTEX_UNLOCK_PI:
        release(futex_key(arg[0], op));
    }
}

/* The latest threads by where the kernel writes that they have ended. The thread that
 * gives that place to another one has seen that the former one ended, even where it had
 * no need to wait for it. Changed under the lock of births. */
static struct { uint64_t addr; uint32_t tid; } places[1024];
static __thread uint64_t place; /* of the thread that is being started */

static unsigned slot(uint64_t addr)
{
    return (addr >> 6 ^ addr >> 16) % (sizeof places / sizeof places[0]);
}

static void start(uint64_t flags, uint64_t addr)
{
    starts_thread = flags & CLONE_VM && flags & CLONE_THREAD;
    if (starts_thread) {
        mg_birth_lock();
        place = flags & CLONE_CHILD_CLEARTID ? addr : 0;
        if (place && places[slot(place)].addr == place)
            mg_put_sync(MG_SYNC_JOIN_THREAD, places[slot(place)].tid, 0);
    }
    mg_birth_begin(mg_put_sync(MG_SYNC_START, 0, 0));
}

static void arm(const uint64_t arg[6])
{
    int64_t t[4]; /* interval, then the first time */
    if (!mg_guest_read(t, arg[2], sizeof t))
        return;
    struct itimerspec before;
    uint64_t ns = in_ns(t[2], t[3]);
    if (arg[1] & TFD_TIMER_ABSTIME) {
        /* Which clock it goes by, the kernel does not say here: the nearer one's. */
        uint64_t monotonic = until(arg[2] + 16, CLOCK_MONOTONIC);
        uint64_t real = until(arg[2] + 16, CLOCK_REALTIME);
        ns = real && real < monotonic ? real : monotonic;
    }
    if (timerfd_gettime((int)arg[0], &before) == 0 && ns)
        mg_put_sync(MG_SYNC_RELEASE, key(TIMER, own(), (int)arg[0]), ns);
}

/* ---- timers that send signals ---- */

static void set(uint64_t timer, uint64_t ns, uint64_t repeat)
{
    if (ns)
        mg_put_sync(MG_SYNC_RELEASE, timer, ns);
    if (ns && repeat)
        mg_put_sync(MG_SYNC_REPEAT, timer, repeat);
    mg_timer_set(timer, ns, repeat);
}

static void set_signal_timer(const uint64_t arg[6])
{
    uint64_t timer = signal_timer(arg[0]), first = arg[2] + 16;
    clockid_t clock;
    if (mg_timer_clock(timer, &clock) && arg[2])
        set(timer, arg[1] & TIMER_ABSTIME ? until(first, clock) : read_timespec(first),
            read_timespec(arg[2]));
}

static void timer_made(const uint64_t arg[6])
{
    int id;
    if (mg_guest_read(&id, arg[2], sizeof id))
        mg_timer_made(signal_timer(id), (clockid_t)arg[0]);
}

/* A signal that is only tested for (0) lets nobody go on. */
static void signalled(uint64_t to, uint64_t signal)
{
    if ((int32_t)signal)
        release(signals_sent(to));
}

/* ---- locks of files ---- */

/* Files that were locked, by descriptor: such a lock ends with its file, too. Of higher
 * descriptors only a call ends it. */
static _Atomic uint64_t locked[16];

static void lock_file(uint64_t fd)
{
    if (fd / 64 < sizeof locked / sizeof locked[0])
        atomic_fetch_or(&locked[fd / 64], 1ull << fd % 64);
    release_any(file_key(fd));
}

static void close_file(uint64_t fd)
{
    uint64_t bit = 1ull << fd % 64;
    if (fd / 64 < sizeof locked / sizeof locked[0] && atomic_load(&locked[fd / 64]) & bit) {
        atomic_fetch_and(&locked[fd / 64], ~bit);
        release_any(file_key(fd));
    }
    release_any(fd_key(fd));
}

static void end_locks(void)
{
    for (unsigned at = 0; at < sizeof locked / sizeof locked[0]; at++)
        for (uint64_t left = atomic_load(&locked[at]); left; left &= left - 1)
            release_any(file_key(64 * at + __builtin_ctzll(left)));
}

static void release_all(int64_t num, const uint64_t arg[6])
{
    switch (num) {
    case G_WRITE: case G_WRITEV: case G_SENDFILE: case G_VMSPLICE: case G_SPLICE: case G_TEE:
        return give(writes_to(num, arg), bytes_to_write(num, arg));
    case G_SENDMSG: case G_SENDMMSG: case G_SHUTDOWN:
        return release_any(fd_key(arg[0]));
    case G_CLOSE:
        return close_file(arg[0]);
    case G_DUP2: case G_DUP3:
        return close_file(arg[1]);
    case G_SENDTO: {
        uint64_t to = address_key(arg[4], arg[5]);
        return release_any(to ? to : fd_key(arg[0]));
    }
    case G_CONNECT: {
        uint64_t to = address_key(arg[1], arg[2]);
        return release_any(to ? to : fd_key(arg[0]));
    }
    case G_MQ_SEND: return release_any(file_key(arg[0]));
    case G_FLOCK: return lock_file(arg[0]);
    case G_FCNTL:
        if (locks(arg))
            lock_file(arg[0]);
        return;
    case G_SEMOP: case G_SEMTIMEDOP: return release(key(SEMAPHORES, arg[0], 0));
    case G_MSGSND: return release(key(MESSAGES, arg[0], 0));
    case G_FUTEX: return release_futex(arg);
    case G_CLONE: return start(arg[0], arg[3]);
    case G_FORK: case G_VFORK: return start(0, 0);
    case G_KILL: case G_SIGQUEUEINFO: return signalled(arg[0], arg[1]);
    case G_TGKILL: case G_TGSIGQUEUEINFO: return signalled(arg[0], arg[2]);
    case G_TKILL: return signalled(own(), arg[1]);
    case G_ALARM: return set(alarm_key(), in_ns((uint32_t)arg[0], 0), 0);
    case G_SETITIMER:
        if (arg[0] == ITIMER_REAL && arg[1])
            set(alarm_key(), read_timeval(arg[1] + 16), read_timeval(arg[1]));
        return;
    case G_TIMER_SETTIME: return set_signal_timer(arg);
    case G_TIMER_DELETE: return mg_timer_set(signal_timer(arg[0]), 0, 0);
    case G_SIGRETURN: return mg_timers_taken();
    case G_TIMERFD_SETTIME: return arm(arg);
    case G_EXIT: case G_EXIT_GROUP:
        if (num == G_EXIT_GROUP)
            end_locks();
        release(signals_of(getppid()));
        mg_put_sync(MG_SYNC_EXIT, gettid(), num == G_EXIT_GROUP);
    }
}

/* ---- sleeps ---- */

/* Whether a call sleeps until a signal or a time comes, or what no thread of the session
 * may be the cause of. */
static bool sleeps(int64_t num, const uint64_t arg[6])
{
    switch (num) {
    case G_NANOSLEEP: case G_CLOCK_NANOSLEEP: case G_PAUSE: case G_SIGSUSPEND:
    case G_SIGTIMEDWAIT: return true;
    case G_POLL: return (int)arg[2];
    case G_EPOLL_WAIT: case G_EPOLL_PWAIT: return (int)arg[3];
    case G_SELECT: case G_PSELECT6: return !arg[4] || wait_ns;
    case G_PPOLL: return !arg[2] || wait_ns;
    case G_EPOLL_PWAIT2: return !arg[3] || wait_ns;
    default: return false;
    }
}

static void begin_to_sleep(void)
{
    uint64_t ns, timer = mg_timer_next(&ns);
    began_ns = mg_host_ns();
    mg_put_sync(MG_SYNC_WAIT, signals_of(own()), began_ns & MG_SYNC_NS);
    if (timer)
        mg_put_sync(MG_SYNC_DUE, timer, ns);
}

/* A child that a signal killed made no mark for its parent. */
static pid_t dead_child(void)
{
    siginfo_t child = { 0 };
    int saved = errno;
    bool found = waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) == 0;
    errno = saved;
    return found ? child.si_pid : 0;
}

/* A signal has ended the wait. Where another thread is waited for, a timer that repeats
 * says nothing: it fires by the host's clock, and often while that one works. */
static void signal_came(void)
{
    bool repeats;
    uint64_t timer = mg_timer_fired(&repeats), slept_ns = mg_host_ns() - began_ns;
    if (timer && (began_ns || !repeats))
        return acquire(timer);
    if (!began_ns)
        return acquire(signals_of(own()));
    pid_t child = dead_child();
    if (wait_ns && slept_ns > wait_ns)
        slept_ns = wait_ns;
    mg_put_sync(MG_SYNC_INTERRUPTED, signals_of(own()), child ? 0 : slept_ns);
    if (child)
        mg_put_sync(MG_SYNC_JOIN_PROCESS, child, 0);
}

/* ---- acquires ---- */

static void acquire_what(uint64_t what, bool ended)
{
    if (what)
        mg_put_sync(ended ? MG_SYNC_ACQUIRE_END : MG_SYNC_ACQUIRE, what, 0);
}

/* A read of `bytes`; none: the end. */
static void acquire_fd(uint64_t fd, uint64_t bytes)
{
    bool pipe;
    uint64_t what = fd_key_or_pipe(fd, &pipe);
    if (pipe && bytes)
        taken(fd, what, bytes);
    else
        acquire_what(what, !bytes);
}

/* Timers that repeat: the next time follows from this one. */
static void acquire_read(uint64_t fd, int64_t ret)
{
    bool pipe;
    uint64_t what = fd_key_or_pipe(fd, &pipe);
    struct itimerspec left;
    if (what == signals_of(own()))
        return signal_came();
    if (pipe && ret > 0)
        return taken(fd, what, ret);
    acquire_what(what, ret == 0);
    if (what == key(TIMER, own(), (int)fd) && timerfd_gettime((int)fd, &left) == 0)
        if (left.it_interval.tv_sec || left.it_interval.tv_nsec)
            mg_put_sync(MG_SYNC_RELEASE, what,
                        in_ns(left.it_interval.tv_sec, left.it_interval.tv_nsec));
}

/* A thread that waits for another's end waits until its number is no longer at the
 * address, as the kernel was asked when that one was started. */
static void acquire_futex(const uint64_t arg[6], int64_t ret)
{
    int op = (int)arg[1];
    switch (op & FUTEX_CMD_MASK) {
    case FUTEX_WAIT:
    case FUTEX_WAIT_BITSET:
    case FUTEX_WAIT_REQUEUE_PI:
    case FUTEX_LOCK_PI:
        if (ret == -ETIMEDOUT)
            return slept(wait_ns, futex_key(arg[0], op));
        if (ret != 0 && ret != -EAGAIN)
            return;
        acquire(futex_key(arg[0], op));
        if (!(op & FUTEX_PRIVATE_FLAG))
            mg_put_sync(MG_SYNC_JOIN_THREAD, (uint32_t)arg[2], 0);
        return;
    case FUTEX_WAKE:
    case FUTEX_WAKE_BITSET:
    case FUTEX_UNLOCK_PI:
        /* The host often runs the woken thread at once and the waker much later. When
         * the waker comes back, it may find its own turn come, and not wait. */
        acquire(futex_key(arg[0], op));
    }
}

static void acquire_child(int64_t num, const uint64_t arg[6], int64_t ret)
{
    uint32_t pid = (uint32_t)ret;
    /* Of waitid it stands in the siginfo: behind three numbers and their padding. */
    if (num == G_WAITID && (!arg[2] || !mg_guest_read(&pid, arg[2] + 16, sizeof pid)))
        pid = 0;
    if (pid)
        mg_put_sync(MG_SYNC_JOIN_PROCESS, pid, 0);
}

static void acquire_all(int64_t num, const uint64_t arg[6], int64_t ret)
{
    switch (num) {
    case G_READ: case G_READV: return acquire_read(arg[0], ret);
    case G_RECVFROM: case G_RECVMSG: case G_RECVMMSG:
        return acquire_what(fd_key(arg[0]), ret == 0);
    case G_ACCEPT: case G_ACCEPT4: return acquire_what(fd_key(arg[0]), false);
    case G_SENDFILE: return acquire_fd(arg[1], ret);
    case G_SPLICE: return acquire_fd(arg[0], ret);
    case G_TEE: return acquire_what(fd_key(arg[0]), ret == 0);
    case G_MQ_RECEIVE: case G_FLOCK: return acquire_what(file_key(arg[0]), false);
    case G_FCNTL: return acquire_what(locks(arg) ? file_key(arg[0]) : 0, false);
    case G_SEMOP: case G_SEMTIMEDOP: return acquire(key(SEMAPHORES, arg[0], 0));
    case G_MSGRCV: return acquire(key(MESSAGES, arg[0], 0));
    case G_WAIT4: case G_WAITID: return acquire_child(num, arg, ret);
    case G_SIGTIMEDWAIT: return signal_came();
    case G_TIMER_CREATE: return timer_made(arg);
    case G_NANOSLEEP: case G_CLOCK_NANOSLEEP: return slept(wait_ns, 0);
    case G_POLL: case G_PPOLL: case G_SELECT: case G_PSELECT6:
    case G_EPOLL_WAIT: case G_EPOLL_PWAIT: case G_EPOLL_PWAIT2:
        /* Any call that takes events waits for them. */
        return ret == 0 ? slept(wait_ns, 0) : (void)0;
    }
}

/* The call under way, whose time is over. */
static __thread struct { int64_t num; const uint64_t *arg; } over;

static bool is_woken(const uint64_t arg[6])
{
    int op = (int)arg[1] & FUTEX_CMD_MASK;
    uint32_t word;
    return (op == FUTEX_WAIT || op == FUTEX_WAIT_BITSET) &&
           mg_guest_read(&word, arg[0], sizeof word) && word != (uint32_t)arg[2];
}

static bool has_events(const uint64_t arg[6])
{
    struct pollfd some[64];
    return arg[1] <= sizeof some / sizeof some[0] &&
           mg_guest_read(some, arg[0], arg[1] * sizeof some[0]) && poll(some, arg[1], 0) > 0;
}

static bool has_come(void)
{
    struct pollfd all = { .fd = (int)over.arg[0], .events = POLLIN };
    switch (over.num) {
    case G_FUTEX: return is_woken(over.arg);
    case G_POLL: case G_PPOLL: return has_events(over.arg);
    case G_EPOLL_WAIT: case G_EPOLL_PWAIT: case G_EPOLL_PWAIT2: return poll(&all, 1, 0) > 0;
    default: return false;
    }
}

void mg_sync_begin(void)
{
    mg_timers_begin(alarm_key());
}

void mg_sync_before(int64_t num, const uint64_t arg[6])
{
    wait_ns = asked_ns(num, arg);
    bool sleeps_now = sleeps(num, arg);
    began_ns = 0;
    written.key = 0;
    release_all(num, arg);
    if (sleeps_now)
        begin_to_sleep();
    mg_call_begin(sleeps_now);
}

void mg_sync_after(int64_t num, const uint64_t arg[6], int64_t ret)
{
    if (starts_thread) {
        starts_thread = false;
        if (place && ret > 0) {
            places[slot(place)].addr = place;
            places[slot(place)].tid = ret;
        }
        mg_birth_end(ret);
    }
    over.num = num;
    over.arg = arg;
    if (num == G_FUTEX)
        acquire_futex(arg, ret);
    else if (ret == -EINTR || ret == -G_ERESTARTSYS)
        signal_came();
    else if (num == G_SIGTIMEDWAIT && ret == -EAGAIN)
        slept(wait_ns, 0);
    else if (ret >= 0)
        acquire_all(num, arg, ret);
    if (written.key)
        given(writes_to(num, arg), ret);
    mg_call_end();
}
