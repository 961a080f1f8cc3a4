/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_HEAP_H
#define MG_HEAP_H

#include <stdint.h>

struct qemu_plugin_tb;

/* Reads the list of allocation functions from the session's directory. */
void mg_heap_install(uint64_t plugin);
/* Called when a block is translated. */
void mg_heap_translate(struct qemu_plugin_tb *tb, uint64_t vaddr);

#endif
