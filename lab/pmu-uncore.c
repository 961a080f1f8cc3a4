/*
 * Counters outside the cores, as Haswell-EP and Skylake-SP have them: the C-boxes (CHA on the
 * latter), which are slices of the last-level cache, by registers of the processor; channels
 * of memory, by registers in the configuration space of PCI devices (`lab-imc`; `lab-ubox`
 * tells the driver which socket's they are, `lab-capid` how many slices there are). Intel's
 * "Xeon E5 v3 uncore performance monitoring" and "Xeon Processor Scalable Memory Family
 * uncore performance monitoring" name registers and events.
 *
 * Devices' transfers of data to and from memory (DMA) are told by system/physmem.c. They
 * reach the modelled caches while a counter here is on, as the cores' accesses do. The
 * model belongs to the thread that runs the processors; a transfer of another thread waits
 * for that one.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "qemu/osdep.h"
#include "qemu/notify.h"
#include "qemu/error-report.h"
#include "qapi/error.h"
#include "qemu/thread.h"
#include "cpu.h"
#include "exec/memory.h"
#include "hw/pci/pci_device.h"
#include "pmu-state.h"
#include "pmu-uncore.h"

enum {
    C0_BOX_CTL = 0xe00, /* then four event selects, two filters, the status, four counters */
    C_SELECT = 1,
    C_FILTER = 5,
    C_STATUS = 7,
    C_COUNTER = 8,
    C_STEP = 0x10,
    C_MOST = 28,
};
/* Kinds of request as Haswell-EP's filters name them, and the thread that stands for devices. */
enum { OPCODE_READ = 0x19e, OPCODE_WRITE = 0x1c8, THREAD_OF_DEVICES = 0x3e };
/* Skylake-SP's TOR_INSERTS: the unit mask says who asks and with what outcome. */
enum { TOR_INSERTS = 0x35, FROM_CORES = 1 << 8, FROM_DEVICES = 1 << 10, HITS = 1 << 12, MISSES = 1 << 13 };
/* Its filter: of which memory, and for which of two kinds of request. Memory is local here,
 * and none is a cache of other memory ("near"). */
enum { OF_LOCAL = 1 << 1, ANY_OPCODE = 1 << 3, NOT_NEAR = 1 << 5, FIRST_OPCODE = 9, SECOND_OPCODE = 19 };
enum { OPCODE_RDCUR = 0x21e, OPCODE_ITOM = 0x248 };

/* What happens to a line at a box or a channel. */
typedef enum {
    DEVICE_READ_HIT,
    DEVICE_READ_MISS,
    DEVICE_WRITE_HIT,
    DEVICE_WRITE_MISS,
    CORE_MISS,
    WRITEBACK,
    HAPPENINGS,
} Happening;

/* A channel of memory. */
struct LabImc {
    PCIDevice parent_obj;
    Box box;
};
#define TYPE_LAB_IMC "lab-imc"
#define TYPE_LAB_UBOX "lab-ubox"
#define TYPE_LAB_CAPID "lab-capid"
OBJECT_DECLARE_SIMPLE_TYPE(LabImc, LAB_IMC)

/* A transfer that waits. */
typedef struct {
    uint64_t address, bytes;
    bool store;
    int port; /* of I/O, or -1 */
} Transfer;

static struct {
    UncoreKind kind;
    Box boxes[C_MOST];
    unsigned box_count, channel_count;
    LabImc *channels[8];
    bool on;
    /* Bytes of each core's traffic with memory that were passed on. */
    uint64_t core_read[64], core_written[64];
    /* Everything that happened while a counter was on; the part of the lines written back
     * that devices pushed out. */
    uint64_t happened[HAPPENINGS], pushed;
    GHashTable *unknown;
    /* Bytes of each device, in all. Below the lock, as the transfers that wait. */
    QemuMutex lock;
    GHashTable *read_bytes, *written_bytes;
    GArray *waiting;
    int waits;
} uncore;

/* In system/physmem.c: a device moves data. */
extern void (*lab_dma)(AddressSpace *as, hwaddr address, hwaddr bytes, bool store);

/* Where an address belongs among so many. Real hashes are not published; this one is
 * even for steps of any power of two. */
static unsigned place_of(uint64_t address, unsigned count)
{
    uint64_t line = address / 64;

    line ^= line >> 7 ^ line >> 13 ^ line >> 19 ^ line >> 25;
    return count ? line % count : 0;
}

/* Whether a slice of Skylake-SP counts what happened: TOR_INSERTS. Of cores' requests only
 * misses of any kind are known. */
static bool cha_counts(const Box *box, uint64_t select, Happening what)
{
    uint32_t filter = box->filters[1];
    bool missed = what == CORE_MISS || what == DEVICE_READ_MISS || what == DEVICE_WRITE_MISS;
    bool reads = what == DEVICE_READ_HIT || what == DEVICE_READ_MISS;
    uint32_t opcode = what == CORE_MISS ? 0 : reads ? OPCODE_RDCUR : OPCODE_ITOM;

    if ((select & 0xff) != TOR_INSERTS || what == WRITEBACK || !(filter & OF_LOCAL) ||
        !(filter & NOT_NEAR)) {
        return false;
    }
    return (select & (missed ? MISSES : HITS)) &&
           (select & (what == CORE_MISS ? FROM_CORES : FROM_DEVICES)) &&
           ((filter & ANY_OPCODE) ||
            (opcode && ((filter >> FIRST_OPCODE & 0x3ff) == opcode ||
                        (filter >> SECOND_OPCODE & 0x3ff) == opcode)));
}

static bool cha_models(uint64_t select)
{
    uint64_t known = FROM_CORES | FROM_DEVICES | HITS | MISSES;

    return (select & 0xff) == TOR_INSERTS && !(select & 0xff00 & ~known) &&
           !((select & FROM_CORES) && (select & HITS));
}

/* Whether a C-box counts what happened: TOR_INSERTS by opcode, all misses of local and of
 * remote memory, LLC_VICTIMS. */
static bool box_counts(const Box *box, uint64_t select, Happening what)
{
    unsigned opcode = box->filters[1] >> 20 & 0x1ff, thread = box->filters[0] & 0x3f;
    bool of_thread = !(select & UNCORE_TID) || thread == THREAD_OF_DEVICES;

    if (uncore.kind == UNCORE_SKYLAKE) {
        return cha_counts(box, select, what);
    }
    switch (select & 0xffff) {
    case 0x0135:
        return of_thread &&
               ((opcode == OPCODE_READ && (what == DEVICE_READ_HIT || what == DEVICE_READ_MISS)) ||
                (opcode == OPCODE_WRITE && (what == DEVICE_WRITE_HIT || what == DEVICE_WRITE_MISS)));
    case 0x0335:
        return of_thread && ((opcode == OPCODE_READ && what == DEVICE_READ_MISS) ||
                             (opcode == OPCODE_WRITE && what == DEVICE_WRITE_MISS));
    case 0x2a35:
        return what == CORE_MISS || what == DEVICE_READ_MISS || what == DEVICE_WRITE_MISS;
    case 0x0137:
        return what == WRITEBACK;
    default:
        return false;
    }
}

/* Whether a channel counts it: CAS commands that read and that write. A device's write of a
 * whole line reads nothing. */
static bool channel_counts(uint64_t select, Happening what)
{
    switch (select & 0xffff) {
    case 0x0304:
        return what == CORE_MISS || what == DEVICE_READ_MISS;
    case 0x0c04:
        return what == WRITEBACK;
    default:
        return false;
    }
}

void uncore_note(uint64_t select)
{
    pmu_count_unknown(uncore.unknown, select & ~(uint64_t)UNCORE_ENABLE);
}

static void note_select(uint64_t select, bool channel)
{
    static const uint16_t known[] = { 0x0135, 0x0335, 0x2a35, 0x8a35, 0x0137, 0 };
    static const uint16_t known_of_channels[] = { 0x0304, 0x0c04, 0 };
    const uint16_t *list = channel ? known_of_channels : known;
    bool modelled = false;

    if (!(select & UNCORE_ENABLE)) {
        return;
    }
    for (; *list; list++) {
        modelled |= *list == (select & 0xffff);
    }
    if (!channel && uncore.kind == UNCORE_SKYLAKE) {
        modelled = cha_models(select);
    }
    if (!modelled || (select & UNCORE_SHAPES)) {
        uncore_note(select);
    }
}

static void happen(Happening what, uint64_t address, uint64_t times)
{
    Box *box = &uncore.boxes[place_of(address, uncore.box_count)];
    LabImc *channel = uncore.channels[place_of(address, uncore.channel_count)];

    uncore.happened[what] += times;
    for (unsigned i = 0; i < 4; i++) {
        if (box_runs(box, i) && box_counts(box, box->select[i], what)) {
            box->counters[i] = (box->counters[i] + times) & COUNTER_MASK;
        }
        if (channel && box_runs(&channel->box, i) && channel_counts(channel->box.select[i], what)) {
            channel->box.counters[i] = (channel->box.counters[i] + times) & COUNTER_MASK;
        }
    }
}

/* Whole lines from the first to the last byte. */
static void transfer(const Transfer *moved)
{
    uint64_t address = moved->address & ~63ull, end = moved->address + moved->bytes;

    for (; address < end; address += 64) {
        LabDeviceOutcome out = lab_machine_device(lab.machine, address, moved->store);
        happen((moved->store ? DEVICE_WRITE_HIT : DEVICE_READ_HIT) + out.missed, address, 1);
        iio_traffic(moved->port, 64 * ((out.missed && !moved->store) + out.writebacks));
        if (out.writebacks) {
            happen(WRITEBACK, address, 1);
            uncore.pushed++;
        }
    }
}

/* Transfers that other threads began. */
static void take_waiting(void)
{
    if (likely(!qatomic_read(&uncore.waits))) {
        return;
    }
    QEMU_LOCK_GUARD(&uncore.lock);
    for (unsigned i = 0; i < uncore.waiting->len; i++) {
        transfer(&g_array_index(uncore.waiting, Transfer, i));
    }
    g_array_set_size(uncore.waiting, 0);
    qatomic_set(&uncore.waits, 0);
}

static void add_bytes(GHashTable *table, const char *name, uint64_t bytes)
{
    uint64_t before = GPOINTER_TO_SIZE(g_hash_table_lookup(table, name));
    g_hash_table_insert(table, g_strdup(name), GSIZE_TO_POINTER(before + bytes));
}

/* A device on a bus moves data; on this machine each has its own view of memory. */
static void on_dma(AddressSpace *as, hwaddr address, hwaddr bytes, bool store)
{
    if (!as->root || !as->root->name || strcmp(as->root->name, "bus master container")) {
        return;
    }
    Transfer next = { address, bytes, store, -1 };
    QEMU_LOCK_GUARD(&uncore.lock);
    if (uncore.kind == UNCORE_SKYLAKE) {
        next.port = iio_moved(container_of(as, PCIDevice, bus_master_as), address, bytes, store);
    }
    add_bytes(store ? uncore.written_bytes : uncore.read_bytes, as->name, bytes);
    if (qatomic_read(&uncore.on)) {
        g_array_append_val(uncore.waiting, next);
        qatomic_set(&uncore.waits, 1);
    }
}

/* Passes a core's traffic with memory since the last time on, as of this address. */
static void pass_on(X86Pmu *pmu, uint64_t address, bool counts)
{
    uint64_t read, written;
    uint64_t *seen_read = &uncore.core_read[pmu->core], *seen_written = &uncore.core_written[pmu->core];

    lab_machine_traffic(lab.machine, pmu->core, &read, &written);
    if (counts && read != *seen_read) {
        happen(CORE_MISS, address, (read - *seen_read) / 64);
    }
    if (counts && written != *seen_written) {
        happen(WRITEBACK, address, (written - *seen_written) / 64);
    }
    *seen_read = read;
    *seen_written = written;
}

bool uncore_on(void)
{
    return uncore.on;
}

void uncore_accessed(X86Pmu *pmu, uint64_t address, const LabOutcome *out)
{
    take_waiting();
    if (out->llc_misses || out->l2_misses) {
        pass_on(pmu, address, true);
    }
}

/* Everything so far: what a reader of the counters should find. */
static void log_sums(const char *what)
{
    const uint64_t *n = uncore.happened;

    if (lab.log) {
        fprintf(lab.log, "uncore %s device_reads %" PRIu64 " device_read_misses %" PRIu64
                " device_writes %" PRIu64 " device_write_misses %" PRIu64 " core_misses %" PRIu64
                " writebacks %" PRIu64 " pushed %" PRIu64 "\n", what,
                n[DEVICE_READ_HIT] + n[DEVICE_READ_MISS], n[DEVICE_READ_MISS],
                n[DEVICE_WRITE_HIT] + n[DEVICE_WRITE_MISS], n[DEVICE_WRITE_MISS], n[CORE_MISS],
                n[WRITEBACK], uncore.pushed);
        WITH_QEMU_LOCK_GUARD(&uncore.lock) {
            iio_log(lab.log);
        }
        fflush(lab.log);
    }
}

/* Some counter was switched on or off. */
static void switch_uncore(void)
{
    bool on = false;
    CPUState *cs;

    for (unsigned b = 0; b < C_MOST; b++) {
        for (unsigned i = 0; i < 4; i++) {
            on |= box_runs(&uncore.boxes[b], i);
        }
    }
    for (unsigned c = 0; c < uncore.channel_count; c++) {
        for (unsigned i = 0; i < 4; i++) {
            on |= box_runs(&uncore.channels[c]->box, i);
        }
    }
    if (on == uncore.on) {
        return;
    }
    if (!on) {
        take_waiting();
    }
    CPU_FOREACH(cs) {
        pass_on(X86_CPU(cs)->env.pmu, 0, !on);
    }
    qatomic_set(&uncore.on, on);
    log_sums(on ? "begins" : "ends");
    CPU_FOREACH(cs) {
        pmu_update_level(X86_CPU(cs)->env.pmu);
    }
}

void box_control(Box *box, uint64_t value)
{
    if (value & BOX_RESET_CONTROL) {
        memset(box->select, 0, sizeof(box->select));
    }
    if (value & BOX_RESET_COUNTERS) {
        memset(box->counters, 0, sizeof(box->counters));
    }
    box->control = value & ~(uint64_t)(BOX_RESET_CONTROL | BOX_RESET_COUNTERS);
}

static uint64_t *box_register(uint32_t msr)
{
    uint32_t place = msr - C0_BOX_CTL;
    Box *box = &uncore.boxes[place / C_STEP % C_MOST];

    switch (place % C_STEP) {
    case C_SELECT ... C_SELECT + 3:
        return &box->select[place % C_STEP - C_SELECT];
    case C_FILTER ... C_FILTER + 1:
        return &box->filters[place % C_STEP - C_FILTER];
    case C_COUNTER ... C_COUNTER + 3:
        return &box->counters[place % C_STEP - C_COUNTER];
    case 0:
        return &box->control;
    default:
        return NULL;
    }
}

static bool has(X86Pmu *pmu, uint32_t msr)
{
    return pmu->processor->uncore && msr >= C0_BOX_CTL && msr < C0_BOX_CTL + C_MOST * C_STEP;
}

bool uncore_rdmsr(X86Pmu *pmu, uint32_t msr, uint64_t *value)
{
    uint64_t *place;

    if (pmu->processor->uncore == UNCORE_SKYLAKE) {
        QEMU_LOCK_GUARD(&uncore.lock);
        if (iio_rdmsr(msr, value)) {
            return true;
        }
    }
    if (!has(pmu, msr)) {
        return false;
    }
    take_waiting();
    place = box_register(msr);
    *value = place ? *place : 0;
    if ((msr - C0_BOX_CTL) % C_STEP >= C_COUNTER && uncore.on) {
        log_sums("read");
    }
    return true;
}

bool uncore_wrmsr(X86Pmu *pmu, uint32_t msr, uint64_t value)
{
    uint64_t *place;
    uint32_t number = (msr - C0_BOX_CTL) % C_STEP;

    if (pmu->processor->uncore == UNCORE_SKYLAKE) {
        QEMU_LOCK_GUARD(&uncore.lock);
        if (iio_wrmsr(msr, value)) {
            return true;
        }
    }
    if (!has(pmu, msr)) {
        return false;
    }
    take_waiting();
    place = box_register(msr);
    if (number == 0) {
        box_control(&uncore.boxes[(msr - C0_BOX_CTL) / C_STEP], value);
    } else if (place) {
        *place = number >= C_COUNTER ? value & COUNTER_MASK : value;
    }
    if (number >= C_SELECT && number < C_FILTER) {
        note_select(value, false);
    }
    switch_uncore();
    return true;
}

void uncore_create(X86Pmu *pmu)
{
    if (!pmu->processor->uncore) {
        return;
    }
    uncore.kind = pmu->processor->uncore;
    if (!uncore.box_count++) {
        qemu_mutex_init(&uncore.lock);
        uncore.unknown = g_hash_table_new(NULL, NULL);
        uncore.read_bytes = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
        uncore.written_bytes = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
        uncore.waiting = g_array_new(false, false, sizeof(Transfer));
        lab_dma = on_dma;
    }
}

static void list_bytes(FILE *log, const char *what, GHashTable *table)
{
    GList *names = g_list_sort(g_hash_table_get_keys(table), (GCompareFunc)strcmp);
    for (GList *name = names; name; name = name->next) {
        fprintf(log, "dma %s %s bytes %zu\n", (char *)name->data, what,
                GPOINTER_TO_SIZE(g_hash_table_lookup(table, name->data)));
    }
    g_list_free(names);
}

GHashTable *uncore_finish(FILE *log)
{
    if (uncore.box_count) {
        list_bytes(log, "read", uncore.read_bytes);
        list_bytes(log, "written", uncore.written_bytes);
        iio_log(log);
    }
    return uncore.unknown;
}

/* The registers of a channel lie at these places: counters of eight bytes, selects of
 * four, the control. */
enum { IMC_COUNTERS = 0xa0, IMC_SELECTS = 0xd8, IMC_CONTROL = 0xf4, IMC_END = 0xf8 };

static uint32_t imc_read(PCIDevice *device, uint32_t address, int size)
{
    Box *box = &LAB_IMC(device)->box;

    if (address >= IMC_COUNTERS && address + size <= IMC_COUNTERS + sizeof(box->counters)) {
        uint32_t value = 0;
        take_waiting();
        memcpy(&value, (char *)box->counters + (address - IMC_COUNTERS), size);
        return value;
    }
    if (size == 4 && address >= IMC_SELECTS && address < IMC_SELECTS + 16) {
        return box->select[(address - IMC_SELECTS) / 4];
    }
    if (size == 4 && address == IMC_CONTROL) {
        return box->control;
    }
    return pci_default_read_config(device, address, size);
}

static void imc_write(PCIDevice *device, uint32_t address, uint32_t value, int size)
{
    Box *box = &LAB_IMC(device)->box;

    if (address < IMC_COUNTERS || address >= IMC_END) {
        pci_default_write_config(device, address, value, size);
        return;
    }
    take_waiting();
    if (address + size <= IMC_COUNTERS + sizeof(box->counters)) {
        memcpy((char *)box->counters + (address - IMC_COUNTERS), &value, size);
    } else if (size == 4 && address >= IMC_SELECTS && address < IMC_SELECTS + 16) {
        box->select[(address - IMC_SELECTS) / 4] = value;
        note_select(value, true);
    } else if (size == 4 && address == IMC_CONTROL) {
        box_control(box, value);
    }
    switch_uncore();
}

static void imc_realize(PCIDevice *device, Error **errp)
{
    /* The first two channels of the first controller. On Skylake-SP the driver knows them by
     * their place, too: functions 2 and 6 of device 10. */
    static const uint16_t numbers[][2] = {
        [UNCORE_HASWELL] = { 0x2fb0, 0x2fb1 }, [UNCORE_SKYLAKE] = { 0x2042, 0x2046 },
    };

    if (!uncore.box_count || uncore.channel_count >= 2) {
        error_setg(errp, "a channel of memory needs a server's processor, and there are two at most");
        return;
    }
    pci_config_set_device_id(device->config, numbers[uncore.kind][uncore.channel_count]);
    uncore.channels[uncore.channel_count++] = LAB_IMC(device);
}

static void imc_class_init(ObjectClass *class, void *data)
{
    PCIDeviceClass *k = PCI_DEVICE_CLASS(class);

    k->realize = imc_realize;
    k->config_read = imc_read;
    k->config_write = imc_write;
    k->vendor_id = PCI_VENDOR_ID_INTEL;
    k->class_id = PCI_CLASS_OTHERS;
    DEVICE_CLASS(class)->desc = "counters of a channel of memory";
}

static void ubox_realize(PCIDevice *device, Error **errp)
{
    pci_config_set_device_id(device->config, uncore.kind == UNCORE_SKYLAKE ? 0x2014 : 0x2f1e);
}

/* Its registers are zero: this bus is of node 0, and that is socket 0. */
static void ubox_class_init(ObjectClass *class, void *data)
{
    PCIDeviceClass *k = PCI_DEVICE_CLASS(class);

    k->realize = ubox_realize;
    k->vendor_id = PCI_VENDOR_ID_INTEL;
    k->class_id = PCI_CLASS_OTHERS;
    DEVICE_CLASS(class)->desc = "socket of the memory channels";
}

/* A bit for each slice. */
static void capid_realize(PCIDevice *device, Error **errp)
{
    pci_set_long(device->config + 0x9c, MAKE_64BIT_MASK(0, uncore.box_count));
}

static void capid_class_init(ObjectClass *class, void *data)
{
    PCIDeviceClass *k = PCI_DEVICE_CLASS(class);

    k->realize = capid_realize;
    k->vendor_id = PCI_VENDOR_ID_INTEL;
    k->device_id = 0x2083;
    k->class_id = PCI_CLASS_OTHERS;
    DEVICE_CLASS(class)->desc = "number of slices of the last-level cache, of Skylake-SP";
}

static const TypeInfo types[] = {
    {
        .name = TYPE_LAB_IMC,
        .parent = TYPE_PCI_DEVICE,
        .instance_size = sizeof(LabImc),
        .class_init = imc_class_init,
        .interfaces = (InterfaceInfo[]) { { INTERFACE_CONVENTIONAL_PCI_DEVICE }, { } },
    },
    {
        .name = TYPE_LAB_CAPID,
        .parent = TYPE_PCI_DEVICE,
        .class_init = capid_class_init,
        .interfaces = (InterfaceInfo[]) { { INTERFACE_CONVENTIONAL_PCI_DEVICE }, { } },
    },
    {
        .name = TYPE_LAB_UBOX,
        .parent = TYPE_PCI_DEVICE,
        .class_init = ubox_class_init,
        .interfaces = (InterfaceInfo[]) { { INTERFACE_CONVENTIONAL_PCI_DEVICE }, { } },
    },
};

DEFINE_TYPES(types)
