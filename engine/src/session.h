/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_SESSION_H
#define MG_SESSION_H

#include <stdbool.h>

#include "stream.h"

extern char mg_session_dir[];

/* The calling thread's ring, where its code finds it, too; a dummy that is always full
 * before its first use. */
struct mg_ring *mg_own_ring(void);

/* The same; NULL where nobody reads what the thread does. */
struct mg_ring *mg_recorded_ring(void);

/* What the recorder and all processes share. */
struct mg_control *mg_shared(void);

/* Whether somebody reads; not, when the recorder's process has ended. */
bool mg_recorder_lives(void);

/* Maps the control page; false where the directory is not a live session. */
bool mg_session_open(const char *dir);
bool mg_session_is_in_reach(void);
/* Registers this process; `owner` and `first_block` name the parent after a fork. */
void mg_process_begin(uint32_t owner, uint32_t first_block);
/* Seals the ring's block, waits for room and returns where to write next.
 * Creates the ring at a thread's first use. */
uint64_t *mg_ring_turn(void);

/* Classes of lines to follow; 0: all lines are, and the ring has words of every run. */
uint64_t mg_sets(void);

/* Appends a MG_MARK_SYNC and what follows it; its number. */
uint64_t mg_put_sync(enum mg_sync_kind kind, uint64_t key, uint64_t ns);

/* The number of the MG_SYNC_START of what this thread starts next. Threads are started
 * one at a time, so that each finds its own number. The lock is taken before, and
 * mg_birth_end gives it back with the new thread's number (or a failure). */
void mg_birth_lock(void);
void mg_birth_begin(uint64_t number);
void mg_birth_end(int64_t tid);

/* Appends a record to the catalogue; false when it is full or has no reader. */
bool mg_catalogue(const void *head, size_t head_bytes, const void *tail, size_t tail_bytes);

/* Bytes of catalogue written by now. */
uint64_t mg_catalogue_bytes(void);
/* Whether the session's first process got no room, and why (errno). */
bool mg_nothing_is_recorded(void);
void mg_note_undecoded(uint32_t count);
void mg_note_without_room(uint32_t count);
uint32_t mg_new_block_id(void);

#endif
