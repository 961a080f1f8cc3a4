/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_KEYS_H
#define MG_KEYS_H

#include <stdbool.h>
#include <stdint.h>

/* Kind of object of a key, or a part of it. */
enum mg_key_space {
    MG_KEY_FUTEX = 1,
    MG_KEY_SHARED_FUTEX,
    MG_KEY_OBJECT,
    MG_KEY_PORTS,
    MG_KEY_UNIX_SOCKETS,
    MG_KEY_TIMER,
    MG_KEY_SIGNAL,
    MG_KEY_SEMAPHORES,
    MG_KEY_MESSAGES,
    MG_KEY_ALARM,
    MG_KEY_SIGNAL_TIMER,
    MG_KEY_TERMINAL,
};

/* A key identifies the object of a wait: a futex, a pipe, a process that ends. If the kernel
 * does not show which object it is, several objects share a key (listed in
 * docs/machine-model.md). A wait may then seem longer, never shorter. */
uint64_t mg_key(enum mg_key_space space, uint64_t a, uint64_t b);

/* Signals to a process. */
uint64_t mg_key_signals(uint64_t pid);

/* The alarm of this process, and its timer number `id`. */
uint64_t mg_key_alarm(void);
uint64_t mg_key_signal_timer(uint64_t id);

/* A futex between processes is identified by its position in the page, because their addresses
 * may differ. */
uint64_t mg_key_futex(uint64_t addr, int op);

/* Key of a socket address of the program, for which others wait. 0 if it has no port. */
uint64_t mg_key_address(uint64_t at, uint64_t bytes);

/* Key of a wait at a descriptor: for data that come out of it, or for data that others send into
 * it. The two differ only for sockets and terminals. 0 if no process in the session can end the
 * wait, or none waits. */
enum mg_way { MG_COMES, MG_GOES };
uint64_t mg_key_fd(uint64_t fd, enum mg_way way);
uint64_t mg_key_fd_or_pipe(uint64_t fd, enum mg_way way, bool *pipe);

/* The process that created the other end of a connection without ports. 0 if unknown. */
uint64_t mg_key_peer(uint64_t fd);

/* Key of a locked file or a message queue. */
uint64_t mg_key_file(uint64_t fd);

#endif
