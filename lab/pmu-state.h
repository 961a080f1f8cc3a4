/*
 * What the parts of the PMU share: pmu.c counts, pmu-intel.c and pmu-amd.c have the
 * registers of their makers and PEBS and IBS.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef TARGET_I386_LAB_PMU_STATE_H
#define TARGET_I386_LAB_PMU_STATE_H

#include "machine.h"
#include "pmu.h"
#include "pmu-events.h"

#define GENERAL 8 /* at most; the processor says how many */
#define FIXED 3
#define COUNTERS (GENERAL + FIXED)
#define GENERAL_BITS(pmu) MAKE_64BIT_MASK(0, (pmu)->processor->general)
/* A counter's bit in Intel's global registers: fixed counters begin at bit 32. */
#define COUNTER_BIT(index) (1ull << ((index) < GENERAL ? (index) : 32 + (index) - GENERAL))

#define SELECT_USR (1 << 16)
#define SELECT_OS (1 << 17)
#define SELECT_INT (1 << 20)
#define SELECT_EN (1 << 22)
/* Event (of 12 bits on AMD), unit mask, edge, any, invert and counter mask: what names
 * an event. */
#define SELECT_EVENT 0xfffa4ffffull

/* Counters outside the cores, by the server that has them. */
typedef enum { UNCORE_NONE, UNCORE_HASWELL, UNCORE_SKYLAKE } UncoreKind;

/* A processor of QEMU's that the lab gives a PMU. */
typedef struct {
    uint32_t vendor; /* EBX of CPUID leaf 0 */
    uint32_t family, model;
    const char *machine; /* of crates/machine */
    unsigned events; /* the set of its events */
    unsigned version, general, fixed, width; /* of CPUID leaf 0xA */
    unsigned pebs_format;
    uint32_t ibs_abilities; /* EAX of CPUID leaf 8000_001B */
    UncoreKind uncore;
} Processor;

/* The accesses of one kind that an instruction made. The outcome is that of the one
 * that took longest. */
typedef struct {
    uint32_t count;
    bool split;
    uint16_t l1d_misses, l2_misses, llc_misses, walks, stlb_hits;
    uint64_t address, physical;
    uint32_t size;
    LabOutcome slowest;
} Accesses;

/* The instruction that runs. */
typedef struct {
    bool active;
    bool user;
    uint64_t pc;
    uint64_t cycles;
    Accesses loads, stores;
} Instruction;

/* A counter that counts. */
typedef struct {
    uint8_t index;
    bool os, user, interrupts;
    Event event;
} Active;

/* AMD's instruction-based sampling. */
typedef struct {
    bool op_counts, op_tagged, fetch_counts, fetch_tagged;
    uint64_t op_control, op_count;
    uint64_t op_rip, op_data, op_data2, op_data3, op_linear, op_physical, op_target;
    uint64_t fetch_control, fetch_count, fetch_linear, fetch_physical;
    uint64_t last_fetch;
    uint64_t random;
    uint32_t vectors[4]; /* of the extended part of the local APIC */
} Ibs;

struct X86Pmu {
    X86CPU *cpu;
    const Processor *processor;
    uint32_t core; /* of the modelled machine */
    Instruction running;
    unsigned active_count;
    Active active[COUNTERS];
    uint64_t values[COUNTERS];
    uint32_t armed[COUNTERS]; /* events until the record of an overflow */
    uint64_t select[GENERAL], fixed_control;
    uint64_t global_control, global_status;
    uint64_t debug_control, offcore[2], load_latency, frontend;
    uint64_t pebs_enable, pebs_data, debug_store;
    Ibs ibs;
    bool counts_cycles;
    uint64_t cycles;
};

/* All processors have one machine and one log. */
typedef struct {
    LabMachine *machine;
    FILE *log;
    /* What the kernel asked for and the model has not: code to number of times. */
    GHashTable *unknown_events, *unknown_reads, *unknown_writes;
    uint64_t overflows, interrupts, interrupts_masked, retired[2];
    uint64_t records, records_lost, events_delayed;
    uint64_t ibs_ops, ibs_ops_filtered, ibs_fetches;
    Notifier exit;
} Lab;

extern Lab lab;

/* Of what pmu_retired says to be done, beside a bit for each active counter. */
enum { DUE_IBS_OP = 1 << 30, DUE_IBS_FETCH = 1 << 29 };

static inline bool is_amd(const X86Pmu *pmu)
{
    return pmu->processor->vendor == CPUID_VENDOR_AMD_1;
}

/* pmu.c */
Event pmu_find_event(X86Pmu *pmu, uint64_t select);
/* Which counters count, after a write to a register of control. */
void pmu_update(X86Pmu *pmu);
/* How much of translated code the counters need to see. */
void pmu_update_level(X86Pmu *pmu);
void pmu_count_unknown(GHashTable *table, uint64_t code);
void pmu_note_select(X86Pmu *pmu, uint64_t select);
uint64_t pmu_tsc(X86Pmu *pmu);
/* Whether the running instruction is a branch that is taken. */
bool pmu_branch_taken(const X86Pmu *pmu);
/* Ways and sets of the model's cache with this number in leaf 4 or 8000_001D; there is none
 * beyond its last. */
void pmu_cpuid_cache(uint32_t number, uint32_t *eax, uint32_t *ebx, uint32_t *ecx);

/* pmu-intel.c. As with AMD's, the registers' functions say whether there is one. */
bool intel_rdmsr(X86Pmu *pmu, uint32_t msr, uint64_t *value);
bool intel_wrmsr(X86Pmu *pmu, uint32_t msr, uint64_t value, bool *refused);
void intel_cpuid(X86Pmu *pmu, uint32_t leaf, uint32_t count, uint32_t *eax, uint32_t *ebx,
                 uint32_t *ecx, uint32_t *edx);
bool intel_uses_pebs(X86Pmu *pmu, const Active *active);
/* Writes the record of an overflow. Whether an interrupt is due. */
bool intel_pebs_record(X86Pmu *pmu, const Active *active, uint64_t next_pc);

/* pmu-uncore.c: counters outside the cores. */
void uncore_create(X86Pmu *pmu);
bool uncore_rdmsr(X86Pmu *pmu, uint32_t msr, uint64_t *value);
bool uncore_wrmsr(X86Pmu *pmu, uint32_t msr, uint64_t value);
/* Whether one of them counts; then they are told of accesses of cores. */
bool uncore_on(void);
void uncore_accessed(X86Pmu *pmu, uint64_t address, const LabOutcome *out);
/* Lists what devices moved; the event selects that are not modelled, or nothing. */
GHashTable *uncore_finish(FILE *log);

/* pmu-amd.c */
bool amd_rdmsr(X86Pmu *pmu, uint32_t msr, uint64_t *value);
bool amd_wrmsr(X86Pmu *pmu, uint32_t msr, uint64_t value, bool *refused);
void amd_cpuid(X86Pmu *pmu, uint32_t leaf, uint32_t count, uint32_t *eax, uint32_t *ebx,
               uint32_t *ecx, uint32_t *edx);
void amd_reset(X86Pmu *pmu);
/* How much of translated code IBS needs to see. */
unsigned ibs_level(X86Pmu *pmu);
/* The running instruction is done: DUE_IBS_OP and DUE_IBS_FETCH. */
unsigned ibs_retired(X86Pmu *pmu, uint64_t next_pc);
/* Takes the samples that are due and asks for their interrupt. */
void ibs_sample(X86Pmu *pmu, unsigned due, uint64_t next_pc);

#endif
