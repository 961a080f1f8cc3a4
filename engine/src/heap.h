/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_HEAP_H
#define MG_HEAP_H

#include <stdint.h>

struct qemu_plugin_tb;

/* Reads the list of allocation functions from the session's directory. */
void mg_heap_install(uint64_t plugin);
/* Called when a block is translated. */
void mg_heap_translate(struct qemu_plugin_tb *tb, uint64_t vaddr);
/* Number of the path of the thread's open calls. 0 if there is no room for another path. Only if
 * mg_heap_is_on. */
uint64_t mg_heap_path(void);

#endif
