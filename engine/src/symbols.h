/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_SYMBOLS_H
#define MG_SYMBOLS_H

#include <stdbool.h>
#include <stdint.h>

/* Someone who looks for functions by name. */
struct mg_symbol_user {
    bool (*wants)(const char *name);
    void (*found)(const char *name, uint64_t vaddr, uint64_t bytes);
    /* Other code is mapped there now. */
    void (*forget)(uint64_t start, uint64_t end);
};

/* Registers a user, before the program is loaded. */
void mg_symbols_ask(struct mg_symbol_user user);

/* A file was mapped as code: looks for functions in its symbol tables. */
void mg_symbols_map(uint64_t start, uint64_t end, uint64_t offset, const char *path);

#endif
