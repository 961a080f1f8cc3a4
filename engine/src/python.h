/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_PYTHON_H
#define MG_PYTHON_H

#include <stdint.h>

struct qemu_plugin_tb;

/* Looks for CPython in the files that the program maps. */
void mg_python_install(void);
/* The program is in memory, `guest_base` above its own addresses. */
void mg_python_loaded(uint64_t guest_base);
/* A block is translated. */
void mg_python_translate(struct qemu_plugin_tb *tb, uint64_t vaddr);

#endif
