/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_DECODE_H
#define MG_DECODE_H

#include <stdbool.h>

#include "stream.h"

#define MG_MAX_INSNS 512
#define MG_MAX_ACCESSES (4 * MG_MAX_INSNS)

/* What a callback on one access has to do. */
struct mg_hook {
    uint16_t insn;
    uint8_t kind;     /* MG_LOAD or MG_STORE: which of the instruction's accesses it wants */
    uint8_t size;     /* operand bytes; above 8 it arrives in pieces */
    bool filtered;    /* the instruction makes accesses it does not want, too */
    bool varying;     /* pieces are streamed as they come */
};

/* One block of code, decoded. */
struct mg_decoded {
    uint16_t insns, accesses, leaders, hooks, flags;
    uint32_t undecoded;
    bool header_apart; /* no hook is sure to run, or a varying one comes first */
    struct mg_access access[MG_MAX_ACCESSES];
    struct mg_hook hook[MG_MAX_ACCESSES];
};

void mg_decode_begin(struct mg_decoded *block);
/* Adds the instruction of `bytes` bytes at `code`, which the program sees at `vaddr`. */
void mg_decode_insn(struct mg_decoded *block, const uint8_t *code, size_t bytes, uint64_t vaddr,
                    uint16_t offset);

#endif
