/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Shows the program the modelled machine's caches in cpuid, so that libraries tune themselves to
 * that machine (block sizes of BLAS, glibc's choice of a copy loop).
 *
 * QEMU's processor is one of AMD's. Leaves 0x80000005, 0x80000006 and 0x8000001D have the caches
 * as on AMD's processors. Leaves 2 and 4 have them as well, for programs that read Intel's leaves
 * without checking the vendor. The model has no instruction cache, so QEMU's is kept, and leaf 4
 * has none. Each thread has a core of its own, so no cache is shared within a core.
 *
 * QEMU's own structures for caches (CPUCaches) are not used. They assert that a cache has more sets
 * than ways and that its size is a multiple of 512 KiB, which is false for small modelled caches.
 */
#include "cpuid.h"

#include "../../session.h"

enum { LEAF_MAX_EXTENDED = 0x80000000, LEAF_FEATURES = 0x80000001, LEAF_L1 = 0x80000005,
       LEAF_L2_LLC = 0x80000006, LEAF_CACHES = 0x8000001D, LEAF_TOPOLOGY = 0x8000001E };
enum { TYPE_DATA = 1, TYPE_UNIFIED = 3 };

/* Bit of leaf 0x80000001, register ecx: there are leaves 0x8000001D and 0x8000001E. */
#define TOPOLOGY_EXTENSIONS (1u << 22)
/* Leaf 2: descriptor "leaf 4 has the caches", preceded by the byte 1 that begins each answer. */
#define CACHES_ARE_IN_LEAF_4 0xff01u
/* Leaf 0x80000006: associativity "see leaf 0x8000001D". */
#define WAYS_ARE_ELSEWHERE 9u

/* Levels of struct mg_control.caches. */
enum { L1D, L2, LLC };

static uint32_t at_most(uint64_t value, uint32_t most)
{
    return value < most ? value : most;
}

static void describe(const struct mg_cache *cache, unsigned level, struct mg_cpuid *answer)
{
    uint32_t sets = cache->bytes / cache->ways / MG_LINE_BYTES;
    *answer = (struct mg_cpuid){
        .eax = (level == L1D ? TYPE_DATA : TYPE_UNIFIED) | (level + 1) << 5 | 1u << 8,
        .ebx = (MG_LINE_BYTES - 1) | (cache->ways - 1) << 22,
        .ecx = sets - 1,
    };
}

static uint32_t encoded_ways(uint32_t ways)
{
    switch (ways) {
    case 1: case 2: case 4: return ways;
    case 8: return 6;
    case 16: return 8;
    case 32: return 10;
    case 48: return 11;
    case 64: return 12;
    default: return WAYS_ARE_ELSEWHERE;
    }
}

void mg_cpuid(uint32_t leaf, uint32_t subleaf, struct mg_cpuid *answer)
{
    const struct mg_cache *caches = mg_shared() ? mg_shared()->caches : NULL;
    const uint32_t one_line_a_tag = 1u << 8 | MG_LINE_BYTES;
    if (!caches || !caches[L1D].ways)
        return;
    switch (leaf) {
    case 2:
        *answer = (struct mg_cpuid){ .eax = CACHES_ARE_IN_LEAF_4 };
        break;
    case 4:
        *answer = (struct mg_cpuid){ 0 };
        if (subleaf <= LLC)
            describe(&caches[subleaf], subleaf, answer);
        break;
    case LEAF_MAX_EXTENDED:
        if (answer->eax < LEAF_TOPOLOGY)
            answer->eax = LEAF_TOPOLOGY;
        break;
    case LEAF_FEATURES:
        answer->ecx |= TOPOLOGY_EXTENSIONS;
        break;
    case LEAF_L1:
        answer->ecx = at_most(caches[L1D].bytes >> 10, 255) << 24 | caches[L1D].ways << 16 |
                      one_line_a_tag;
        break;
    case LEAF_L2_LLC:
        answer->ecx = at_most(caches[L2].bytes >> 10, 0xffff) << 16 |
                      encoded_ways(caches[L2].ways) << 12 | one_line_a_tag;
        answer->edx = at_most(caches[LLC].bytes >> 19, 0x3fff) << 18 |
                      encoded_ways(caches[LLC].ways) << 12 | one_line_a_tag;
        break;
    case LEAF_CACHES: /* subleaf 1 is the instruction cache */
        *answer = (struct mg_cpuid){ 0 };
        if (subleaf == 0)
            describe(&caches[L1D], L1D, answer);
        else if (subleaf == 1)
            *answer = (struct mg_cpuid){ .eax = 2 | 1 << 5 | 1 << 8, .ebx = 63 | 1 << 22,
                                         .ecx = 511 }; /* QEMU's: 64 KiB, two ways */
        else if (subleaf <= LLC + 1)
            describe(&caches[subleaf - 1], subleaf - 1, answer);
        break;
    case LEAF_TOPOLOGY:
        *answer = (struct mg_cpuid){ 0 };
        break;
    }
}
