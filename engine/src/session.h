/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_SESSION_H
#define MG_SESSION_H

#include <stdbool.h>

#include "stream.h"

extern char mg_session_dir[];

/* Returns the ring of the calling thread, which generated code finds at the same place. Before
 * the first use, it is a dummy that is always full. */
struct mg_ring *mg_own_ring(void);

/* As above, or NULL if the thread is not recorded. */
struct mg_ring *mg_recorded_ring(void);

/* Data that the recorder and all processes share. */
struct mg_control *mg_shared(void);

/* Returns true if the recorder reads, false once its process has ended. */
bool mg_recorder_lives(void);

/* Maps the control page. Returns false if the directory is not a live session. */
bool mg_session_open(const char *dir);
bool mg_session_is_in_reach(void);
/* Registers this process. After a fork, `owner` and `first_block` describe the parent. */
void mg_process_begin(uint32_t owner, uint32_t first_block);
/* Seals the current block of the ring, waits for room and returns the position of the next word.
 * Creates the ring at a thread's first use. */
uint64_t *mg_ring_turn(void);

/* Classes of simulated lines. 0: all lines are simulated, and the ring has words of every run. */
uint64_t mg_sets(void);

/* Appends marks to the thread's words. */
void mg_put_marks(const uint64_t *word, unsigned words);
/* Appends a MG_MARK_SYNC and its two marks. Returns its number. */
uint64_t mg_put_sync(enum mg_sync_kind kind, uint64_t key, uint64_t ns);

/* Returns the number of the MG_SYNC_START of the next thread or process that this thread starts.
 * They are started one at a time, so that each finds its own number. The lock is taken before,
 * and mg_start_end releases it with the new thread's number (or a failure). */
void mg_start_lock(void);
void mg_start_begin(uint64_t number);
void mg_start_end(int64_t tid);

/* Appends a record to the catalogue. Returns false if it is full or has no reader. */
bool mg_catalogue(const void *head, size_t head_bytes, const void *tail, size_t tail_bytes);

/* Returns the current size of the catalogue. */
uint64_t mg_catalogue_bytes(void);
/* Returns the reason (errno) if the session's first process got no room. */
bool mg_nothing_is_recorded(void);
void mg_note_undecoded(uint32_t count);
void mg_note_without_room(uint32_t count);
uint32_t mg_new_block_id(void);

#endif
