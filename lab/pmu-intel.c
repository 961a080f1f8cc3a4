/*
 * Intel's architectural performance monitoring and precise event-based sampling (PEBS).
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "qemu/osdep.h"
#include "qemu/notify.h"
#include "cpu.h"
#include "exec/cpu_ldst.h"
#include "tcg/helper-tcg.h"
#include "pmu-state.h"

/* Registers by their names in the manual (SDM volume 4). */
enum {
    IA32_PMC0 = 0xc1,
    IA32_PERFEVTSEL0 = 0x186,
    OFFCORE_RSP_0 = 0x1a6,
    OFFCORE_RSP_1 = 0x1a7,
    IA32_DEBUGCTL = 0x1d9,
    IA32_FIXED_CTR0 = 0x309,
    IA32_PERF_CAPABILITIES = 0x345,
    IA32_FIXED_CTR_CTRL = 0x38d,
    IA32_PERF_GLOBAL_STATUS = 0x38e,
    IA32_PERF_GLOBAL_CTRL = 0x38f,
    IA32_PERF_GLOBAL_STATUS_RESET = 0x390,
    IA32_PERF_GLOBAL_STATUS_SET = 0x391,
    IA32_PERF_GLOBAL_INUSE = 0x392,
    IA32_PEBS_ENABLE = 0x3f1,
    PEBS_DATA_CFG = 0x3f2,
    PEBS_LD_LAT_THRESHOLD = 0x3f6,
    PEBS_FRONTEND = 0x3f7,
    IA32_A_PMC0 = 0x4c1,
    IA32_DS_AREA = 0x600,
};
/* A trap: the record has the state after the instruction. It has all registers. */
#define CAPABILITY_PEBS_TRAP (1 << 6)
#define CAPABILITY_PEBS_REGISTERS (1 << 7)
#define CAPABILITY_PEBS_FORMAT 8
#define CAPABILITY_FULL_WIDTH (1 << 13)
/* Records have the groups that PEBS_DATA_CFG names, and all counters can have some. */
#define CAPABILITY_PEBS_BASELINE (1 << 14)
#define ADAPTIVE_FORMAT 4
/* The adaptive record's bit in an event select, and in the control of the first fixed counter. */
#define SELECT_ADAPTIVE (1ull << 34)
#define FIXED_ADAPTIVE (1ull << 32)
#define PEBS_LATENCY(pmu) (GENERAL_BITS(pmu) << 32)
#define ALL_COUNTERS(pmu) (GENERAL_BITS(pmu) | MAKE_64BIT_MASK(32, FIXED))
#define STATUS_BUFFER (1ull << 62)

/* Of the architectural events: mispredicted branches. */
#define ABSENT_EVENTS (1 << 6)

static uint64_t width_mask(const X86Pmu *pmu)
{
    return MAKE_64BIT_MASK(0, pmu->processor->width);
}

static bool full_width(const X86Pmu *pmu)
{
    return pmu->processor->version >= 4;
}

static bool adaptive(const X86Pmu *pmu)
{
    return pmu->processor->pebs_format >= ADAPTIVE_FORMAT;
}

void intel_cpuid(X86Pmu *pmu, uint32_t leaf, uint32_t count, uint32_t *eax, uint32_t *ebx,
                 uint32_t *ecx, uint32_t *edx)
{
    const Processor *processor = pmu->processor;

    switch (leaf) {
    case 1:
        *ecx |= CPUID_EXT_PDCM | CPUID_EXT_DTES64;
        *edx |= CPUID_DTS;
        break;
    case 4:
        pmu_cpuid_cache(count, eax, ebx, ecx);
        break;
    case 0xa:
        /* Version; counters and their width; length of the list of events in EBX. */
        *eax = processor->version | processor->general << 8 | processor->width << 16 | 7 << 24;
        *ebx = ABSENT_EVENTS;
        /* From version 5 on: which fixed counters there are. */
        *ecx = processor->version >= 5 ? MAKE_64BIT_MASK(0, processor->fixed) : 0;
        *edx = processor->fixed | processor->width << 5;
        break;
    }
}

/* The data source of a load, as the manual encodes it for load latency; of another
 * event only whether the first level had the line. */
static uint64_t data_source(Event event, const Accesses *accesses)
{
    static const uint8_t sources[] = { 0, 0x1, 0x3, 0x4, 0xa };
    uint64_t walk = accesses->walks ? 1 << 4 : 0;

    if (event == EV_LOAD_LATENCY) {
        return sources[accesses->slowest.source] | walk;
    }
    return (accesses->slowest.source == LAB_L1D) | walk;
}

static bool counts_stores(Event event)
{
    return event == EV_STORES || event == EV_SPLIT_STORES || event == EV_WALK_STORES;
}

/* Offsets in the debug-store area of 64-bit mode: SDM volume 3, "Debug Store (DS)". */
enum { DS_PEBS_BASE = 32, DS_PEBS_INDEX = 40, DS_PEBS_END = 48, DS_PEBS_THRESHOLD = 56, DS_PEBS_RESET = 64 };
/* The first fixed counter's reset is behind those of eight general ones. */
#define RESET_OF(index) (DS_PEBS_RESET + 8 * ((index) < GENERAL ? (index) : 8 + (index) - GENERAL))
/* Bytes of a record, by its format: general registers; data address, source and latency;
 * the address of the instruction; time. */
static const uint8_t record_bytes[] = { 144, 176, 192, 200 };
/* Words of a record of format 3, by what they have. */
enum { WORD_FLAGS, WORD_NEXT, WORD_REGISTERS, WORD_COUNTERS = 18, WORD_ADDRESS, WORD_SOURCE,
       WORD_LATENCY, WORD_IP, WORD_TSX, WORD_TIME, WORDS };

/* Groups of an adaptive record, in their order; the first one is always there. Branches are
 * not modelled. */
enum { GROUP_MEMORY = 1 << 0, GROUP_REGISTERS = 1 << 1, GROUP_VECTORS = 1 << 2, GROUP_BRANCHES = 1 << 3 };
#define GROUPS (GROUP_MEMORY | GROUP_REGISTERS | GROUP_VECTORS)
#define ADAPTIVE_WORDS (4 + 4 + 18 + 32)

bool intel_uses_pebs(X86Pmu *pmu, const Active *active)
{
    return (active->index < GENERAL || adaptive(pmu)) &&
           (pmu->pebs_enable & COUNTER_BIT(active->index));
}

/* The groups that a counter's records have. */
static uint64_t groups_of(X86Pmu *pmu, unsigned index)
{
    bool wanted = index < GENERAL ? pmu->select[index] & SELECT_ADAPTIVE
                                  : pmu->fixed_control & FIXED_ADAPTIVE << 4 * (index - GENERAL);
    return wanted ? pmu->pebs_data & GROUPS : 0;
}

/* Makes an adaptive record of one of format 3; the number of its words. */
static unsigned adapt(X86Pmu *pmu, uint64_t groups, const uint64_t *from, uint64_t *words)
{
    /* AX, CX, DX, BX, SP, BP, SI, DI; then as in format 3. */
    static const uint8_t order[] = { 2, 4, 5, 3, 9, 8, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17 };
    const CPUX86State *env = &pmu->cpu->env;
    unsigned n = 1;

    words[n++] = from[WORD_IP];
    words[n++] = from[WORD_COUNTERS];
    words[n++] = from[WORD_TIME];
    if (groups & GROUP_MEMORY) {
        words[n++] = from[WORD_ADDRESS];
        words[n++] = from[WORD_SOURCE];
        words[n++] = from[WORD_LATENCY];
        words[n++] = from[WORD_TSX];
    }
    if (groups & GROUP_REGISTERS) {
        words[n++] = from[WORD_FLAGS];
        words[n++] = from[WORD_NEXT];
        for (unsigned i = 0; i < ARRAY_SIZE(order); i++) {
            words[n++] = from[order[i]];
        }
    }
    if (groups & GROUP_VECTORS) {
        for (unsigned i = 0; i < 16; i++) {
            words[n++] = env->xmm_regs[i].ZMM_Q(0);
            words[n++] = env->xmm_regs[i].ZMM_Q(1);
        }
    }
    words[0] = groups | (uint64_t)(8 * n) << 48;
    return n;
}

/* The words of a record; shorter formats are its first ones. */
static void fill_record(X86Pmu *pmu, const Active *active, uint64_t next_pc, uint64_t *record)
{
    /* As a record has them; EAX is the first, then in the order of the names. */
    static const uint8_t order[] = {
        R_EAX, R_EBX, R_ECX, R_EDX, R_ESI, R_EDI, R_EBP, R_ESP,
        R_R8, R_R9, R_R10, R_R11, R_R12, R_R13, R_R14, R_R15,
    };
    CPUX86State *env = &pmu->cpu->env;
    const Instruction *done = &pmu->running;
    const Accesses *accesses = counts_stores(active->event) ? &done->stores : &done->loads;
    bool latency = active->event == EV_LOAD_LATENCY;

    record[WORD_FLAGS] = cpu_compute_eflags(env);
    record[WORD_NEXT] = next_pc;
    for (unsigned i = 0; i < ARRAY_SIZE(order); i++) {
        record[WORD_REGISTERS + i] = env->regs[order[i]];
    }
    record[WORD_COUNTERS] = COUNTER_BIT(active->index);
    if (accesses->count) {
        record[WORD_ADDRESS] = accesses->address;
        record[WORD_SOURCE] = data_source(active->event, accesses);
        record[WORD_LATENCY] = latency ? accesses->slowest.latency_cycles : 0;
    }
    record[WORD_IP] = done->pc;
    record[WORD_TIME] = pmu_tsc(pmu);
}

bool intel_pebs_record(X86Pmu *pmu, const Active *active, uint64_t next_pc)
{
    CPUX86State *env = &pmu->cpu->env;
    int mmu = cpu_mmu_index_kernel(env);
    uint64_t ds = pmu->debug_store;
    uint64_t index = cpu_ldq_le_mmuidx_ra(env, ds + DS_PEBS_INDEX, mmu, 0);
    uint64_t end = cpu_ldq_le_mmuidx_ra(env, ds + DS_PEBS_END, mmu, 0);
    uint64_t threshold = cpu_ldq_le_mmuidx_ra(env, ds + DS_PEBS_THRESHOLD, mmu, 0);
    uint64_t reset = cpu_ldq_le_mmuidx_ra(env, ds + RESET_OF(active->index), mmu, 0);
    uint64_t record[WORDS] = { 0 }, adapted[ADAPTIVE_WORDS];
    const uint64_t *words = record;
    unsigned bytes;

    pmu->values[active->index] = reset & width_mask(pmu);
    fill_record(pmu, active, next_pc, record);
    if (adaptive(pmu)) {
        words = adapted;
        bytes = 8 * adapt(pmu, groups_of(pmu, active->index), record, adapted);
    } else {
        bytes = record_bytes[pmu->processor->pebs_format];
    }
    if (index + bytes > end) {
        lab.records_lost++;
        pmu->global_status |= STATUS_BUFFER;
        return true;
    }
    for (unsigned i = 0; i < bytes / 8; i++) {
        cpu_stq_le_mmuidx_ra(env, index + 8 * i, words[i], mmu, 0);
    }
    index += bytes;
    cpu_stq_le_mmuidx_ra(env, ds + DS_PEBS_INDEX, index, mmu, 0);
    lab.records++;
    if (lab.log) {
        fprintf(lab.log, "record processor %u counter %u ip 0x%" PRIx64 " next 0x%" PRIx64 " address 0x%" PRIx64 " source 0x%" PRIx64
                " latency %" PRIu64 " tsc %" PRIu64 " %s\n", pmu->core, active->index, record[WORD_IP], next_pc,
                record[WORD_ADDRESS], record[WORD_SOURCE], record[WORD_LATENCY], record[WORD_TIME], pmu->running.user ? "user" : "kernel");
    }
    if (index < threshold) {
        return false;
    }
    pmu->global_status |= STATUS_BUFFER;
    return true;
}

/* Registers that hold what is written to them. */
static uint64_t *plain(X86Pmu *pmu, uint32_t msr)
{
    unsigned general = pmu->processor->general;

    if (msr - IA32_PERFEVTSEL0 < general) {
        return &pmu->select[msr - IA32_PERFEVTSEL0];
    }
    if (msr - IA32_PMC0 < general) {
        return &pmu->values[msr - IA32_PMC0];
    }
    if (msr - IA32_A_PMC0 < general && full_width(pmu)) {
        return &pmu->values[msr - IA32_A_PMC0];
    }
    switch (msr) {
        case IA32_FIXED_CTR0 ... IA32_FIXED_CTR0 + FIXED - 1:
        return &pmu->values[GENERAL + msr - IA32_FIXED_CTR0];
    case OFFCORE_RSP_0:
    case OFFCORE_RSP_1:
        return &pmu->offcore[msr - OFFCORE_RSP_0];
    case IA32_DEBUGCTL:
        return &pmu->debug_control;
    case IA32_FIXED_CTR_CTRL:
        return &pmu->fixed_control;
    case IA32_PERF_GLOBAL_CTRL:
        return &pmu->global_control;
    case PEBS_LD_LAT_THRESHOLD:
        return &pmu->load_latency;
    case IA32_PEBS_ENABLE:
        return &pmu->pebs_enable;
    case PEBS_DATA_CFG:
        return adaptive(pmu) ? &pmu->pebs_data : NULL;
    case IA32_DS_AREA:
        return &pmu->debug_store;
    case PEBS_FRONTEND:
        return &pmu->frontend;
    default:
        return NULL;
    }
}

static uint64_t in_use(X86Pmu *pmu)
{
    uint64_t result = 0;
    for (unsigned i = 0; i < pmu->processor->general; i++) {
        result |= (uint64_t)(pmu->select[i] != 0) << i;
    }
    for (unsigned i = 0; i < pmu->processor->fixed; i++) {
        result |= (uint64_t)(((pmu->fixed_control >> (4 * i)) & 3) != 0) << (32 + i);
    }
    return result;
}

static uint64_t capabilities(X86Pmu *pmu)
{
    return CAPABILITY_PEBS_TRAP | CAPABILITY_PEBS_REGISTERS |
           pmu->processor->pebs_format << CAPABILITY_PEBS_FORMAT |
           (full_width(pmu) ? CAPABILITY_FULL_WIDTH : 0) |
           (adaptive(pmu) ? CAPABILITY_PEBS_BASELINE : 0);
}

bool intel_rdmsr(X86Pmu *pmu, uint32_t msr, uint64_t *value)
{
    uint64_t *place = plain(pmu, msr);

    if (place) {
        *value = *place;
        return true;
    }
    switch (msr) {
    case IA32_PERF_CAPABILITIES:
        *value = capabilities(pmu);
        return true;
    case IA32_PERF_GLOBAL_STATUS:
        *value = pmu->global_status;
        return true;
    case IA32_PERF_GLOBAL_STATUS_RESET:
    case IA32_PERF_GLOBAL_STATUS_SET:
        *value = 0;
        return true;
    case IA32_PERF_GLOBAL_INUSE:
        *value = in_use(pmu);
        return true;
    default:
        return false;
    }
}

/* Whether the bits of a register that are reserved are zero. */
static bool reserved_clear(X86Pmu *pmu, uint32_t msr, uint64_t value)
{
    uint64_t for_fixed = adaptive(pmu) ? FIXED_ADAPTIVE * 0x111 : 0;

    if (msr - IA32_PERFEVTSEL0 < GENERAL) {
        return !(value >> 32 << 32 & ~(adaptive(pmu) ? SELECT_ADAPTIVE : 0));
    }
    if (msr - IA32_A_PMC0 < GENERAL || msr - IA32_FIXED_CTR0 < FIXED) {
        return !(value & ~width_mask(pmu));
    }
    switch (msr) {
    case IA32_FIXED_CTR_CTRL:
        return !(value >> (4 * FIXED) << (4 * FIXED) & ~for_fixed);
    case IA32_PERF_GLOBAL_CTRL:
        return !(value & ~ALL_COUNTERS(pmu));
    case IA32_PEBS_ENABLE:
        return !(value & ~(adaptive(pmu) ? ALL_COUNTERS(pmu) : GENERAL_BITS(pmu) | PEBS_LATENCY(pmu)));
    default:
        return true;
    }
}

/* Notes what is asked of the model that it has not. */
static void note_unknown(X86Pmu *pmu, uint32_t msr, uint64_t value)
{
    if (msr - IA32_PERFEVTSEL0 < GENERAL) {
        pmu_note_select(pmu, value);
    }
    if (msr == PEBS_DATA_CFG && (value & GROUP_BRANCHES)) {
        pmu_count_unknown(lab.unknown_writes, msr);
    }
    if (value && (msr == IA32_DEBUGCTL || msr == OFFCORE_RSP_0 || msr == OFFCORE_RSP_1 ||
                  msr == PEBS_FRONTEND)) {
        pmu_count_unknown(lab.unknown_writes, msr);
    }
}

static void write_plain(X86Pmu *pmu, uint32_t msr, uint64_t *place, uint64_t value)
{
    if (msr - IA32_PMC0 < GENERAL) {
        value = (int64_t)(int32_t)value & width_mask(pmu);
    }
    note_unknown(pmu, msr, value);
    *place = value;
    for (unsigned i = 0; i < GENERAL; i++) {
        if (msr == IA32_PMC0 + i || msr == IA32_A_PMC0 + i || msr == IA32_PERFEVTSEL0 + i) {
            pmu->armed[i] = 0;
        }
    }
    if (msr == IA32_PERF_GLOBAL_CTRL || msr == IA32_FIXED_CTR_CTRL ||
        msr - IA32_PERFEVTSEL0 < GENERAL) {
        pmu_update(pmu);
    }
}

bool intel_wrmsr(X86Pmu *pmu, uint32_t msr, uint64_t value, bool *refused)
{
    uint64_t *place = plain(pmu, msr);

    if (place) {
        *refused = !reserved_clear(pmu, msr, value);
        if (!*refused) {
            write_plain(pmu, msr, place, value);
        }
        return true;
    }
    switch (msr) {
    case IA32_PERF_GLOBAL_STATUS_RESET:
        pmu->global_status &= ~value;
        return true;
    case IA32_PERF_GLOBAL_STATUS_SET:
        pmu->global_status |= value & ALL_COUNTERS(pmu);
        return true;
    case IA32_PERF_CAPABILITIES:
    case IA32_PERF_GLOBAL_STATUS:
    case IA32_PERF_GLOBAL_INUSE:
        *refused = true;
        return true;
    default:
        return false;
    }
}
