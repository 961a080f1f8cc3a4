/*
 * Ports of I/O, as Skylake-SP counts them (IIO): data that devices write to memory and read
 * from it, by the stack and port that they are at. Intel's "Xeon Processor Scalable Memory
 * Family uncore performance monitoring" names registers and events.
 *
 * A stack is a root bus of PCI, of QEMU's `pxb`. A device's port is its slot on the bus behind
 * that one's bridge, which the stack's root ports would be on. The counters that are always on count words of four bytes, and each transfer that words begin
 * and end in counts them whole.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "qemu/osdep.h"
#include "qemu/notify.h"
#include "cpu.h"
#include "hw/pci/pci_bus.h"
#include "hw/pci/pci_device.h"
#include "pmu-state.h"
#include "pmu-uncore.h"

enum { STACKS = 6, PORTS = 4, WRITTEN = 0, READ = 1 };
enum {
    CPU_BUS_NUMBER = 0x300, /* root bus of each stack, a byte each; the last bit: valid */
    IIO_BOX = 0xa40, /* control, four counters, a clock, nothing, four event selects */
    IIO_STEP = 0x20,
    IIO_COUNTER = 1,
    IIO_SELECT = 8,
    IIO_USED = 12, /* behind it are other boxes' registers */
    IIO_ALWAYS = 0xb00, /* four of written words, four of read ones */
    IIO_ALWAYS_STEP = 0x10,
};
/* An event select: bits below 16 name the event, of these: data that is moved for devices. */
enum { DATA_REQUESTS = 0x83, OF_WRITES = 1 << 8, OF_READS = 1 << 10 };
#define SELECT_PORTS(select) ((select) >> 36 & 0xff)
/* All kinds of request. */
#define ALL_KINDS (7ull << 44)
#define ALWAYS_MASK MAKE_64BIT_MASK(0, 36)

/* Root buses; nothing is at the last two stacks. */
static const uint8_t buses[STACKS] = { 0x00, 0x17, 0x3a, 0x5d };

static struct {
    uint64_t words[STACKS][PORTS][2], traffic[STACKS][PORTS];
    Box boxes[STACKS];
} iio;

/* Whether a box counts one way of a port. */
static bool counts(uint64_t select, unsigned port, unsigned way)
{
    return (select & 0xff) == DATA_REQUESTS && (select & ALL_KINDS) == ALL_KINDS &&
           (SELECT_PORTS(select) >> port & 1) && (select & (way == READ ? OF_READS : OF_WRITES));
}

static bool is_modelled(uint64_t select)
{
    return (select & 0xff) == DATA_REQUESTS && (select & ALL_KINDS) == ALL_KINDS &&
           !(select & 0xff00 & ~(uint64_t)(OF_READS | OF_WRITES)) &&
           !(select & UNCORE_SHAPES);
}

int iio_moved(PCIDevice *device, uint64_t address, uint64_t bytes, bool store)
{
    unsigned stack, port, way = store ? WRITTEN : READ;
    uint64_t words = (address + bytes + 3) / 4 - address / 4;
    PCIBus *bus;

    for (bus = pci_get_bus(device); !pci_bus_is_root(bus); bus = pci_get_bus(bus->parent_dev)) {
        /* The first bridge is the stack's own. */
        if (!pci_bus_is_root(pci_get_bus(bus->parent_dev))) {
            device = bus->parent_dev;
        }
    }
    for (stack = 0; stack < STACKS && buses[stack] != pci_bus_num(bus); stack++) {
    }
    if (stack == STACKS) {
        return -1;
    }
    port = PCI_SLOT(device->devfn) % PORTS;
    iio.words[stack][port][way] += words;
    for (unsigned i = 0; i < 4; i++) {
        Box *box = &iio.boxes[stack];
        if (box_runs(box, i) && counts(box->select[i], port, way)) {
            box->counters[i] = (box->counters[i] + words) & COUNTER_MASK;
        }
    }
    return stack * PORTS + port;
}

void iio_traffic(int port, uint64_t bytes)
{
    if (port >= 0) {
        iio.traffic[port / PORTS][port % PORTS] += bytes;
    }
}

void iio_log(FILE *log)
{
    for (unsigned stack = 0; stack < STACKS; stack++) {
        for (unsigned port = 0; port < PORTS; port++) {
            const uint64_t *words = iio.words[stack][port];
            if (words[WRITTEN] || words[READ]) {
                fprintf(log, "port 0000:%02x/%u written %" PRIu64 " read %" PRIu64
                        " memory %" PRIu64 "\n", buses[stack], port, 4 * words[WRITTEN],
                        4 * words[READ], iio.traffic[stack][port]);
            }
        }
    }
}

static uint64_t bus_numbers(void)
{
    uint64_t numbers = 1ull << 63;

    for (unsigned stack = 0; stack < STACKS; stack++) {
        numbers |= (uint64_t)buses[stack] << 8 * stack;
    }
    return numbers;
}

/* The box of a register, and its number there; nothing if it is another's. */
static Box *box_of(uint32_t msr, unsigned *number)
{
    uint32_t place = msr - IIO_BOX;

    *number = place % IIO_STEP;
    return place < STACKS * IIO_STEP && *number < IIO_USED ? &iio.boxes[place / IIO_STEP] : NULL;
}

bool iio_rdmsr(uint32_t msr, uint64_t *value)
{
    uint32_t place = msr - IIO_ALWAYS, port = place % IIO_ALWAYS_STEP;
    unsigned number;
    Box *box = box_of(msr, &number);

    if (msr == CPU_BUS_NUMBER) {
        *value = bus_numbers();
        return true;
    }
    if (place < STACKS * IIO_ALWAYS_STEP && port < 2 * PORTS) {
        *value = iio.words[place / IIO_ALWAYS_STEP][port % PORTS][port / PORTS] & ALWAYS_MASK;
        return true;
    }
    if (box && number == 0) {
        *value = box->control;
    } else if (box && number - IIO_COUNTER < 4) {
        *value = box->counters[number - IIO_COUNTER];
    } else if (box && number >= IIO_SELECT) {
        *value = box->select[number - IIO_SELECT];
    } else {
        return false;
    }
    return true;
}

bool iio_wrmsr(uint32_t msr, uint64_t value)
{
    unsigned number;
    Box *box = box_of(msr, &number);

    if (!box) {
        return false;
    }
    if (number == 0) {
        box_control(box, value);
    } else if (number - IIO_COUNTER < 4) {
        box->counters[number - IIO_COUNTER] = value & COUNTER_MASK;
    } else if (number >= IIO_SELECT) {
        box->select[number - IIO_SELECT] = value;
        if ((value & UNCORE_ENABLE) && !is_modelled(value)) {
            uncore_note(value);
        }
    } else {
        return false;
    }
    return true;
}
