/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_SYMBOLS_H
#define MG_SYMBOLS_H

#include <stdbool.h>
#include <stdint.h>

/* A user that searches functions by name. */
struct mg_symbol_user {
    bool (*wants)(const char *name);
    void (*found)(const char *name, uint64_t vaddr, uint64_t bytes);
    /* Called when other code is mapped at these addresses. */
    void (*forget)(uint64_t start, uint64_t end);
};

/* Registers a user. Call it before the program is loaded. */
void mg_symbols_ask(struct mg_symbol_user user);

/* Called when a file was mapped as code. Searches its symbol tables for functions. */
void mg_symbols_map(uint64_t start, uint64_t end, uint64_t offset, const char *path);

#endif
