/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Records which thread waits for which, as far as system calls show it. Before a call that may wake
 * others, the thread's ring gets a *release* of the object they may wait for. After a call that may
 * have waited, it gets an *acquire*. Both are numbered throughout the session, so that the recorder
 * knows which releases came before an acquire.
 *
 * A key identifies the object (keys.h).
 *
 * Before a call that sleeps until a signal or a time, the ring gets a *wait*, so that the recorder
 * knows when a thread fell asleep that a signal woke or killed. After a sleep that timed out, the
 * thread may be held until the others have caught up (hold.c). Nowhere else does a thread of the
 * program wait for the model.
 *
 * A pipe passes on bytes in order. The bytes of a read come from certain writes, and the room for a
 * write comes from certain reads. Writes and reads therefore record their size, and the recorder
 * counts (crates/emulate/src/time/pipes.rs).
 *
 * Synchronisation in user space alone (a lock that was free) leaves no mark. Marking every locked
 * instruction was rejected: threads that share a counter would be serialised wherever the host
 * happens to run them in turn.
 */
#include "sync.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "asked.h"
#include "../guest/isa.h"
#include "ends.h"
#include "hold.h"
#include "keys.h"
#include "outside.h"
#include "../session.h"
#include "timers.h"

static __thread bool again;         /* repeat the call that has ended */
static __thread uint64_t wait_ns;   /* maximum wait that the current call asks for */
static __thread bool is_asleep;     /* the current call sleeps until a signal or a time */
static __thread bool may_wait;      /* the call's data or event was not available before it */
static __thread struct {            /* where it reads, as found before: an end may end that */
    uint64_t key;
    bool is_pipe;
} source;
static __thread struct {            /* the pipe that the current call writes to */
    uint64_t key;                   /* 0: none */
    uint64_t bytes;                 /* size of the write */
} written;
static __thread uint64_t started;   /* number of the start that is under way; 0: none */
static __thread bool starts_thread; /* it is that of a thread, which has the lock below */

static void release(uint64_t what)
{
    mg_put_sync(MG_SYNC_RELEASE, what, 0);
}

static void acquire(uint64_t what)
{
    mg_put_sync(MG_SYNC_ACQUIRE, what, 0);
}

/* An awaited event may happen while a timed-out sleep is held. The call is then repeated and finds
 * it (linux-user/syscall.c, see engine/qemu.patch). */
static bool has_come(void);

static void slept(uint64_t ns)
{
    bool held;
    if (!ns)
        return;
    uint64_t slept_ns = mg_hold(ns, has_come, &held);
    again = held && has_come();
    mg_put_sync(MG_SYNC_SLEEP, !again && slept_ns < ns, again ? 0 : slept_ns);
}

bool memgauge_call_again(void)
{
    bool is_again = again;
    again = false;
    if (is_again)
        mg_call_begin(MG_CALLS, 0);
    return is_again;
}

static bool locks(const uint64_t arg[6])
{
    enum { G_SETLK = 6, G_SETLKW = 7, G_OFD_SETLK = 37, G_OFD_SETLKW = 38 };
    return arg[1] == G_SETLK || arg[1] == G_SETLKW || arg[1] == G_OFD_SETLK ||
           arg[1] == G_OFD_SETLKW;
}

/* ---- pipes ---- */

/* Number of bytes in a pipe. */
static uint64_t waiting_in(uint64_t fd)
{
    int bytes;
    return ioctl((int)fd, FIONREAD, &bytes) == 0 && bytes > 0 ? bytes : 0;
}

/* Called before a write of `bytes`. */
static void give(uint64_t fd, uint64_t bytes)
{
    bool pipe;
    uint64_t what = mg_key_fd_or_pipe(fd, MG_GOES, &pipe);
    if (pipe) {
        written.key = what;
        written.bytes = bytes;
        mg_put_sync(MG_SYNC_GIVE, what, bytes);
    } else if (what) {
        release(what);
    }
}

/* Called after a write, which may have waited for room. */
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

/* Called after a read of `bytes` from a pipe. */
static void taken(uint64_t fd, uint64_t pipe, uint64_t bytes)
{
    mg_put_sync(MG_SYNC_TAKE, pipe, few(bytes) << MG_TAKEN_SHIFT | few(waiting_in(fd)));
}

/* Total size of a list of buffers. */
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

/* The descriptor through which a call may write to a pipe, or -1. */
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
        release(mg_key_futex(arg[4], op));
        __attribute__((fallthrough));
    case FUTEX_WAKE:
    case FUTEX_WAKE_BITSET:
    case FUTEX_UNLOCK_PI:
        if ((int)arg[2] > 1)
            mg_put_sync(MG_SYNC_GATHER, mg_key_futex(arg[0], op), 0);
        release(mg_key_futex(arg[0], op));
        break;
    case FUTEX_WAIT:
        /* Condition variables of the C library wait with FUTEX_WAIT_BITSET, and a broadcast wakes
         * all waiters without waiting itself. */
        if (!arg[3])
            mg_put_sync(MG_SYNC_ARRIVE, mg_key_futex(arg[0], op), 0);
    }
}

/* The latest threads by the address at which the kernel reports their end. A thread that reuses an
 * address for a new thread has seen that the previous one ended, even if it did not have to wait.
 * Protected by the lock for starts. */
static struct { uint64_t addr; uint32_t tid; } places[1024];
static __thread uint64_t place; /* address for the thread being started */

static unsigned slot(uint64_t addr)
{
    return (addr >> 6 ^ addr >> 16) % (sizeof places / sizeof places[0]);
}

/* Files that were locked, possibly by a child or parent through the same descriptor: closing the
 * file also releases the lock. For higher descriptors, only explicit calls count. */
static _Atomic uint64_t locked[16];

/* Parent and child share these files. */
static void share_files(void)
{
    struct stat st;
    for (int fd = 0; fd < MG_ENDS_INHERITED; fd++)
        if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
            atomic_fetch_or(&locked[0], 1ull << fd);
}

static void start(uint64_t flags, uint64_t addr)
{
    starts_thread = flags & CLONE_VM && flags & CLONE_THREAD;
    if (starts_thread) {
        mg_start_lock();
        place = flags & CLONE_CHILD_CLEARTID ? addr : 0;
        if (place && places[slot(place)].addr == place)
            mg_put_sync(MG_SYNC_JOIN_THREAD, places[slot(place)].tid, 0);
    } else {
        share_files();
    }
    started = mg_put_sync(MG_SYNC_START, 0, 0);
    mg_start_begin(started);
}

static void end_start(int64_t ret)
{
    if (starts_thread) {
        starts_thread = false;
        if (place && ret > 0) {
            places[slot(place)].addr = place;
            places[slot(place)].tid = ret;
        }
        mg_start_end(ret);
    }
    if (started && ret < 0)
        mg_put_sync(MG_SYNC_NOT_STARTED, 0, started);
    started = 0;
}

static void arm(const uint64_t arg[6])
{
    int64_t t[4]; /* interval, then the first time */
    if (!mg_guest_read(t, arg[2], sizeof t))
        return;
    struct itimerspec before;
    uint64_t ns = mg_in_ns(t[2], t[3]);
    if (arg[1] & TFD_TIMER_ABSTIME) {
        /* The kernel does not show which clock the timer uses. Assume the one with the nearer time.
         * */
        uint64_t monotonic = mg_until(arg[2] + 16, CLOCK_MONOTONIC);
        uint64_t real = mg_until(arg[2] + 16, CLOCK_REALTIME);
        ns = real && real < monotonic ? real : monotonic;
    }
    if (timerfd_gettime((int)arg[0], &before) == 0 && ns)
        mg_put_sync(MG_SYNC_RELEASE, mg_key(MG_KEY_TIMER, getpid(), (int)arg[0]), ns);
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
    uint64_t timer = mg_key_signal_timer(arg[0]), first = arg[2] + 16;
    clockid_t clock;
    if (mg_timer_clock(timer, &clock) && arg[2])
        set(timer, arg[1] & TIMER_ABSTIME ? mg_until(first, clock) : mg_read_timespec(first),
            mg_read_timespec(arg[2]));
}

static void timer_made(const uint64_t arg[6])
{
    int id;
    if (mg_guest_read(&id, arg[2], sizeof id))
        mg_timer_made(mg_key_signal_timer(id), (clockid_t)arg[0]);
}

/* `to` has the meaning of kill's argument. */
static uint64_t signals_sent(uint64_t to)
{
    return (int32_t)to > 0 ? mg_key_signals(to) : MG_SYNC_GROUP;
}

/* Signal 0 only tests for a process and wakes nobody. */
static void signalled(uint64_t to, uint64_t signal)
{
    if ((int32_t)signal)
        release(signals_sent(to));
}

/* ---- locks of files ---- */

static void lock_file(uint64_t fd)
{
    if (fd / 64 < sizeof locked / sizeof locked[0])
        atomic_fetch_or(&locked[fd / 64], 1ull << fd % 64);
    release_any(mg_key_file(fd));
}

/* ---- ends of pipes and sockets ---- */

static void tell_end(enum mg_sync_kind kind, int fd)
{
    uint64_t what = mg_key_fd(fd, MG_GOES);
    if (what)
        mg_put_sync(kind, what, 0);
}

static void hold_end(int fd)
{
    tell_end(MG_SYNC_HOLD, fd);
}

static void leave_end(int fd)
{
    tell_end(MG_SYNC_LEAVE, fd);
}

/* The process inherited these from its parent, or from the program that it executed before. */
static atomic_bool ends_are_told;

static void hold_inherited(void)
{
    if (atomic_exchange(&ends_are_told, true))
        return;
    mg_ends_each(MG_ENDS_ALL, hold_end);
    share_files();
}

/* A new pipe, whose second end is the writing one, or a pair of sockets. */
static void hold_new(uint64_t at, bool is_pipe)
{
    int fd[2];
    if (!mg_guest_read(fd, at, sizeof fd))
        return;
    hold_end(fd[1]);
    if (!is_pipe)
        hold_end(fd[0]);
}

static void close_file(uint64_t fd)
{
    uint64_t bit = 1ull << fd % 64;
    if (fd / 64 < sizeof locked / sizeof locked[0] && atomic_load(&locked[fd / 64]) & bit) {
        atomic_fetch_and(&locked[fd / 64], ~bit);
        release_any(mg_key_file(fd));
    }
    if (mg_ends_is_last(fd))
        leave_end(fd);
    else
        release_any(mg_key_fd(fd, MG_GOES));
}

/* Higher descriptors are ignored. */
static void close_all(uint64_t first, uint64_t last)
{
    for (uint64_t fd = first; fd <= last && fd < 64 * sizeof locked / sizeof locked[0]; fd++)
        close_file(fd);
}

static void end_locks(void)
{
    for (unsigned at = 0; at < sizeof locked / sizeof locked[0]; at++)
        for (uint64_t left = atomic_load(&locked[at]); left; left &= left - 1)
            release_any(mg_key_file(64 * at + __builtin_ctzll(left)));
}

static void release_all(int64_t num, const uint64_t arg[6])
{
    switch (num) {
    case G_WRITE: case G_WRITEV: case G_SENDFILE: case G_VMSPLICE: case G_SPLICE: case G_TEE:
        return give(writes_to(num, arg), bytes_to_write(num, arg));
    case G_SENDMSG: case G_SENDMMSG: return release_any(mg_key_fd(arg[0], MG_GOES));
    case G_SHUTDOWN:
        /* Readers of that end wake up, too. */
        if (arg[1] != SHUT_WR)
            release_any(mg_key_fd(arg[0], MG_COMES));
        return release_any(mg_key_fd(arg[0], MG_GOES));
    case G_CLOSE:
        return close_file(arg[0]);
    case G_DUP2: case G_DUP3:
        return close_file(arg[1]);
    case G_CLOSE_RANGE:
        if (!(arg[2] & CLOSE_RANGE_CLOEXEC))
            close_all((uint32_t)arg[0], (uint32_t)arg[1]);
        return;
    case G_SENDTO: {
        uint64_t to = mg_key_address(arg[4], arg[5]);
        return release_any(to ? to : mg_key_fd(arg[0], MG_GOES));
    }
    case G_CONNECT: {
        uint64_t to = mg_key_address(arg[1], arg[2]);
        return release_any(to ? to : mg_key_fd(arg[0], MG_GOES));
    }
    case G_MQ_SEND: return release_any(mg_key_file(arg[0]));
    case G_FLOCK: return lock_file(arg[0]);
    case G_FCNTL:
        if (locks(arg))
            lock_file(arg[0]);
        return;
    case G_SEMOP: case G_SEMTIMEDOP: return release(mg_key(MG_KEY_SEMAPHORES, arg[0], 0));
    case G_MSGSND: return release(mg_key(MG_KEY_MESSAGES, arg[0], 0));
    case G_FUTEX: return release_futex(arg);
    case G_CLONE: return start(arg[0], arg[3]);
    case G_FORK: case G_VFORK: return start(0, 0);
    case G_KILL: case G_SIGQUEUEINFO: return signalled(arg[0], arg[1]);
    case G_TGKILL: case G_TGSIGQUEUEINFO: return signalled(arg[0], arg[2]);
    case G_TKILL: return signalled(getpid(), arg[1]);
    case G_ALARM: return set(mg_key_alarm(), mg_in_ns((uint32_t)arg[0], 0), 0);
    case G_SETITIMER:
        if (arg[0] == ITIMER_REAL && arg[1])
            set(mg_key_alarm(), mg_read_timeval(arg[1] + 16), mg_read_timeval(arg[1]));
        return;
    case G_TIMER_SETTIME: return set_signal_timer(arg);
    case G_TIMER_DELETE: return mg_timer_set(mg_key_signal_timer(arg[0]), 0, 0);
    case G_SIGRETURN: return mg_timers_taken();
    case G_TIMERFD_SETTIME: return arm(arg);
    case G_EXIT: case G_EXIT_GROUP:
        if (num == G_EXIT_GROUP) {
            end_locks();
            mg_ends_each(MG_ENDS_ALL, leave_end);
        }
        release(mg_key_signals(getppid()));
        mg_put_sync(MG_SYNC_EXIT, gettid(), num == G_EXIT_GROUP);
    }
}

/* ---- sleeps ---- */

/* True if a call sleeps until a signal or a time, or waits for something that no thread of the
 * session can cause. */
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

/* A program that is followed after an exec records this itself (guest/guest.c). */
static enum mg_does what_it_does(int64_t num, const uint64_t arg[6])
{
    switch (num) {
    /* These calls only wait for QEMU's lock of the mappings. A busy host may leave its holder
     * without a processor, so the thread counts as running. */
    case G_MMAP: case G_MUNMAP: case G_MREMAP: case G_MPROTECT: case G_MADVISE: case G_BRK:
        return MG_RUNS;
    case G_CLONE: case G_FORK: case G_VFORK: case G_EXIT: case G_EXIT_GROUP: return MG_HANDS_ON;
    default: return sleeps(num, arg) ? MG_SLEEPS : MG_CALLS;
    }
}

static void begin_to_wait(void)
{
    uint64_t ns, timer = mg_timer_next(&ns);
    mg_outside_begin();
    mg_put_sync(MG_SYNC_WAIT, mg_key_signals(getpid()), mg_host_ns() & MG_SYNC_NS);
    if (timer)
        mg_put_sync(MG_SYNC_DUE, timer, ns);
}

/* A child that was killed by a signal left no mark for its parent. */
static pid_t dead_child(void)
{
    siginfo_t child = { 0 };
    int saved = errno;
    bool found = waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) == 0;
    errno = saved;
    return found ? child.si_pid : 0;
}

/* A signal ended the wait. If other threads may be waited for, a repeating timer is ignored: it
 * fires by the host's clock, and often while another thread works. */
static void signal_came(void)
{
    bool repeats;
    uint64_t timer = mg_timer_fired(&repeats), slept_ns = mg_outside_ns();
    if (timer && (is_asleep || !repeats))
        return acquire(timer);
    if (!is_asleep && (timer || !may_wait))
        return acquire(mg_key_signals(getpid()));
    pid_t child = dead_child();
    if (wait_ns && slept_ns > wait_ns)
        slept_ns = wait_ns;
    mg_put_sync(MG_SYNC_INTERRUPTED, mg_key_signals(getpid()), child ? 0 : slept_ns);
    if (child)
        mg_put_sync(MG_SYNC_JOIN_PROCESS, child, 0);
}

/* ---- acquires ---- */

static void acquire_what(uint64_t what, bool ended)
{
    if (what)
        mg_put_sync(ended ? MG_SYNC_ACQUIRE_END : MG_SYNC_ACQUIRE, what, 0);
}

/* A read of `bytes`. 0 is the end of the file. */
static void acquire_fd(uint64_t fd, uint64_t bytes)
{
    bool pipe;
    uint64_t what = mg_key_fd_or_pipe(fd, MG_COMES, &pipe);
    if (pipe && bytes)
        taken(fd, what, bytes);
    else
        acquire_what(what, !bytes);
}

/* Data arrived at `fd` from the thread at the other end of `from`. */
static void acquire_source(uint64_t fd, uint64_t from, bool ended)
{
    if (may_wait)
        mg_outside_read((int)fd, (int)from, source.key);
    acquire_what(source.key, ended);
}

/* Repeating timers: the next expiry follows from this one. */
static void acquire_read(uint64_t fd, int64_t ret)
{
    struct itimerspec left;
    uint64_t what = source.key;
    if (what == mg_key_signals(getpid()))
        return signal_came();
    /* Read the number of remaining bytes as early as possible, since other threads keep writing. */
    if (source.is_pipe && ret > 0)
        taken(fd, what, ret);
    if (may_wait)
        mg_outside_read((int)fd, (int)fd, what);
    if (!source.is_pipe || ret == 0)
        acquire_what(what, ret == 0);
    if (what == mg_key(MG_KEY_TIMER, getpid(), (int)fd) && timerfd_gettime((int)fd, &left) == 0)
        if (left.it_interval.tv_sec || left.it_interval.tv_nsec)
            mg_put_sync(MG_SYNC_RELEASE, what,
                        mg_in_ns(left.it_interval.tv_sec, left.it_interval.tv_nsec));
}

/* A thread that waits for another thread's end waits until the kernel clears its ID at the address
 * that was given when it started. */
static void acquire_futex(const uint64_t arg[6], int64_t ret)
{
    int op = (int)arg[1];
    switch (op & FUTEX_CMD_MASK) {
    case FUTEX_WAIT:
    case FUTEX_WAIT_BITSET:
    case FUTEX_WAIT_REQUEUE_PI:
    case FUTEX_LOCK_PI:
        if (ret == -ETIMEDOUT)
            return slept(wait_ns);
        if (ret != 0 && ret != -EAGAIN)
            return;
        acquire(mg_key_futex(arg[0], op));
        if (!(op & FUTEX_PRIVATE_FLAG))
            mg_put_sync(MG_SYNC_JOIN_THREAD, (uint32_t)arg[2], 0);
        return;
    case FUTEX_WAKE:
    case FUTEX_WAKE_BITSET:
    case FUTEX_UNLOCK_PI:
        /* The host often runs the woken thread at once and the waker much later. When the waker
         * returns, its own wake-up may have happened already, so that it does not wait. */
        acquire(mg_key_futex(arg[0], op));
    }
}

static void acquire_child(int64_t num, const uint64_t arg[6], int64_t ret)
{
    uint32_t pid = (uint32_t)ret;
    /* waitid stores it in the siginfo, after three numbers and padding. */
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
        return acquire_source(arg[0], arg[0], ret == 0);
    case G_ACCEPT: case G_ACCEPT4:
        acquire_source(arg[0], ret, false);
        return hold_end(ret);
    case G_CONNECT: return hold_end(arg[0]);
    case G_SENDFILE: return acquire_fd(arg[1], ret);
    case G_SPLICE: return acquire_fd(arg[0], ret);
    case G_TEE: return acquire_what(mg_key_fd(arg[0], MG_COMES), ret == 0);
    case G_MQ_RECEIVE: case G_FLOCK: return acquire_what(mg_key_file(arg[0]), false);
    case G_FCNTL: return acquire_what(locks(arg) ? mg_key_file(arg[0]) : 0, false);
    case G_SEMOP: case G_SEMTIMEDOP: return acquire(mg_key(MG_KEY_SEMAPHORES, arg[0], 0));
    case G_MSGRCV: return acquire(mg_key(MG_KEY_MESSAGES, arg[0], 0));
    case G_WAIT4: case G_WAITID: return acquire_child(num, arg, ret);
    case G_SIGTIMEDWAIT: return signal_came();
    case G_TIMER_CREATE: return timer_made(arg);
    case G_PIPE: case G_PIPE2: return hold_new(arg[0], true);
    case G_SOCKETPAIR: return hold_new(arg[3], false);
    case G_NANOSLEEP: case G_CLOCK_NANOSLEEP: return slept(wait_ns);
    case G_POLL: case G_PPOLL: case G_SELECT: case G_PSELECT6:
    case G_EPOLL_WAIT: case G_EPOLL_PWAIT: case G_EPOLL_PWAIT2:
        /* Every call that takes events waits for them. */
        if (ret > 0 && may_wait)
            mg_outside_events(num, arg);
        return ret == 0 ? slept(wait_ns) : (void)0;
    }
}

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

static bool reads(int64_t num)
{
    switch (num) {
    case G_READ: case G_READV: case G_RECVFROM: case G_RECVMSG: case G_RECVMMSG: case G_ACCEPT:
    case G_ACCEPT4: return true;
    default: return false;
    }
}

static __thread struct { int64_t num; const uint64_t *arg; } under_way;

/* True if the awaited event of the current call has happened. */
static bool has_come(void)
{
    struct pollfd one = { .fd = (int)under_way.arg[0], .events = POLLIN };
    if (reads(under_way.num))
        return poll(&one, 1, 0) > 0;
    switch (under_way.num) {
    case G_FUTEX: return is_woken(under_way.arg);
    case G_POLL: case G_PPOLL: return has_events(under_way.arg);
    case G_EPOLL_WAIT: case G_EPOLL_PWAIT: case G_EPOLL_PWAIT2: return poll(&one, 1, 0) > 0;
    default: return false;
    }
}

void mg_sync_exec(void)
{
    mg_ends_each(MG_ENDS_CLOSED_BY_EXEC, leave_end);
}

void mg_sync_begin(void)
{
    atomic_store(&ends_are_told, false);
    mg_timers_begin(mg_key_alarm());
}

void mg_sync_before(int64_t num, const uint64_t arg[6])
{
    under_way.num = num;
    under_way.arg = arg;
    wait_ns = mg_asked_ns(num, arg);
    enum mg_does does = what_it_does(num, arg);
    is_asleep = does == MG_SLEEPS;
    may_wait = (is_asleep || reads(num)) && !has_come();
    written.key = 0;
    hold_inherited();
    release_all(num, arg);
    if (reads(num))
        source.key = mg_key_fd_or_pipe(arg[0], MG_COMES, &source.is_pipe);
    if (is_asleep || may_wait)
        begin_to_wait();
    bool by_deadline = wait_ns && mg_asks_by_deadline(num, arg);
    mg_call_begin(does, by_deadline ? wait_ns | MG_DEADLINE : wait_ns);
}

void mg_sync_after(int64_t num, const uint64_t arg[6], int64_t ret)
{
    end_start(ret);
    under_way.arg = arg;
    if (num == G_FUTEX)
        acquire_futex(arg, ret);
    else if (ret == -EINTR || ret == -G_ERESTARTSYS)
        signal_came();
    else if (num == G_SIGTIMEDWAIT && ret == -EAGAIN)
        slept(wait_ns);
    else if (ret < 0)
        slept(mg_timeout_ns(num, arg, ret));
    else if (ret >= 0)
        acquire_all(num, arg, ret);
    if (written.key)
        given(writes_to(num, arg), ret);
    mg_call_end();
}
