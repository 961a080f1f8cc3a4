/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_SETS_H
#define MG_SETS_H

#include "qemu/qemu-plugin.h"
#include "decode.h"
#include "stream.h"

/* The classes of lines that this process is to follow: those whose sets in the last-level
 * cache are to be, where processes begin at different sets. */
uint64_t mg_own_sets(void);

/* Has a thread keep every run until its first store, by which the recorder knows its
 * stack. */
void mg_begin_sets(struct mg_ring *r);

/* A block found the top bit of mg_ring.ran set. */
void mg_attention(void);

/* Tells what was executed, so that the words that follow come after it. */
void mg_put_sum(void);

/* An access in a call, as of mg_on_run. */
void mg_keep_run(uint64_t vaddr, uint64_t run);

/* Has a block under translation, by that number and decoded so, keep what is to be. */
void mg_hook_sets(struct qemu_plugin_tb *tb, const struct mg_decoded *block, uint64_t vaddr,
                  uint32_t number);

#endif
