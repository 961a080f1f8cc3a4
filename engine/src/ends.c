/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Which pipes and sockets this process may write to. Who reads one to its end waits until
 * the last process that may write to it closes it, becomes another program or is gone,
 * also one that has never written.
 *
 * The system is asked when that matters: as a process begins, closes, or ends. Keeping a
 * table by all calls that make descriptors was rejected: there are some forty of them.
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

/* Whether another descriptor from `from` on is of the same object as `fd`. */
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
        /* The last of several of an object stands for them all. */
        if ((!of_exec || !stays(fd)) && !has_other(of_exec ? 0 : fd + 1, fd, &st, which))
            found(fd);
    }
}
