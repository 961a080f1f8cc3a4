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
#include "exec/cpu_ldst.h"
#include "exec/exec-all.h"
#include "tcg/helper-tcg.h"
#include "hw/i386/apic.h"
#include "machine.h"
#include "pmu.h"
#include "pmu-events.h"

#define GENERAL 4
#define FIXED 3
#define COUNTERS (GENERAL + FIXED)
#define WIDTH 48
#define MASK MAKE_64BIT_MASK(0, WIDTH)
#define GENERAL_BITS MAKE_64BIT_MASK(0, GENERAL)
/* A counter's bit in the global registers: fixed counters begin at bit 32. */
#define COUNTER_BIT(index) (1ull << ((index) < GENERAL ? (index) : 32 + (index) - GENERAL))
#define ALL_COUNTERS (GENERAL_BITS | MAKE_64BIT_MASK(32, FIXED))

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
    PEBS_LD_LAT_THRESHOLD = 0x3f6,
    PEBS_FRONTEND = 0x3f7,
    IA32_A_PMC0 = 0x4c1,
    IA32_DS_AREA = 0x600,
};
/* A trap: the record has the state after the instruction. It has all registers. */
#define CAPABILITY_PEBS_TRAP (1 << 6)
#define CAPABILITY_PEBS_REGISTERS (1 << 7)
#define CAPABILITY_PEBS_FORMAT_3 (3 << 8)
#define CAPABILITY_FULL_WIDTH (1 << 13)
#define STATUS_BUFFER (1ull << 62)
#define PEBS_LATENCY (GENERAL_BITS << 32)

/* Of the architectural events: mispredicted branches. */
#define ABSENT_EVENTS (1 << 6)

#define SELECT_USR (1 << 16)
#define SELECT_OS (1 << 17)
#define SELECT_INT (1 << 20)
#define SELECT_EN (1 << 22)
/* Event, unit mask, edge, any, invert and counter mask: what names an event. */
#define SELECT_EVENT 0xffa4ffffu

static const Event fixed_events[FIXED] = { EV_INSTRUCTIONS, EV_CYCLES, EV_CYCLES };

/* The accesses of one kind that an instruction made. The outcome is that of the one
 * that took longest. */
typedef struct {
    uint32_t count;
    bool split;
    uint16_t l1d_misses, l2_misses, llc_misses, walks, stlb_hits;
    uint64_t address;
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

struct X86Pmu {
    X86CPU *cpu;
    Instruction running;
    unsigned active_count;
    Active active[COUNTERS];
    uint64_t values[COUNTERS];
    uint64_t select[GENERAL], fixed_control;
    uint64_t global_control, global_status;
    uint64_t debug_control, offcore[2], load_latency, frontend;
    uint64_t pebs_enable, debug_store;
    LabMachine *machine;
    bool counts_cycles;
    uint64_t cycles;
    FILE *log;
    /* What the kernel asked for and the model has not: code to number of times. */
    GHashTable *unknown_events, *unknown_reads, *unknown_writes;
    uint64_t overflows, interrupts, interrupts_masked, retired[2];
    uint64_t records, records_lost;
    Notifier exit;
};

/* In ldst_common.c.inc: accesses that helpers make. */
extern void (*tcg_pmu_memory)(CPUX86State *env, uint64_t address, unsigned size, int mmu,
                              bool store);

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
    fprintf(log, "records %" PRIu64 " lost %" PRIu64 "\n", pmu->records, pmu->records_lost);
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
    pmu->global_control = GENERAL_BITS;
    pmu->machine = lab_machine_new("i5-6600k");
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
    tcg_pmu_memory = x86_pmu_memory;
}

void x86_pmu_cpuid(X86CPU *cpu, uint32_t leaf, uint32_t *eax, uint32_t *ebx, uint32_t *ecx,
                   uint32_t *edx)
{
    switch (leaf) {
    case 1:
        *ecx |= CPUID_EXT_PDCM | CPUID_EXT_DTES64;
        *edx |= CPUID_DTS;
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

void x86_pmu_cpuid_cache(X86CPU *cpu, uint32_t count, uint32_t *ebx, uint32_t *ecx)
{
    /* Number 1 is the first level's cache of instructions. */
    static const uint8_t levels[] = { LAB_L1D, 0, LAB_L2, LAB_LLC };
    uint64_t bytes;
    uint32_t ways;

    if (count < ARRAY_SIZE(levels) && levels[count]) {
        lab_machine_level(cpu->env.pmu->machine, levels[count], &bytes, &ways);
        *ebx = (64 - 1) | (ways - 1) << 22;
        *ecx = bytes / 64 / ways - 1;
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

/* Which counters count, after a write to a register of control. */
static void update(X86Pmu *pmu)
{
    CPUX86State *env = &pmu->cpu->env;

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
    env->pmu_level = PMU_LEVEL_NONE;
    pmu->counts_cycles = false;
    for (unsigned i = 0; i < pmu->active_count; i++) {
        Event event = pmu->active[i].event;
        unsigned level = event >= EV_CYCLES ? PMU_LEVEL_MEMORY : PMU_LEVEL_INSTRUCTIONS;
        env->pmu_level = MAX(env->pmu_level, level);
        pmu->counts_cycles |= event == EV_CYCLES;
    }
    pmu->cycles = lab_machine_cycles(pmu->machine);
    /* The instruction that writes the register is counted neither before nor after. */
    pmu->running.active = false;
}

static void deliver(X86Pmu *pmu)
{
    bool locked = bql_locked();

    if (!locked) {
        bql_lock();
    }
    if (apic_deliver_pmi(pmu->cpu->apic_state)) {
        pmu->interrupts++;
    } else {
        pmu->interrupts_masked++;
    }
    if (!locked) {
        bql_unlock();
    }
}

static uint64_t event_count(X86Pmu *pmu, const Instruction *done, Event event, uint64_t next_pc)
{
    const CPUX86State *env = &pmu->cpu->env;
    unsigned branch = env->pmu_branch & 0xff;
    bool conditional = branch == PMU_BRANCH_CONDITIONAL;
    bool follows = next_pc == done->pc + (env->pmu_branch >> 8);

    const Accesses *loads = &done->loads, *stores = &done->stores;
    unsigned source = loads->count ? loads->slowest.source : 0;

    switch (event) {
    case EV_INSTRUCTIONS:
        return 1;
    case EV_CYCLES:
        return done->cycles;
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
        return loads->count != 0;
    case EV_STORES:
        return stores->count != 0;
    case EV_MEMORY:
        return loads->count || stores->count;
    case EV_L1D_HIT:
        return source == LAB_L1D;
    case EV_L2_HIT:
        return source == LAB_L2;
    case EV_LLC_HIT:
        return source == LAB_LLC;
    case EV_L1D_MISS:
        return source > LAB_L1D;
    case EV_L2_MISS:
        return source > LAB_L2;
    case EV_LLC_MISS:
        return source > LAB_LLC;
    case EV_WALK_LOADS:
        return loads->walks != 0;
    case EV_WALK_STORES:
        return stores->walks != 0;
    case EV_SPLIT_LOADS:
        return loads->split;
    case EV_SPLIT_STORES:
        return stores->split;
    case EV_L1D_LINES:
        return loads->l1d_misses + stores->l1d_misses;
    case EV_LLC_LOOKUPS:
        return loads->l2_misses + stores->l2_misses;
    case EV_LLC_LINES:
        return loads->llc_misses + stores->llc_misses;
    case EV_DTLB_LOAD_WALKS:
        return loads->walks;
    case EV_DTLB_LOAD_STLB_HITS:
        return loads->stlb_hits;
    case EV_DTLB_STORE_WALKS:
        return stores->walks;
    case EV_DTLB_STORE_STLB_HITS:
        return stores->stlb_hits;
    case EV_LOAD_LATENCY:
        return loads->count && loads->slowest.latency_cycles > (pmu->load_latency & 0xffff);
    case EV_UNKNOWN:
        break;
    }
    return 0;
}

/* Counts the instruction that ran: it is done, and next_pc follows. Which of the active
 * counters overflowed. */
static unsigned retire(X86Pmu *pmu, uint64_t next_pc)
{
    const CPUX86State *env = &pmu->cpu->env;
    Instruction *done = &pmu->running;
    unsigned overflowed = 0;

    done->active = false;
    pmu->retired[done->user]++;
    if (env->pmu_level >= PMU_LEVEL_MEMORY) {
        lab_machine_retire(pmu->machine, done->loads.count, done->stores.count);
    }
    if (pmu->counts_cycles) {
        uint64_t now = lab_machine_cycles(pmu->machine);
        done->cycles = now - pmu->cycles;
        pmu->cycles = now;
    }
    for (unsigned i = 0; i < pmu->active_count; i++) {
        const Active *active = &pmu->active[i];
        uint64_t *value = &pmu->values[active->index];

        if (done->user ? active->user : active->os) {
            *value += event_count(pmu, done, active->event, next_pc);
            if (unlikely(*value >> WIDTH)) {
                *value &= MASK;
                overflowed |= 1u << i;
            }
        }
    }
    return overflowed;
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
#define PEBS_RECORD 200

/* Writes the record of an overflow of a counter. Whether the buffer's threshold is reached. */
static bool write_record(X86Pmu *pmu, const Active *active, uint64_t next_pc)
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
    int mmu = cpu_mmu_index_kernel(env);
    uint64_t ds = pmu->debug_store;
    uint64_t index = cpu_ldq_le_mmuidx_ra(env, ds + DS_PEBS_INDEX, mmu, 0);
    uint64_t end = cpu_ldq_le_mmuidx_ra(env, ds + DS_PEBS_END, mmu, 0);
    uint64_t threshold = cpu_ldq_le_mmuidx_ra(env, ds + DS_PEBS_THRESHOLD, mmu, 0);
    uint64_t reset = cpu_ldq_le_mmuidx_ra(env, ds + DS_PEBS_RESET + 8 * active->index, mmu, 0);
    uint64_t record[PEBS_RECORD / 8] = { cpu_compute_eflags(env), next_pc };

    pmu->values[active->index] = reset & MASK;
    if (index + PEBS_RECORD > end) {
        pmu->records_lost++;
        return true;
    }
    for (unsigned i = 0; i < ARRAY_SIZE(order); i++) {
        record[2 + i] = env->regs[order[i]];
    }
    record[18] = COUNTER_BIT(active->index);
    if (accesses->count) {
        record[19] = accesses->address;
        record[20] = data_source(active->event, accesses);
        record[21] = latency ? accesses->slowest.latency_cycles : 0;
    }
    record[22] = done->pc;
    record[24] = cpu_get_tsc(env) + env->tsc_offset;
    for (unsigned i = 0; i < ARRAY_SIZE(record); i++) {
        cpu_stq_le_mmuidx_ra(env, index + 8 * i, record[i], mmu, 0);
    }
    index += PEBS_RECORD;
    cpu_stq_le_mmuidx_ra(env, ds + DS_PEBS_INDEX, index, mmu, 0);
    pmu->records++;
    if (pmu->log) {
        fprintf(pmu->log, "record counter %u ip 0x%" PRIx64 " address 0x%" PRIx64 " source 0x%" PRIx64
                " latency %" PRIu64 " tsc %" PRIu64 " %s\n", active->index, record[22], record[19],
                record[20], record[21], record[24], done->user ? "user" : "kernel");
    }
    return index >= threshold;
}

/* Between two instructions, with the processor's state in place: does what overflows ask for. */
static void overflow(X86Pmu *pmu, unsigned overflowed, uint64_t next_pc)
{
    const Instruction *done = &pmu->running;
    CPUState *cs = CPU(pmu->cpu);
    bool interrupt = false, can_do_io = cs->neg.can_do_io;

    /* The moment does not depend on the host, so time and interrupts may be touched. */
    cs->neg.can_do_io = true;
    for (unsigned i = 0; i < pmu->active_count; i++) {
        const Active *active = &pmu->active[i];
        if (!(overflowed & 1u << i)) {
            continue;
        }
        pmu->overflows++;
        if (active->index < GENERAL && (pmu->pebs_enable & COUNTER_BIT(active->index))) {
            if (write_record(pmu, active, next_pc)) {
                pmu->global_status |= STATUS_BUFFER;
                interrupt = true;
            }
            continue;
        }
        pmu->global_status |= COUNTER_BIT(active->index);
        interrupt |= active->interrupts;
        if (pmu->log) {
            fprintf(pmu->log, "overflow counter %u ip 0x%" PRIx64 " next 0x%" PRIx64 " %s\n",
                    active->index, done->pc, next_pc, done->user ? "user" : "kernel");
        }
    }
    if (interrupt) {
        deliver(pmu);
    }
    cs->neg.can_do_io = can_do_io;
}

/* Called by translated code before each instruction. */
void helper_pmu_instruction(CPUX86State *env, uint64_t pc)
{
    X86Pmu *pmu = env->pmu;
    CPUState *cs = env_cpu(env);

    if (pmu->running.active) {
        unsigned overflowed;
        if (env->pmu_repeats) {
            /* The next round of a string instruction: still the same one. */
            env->pmu_repeats = 0;
            return;
        }
        overflowed = retire(pmu, pc);
        if (unlikely(overflowed)) {
            cpu_restore_state(cs, GETPC());
            overflow(pmu, overflowed, pc);
            cpu_loop_exit_noexc(cs);
        }
    }
    if (unlikely(cs->interrupt_request & CPU_INTERRUPT_NMI) &&
        !(env->hflags2 & HF2_NMI_MASK) && (env->hflags2 & HF2_GIF_MASK)) {
        cpu_loop_exit_restore(cs, GETPC());
    }
    pmu->running.active = true;
    pmu->running.user = (env->hflags & HF_CPL_MASK) == 3;
    pmu->running.pc = pc;
    if (pmu->running.loads.count) {
        memset(&pmu->running.loads, 0, sizeof(Accesses));
    }
    if (pmu->running.stores.count) {
        memset(&pmu->running.stores, 0, sizeof(Accesses));
    }
    env->pmu_branch = PMU_BRANCH_NONE;
    env->pmu_repeats = 0;
}

/* The physical address of an access just made. */
static uint64_t physical(CPUState *cs, uint64_t address, int mmu)
{
    uintptr_t mask = cs->neg.tlb.f[mmu].mask >> CPU_TLB_ENTRY_BITS;
    uintptr_t index = (address >> TARGET_PAGE_BITS) & mask;
    uint64_t page = cs->neg.tlb.d[mmu].fulltlb[index].phys_addr;
    return (page & TARGET_PAGE_MASK) | (address & ~TARGET_PAGE_MASK);
}

void x86_pmu_memory(CPUX86State *env, uint64_t address, unsigned size, int mmu, bool store)
{
    X86Pmu *pmu = env->pmu;
    Accesses *accesses;
    LabOutcome out;

    if (!pmu || !pmu->running.active || env->pmu_level < PMU_LEVEL_MEMORY) {
        return;
    }
    accesses = store ? &pmu->running.stores : &pmu->running.loads;
    out = lab_machine_access(pmu->machine, physical(env_cpu(env), address, mmu), size, store);
    if (!accesses->count++ || out.latency_cycles > accesses->slowest.latency_cycles) {
        accesses->slowest = out;
        accesses->address = address;
    }
    accesses->split |= (address & 63) + size > 64;
    accesses->l1d_misses += out.l1d_misses;
    accesses->l2_misses += out.l2_misses;
    accesses->llc_misses += out.llc_misses;
    accesses->walks += out.walks;
    accesses->stlb_hits += out.dtlb_misses - out.walks;
}

/* Called by translated code after each access: whether it stores, and how. */
void helper_pmu_memory(CPUX86State *env, uint64_t address, uint32_t kind)
{
    MemOpIdx oi = kind >> 1;
    x86_pmu_memory(env, address, memop_size(get_memop(oi)), get_mmuidx(oi), kind & 1);
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
    unsigned overflowed;

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
    overflowed = retire(pmu, env->eip);
    if (overflowed) {
        overflow(pmu, overflowed, env->eip);
    }
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
    case IA32_PEBS_ENABLE:
        return &pmu->pebs_enable;
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
        *value = CAPABILITY_PEBS_TRAP | CAPABILITY_PEBS_REGISTERS | CAPABILITY_PEBS_FORMAT_3 |
                 CAPABILITY_FULL_WIDTH;
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
    case IA32_PEBS_ENABLE:
        return !(value & ~(GENERAL_BITS | PEBS_LATENCY));
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
