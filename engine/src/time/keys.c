/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Keys of the objects that threads wait for, as far as the kernel shows them.
 */
#include "keys.h"

#include <linux/futex.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "../session.h"
#include "sync.h"

uint64_t mg_key(enum mg_key_space space, uint64_t a, uint64_t b)
{
    uint64_t x = (space * 0x9e3779b97f4a7c15ull) ^ a;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 29 ^ b) * 0x94d049bb133111ebull;
    return (x ^ x >> 32) & MG_SYNC_KEY;
}

uint64_t mg_key_signals(uint64_t pid)
{
    return mg_key(MG_KEY_SIGNAL, (uint32_t)pid, 0);
}

uint64_t mg_key_alarm(void)
{
    return mg_key(MG_KEY_ALARM, getpid(), 0);
}

uint64_t mg_key_signal_timer(uint64_t id)
{
    return mg_key(MG_KEY_SIGNAL_TIMER, getpid(), (uint32_t)id);
}

uint64_t mg_key_futex(uint64_t addr, int op)
{
    if (op & FUTEX_PRIVATE_FLAG)
        return mg_key(MG_KEY_FUTEX, getpid(), addr);
    return mg_key(MG_KEY_SHARED_FUTEX, addr % MG_PAGE, 0);
}

static unsigned port(const struct sockaddr_storage *a)
{
    /* The port is at the same offset for IPv4 and IPv6. */
    return ntohs(((const struct sockaddr_in *)a)->sin_port);
}

static bool is_inet(const struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET || a->ss_family == AF_INET6;
}

static uint64_t from_to(unsigned from, unsigned to)
{
    return mg_key(MG_KEY_PORTS, from, to);
}

static int option(int fd, int name)
{
    int value = 0;
    socklen_t room = sizeof value;
    return getsockopt(fd, SOL_SOCKET, name, &value, &room) == 0 ? value : 0;
}

static bool is_of_datagrams(int fd)
{
    return option(fd, SO_TYPE) == SOCK_DGRAM;
}

static bool listens(int fd)
{
    return option(fd, SO_ACCEPTCONN);
}

/* One direction of a connection is identified by its two ports. Anybody may send to listening and
 * datagram sockets, so only their own port counts. After the end of a connection, the other port is
 * no longer known. */
static uint64_t socket_key(int fd, enum mg_way way)
{
    struct sockaddr_storage here = { 0 }, there = { 0 };
    socklen_t room = sizeof here;
    if (getsockname(fd, (struct sockaddr *)&here, &room) != 0 || !is_inet(&here))
        return mg_key(MG_KEY_UNIX_SOCKETS, 0, 0);
    room = sizeof there;
    if (getpeername(fd, (struct sockaddr *)&there, &room) != 0)
        return way == MG_COMES && (is_of_datagrams(fd) || listens(fd)) ? from_to(0, port(&here))
                                                                      : 0;
    unsigned from = port(way == MG_GOES ? &here : &there);
    unsigned to = port(way == MG_GOES ? &there : &here);
    return from_to(is_of_datagrams(fd) ? 0 : from, to);
}

uint64_t mg_key_address(uint64_t at, uint64_t bytes)
{
    struct sockaddr_storage to = { 0 };
    size_t room = bytes < sizeof to ? bytes : sizeof to;
    if (!at || room < sizeof(sa_family_t) || !mg_guest_read(&to, at, room) || !is_inet(&to))
        return 0;
    return from_to(0, port(&to));
}

uint64_t mg_key_peer(uint64_t fd)
{
    struct ucred peer = { 0 };
    socklen_t room = sizeof peer;
    /* For a listening socket, the key of the listener. */
    if (listens((int)fd) || getsockopt((int)fd, SOL_SOCKET, SO_PEERCRED, &peer, &room) != 0)
        return 0;
    return peer.pid > 0 ? (uint64_t)peer.pid : 0;
}

/* A terminal window, identified by what the program in it writes or reads. */
static uint64_t terminal_key(int fd, const struct stat *st, enum mg_way way)
{
    enum { FIRST_SLAVE = 136, LAST_SLAVE = 143, MASTERS = 5, MASTER = 2 };
    unsigned number, kind = major(st->st_rdev);
    bool is_master = kind == MASTERS && minor(st->st_rdev) == MASTER;
    if (kind >= FIRST_SLAVE && kind <= LAST_SLAVE)
        number = (kind - FIRST_SLAVE) << 8 | minor(st->st_rdev);
    else if (!is_master || ioctl(fd, TIOCGPTN, &number) != 0)
        return 0;
    return mg_key(MG_KEY_TERMINAL, number, is_master == (way == MG_GOES));
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
        return mg_key(MG_KEY_TIMER, getpid(), fd);
    if (is_anon(fd, "signalfd"))
        return mg_key_signals(getpid());
    return mg_key(MG_KEY_OBJECT, st->st_dev, st->st_ino);
}

uint64_t mg_key_fd_or_pipe(uint64_t arg, enum mg_way way, bool *pipe)
{
    struct stat st;
    int fd = (int)arg;
    *pipe = false;
    if (fstat(fd, &st) != 0)
        return 0;
    *pipe = S_ISFIFO(st.st_mode);
    if (*pipe)
        return mg_key(MG_KEY_OBJECT, st.st_dev, st.st_ino);
    if (S_ISSOCK(st.st_mode))
        return socket_key(fd, way);
    if (S_ISCHR(st.st_mode))
        return terminal_key(fd, &st, way);
    return (st.st_mode & S_IFMT) == 0 ? anon_key(fd, &st) : 0;
}

uint64_t mg_key_fd(uint64_t arg, enum mg_way way)
{
    bool pipe;
    return mg_key_fd_or_pipe(arg, way, &pipe);
}

uint64_t mg_key_file(uint64_t arg)
{
    struct stat st;
    return fstat((int)arg, &st) == 0 ? mg_key(MG_KEY_OBJECT, st.st_dev, st.st_ino) : 0;
}
