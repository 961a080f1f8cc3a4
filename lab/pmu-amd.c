/*
 * AMD's core counters and instruction-based sampling (IBS), of families 17h to 19h.
 *
 * IBS follows one op or fetch in a period from end to end. The model has one op an
 * instruction. When the count is reached the next instruction is tagged; when that one
 * is done its sample is taken, and counting stops until the driver clears the valid bit.
 *
 * Bits are those of the Processor Programming References, MSRs C001_1030 to C001_103D.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "qemu/osdep.h"
#include "qemu/main-loop.h"
#include "qemu/notify.h"
#include "cpu.h"
#include "exec/exec-all.h"
#include "hw/i386/apic.h"
#include "pmu-state.h"

enum {
    PERF_LEGACY_CTL0 = 0xc0010000,
    PERF_LEGACY_CTR0 = 0xc0010004,
    PERF_CTL0 = 0xc0010200, /* each followed by its counter */
    IBS_FETCH_CTL = 0xc0011030,
    IBS_FETCH_LINEAR = 0xc0011031,
    IBS_FETCH_PHYSICAL = 0xc0011032,
    IBS_OP_CTL = 0xc0011033,
    IBS_OP_RIP = 0xc0011034,
    IBS_OP_DATA = 0xc0011035,
    IBS_OP_DATA2 = 0xc0011036,
    IBS_OP_DATA3 = 0xc0011037,
    IBS_DC_LINEAR = 0xc0011038,
    IBS_DC_PHYSICAL = 0xc0011039,
    IBS_CTL = 0xc001103a,
    IBS_BRANCH_TARGET = 0xc001103b,
    IBS_FETCH_CTL_EXTENDED = 0xc001103c,
};
#define LEGACY 4

/* The entry of the APIC's extended vectors that firmware gives IBS, and "valid". */
#define IBS_CTL_VALUE (1 << 8 | 0)
#define IBS_VECTOR 0

#define ABILITY_ZEN4 (1 << 11)

#define OP_L3_MISS_ONLY (1ull << 16)
#define OP_ENABLE (1ull << 17)
#define OP_VALID (1ull << 18)
#define OP_COUNTS_OPS (1ull << 19)
#define OP_COUNT_SHIFT 32
#define OP_COUNT_MASK MAKE_64BIT_MASK(0, 27)
#define OP_RANDOM_MASK 0x7f

#define FETCH_COUNT_SHIFT 16
#define FETCH_ENABLE (1ull << 48)
#define FETCH_VALID (1ull << 49)
#define FETCH_COMPLETE (1ull << 50)
#define FETCH_PHYSICAL_VALID (1ull << 52)
#define FETCH_RANDOM (1ull << 57)
#define FETCH_STATUS MAKE_64BIT_MASK(49, 8)
/* Bytes that are fetched at once. */
#define FETCH_BLOCK 32

static uint64_t op_period(const Ibs *ibs)
{
    return (ibs->op_control & 0xffff) << 4 | (ibs->op_control >> 20 & 0x7f) << 20;
}

/* The same numbers in each run. */
static uint64_t random_bits(Ibs *ibs, uint64_t mask)
{
    ibs->random ^= ibs->random << 13;
    ibs->random ^= ibs->random >> 7;
    ibs->random ^= ibs->random << 17;
    return ibs->random & mask;
}

void amd_reset(X86Pmu *pmu)
{
    pmu->global_control = GENERAL_BITS(pmu);
    pmu->ibs.random = 0x9e3779b97f4a7c15 + pmu->core;
    for (unsigned i = 0; i < ARRAY_SIZE(pmu->ibs.vectors); i++) {
        pmu->ibs.vectors[i] = 1 << 16; /* masked */
    }
}

unsigned ibs_level(X86Pmu *pmu)
{
    Ibs *ibs = &pmu->ibs;

    ibs->op_counts = (ibs->op_control & OP_ENABLE) && !(ibs->op_control & OP_VALID);
    ibs->fetch_counts = (ibs->fetch_control & FETCH_ENABLE) && !(ibs->fetch_control & FETCH_VALID);
    if (ibs->op_counts) {
        pmu->counts_cycles = true;
        return PMU_LEVEL_MEMORY;
    }
    return ibs->fetch_counts ? PMU_LEVEL_INSTRUCTIONS : PMU_LEVEL_NONE;
}

static bool from_memory(const Instruction *done)
{
    return done->loads.count && done->loads.slowest.source == LAB_MEMORY;
}

static unsigned op_retired(X86Pmu *pmu)
{
    Ibs *ibs = &pmu->ibs;
    bool by_ops = ibs->op_control & OP_COUNTS_OPS;

    if (!ibs->op_tagged) {
        ibs->op_count += by_ops ? 1 : pmu->running.cycles;
        ibs->op_tagged = ibs->op_count >= op_period(ibs);
        return 0;
    }
    ibs->op_tagged = false;
    /* In cycle mode the count begins at zero: the cycle that ends it is random enough. */
    ibs->op_count = by_ops ? random_bits(ibs, OP_RANDOM_MASK) : 0;
    if ((ibs->op_control & OP_L3_MISS_ONLY) && !from_memory(&pmu->running)) {
        lab.ibs_ops_filtered++;
        return 0;
    }
    return DUE_IBS_OP;
}

/* A fetch is of a block; the next instruction has one of its own if it is of another
 * block, or not behind the last one. */
static unsigned fetch_retired(X86Pmu *pmu)
{
    Ibs *ibs = &pmu->ibs;
    uint64_t pc = pmu->running.pc, last = ibs->last_fetch;

    ibs->last_fetch = pc;
    if (pc > last && pc / FETCH_BLOCK == last / FETCH_BLOCK) {
        return 0;
    }
    if (ibs->fetch_tagged) {
        ibs->fetch_tagged = false;
        return DUE_IBS_FETCH;
    }
    ibs->fetch_count++;
    ibs->fetch_tagged = ibs->fetch_count >= (ibs->fetch_control & 0xffff) << 4;
    return 0;
}

unsigned ibs_retired(X86Pmu *pmu, uint64_t next_pc)
{
    unsigned due = 0;

    if (pmu->ibs.op_counts) {
        due |= op_retired(pmu);
    }
    if (pmu->ibs.fetch_counts) {
        due |= fetch_retired(pmu);
    }
    return due;
}

/* Width of an access as the register has it: 1 for a byte, 2 for two, to 7 for 64. */
static uint64_t width_code(uint32_t size)
{
    return size && size <= 64 && is_power_of_2(size) ? ctz32(size) + 1 : 0;
}

/* Where a load's data came from; nothing for hits of the first two levels and stores. */
static uint64_t op_data2(X86Pmu *pmu, const Accesses *loads)
{
    bool zen4 = pmu->processor->ibs_abilities & ABILITY_ZEN4;

    if (!loads->count || loads->slowest.source < LAB_LLC) {
        return 0;
    }
    if (loads->slowest.source == LAB_MEMORY) {
        return 3;
    }
    /* Bit 5 says that the line was not modified: without it the driver reports that
     * another core had modified it. */
    return (zen4 ? 1 : 2) | 1 << 5;
}

static uint64_t op_data3(const Accesses *loads, const Accesses *stores)
{
    const Accesses *data = loads->count ? loads : stores;
    const LabOutcome *out = &data->slowest;
    uint64_t latency = loads->count && out->l1d_misses ? MIN(out->latency_cycles, 0xffff) : 0;

    if (!data->count) {
        return 0;
    }
    return (uint64_t)(loads->count != 0) | (stores->count != 0) << 1 |
           (out->dtlb_misses != 0) << 2 | (out->walks != 0) << 3 | (out->l1d_misses != 0) << 7 |
           data->split << 8 | 1 << 17 | 1 << 18 | (out->l2_misses != 0) << 20 |
           width_code(data->size) << 22 | latency << 32;
}

static uint64_t op_data(X86Pmu *pmu)
{
    unsigned branch = pmu->cpu->env.pmu_branch;

    return MIN(pmu->running.cycles, 0xffff) << 16 |
           (uint64_t)(branch == PMU_BRANCH_RETURN) << 34 | (uint64_t)pmu_branch_taken(pmu) << 35 |
           (uint64_t)(branch != PMU_BRANCH_NONE) << 37;
}

static void sample_op(X86Pmu *pmu, uint64_t next_pc)
{
    Ibs *ibs = &pmu->ibs;
    const Instruction *done = &pmu->running;
    const Accesses *data = done->loads.count ? &done->loads : &done->stores;

    ibs->op_rip = done->pc;
    ibs->op_data = op_data(pmu);
    ibs->op_data2 = op_data2(pmu, &done->loads);
    ibs->op_data3 = op_data3(&done->loads, &done->stores);
    ibs->op_linear = data->count ? data->address : 0;
    ibs->op_physical = data->count ? data->physical : 0;
    ibs->op_target = ibs->op_data >> 37 & 1 ? next_pc : 0;
    ibs->op_control |= OP_VALID;
    lab.ibs_ops++;
    if (lab.log) {
        fprintf(lab.log, "op processor %u space 0x%" PRIx64 " ip 0x%" PRIx64 " address 0x%" PRIx64
                " physical 0x%" PRIx64 " level %u latency %" PRIu64 " size %u load %u store %u"
                " tsc %" PRIu64 " %s\n", pmu->core, (uint64_t)pmu->cpu->env.cr[3] & TARGET_PAGE_MASK,
                ibs->op_rip, ibs->op_linear, ibs->op_physical,
                data->count ? data->slowest.source : 0, ibs->op_data3 >> 32 & 0xffff,
                data->count ? data->size : 0, done->loads.count != 0, done->stores.count != 0,
                pmu_tsc(pmu), done->user ? "user" : "kernel");
    }
}

/* What the caches of instructions did is not modelled. */
static void sample_fetch(X86Pmu *pmu)
{
    Ibs *ibs = &pmu->ibs;
    uint64_t pc = pmu->running.pc;
    hwaddr page = cpu_get_phys_page_debug(CPU(pmu->cpu), pc & TARGET_PAGE_MASK);
    bool known = page != -1;

    ibs->fetch_linear = pc;
    ibs->fetch_physical = known ? page | (pc & ~TARGET_PAGE_MASK) : 0;
    ibs->fetch_control |= FETCH_VALID | FETCH_COMPLETE | (known ? FETCH_PHYSICAL_VALID : 0);
    ibs->fetch_count = (ibs->fetch_control & 0xffff) << 4;
    lab.ibs_fetches++;
    if (lab.log) {
        fprintf(lab.log, "fetch processor %u space 0x%" PRIx64 " ip 0x%" PRIx64 " physical 0x%" PRIx64
                " tsc %" PRIu64 " %s\n", pmu->core, (uint64_t)pmu->cpu->env.cr[3] & TARGET_PAGE_MASK,
                pc, ibs->fetch_physical, pmu_tsc(pmu), pmu->running.user ? "user" : "kernel");
    }
}

void ibs_sample(X86Pmu *pmu, unsigned due, uint64_t next_pc)
{
    if (due & DUE_IBS_OP) {
        sample_op(pmu, next_pc);
    }
    if (due & DUE_IBS_FETCH) {
        sample_fetch(pmu);
    }
    if (due & (DUE_IBS_OP | DUE_IBS_FETCH)) {
        BQL_LOCK_GUARD();
        if (apic_deliver_extended(pmu->cpu->apic_state, pmu->ibs.vectors[IBS_VECTOR])) {
            lab.interrupts++;
        } else {
            lab.interrupts_masked++;
        }
        pmu_update(pmu);
    }
}

/* Registers that hold what is written to them. */
static uint64_t *plain(X86Pmu *pmu, uint32_t msr)
{
    unsigned number = msr - PERF_CTL0;

    if (msr >= PERF_CTL0 && number < 2 * pmu->processor->general) {
        return number % 2 ? &pmu->values[number / 2] : &pmu->select[number / 2];
    }
    switch (msr) {
    case PERF_LEGACY_CTL0 ... PERF_LEGACY_CTL0 + LEGACY - 1:
        return &pmu->select[msr - PERF_LEGACY_CTL0];
    case PERF_LEGACY_CTR0 ... PERF_LEGACY_CTR0 + LEGACY - 1:
        return &pmu->values[msr - PERF_LEGACY_CTR0];
    case IBS_FETCH_LINEAR:
        return &pmu->ibs.fetch_linear;
    case IBS_FETCH_PHYSICAL:
        return &pmu->ibs.fetch_physical;
    case IBS_OP_RIP:
        return &pmu->ibs.op_rip;
    case IBS_OP_DATA:
        return &pmu->ibs.op_data;
    case IBS_OP_DATA2:
        return &pmu->ibs.op_data2;
    case IBS_OP_DATA3:
        return &pmu->ibs.op_data3;
    case IBS_DC_LINEAR:
        return &pmu->ibs.op_linear;
    case IBS_DC_PHYSICAL:
        return &pmu->ibs.op_physical;
    case IBS_BRANCH_TARGET:
        return &pmu->ibs.op_target;
    default:
        return NULL;
    }
}

bool amd_rdmsr(X86Pmu *pmu, uint32_t msr, uint64_t *value)
{
    const Ibs *ibs = &pmu->ibs;
    uint64_t *place = plain(pmu, msr);

    if (place) {
        *value = *place;
        return true;
    }
    switch (msr) {
    case IBS_OP_CTL:
        *value = ibs->op_control | (ibs->op_count & OP_COUNT_MASK) << OP_COUNT_SHIFT;
        return true;
    case IBS_FETCH_CTL:
        *value = ibs->fetch_control | (ibs->fetch_count >> 4 & 0xffff) << FETCH_COUNT_SHIFT;
        return true;
    case IBS_CTL:
        *value = IBS_CTL_VALUE;
        return true;
    case IBS_FETCH_CTL_EXTENDED:
        pmu_count_unknown(lab.unknown_reads, msr);
        *value = 0;
        return true;
    default:
        return false;
    }
}

static void write_op_control(X86Pmu *pmu, uint64_t value)
{
    Ibs *ibs = &pmu->ibs;

    if (!(pmu->processor->ibs_abilities & ABILITY_ZEN4)) {
        value &= ~OP_L3_MISS_ONLY;
    }
    ibs->op_control = value & ~(OP_COUNT_MASK << OP_COUNT_SHIFT);
    ibs->op_count = value >> OP_COUNT_SHIFT & OP_COUNT_MASK;
    ibs->op_tagged = false;
    pmu_update(pmu);
}

static void write_fetch_control(X86Pmu *pmu, uint64_t value)
{
    Ibs *ibs = &pmu->ibs;

    ibs->fetch_control = value & ~(0xffffull << FETCH_COUNT_SHIFT);
    if (!(value & FETCH_VALID)) {
        ibs->fetch_control &= ~FETCH_STATUS;
    }
    ibs->fetch_count = (value >> FETCH_COUNT_SHIFT & 0xffff) << 4;
    if (value & FETCH_RANDOM) {
        ibs->fetch_count |= random_bits(ibs, 0xf);
    }
    ibs->fetch_tagged = false;
    pmu_update(pmu);
}

bool amd_wrmsr(X86Pmu *pmu, uint32_t msr, uint64_t value, bool *refused)
{
    uint64_t *place = plain(pmu, msr);

    if (place >= &pmu->select[0] && place < &pmu->select[GENERAL]) {
        pmu_note_select(pmu, value);
        *place = value;
        pmu_update(pmu);
        return true;
    }
    if (place) {
        bool counter = place >= &pmu->values[0] && place < &pmu->values[COUNTERS];
        *place = counter ? value & MAKE_64BIT_MASK(0, pmu->processor->width) : value;
        return true;
    }
    switch (msr) {
    case IBS_OP_CTL:
        write_op_control(pmu, value);
        return true;
    case IBS_FETCH_CTL:
        write_fetch_control(pmu, value);
        return true;
    case IBS_CTL: /* read-only */
        *refused = true;
        return true;
    default:
        return false;
    }
}

void amd_cpuid(X86Pmu *pmu, uint32_t leaf, uint32_t count, uint32_t *eax, uint32_t *ebx,
               uint32_t *ecx, uint32_t *edx)
{
    switch (leaf) {
    case 0x80000001:
        *ecx |= CPUID_EXT3_IBS | CPUID_EXT3_PERFCORE | CPUID_EXT3_TOPOEXT;
        break;
    case 0x8000001b:
        *eax = pmu->processor->ibs_abilities;
        *ebx = *ecx = *edx = 0;
        break;
    case 0x8000001d:
        pmu_cpuid_cache(count, eax, ebx, ecx);
        break;
    }
}

uint32_t *x86_pmu_extended_vector(CPUX86State *env, unsigned number)
{
    X86Pmu *pmu = env->pmu;

    if (!pmu || !is_amd(pmu) || number >= ARRAY_SIZE(pmu->ibs.vectors)) {
        return NULL;
    }
    return &pmu->ibs.vectors[number];
}
