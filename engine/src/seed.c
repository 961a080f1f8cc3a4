/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Fixed random numbers (--seed): getrandom, /dev/random and /dev/urandom, AT_RANDOM, rdrand and
 * rdseed give the numbers of one generator, which is QEMU's (util/guest-random.c).
 *
 * Each thread has a generator of its own, whose seed is the next number of the thread that
 * started it. So the numbers of a thread do not depend on how threads take turns. A forked
 * process and a program that is started by exec get their seeds in the same way.
 *
 * Reads of the devices are noticed after the kernel has made them, by the number of the device.
 * Serving them at open was rejected: a descriptor may be inherited or passed.
 */
#include "seed.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>

#include "qemu/osdep.h"
#include "qemu/guest-random.h"

/* Called by QEMU's system calls (engine/qemu.patch). They replace the kernel's random bytes. */
void memgauge_replace_random(void *bytes, int64_t count);
void memgauge_replace_read(int fd, void *bytes, int64_t count);
void memgauge_replace_readv(int fd, const struct iovec *parts, int64_t count);

enum { MEMORY_DEVICES = 1, RANDOM = 8, URANDOM = 9 };

static bool is_seeded;
static __thread uint64_t child_seed;

void mg_seed(const char *seed)
{
    is_seeded = qemu_guest_random_seed_main(seed, NULL) == 0;
}

static uint64_t next_seed(void)
{
    return qemu_guest_random_seed_thread_part1();
}

void mg_seed_option(char *option, size_t room)
{
    size_t used = strlen(option);
    if (is_seeded)
        snprintf(option + used, room - used, ",seed=%" PRIu64, next_seed());
}

void mg_seed_before_fork(void)
{
    child_seed = next_seed();
}

void mg_seed_child_of_fork(void)
{
    qemu_guest_random_seed_again(child_seed);
}

void memgauge_replace_random(void *bytes, int64_t count)
{
    if (is_seeded && count > 0)
        qemu_guest_getrandom_nofail(bytes, count);
}

static bool is_random_device(int fd)
{
    struct stat st;
    return is_seeded && fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) &&
           major(st.st_rdev) == MEMORY_DEVICES &&
           (minor(st.st_rdev) == RANDOM || minor(st.st_rdev) == URANDOM);
}

void memgauge_replace_read(int fd, void *bytes, int64_t count)
{
    if (count > 0 && is_random_device(fd))
        memgauge_replace_random(bytes, count);
}

void memgauge_replace_readv(int fd, const struct iovec *parts, int64_t count)
{
    if (count <= 0 || !is_random_device(fd))
        return;
    for (; count > 0; parts++) {
        int64_t of_part = MIN(count, (int64_t)parts->iov_len);
        memgauge_replace_random(parts->iov_base, of_part);
        count -= of_part;
    }
}
