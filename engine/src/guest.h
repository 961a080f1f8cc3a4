/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_GUEST_H
#define MG_GUEST_H

#include <stdint.h>

#include "qemu/qemu-plugin.h"

/* Remembers what QEMU itself has mapped, before the program is loaded. */
void mg_guest_install(qemu_plugin_id_t id);
/* Reports what the loader mapped; called before the first instruction. */
void mg_guest_loaded(uint64_t guest_base);

#endif
