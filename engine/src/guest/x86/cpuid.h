/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_CPUID_H
#define MG_CPUID_H

#include <stdint.h>

/* Results of the cpuid instruction. */
struct mg_cpuid {
    uint32_t eax, ebx, ecx, edx;
};

/* Writes the modelled machine's caches into the result of cpuid leaf `leaf`, subleaf `subleaf`. */
void mg_cpuid(uint32_t leaf, uint32_t subleaf, struct mg_cpuid *answer);

#endif
