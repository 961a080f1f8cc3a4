/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_DECODE_H
#define MG_DECODE_H

#include <stdbool.h>
#include <stddef.h>

#include "../stream.h"

#define MG_MAX_INSNS 512
#define MG_MAX_ACCESSES (4 * MG_MAX_INSNS)
#define MG_MAX_INSN_BYTES 15

/* Consecutive accesses at constant distances, less than a line in all. */
struct mg_run {
    uint8_t down, up; /* its first and last byte, relative to the first access's address */
    bool stores;
    bool apart;       /* all its accesses are non-temporal stores, or it is a prefetch */
    uint16_t first;   /* index of its first access */
};

/* Task of a callback for an access. */
struct mg_hook {
    uint16_t insn;
    uint16_t run;
    uint8_t kind;     /* MG_LOAD or MG_STORE: kind of the access among those of the instruction */
    uint8_t size;     /* bytes that QEMU accesses for it; more than 8 may come in pieces */
    bool varying;     /* pieces are sent as they come */
    bool begins_rep;  /* the first access of a rep instruction that QEMU repeats within the block */
    bool follows_rep; /* another access of it */
};

/* A decoded block of code. */
struct mg_decoded {
    uint16_t insns, accesses, runs, hooks, flags;
    uint16_t bytes, ends; /* as in struct mg_code */
    uint32_t undecoded;
    bool switches_stack; /* MG_SWITCHES_STACK */
    bool loads_stack; /* it does so by a value from memory */
    bool loops;       /* QEMU repeats the last instruction within the block */
    struct mg_run run[MG_MAX_ACCESSES];
    struct mg_access access[MG_MAX_ACCESSES];
    struct mg_hook hook[MG_MAX_ACCESSES];
};

void mg_decode_init(void);
void mg_decode_begin(struct mg_decoded *block);
/* Adds the instruction of `bytes` bytes at `code`, whose address in the program is `vaddr`. */
void mg_decode_insn(struct mg_decoded *block, const uint8_t *code, size_t bytes, uint64_t vaddr,
                    uint16_t offset);
/* Names the instruction set extension of the instruction at `code`. Returns false if it belongs
 * to none. */
bool mg_extension_of(const uint8_t *code, size_t bytes, char *text, size_t room);

#endif
