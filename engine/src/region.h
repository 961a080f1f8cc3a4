/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_REGION_H
#define MG_REGION_H

#include <stddef.h>
#include <stdint.h>

struct qemu_plugin_tb;
struct mg_decoded;

/* Reads the list of functions that are regions of interest from the session's directory. */
void mg_region_install(uint64_t plugin);
/* Called when a block that begins with these bytes is translated. */
void mg_region_translate(struct qemu_plugin_tb *tb, uint64_t vaddr, const uint8_t *code,
                         size_t bytes, const struct mg_decoded *block);

#endif
