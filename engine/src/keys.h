/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_KEYS_H
#define MG_KEYS_H

#include <stdbool.h>
#include <stdint.h>

/* Kind of object of a key; a part of it. */
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

/* A key stands for the object waited for: a futex, a pipe, a process that ends. Where the
 * kernel does not say which object it is, several share a key (docs/machine-model.md lists
 * them). Then a wait may be taken to last longer, never shorter. */
uint64_t mg_key(enum mg_key_space space, uint64_t a, uint64_t b);

/* Signals to a process. */
uint64_t mg_key_signals(uint64_t pid);

/* This process's alarm, and its timer with the number `id`. */
uint64_t mg_key_alarm(void);
uint64_t mg_key_signal_timer(uint64_t id);

/* A futex between processes is known by its place in the page: they may have it at
 * different addresses. */
uint64_t mg_key_futex(uint64_t addr, int op);

/* A socket address of the program, as where others wait for what is sent there; 0 where it
 * has no port. */
uint64_t mg_key_address(uint64_t at, uint64_t bytes);

/* What is waited for at a descriptor: what comes out there, or what others wait for that
 * goes in there. Only at sockets and terminals these differ. 0 where nobody in the session can end the
 * wait, or nobody waits. */
enum mg_way { MG_COMES, MG_GOES };
uint64_t mg_key_fd(uint64_t fd, enum mg_way way);
uint64_t mg_key_fd_or_pipe(uint64_t fd, enum mg_way way, bool *pipe);

/* The process that made the other end of a connection without ports; 0 where that is not
 * known. */
uint64_t mg_key_peer(uint64_t fd);

/* The same of a file that is locked, or a queue of messages. */
uint64_t mg_key_file(uint64_t fd);

#endif
