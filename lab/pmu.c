/*
 * A performance-monitoring unit for the emulated x86 processor: Intel's architectural
 * performance monitoring, version 4, with the events of the family 6 model 94
 * ("Skylake") that the model knows.
 *
 * An instruction is counted when the next one begins, as only then is it known to have
 * retired: one that faults, or that the emulator begins again, is never counted. An
 * overflow is seen at the same place, so the interrupt comes before the instruction
 * after the one that overflowed.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "qemu/osdep.h"
#include "qemu/main-loop.h"
#include "qemu/error-report.h"
#include "system/system.h"
#include "qemu/notify.h"
#include "cpu.h"
#include "exec/helper-proto.h"
#include "exec/exec-all.h"
#include "exec/tb-flush.h"
#include "tcg/helper-tcg.h"
#include "hw/i386/apic.h"
#include "pmu.h"

#define GENERAL 4
#define FIXED 3
#define COUNTERS (GENERAL + FIXED)
#define WIDTH 48
#define MASK MAKE_64BIT_MASK(0, WIDTH)
/* A counter's bit in the global registers: fixed counters begin at bit 32. */
#define COUNTER_BIT(index) (1ull << ((index) < GENERAL ? (index) : 32 + (index) - GENERAL))
#define ALL_COUNTERS (MAKE_64BIT_MASK(0, GENERAL) | MAKE_64BIT_MASK(32, FIXED))

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
    PEBS_LD_LAT_THRESHOLD = 0x3f6,
    PEBS_FRONTEND = 0x3f7,
    IA32_A_PMC0 = 0x4c1,
};
#define CAPABILITY_FULL_WIDTH (1 << 13)

/* Of the architectural events: last-level references and misses, mispredicted branches. */
#define ABSENT_EVENTS (1 << 3 | 1 << 4 | 1 << 6)

#define SELECT_USR (1 << 16)
#define SELECT_OS (1 << 17)
#define SELECT_INT (1 << 20)
#define SELECT_EN (1 << 22)
/* Event, unit mask, edge, any, invert and counter mask: what names an event. */
#define SELECT_EVENT 0xffa4ffffu

typedef enum {
    EV_UNKNOWN,
    EV_INSTRUCTIONS,
    EV_CYCLES,
    EV_BRANCHES,
    EV_BRANCHES_CONDITIONAL,
    EV_BRANCHES_NOT_TAKEN,
    EV_BRANCHES_TAKEN,
    EV_CALLS,
    EV_RETURNS,
    EV_FAR_BRANCHES,
    EV_LOADS,
    EV_STORES,
    EV_MEMORY,
} Event;

/* Names as in Intel's lists of the model's events. */
static const struct {
    uint32_t select;
    Event event;
    const char *name;
} events[] = {
    { 0x00c0, EV_INSTRUCTIONS, "INST_RETIRED.ANY_P" },
    { 0x01c0, EV_INSTRUCTIONS, "INST_RETIRED.PREC_DIST" },
    { 0x003c, EV_CYCLES, "CPU_CLK_UNHALTED.THREAD_P" },
    { 0x013c, EV_CYCLES, "CPU_CLK_UNHALTED.REF_XCLK" },
    /* Cycles in which fewer than 16 instructions or micro-operations retire: all. */
    { 0x108001c0, EV_CYCLES, "INST_RETIRED.TOTAL_CYCLES_PS" },
    { 0x108001c2, EV_CYCLES, "UOPS_RETIRED.TOTAL_CYCLES" },
    { 0x00c4, EV_BRANCHES, "BR_INST_RETIRED.ALL_BRANCHES" },
    { 0x04c4, EV_BRANCHES, "BR_INST_RETIRED.ALL_BRANCHES_PEBS" },
    { 0x01c4, EV_BRANCHES_CONDITIONAL, "BR_INST_RETIRED.CONDITIONAL" },
    { 0x10c4, EV_BRANCHES_NOT_TAKEN, "BR_INST_RETIRED.NOT_TAKEN" },
    { 0x20c4, EV_BRANCHES_TAKEN, "BR_INST_RETIRED.NEAR_TAKEN" },
    { 0x02c4, EV_CALLS, "BR_INST_RETIRED.NEAR_CALL" },
    { 0x08c4, EV_RETURNS, "BR_INST_RETIRED.NEAR_RETURN" },
    { 0x40c4, EV_FAR_BRANCHES, "BR_INST_RETIRED.FAR_BRANCH" },
    { 0x81d0, EV_LOADS, "MEM_INST_RETIRED.ALL_LOADS" },
    { 0x82d0, EV_STORES, "MEM_INST_RETIRED.ALL_STORES" },
    { 0x83d0, EV_MEMORY, "MEM_INST_RETIRED.ANY" },
};
static const Event fixed_events[FIXED] = { EV_INSTRUCTIONS, EV_CYCLES, EV_CYCLES };

/* The instruction that runs. */
typedef struct {
    bool active;
    bool user;
    uint64_t pc;
    uint32_t loads, stores;
} Instruction;

/* A counter that counts. */
typedef struct {
    uint8_t index;
    bool os, user, interrupts;
    Event event;
} Active;

struct X86Pmu {
    X86CPU *cpu;
    Instruction running;
    unsigned active_count;
    Active active[COUNTERS];
    uint64_t values[COUNTERS];
    uint64_t select[GENERAL], fixed_control;
    uint64_t global_control, global_status;
    uint64_t debug_control, offcore[2], load_latency, frontend;
    FILE *log;
    /* What the kernel asked for and the model has not: code to number of times. */
    GHashTable *unknown_events, *unknown_reads, *unknown_writes;
    uint64_t overflows, interrupts, interrupts_masked, retired[2];
    Notifier exit;
};

int x86_pmu_level;
/* In ldst_common.c.inc: accesses that helpers make. */
extern void (*tcg_pmu_memory)(CPUX86State *env, uint64_t address, unsigned size, bool store);

static void count_unknown(GHashTable *table, uint64_t code)
{
    gpointer key = GSIZE_TO_POINTER(code);
    gsize times = GPOINTER_TO_SIZE(g_hash_table_lookup(table, key));
    g_hash_table_insert(table, key, GSIZE_TO_POINTER(times + 1));
}

static int by_code(gconstpointer a, gconstpointer b)
{
    return (a > b) - (a < b);
}

static void list_unknown(FILE *log, const char *what, GHashTable *table)
{
    GList *keys = g_list_sort(g_hash_table_get_keys(table), by_code);
    for (GList *key = keys; key; key = key->next) {
        fprintf(log, "%s 0x%" PRIx64 " times %zu\n", what, (uint64_t)GPOINTER_TO_SIZE(key->data),
                GPOINTER_TO_SIZE(g_hash_table_lookup(table, key->data)));
    }
    g_list_free(keys);
}

static void finish(Notifier *notifier, void *data)
{
    X86Pmu *pmu = container_of(notifier, X86Pmu, exit);
    FILE *log = pmu->log;
    if (!log) {
        return;
    }
    fprintf(log, "retired user %" PRIu64 " kernel %" PRIu64 "\n", pmu->retired[1], pmu->retired[0]);
    fprintf(log, "overflows %" PRIu64 " interrupts %" PRIu64 " masked %" PRIu64 "\n",
            pmu->overflows, pmu->interrupts, pmu->interrupts_masked);
    list_unknown(log, "unmodelled event", pmu->unknown_events);
    list_unknown(log, "unmodelled register read", pmu->unknown_reads);
    list_unknown(log, "unmodelled register written", pmu->unknown_writes);
    fclose(log);
    pmu->log = NULL;
}

void x86_pmu_create(X86CPU *cpu)
{
    X86Pmu *pmu = g_new0(X86Pmu, 1);
    pmu->cpu = cpu;
    pmu->unknown_events = g_hash_table_new(NULL, NULL);
    pmu->unknown_reads = g_hash_table_new(NULL, NULL);
    pmu->unknown_writes = g_hash_table_new(NULL, NULL);
    pmu->global_control = MAKE_64BIT_MASK(0, GENERAL);
    if (cpu->pmu_log) {
        pmu->log = fopen(cpu->pmu_log, "w");
        if (!pmu->log) {
            error_report("failed to write the PMU's log `%s`: %s", cpu->pmu_log, strerror(errno));
            exit(1);
        }
    }
    pmu->exit.notify = finish;
    qemu_add_exit_notifier(&pmu->exit);
    cpu->env.pmu = pmu;
}

void x86_pmu_cpuid(X86CPU *cpu, uint32_t leaf, uint32_t *eax, uint32_t *ebx, uint32_t *ecx,
                   uint32_t *edx)
{
    switch (leaf) {
    case 1:
        *ecx |= CPUID_EXT_PDCM;
        break;
    case 0xa:
        /* Version 4; counters and their width; length of the list of events in EBX. */
        *eax = 4 | GENERAL << 8 | WIDTH << 16 | 7 << 24;
        *ebx = ABSENT_EVENTS;
        *ecx = 0;
        *edx = FIXED | WIDTH << 5;
        break;
    }
}

static Event find_event(X86Pmu *pmu, uint64_t select)
{
    for (unsigned i = 0; i < ARRAY_SIZE(events); i++) {
        if (events[i].select == (select & SELECT_EVENT)) {
            return events[i].event;
        }
    }
    return EV_UNKNOWN;
}

static void add_active(X86Pmu *pmu, unsigned index, Event event, bool os, bool user, bool interrupts)
{
    if (!(pmu->global_control & COUNTER_BIT(index)) || !(os || user) || event == EV_UNKNOWN) {
        return;
    }
    pmu->active[pmu->active_count++] = (Active) {
        .index = index, .os = os, .user = user, .interrupts = interrupts, .event = event,
    };
}

static void raise_level(X86Pmu *pmu, int level)
{
    if (level > x86_pmu_level) {
        x86_pmu_level = level;
        tcg_pmu_memory = level >= PMU_LEVEL_MEMORY ? x86_pmu_memory : NULL;
        tb_flush(CPU(pmu->cpu));
    }
}

/* Which counters count, after a write to a register of control. */
static void update(X86Pmu *pmu)
{
    pmu->active_count = 0;
    for (unsigned i = 0; i < GENERAL; i++) {
        uint64_t select = pmu->select[i];
        if (select & SELECT_EN) {
            add_active(pmu, i, find_event(pmu, select), select & SELECT_OS, select & SELECT_USR,
                       select & SELECT_INT);
        }
    }
    for (unsigned i = 0; i < FIXED; i++) {
        unsigned control = pmu->fixed_control >> (4 * i);
        add_active(pmu, GENERAL + i, fixed_events[i], control & 1, control & 2, control & 8);
    }
    for (unsigned i = 0; i < pmu->active_count; i++) {
        raise_level(pmu, pmu->active[i].event >= EV_LOADS ? PMU_LEVEL_MEMORY : PMU_LEVEL_INSTRUCTIONS);
    }
    /* The instruction that writes the register is counted neither before nor after. */
    pmu->running.active = false;
}

static void deliver(X86Pmu *pmu)
{
    CPUState *cs = CPU(pmu->cpu);
    bool locked = bql_locked();
    bool can_do_io = cs->neg.can_do_io;

    if (!locked) {
        bql_lock();
    }
    /* Between two instructions, and so at a moment that does not depend on the host. */
    cs->neg.can_do_io = true;
    if (apic_deliver_pmi(pmu->cpu->apic_state)) {
        pmu->interrupts++;
    } else {
        pmu->interrupts_masked++;
    }
    cs->neg.can_do_io = can_do_io;
    if (!locked) {
        bql_unlock();
    }
}

static uint64_t event_count(CPUX86State *env, const Instruction *done, Event event, uint64_t next_pc)
{
    unsigned branch = env->pmu_branch & 0xff;
    bool conditional = branch == PMU_BRANCH_CONDITIONAL;
    bool follows = next_pc == done->pc + (env->pmu_branch >> 8);

    switch (event) {
    case EV_INSTRUCTIONS:
    case EV_CYCLES:
        return 1;
    case EV_BRANCHES:
        return branch != PMU_BRANCH_NONE;
    case EV_BRANCHES_CONDITIONAL:
        return conditional;
    case EV_BRANCHES_NOT_TAKEN:
        return conditional && follows;
    case EV_BRANCHES_TAKEN:
        return branch != PMU_BRANCH_NONE && branch != PMU_BRANCH_FAR && !(conditional && follows);
    case EV_CALLS:
        return branch == PMU_BRANCH_CALL;
    case EV_RETURNS:
        return branch == PMU_BRANCH_RETURN;
    case EV_FAR_BRANCHES:
        return branch == PMU_BRANCH_FAR;
    case EV_LOADS:
        return done->loads != 0;
    case EV_STORES:
        return done->stores != 0;
    case EV_MEMORY:
        return done->loads || done->stores;
    case EV_UNKNOWN:
        break;
    }
    return 0;
}

/* The instruction before next_pc is done: counts it. */
static void retire(X86Pmu *pmu, CPUX86State *env, uint64_t next_pc)
{
    Instruction *done = &pmu->running;
    bool interrupt = false;

    done->active = false;
    pmu->retired[done->user]++;
    for (unsigned i = 0; i < pmu->active_count; i++) {
        const Active *active = &pmu->active[i];
        uint64_t *value = &pmu->values[active->index];

        if (!(done->user ? active->user : active->os)) {
            continue;
        }
        *value += event_count(env, done, active->event, next_pc);
        if (unlikely(*value >> WIDTH)) {
            *value &= MASK;
            pmu->overflows++;
            pmu->global_status |= COUNTER_BIT(active->index);
            interrupt |= active->interrupts;
            if (pmu->log) {
                fprintf(pmu->log, "overflow counter %u pc 0x%" PRIx64 " next 0x%" PRIx64 " %s\n",
                        active->index, done->pc, next_pc, done->user ? "user" : "kernel");
            }
        }
    }
    if (unlikely(interrupt)) {
        deliver(pmu);
    }
}

/* Called by translated code before each instruction. */
void helper_pmu_instruction(CPUX86State *env, uint64_t pc)
{
    X86Pmu *pmu = env->pmu;
    CPUState *cs = env_cpu(env);

    if (pmu->running.active) {
        if (env->pmu_repeats) {
            /* The next round of a string instruction: still the same one. */
            env->pmu_repeats = 0;
            return;
        }
        retire(pmu, env, pc);
    }
    if (unlikely(cs->interrupt_request & CPU_INTERRUPT_NMI) &&
        !(env->hflags2 & HF2_NMI_MASK) && (env->hflags2 & HF2_GIF_MASK)) {
        cpu_loop_exit_restore(cs, GETPC());
    }
    pmu->running = (Instruction) {
        .active = true, .user = (env->hflags & HF_CPL_MASK) == 3, .pc = pc,
    };
    env->pmu_branch = PMU_BRANCH_NONE;
    env->pmu_repeats = 0;
}

void x86_pmu_memory(CPUX86State *env, uint64_t address, unsigned size, bool store)
{
    X86Pmu *pmu = env->pmu;

    if (!pmu || !pmu->running.active) {
        return;
    }
    if (store) {
        pmu->running.stores++;
    } else {
        pmu->running.loads++;
    }
}

/* Called by translated code after each access: the size is in the low bits. */
void helper_pmu_memory(CPUX86State *env, uint64_t address, uint32_t kind)
{
    x86_pmu_memory(env, address, kind >> 1, kind & 1);
}

void x86_pmu_discard(CPUX86State *env)
{
    if (env->pmu) {
        env->pmu->running.active = false;
    }
}

/* An interrupt or exception is about to be taken. */
void x86_pmu_interrupt(CPUX86State *env, int vector, bool is_int, int error, bool is_hw)
{
    X86Pmu *pmu = env->pmu;
    bool fetch = vector == EXCP0E_PAGE && (error & PG_ERROR_I_D_MASK);

    if (!pmu || !pmu->running.active) {
        return;
    }
    if (env->pmu_repeats || !(is_int || is_hw || fetch || vector == EXCP01_DB)) {
        pmu->running.active = false;
        return;
    }
    if (is_int) {
        env->pmu_branch = PMU_BRANCH_FAR;
    }
    retire(pmu, env, env->eip);
}

bool x86_pmu_rdpmc(CPUX86State *env, uint32_t index, uint64_t *value)
{
    unsigned fixed = index & ~(1u << 30);
    if (!env->pmu) {
        return false;
    }
    if (index < GENERAL) {
        *value = env->pmu->values[index];
    } else if ((index >> 30) == 1 && fixed < FIXED) {
        *value = env->pmu->values[GENERAL + fixed];
    } else {
        return false;
    }
    return true;
}

/* Registers that hold what is written to them. */
static uint64_t *plain(X86Pmu *pmu, uint32_t msr)
{
    switch (msr) {
    case IA32_PERFEVTSEL0 ... IA32_PERFEVTSEL0 + GENERAL - 1:
        return &pmu->select[msr - IA32_PERFEVTSEL0];
    case IA32_PMC0 ... IA32_PMC0 + GENERAL - 1:
        return &pmu->values[msr - IA32_PMC0];
    case IA32_A_PMC0 ... IA32_A_PMC0 + GENERAL - 1:
        return &pmu->values[msr - IA32_A_PMC0];
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
    case PEBS_FRONTEND:
        return &pmu->frontend;
    default:
        return NULL;
    }
}

static uint64_t in_use(X86Pmu *pmu)
{
    uint64_t result = 0;
    for (unsigned i = 0; i < GENERAL; i++) {
        result |= (uint64_t)(pmu->select[i] != 0) << i;
    }
    for (unsigned i = 0; i < FIXED; i++) {
        result |= (uint64_t)(((pmu->fixed_control >> (4 * i)) & 3) != 0) << (32 + i);
    }
    return result;
}

bool x86_pmu_rdmsr(CPUX86State *env, uint32_t msr, uint64_t *value)
{
    X86Pmu *pmu = env->pmu;
    uint64_t *place;

    if (!pmu) {
        return false;
    }
    place = plain(pmu, msr);
    if (place) {
        *value = *place;
        return true;
    }
    switch (msr) {
    case IA32_PERF_CAPABILITIES:
        *value = CAPABILITY_FULL_WIDTH;
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
static bool reserved_clear(uint32_t msr, uint64_t value)
{
    switch (msr) {
    case IA32_PERFEVTSEL0 ... IA32_PERFEVTSEL0 + GENERAL - 1:
        return !(value >> 32);
    case IA32_A_PMC0 ... IA32_A_PMC0 + GENERAL - 1:
    case IA32_FIXED_CTR0 ... IA32_FIXED_CTR0 + FIXED - 1:
        return !(value & ~MASK);
    case IA32_FIXED_CTR_CTRL:
        return !(value >> (4 * FIXED));
    case IA32_PERF_GLOBAL_CTRL:
        return !(value & ~ALL_COUNTERS);
    default:
        return true;
    }
}

/* Notes what is asked of the model that it has not. */
static void note_unknown(X86Pmu *pmu, uint32_t msr, uint64_t value)
{
    bool select = msr >= IA32_PERFEVTSEL0 && msr < IA32_PERFEVTSEL0 + GENERAL;
    if (select && (value & SELECT_EN) && find_event(pmu, value) == EV_UNKNOWN) {
        count_unknown(pmu->unknown_events, value & SELECT_EVENT);
    }
    if (value && (msr == IA32_DEBUGCTL || msr == OFFCORE_RSP_0 || msr == OFFCORE_RSP_1 ||
                  msr == PEBS_FRONTEND)) {
        count_unknown(pmu->unknown_writes, msr);
    }
}

bool x86_pmu_wrmsr(CPUX86State *env, uint32_t msr, uint64_t value, bool *refused)
{
    X86Pmu *pmu = env->pmu;
    uint64_t *place;

    *refused = false;
    if (!pmu) {
        return false;
    }
    place = plain(pmu, msr);
    if (place) {
        if (!reserved_clear(msr, value)) {
            *refused = true;
            return true;
        }
        if (msr >= IA32_PMC0 && msr < IA32_PMC0 + GENERAL) {
            value = (int64_t)(int32_t)value & MASK;
        }
        note_unknown(pmu, msr, value);
        *place = value;
        if (msr == IA32_PERF_GLOBAL_CTRL || msr == IA32_FIXED_CTR_CTRL ||
            (msr >= IA32_PERFEVTSEL0 && msr < IA32_PERFEVTSEL0 + GENERAL)) {
            update(pmu);
        }
        return true;
    }
    switch (msr) {
    case IA32_PERF_GLOBAL_STATUS_RESET:
        pmu->global_status &= ~value;
        return true;
    case IA32_PERF_GLOBAL_STATUS_SET:
        pmu->global_status |= value & ALL_COUNTERS;
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

void x86_pmu_unknown_msr(CPUX86State *env, uint32_t msr, bool write)
{
    if (env->pmu) {
        count_unknown(write ? env->pmu->unknown_writes : env->pmu->unknown_reads, msr);
    }
}
