/*
 * A performance-monitoring unit for the emulated x86 processor: counting, overflows and
 * the log. The processors that the lab knows are listed below.
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
#include "pmu-state.h"

Lab lab;

static const Event fixed_events[FIXED] = { EV_INSTRUCTIONS, EV_CYCLES, EV_CYCLES };

/* By vendor, family and model of QEMU's models: Skylake-Client, Skylake-Server, Icelake-Server
 * with the model's number of Ice Lake-SP, Nehalem, Haswell with that of Haswell-EP, Penryn,
 * EPYC-Rome and EPYC-Genoa. IBS' abilities are those that such processors have. */
static const Processor processors[] = {
    { CPUID_VENDOR_INTEL_1, 6, 94, "i5-6600k", EVENTS_SKYLAKE, 4, 4, 3, 48, 3, 0, UNCORE_NONE },
    { CPUID_VENDOR_INTEL_1, 6, 85, "skylake-sp", EVENTS_SKYLAKE, 4, 4, 3, 48, 3, 0, UNCORE_SKYLAKE },
    { CPUID_VENDOR_INTEL_1, 6, 106, "i5-6600k", EVENTS_ICELAKE, 5, 8, 3, 48, 4, 0, UNCORE_NONE },
    { CPUID_VENDOR_INTEL_1, 6, 26, "xeon-e5-2618lv3", EVENTS_NEHALEM, 3, 4, 3, 48, 1, 0, UNCORE_NONE },
    { CPUID_VENDOR_INTEL_1, 6, 63, "xeon-e5-2618lv3", EVENTS_HASWELL, 3, 4, 3, 48, 2, 0, UNCORE_HASWELL },
    { CPUID_VENDOR_INTEL_1, 6, 23, "core2-x5355", EVENTS_CORE2, 2, 2, 3, 40, 0, 0, UNCORE_NONE },
    { CPUID_VENDOR_AMD_1, 0x17, 0x31, "zen3", EVENTS_ZEN, 0, 6, 0, 48, 0, 0x3ff, UNCORE_NONE },
    { CPUID_VENDOR_AMD_1, 0x19, 0x11, "zen4", EVENTS_ZEN, 0, 6, 0, 48, 0, 0xbff, UNCORE_NONE },
};

/* In ldst_common.c.inc: accesses that helpers make. */
extern void (*tcg_pmu_memory)(CPUX86State *env, uint64_t address, unsigned size, int mmu,
                              bool store);

void pmu_count_unknown(GHashTable *table, uint64_t code)
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
    FILE *log = lab.log;
    GHashTable *unknown;

    if (!log) {
        return;
    }
    fprintf(log, "retired user %" PRIu64 " kernel %" PRIu64 "\n", lab.retired[1], lab.retired[0]);
    fprintf(log, "overflows %" PRIu64 " interrupts %" PRIu64 " masked %" PRIu64 "\n",
            lab.overflows, lab.interrupts, lab.interrupts_masked);
    fprintf(log, "records %" PRIu64 " lost %" PRIu64 " delayed %" PRIu64 "\n", lab.records,
            lab.records_lost, lab.events_delayed);
    fprintf(log, "ops %" PRIu64 " filtered %" PRIu64 " fetches %" PRIu64 "\n", lab.ibs_ops,
            lab.ibs_ops_filtered, lab.ibs_fetches);
    list_unknown(log, "unmodelled event", lab.unknown_events);
    unknown = uncore_finish(log);
    if (unknown) {
        list_unknown(log, "unmodelled uncore event", unknown);
    }
    list_unknown(log, "unmodelled register read", lab.unknown_reads);
    list_unknown(log, "unmodelled register written", lab.unknown_writes);
    fclose(log);
    lab.log = NULL;
}

static const Processor *find_processor(CPUX86State *env)
{
    uint32_t version = env->cpuid_version;
    uint32_t family = (version >> 8 & 0xf) + (version >> 20 & 0xff);
    uint32_t model = (version >> 4 & 0xf) | (version >> 12 & 0xf0);

    for (unsigned i = 0; i < ARRAY_SIZE(processors); i++) {
        const Processor *known = &processors[i];
        if (known->vendor == env->cpuid_vendor1 && known->family == family && known->model == model) {
            return known;
        }
    }
    error_report("no PMU for family %u model %u: name the processor Skylake-Client, "
                 "Skylake-Server, Icelake-Server,model=106, Nehalem, Haswell-noTSX,model=63, "
                 "Penryn, EPYC-Rome or EPYC-Genoa", family, model);
    exit(1);
}

/* What all processors share, by the first one. */
static void create_lab(X86CPU *cpu, const Processor *processor)
{
    lab.machine = lab_machine_new(processor->machine);
    lab.unknown_events = g_hash_table_new(NULL, NULL);
    lab.unknown_reads = g_hash_table_new(NULL, NULL);
    lab.unknown_writes = g_hash_table_new(NULL, NULL);
    if (cpu->pmu_log) {
        lab.log = fopen(cpu->pmu_log, "w");
        if (!lab.log) {
            error_report("failed to write the PMU's log `%s`: %s", cpu->pmu_log, strerror(errno));
            exit(1);
        }
    }
    lab.exit.notify = finish;
    qemu_add_exit_notifier(&lab.exit);
    tcg_pmu_memory = x86_pmu_memory;
}

void x86_pmu_create(X86CPU *cpu)
{
    X86Pmu *pmu = g_new0(X86Pmu, 1);

    pmu->cpu = cpu;
    pmu->processor = find_processor(&cpu->env);
    if (!lab.machine) {
        create_lab(cpu, pmu->processor);
    }
    pmu->core = lab_machine_add_core(lab.machine);
    pmu->global_control = GENERAL_BITS(pmu);
    uncore_create(pmu);
    if (is_amd(pmu)) {
        amd_reset(pmu);
    }
    cpu->env.pmu = pmu;
}

void x86_pmu_cpuid(X86CPU *cpu, uint32_t leaf, uint32_t count, uint32_t *eax, uint32_t *ebx,
                   uint32_t *ecx, uint32_t *edx)
{
    X86Pmu *pmu = cpu->env.pmu;

    if (is_amd(pmu)) {
        amd_cpuid(pmu, leaf, count, eax, ebx, ecx, edx);
    } else {
        intel_cpuid(pmu, leaf, count, eax, ebx, ecx, edx);
    }
}

void pmu_cpuid_cache(uint32_t number, uint32_t *eax, uint32_t *ebx, uint32_t *ecx)
{
    /* Number 1 is the first level's cache of instructions. */
    static const uint8_t three[] = { LAB_L1D, 0, LAB_L2, LAB_LLC }, two[] = { LAB_L1D, 0, LAB_LLC };
    bool has_l2 = lab_machine_has_l2(lab.machine);
    unsigned count = has_l2 ? ARRAY_SIZE(three) : ARRAY_SIZE(two);
    unsigned level = number < count ? (has_l2 ? three : two)[number] : 0;
    uint64_t bytes;
    uint32_t ways;

    if (number >= count) {
        *eax = *ebx = *ecx = 0; /* no more caches */
    } else if (level) {
        lab_machine_level(lab.machine, level, &bytes, &ways);
        *ebx = (64 - 1) | (ways - 1) << 22;
        *ecx = bytes / 64 / ways - 1;
    }
}

Event pmu_find_event(X86Pmu *pmu, uint64_t select)
{
    if (!is_amd(pmu)) {
        select = (uint32_t)select; /* above are no parts of the event */
    }
    for (unsigned i = 0; i < ARRAY_SIZE(events); i++) {
        if (events[i].select == (select & SELECT_EVENT) &&
            (events[i].processors & pmu->processor->events)) {
            return events[i].event;
        }
    }
    return EV_UNKNOWN;
}

/* Notes an event that is asked of the model and that it has not. */
void pmu_note_select(X86Pmu *pmu, uint64_t select)
{
    if ((select & SELECT_EN) && pmu_find_event(pmu, select) == EV_UNKNOWN) {
        pmu_count_unknown(lab.unknown_events, select & SELECT_EVENT);
    }
}

uint64_t pmu_tsc(X86Pmu *pmu)
{
    CPUX86State *env = &pmu->cpu->env;
    return cpu_get_tsc(env) + env->tsc_offset;
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

void pmu_update_level(X86Pmu *pmu)
{
    unsigned level = ibs_level(pmu);

    if (uncore_on()) {
        level = PMU_LEVEL_MEMORY;
    }
    for (unsigned i = 0; i < pmu->active_count; i++) {
        bool memory = pmu->active[i].event >= EV_CYCLES;
        level = MAX(level, memory ? PMU_LEVEL_MEMORY : PMU_LEVEL_INSTRUCTIONS);
    }
    pmu->cpu->env.pmu_level = level;
}

void pmu_update(X86Pmu *pmu)
{
    pmu->active_count = 0;
    for (unsigned i = 0; i < pmu->processor->general; i++) {
        uint64_t select = pmu->select[i];
        if (select & SELECT_EN) {
            add_active(pmu, i, pmu_find_event(pmu, select), select & SELECT_OS,
                       select & SELECT_USR, select & SELECT_INT);
        }
    }
    for (unsigned i = 0; i < pmu->processor->fixed; i++) {
        unsigned control = pmu->fixed_control >> (4 * i);
        add_active(pmu, GENERAL + i, fixed_events[i], control & 1, control & 2, control & 8);
    }
    pmu->counts_cycles = false;
    for (unsigned i = 0; i < pmu->active_count; i++) {
        pmu->counts_cycles |= pmu->active[i].event == EV_CYCLES;
    }
    pmu_update_level(pmu);
    pmu->cycles = lab_machine_cycles(lab.machine, pmu->core);
    /* The instruction that writes the register is counted neither before nor after. */
    pmu->running.active = false;
}

static void deliver(X86Pmu *pmu)
{
    BQL_LOCK_GUARD();
    if (apic_deliver_pmi(pmu->cpu->apic_state, !is_amd(pmu))) {
        lab.interrupts++;
    } else {
        lab.interrupts_masked++;
    }
}

bool pmu_branch_taken(const X86Pmu *pmu)
{
    unsigned branch = pmu->cpu->env.pmu_branch;

    return branch != PMU_BRANCH_NONE && branch != PMU_BRANCH_CONDITIONAL;
}

static uint64_t event_count(X86Pmu *pmu, const Instruction *done, Event event)
{
    unsigned branch = pmu->cpu->env.pmu_branch;

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
        return branch == PMU_BRANCH_CONDITIONAL || branch == PMU_BRANCH_CONDITIONAL_TAKEN;
    case EV_BRANCHES_NOT_TAKEN:
        return branch == PMU_BRANCH_CONDITIONAL;
    case EV_BRANCHES_TAKEN:
        return pmu_branch_taken(pmu) && branch != PMU_BRANCH_FAR;
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
    case EV_ACCESSES:
        return loads->count + stores->count;
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
    case EV_DTLB_MISSES:
        return loads->walks + loads->stlb_hits + stores->walks + stores->stlb_hits;
    case EV_DTLB_WALKS:
        return loads->walks + stores->walks;
    case EV_LOAD_LATENCY:
        return loads->count && loads->slowest.latency_cycles > (pmu->load_latency & 0xffff);
    case EV_UNKNOWN:
        break;
    }
    return 0;
}

/* A counter overflowed. Whether its record waits for some more events, as hardware needs
 * time to prepare for one: those are lost, as the counter begins anew after the record. */
static bool delays(X86Pmu *pmu, const Active *active)
{
    if (!pmu->cpu->pmu_delay || !intel_uses_pebs(pmu, active)) {
        return false;
    }
    pmu->armed[active->index] = pmu->cpu->pmu_delay;
    return true;
}

/* Events of a counter whose record waits; whether it is due. */
static bool armed(X86Pmu *pmu, unsigned index, uint64_t count)
{
    uint32_t *left = &pmu->armed[index];

    count = MIN(count, *left);
    *left -= count;
    lab.events_delayed += count;
    return count && *left == 0;
}

/* Counts the instruction that ran: it is done, and next_pc follows. A bit for each active
 * counter that overflowed, and what of IBS is due. */
static unsigned retire(X86Pmu *pmu, uint64_t next_pc)
{
    const CPUX86State *env = &pmu->cpu->env;
    Instruction *done = &pmu->running;
    unsigned width = pmu->processor->width, due = 0;

    done->active = false;
    lab.retired[done->user]++;
    if (env->pmu_level >= PMU_LEVEL_MEMORY) {
        lab_machine_retire(lab.machine, pmu->core, done->loads.count, done->stores.count);
    }
    if (pmu->counts_cycles) {
        uint64_t now = lab_machine_cycles(lab.machine, pmu->core);
        done->cycles = now - pmu->cycles;
        pmu->cycles = now;
    }
    for (unsigned i = 0; i < pmu->active_count; i++) {
        const Active *active = &pmu->active[i];
        uint64_t *value = &pmu->values[active->index];

        if (done->user ? active->user : active->os) {
            uint64_t count = event_count(pmu, done, active->event);
            *value += count;
            if (unlikely(pmu->armed[active->index])) {
                due |= armed(pmu, active->index, count) ? 1u << i : 0;
            } else if (unlikely(*value >> width)) {
                *value &= MAKE_64BIT_MASK(0, width);
                due |= delays(pmu, active) ? 0 : 1u << i;
            }
        }
    }
    return due | ibs_retired(pmu, next_pc);
}

/* Between two instructions, with the processor's state in place: does what is due. */
static void handle(X86Pmu *pmu, unsigned due, uint64_t next_pc)
{
    const Instruction *done = &pmu->running;
    CPUState *cs = CPU(pmu->cpu);
    bool interrupt = false, can_do_io = cs->neg.can_do_io;

    /* The moment does not depend on the host, so time and interrupts may be touched. */
    cs->neg.can_do_io = true;
    for (unsigned i = 0; i < pmu->active_count; i++) {
        const Active *active = &pmu->active[i];
        if (!(due & 1u << i)) {
            continue;
        }
        lab.overflows++;
        if (intel_uses_pebs(pmu, active)) {
            interrupt |= intel_pebs_record(pmu, active, next_pc);
            continue;
        }
        pmu->global_status |= COUNTER_BIT(active->index);
        interrupt |= active->interrupts;
        if (lab.log) {
            fprintf(lab.log, "overflow processor %u counter %u ip 0x%" PRIx64 " next 0x%" PRIx64 " %s\n",
                    pmu->core, active->index, done->pc, next_pc, done->user ? "user" : "kernel");
        }
    }
    if (interrupt) {
        deliver(pmu);
    }
    if (due & (DUE_IBS_OP | DUE_IBS_FETCH)) {
        ibs_sample(pmu, due, next_pc);
    }
    cs->neg.can_do_io = can_do_io;
}

/* Called by translated code before each instruction. */
void helper_pmu_instruction(CPUX86State *env, uint64_t pc)
{
    X86Pmu *pmu = env->pmu;
    CPUState *cs = env_cpu(env);

    if (pmu->running.active) {
        unsigned due;
        if (env->pmu_repeats) {
            /* The next round of a string instruction: still the same one. */
            env->pmu_repeats = 0;
            return;
        }
        due = retire(pmu, pc);
        if (unlikely(due)) {
            cpu_restore_state(cs, GETPC());
            handle(pmu, due, pc);
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
    uint64_t place;

    if (!pmu || !pmu->running.active || env->pmu_level < PMU_LEVEL_MEMORY) {
        return;
    }
    accesses = store ? &pmu->running.stores : &pmu->running.loads;
    place = physical(env_cpu(env), address, mmu);
    out = lab_machine_access(lab.machine, pmu->core, place, size, store);
    if (unlikely(uncore_on())) {
        uncore_accessed(pmu, place, &out);
    }
    if (!accesses->count++ || out.latency_cycles > accesses->slowest.latency_cycles) {
        accesses->slowest = out;
        accesses->address = address;
        accesses->physical = place;
        accesses->size = size;
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
    unsigned due;

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
    due = retire(pmu, env->eip);
    if (due) {
        handle(pmu, due, env->eip);
    }
}

bool x86_pmu_rdpmc(CPUX86State *env, uint32_t index, uint64_t *value)
{
    const X86Pmu *pmu = env->pmu;
    unsigned fixed = index & ~(1u << 30);

    if (index < pmu->processor->general) {
        *value = pmu->values[index];
    } else if ((index >> 30) == 1 && fixed < pmu->processor->fixed) {
        *value = pmu->values[GENERAL + fixed];
    } else {
        return false;
    }
    return true;
}

bool x86_pmu_rdmsr(CPUX86State *env, uint32_t msr, uint64_t *value)
{
    X86Pmu *pmu = env->pmu;

    return pmu && ((is_amd(pmu) ? amd_rdmsr(pmu, msr, value) : intel_rdmsr(pmu, msr, value)) ||
                   uncore_rdmsr(pmu, msr, value));
}

bool x86_pmu_wrmsr(CPUX86State *env, uint32_t msr, uint64_t value, bool *refused)
{
    X86Pmu *pmu = env->pmu;

    *refused = false;
    return pmu && ((is_amd(pmu) ? amd_wrmsr(pmu, msr, value, refused)
                                : intel_wrmsr(pmu, msr, value, refused)) ||
                   uncore_wrmsr(pmu, msr, value));
}

void x86_pmu_unknown_msr(CPUX86State *env, uint32_t msr, bool write)
{
    if (env->pmu) {
        pmu_count_unknown(write ? lab.unknown_writes : lab.unknown_reads, msr);
    }
}
