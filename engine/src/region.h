/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_REGION_H
#define MG_REGION_H

#include <stddef.h>
#include <stdint.h>

struct qemu_plugin_tb;
struct mg_decoded;

/* Reads which functions are regions, from the session's directory. */
void mg_region_install(uint64_t plugin);
/* A block is translated, which begins with these bytes. */
void mg_region_translate(struct qemu_plugin_tb *tb, uint64_t vaddr, const uint8_t *code,
                         size_t bytes, const struct mg_decoded *block);

#endif
