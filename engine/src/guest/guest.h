/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_GUEST_H
#define MG_GUEST_H

#include <stdint.h>

#include "qemu/qemu-plugin.h"

/* Records the mappings of QEMU itself, before the program is loaded. */
void mg_guest_install(qemu_plugin_id_t id);
/* Reports the mappings of the loader. Called before the first instruction. */
void mg_guest_loaded(uint64_t guest_base);

#endif
