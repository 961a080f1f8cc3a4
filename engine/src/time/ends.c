/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Finds the pipes and sockets that this process may write to. A reader that waits for the end of
 * data waits until the last process that may write closes its end, executes another program or
 * ends, even if that process never wrote.
 *
 * The kernel is asked when it matters: when a process starts, closes a descriptor, or ends.
 * Tracking all calls that create descriptors was rejected, since there are about forty.
 */
#include "ends.h"

#include <fcntl.h>
#include <sys/stat.h>

static bool is_end(int fd, struct stat *st)
{
    if (fstat(fd, st) != 0)
        return false;
    return S_ISSOCK(st->st_mode) ||
           (S_ISFIFO(st->st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY);
}

static bool stays(int fd)
{
    return !(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

/* True if another descriptor from `from` on refers to the same object as `fd`. */
static bool has_other(int from, int fd, const struct stat *st, enum mg_ends which)
{
    struct stat other;
    for (int at = from; at < MG_ENDS_INHERITED; at++)
        if (at != fd && is_end(at, &other) && other.st_ino == st->st_ino &&
            other.st_dev == st->st_dev && (which == MG_ENDS_ALL || stays(at)))
            return true;
    return false;
}

bool mg_ends_is_last(int fd)
{
    struct stat st;
    return is_end(fd, &st) && !has_other(0, fd, &st, MG_ENDS_ALL);
}

void mg_ends_each(enum mg_ends which, void (*found)(int fd))
{
    struct stat st;
    for (int fd = 0; fd < MG_ENDS_INHERITED; fd++) {
        if (!is_end(fd, &st))
            continue;
        bool of_exec = which == MG_ENDS_CLOSED_BY_EXEC;
        /* The last of several descriptors of an object represents them all. */
        if ((!of_exec || !stays(fd)) && !has_other(of_exec ? 0 : fd + 1, fd, &st, which))
            found(fd);
    }
}
