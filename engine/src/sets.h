/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_SETS_H
#define MG_SETS_H

#include "qemu/qemu-plugin.h"
#include "guest/decode.h"
#include "repeats.h"
#include "stream.h"

/* Returns the classes of lines that are simulated for this process. Processes begin at different
 * sets of the last-level cache, so the classes differ. */
uint64_t mg_own_sets(void);

/* Makes a thread send every run until its first store, by which the recorder finds its stack. */
void mg_begin_sets(struct mg_ring *r);

/* Called when a block found the top bit of mg_ring.ran set. */
void mg_attention(void);

/* Sends the sums of executed code, so that the next words come after them. */
void mg_put_sum(void);

/* Called for an access that a helper performs, like mg_on_run. */
void mg_keep_run(uint64_t vaddr, uint64_t run);

/* Called for iterations of a rep instruction. `load` and `store` are the callback data of its
 * accesses, or NULL. */
void mg_keep_iterations(struct mg_iterations these, const void *load, const void *store);

/* Makes a block that is being translated, with this number and decoded form, send the simulated
 * runs. */
void mg_hook_sets(struct qemu_plugin_tb *tb, const struct mg_decoded *block, uint64_t vaddr,
                  uint32_t number);

#endif
