/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Maximum waiting time of a system call, from its arguments.
 */
#include "asked.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "../guest/isa.h"
#include "../stream.h"
#include "sync.h"

#define NS_PER_S 1000000000ull

uint64_t mg_in_ns(int64_t s, int64_t ns)
{
    if (s < 0 || ns < 0)
        return 0;
    return s > 100000 ? MG_SYNC_NS : (uint64_t)s * NS_PER_S + ns;
}

uint64_t mg_read_timespec(uint64_t at)
{
    int64_t t[2];
    return at && mg_guest_read(t, at, sizeof t) ? mg_in_ns(t[0], t[1]) : 0;
}

uint64_t mg_read_timeval(uint64_t at)
{
    int64_t t[2];
    return at && mg_guest_read(t, at, sizeof t) ? mg_in_ns(t[0], t[1] * 1000) : 0;
}

uint64_t mg_until(uint64_t at, clockid_t clock)
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
    return mg_in_ns(s, ns);
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
    case FUTEX_WAIT: return mg_read_timespec(arg[3]);
    case FUTEX_WAIT_BITSET:
    case FUTEX_WAIT_REQUEUE_PI: return mg_until(arg[3], clock);
    case FUTEX_LOCK_PI: return mg_until(arg[3], CLOCK_REALTIME);
    default: return 0;
    }
}

uint64_t mg_asked_ns(int64_t num, const uint64_t arg[6])
{
    switch (num) {
    case G_NANOSLEEP: return mg_read_timespec(arg[0]);
    case G_CLOCK_NANOSLEEP:
        return arg[1] & TIMER_ABSTIME ? mg_until(arg[2], (clockid_t)arg[0]) : mg_read_timespec(arg[2]);
    case G_POLL: return milliseconds(arg[2]);
    case G_EPOLL_WAIT:
    case G_EPOLL_PWAIT: return milliseconds(arg[3]);
    case G_SELECT: return mg_read_timeval(arg[4]);
    case G_PSELECT6: return mg_read_timespec(arg[4]);
    case G_PPOLL: return mg_read_timespec(arg[2]);
    case G_EPOLL_PWAIT2: return mg_read_timespec(arg[3]);
    case G_SIGTIMEDWAIT: return mg_read_timespec(arg[2]);
    case G_FUTEX: return futex_wait_ns(arg);
    default: return 0;
    }
}

bool mg_asks_by_deadline(int64_t num, const uint64_t arg[6])
{
    switch (num) {
    case G_CLOCK_NANOSLEEP: return arg[1] & TIMER_ABSTIME;
    case G_FUTEX: return ((int)arg[1] & FUTEX_CMD_MASK) != FUTEX_WAIT;
    default: return false;
    }
}

/* The wait ended because of the socket's timeout. Returns 0 if it had another reason. */
uint64_t mg_timeout_ns(int64_t num, const uint64_t arg[6], int64_t ret)
{
    struct timeval t;
    socklen_t room = sizeof t;
    uint64_t flags = 0;
    int option = SO_RCVTIMEO;
    if (ret != (num == G_CONNECT ? -EINPROGRESS : -EAGAIN))
        return 0;
    switch (num) {
    case G_READ: case G_READV: case G_ACCEPT: case G_ACCEPT4: break;
    case G_RECVFROM: case G_RECVMMSG: flags = arg[3]; break;
    case G_RECVMSG: flags = arg[2]; break;
    case G_WRITE: case G_WRITEV: case G_CONNECT: option = SO_SNDTIMEO; break;
    case G_SENDTO: case G_SENDMMSG: flags = arg[3]; option = SO_SNDTIMEO; break;
    case G_SENDMSG: flags = arg[2]; option = SO_SNDTIMEO; break;
    default: return 0;
    }
    int fd = (int)arg[0];
    if (flags & MSG_DONTWAIT || fcntl(fd, F_GETFL) & O_NONBLOCK ||
        getsockopt(fd, SOL_SOCKET, option, &t, &room) != 0)
        return 0;
    return mg_in_ns(t.tv_sec, t.tv_usec * 1000);
}
