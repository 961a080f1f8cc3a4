/*
 * A performance-monitoring unit for the emulated x86 processor.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef TARGET_I386_LAB_PMU_H
#define TARGET_I386_LAB_PMU_H

/* Kinds of branch, in CPUX86State.pmu_branch. Translated code says whether a conditional
 * one is taken: the next address does not, as one may go to the next instruction. */
enum {
    PMU_BRANCH_NONE,
    PMU_BRANCH_CONDITIONAL, /* not taken, or it is not known yet */
    PMU_BRANCH_CONDITIONAL_TAKEN,
    PMU_BRANCH_JUMP,
    PMU_BRANCH_CALL,
    PMU_BRANCH_RETURN,
    PMU_BRANCH_FAR,
};

/* How much the translator adds to translated code: CPUX86State.pmu_level, and a part of
 * the flags that name a block of it. */
enum {
    PMU_LEVEL_NONE,
    PMU_LEVEL_INSTRUCTIONS,
    PMU_LEVEL_MEMORY,
};

/* Of IA32_MISC_ENABLE: there is a PMU, it has PEBS, and no branch trace store. */
#define PMU_MISC_ENABLE (1 << 7 | 1 << 11)

void x86_pmu_create(X86CPU *cpu);
/* Changes a leaf: the PMU's abilities, and caches as the model has them. */
void x86_pmu_cpuid(X86CPU *cpu, uint32_t leaf, uint32_t count, uint32_t *eax, uint32_t *ebx,
                   uint32_t *ecx, uint32_t *edx);
/* An entry of the local vector table in the APIC's extended space, of AMD's processors. */
uint32_t *x86_pmu_extended_vector(CPUX86State *env, unsigned number);
bool x86_pmu_rdmsr(CPUX86State *env, uint32_t msr, uint64_t *value);
bool x86_pmu_wrmsr(CPUX86State *env, uint32_t msr, uint64_t value, bool *refused);
void x86_pmu_unknown_msr(CPUX86State *env, uint32_t msr, bool write);
bool x86_pmu_rdpmc(CPUX86State *env, uint32_t index, uint64_t *value);
/* The instruction that ran is begun again, or has raised a fault. */
void x86_pmu_discard(CPUX86State *env);
void x86_pmu_interrupt(CPUX86State *env, int vector, bool is_int, int error, bool is_hw);
void x86_pmu_memory(CPUX86State *env, uint64_t address, unsigned size, int mmu, bool store);

#endif
