/*
 * What counters outside the cores share: pmu-uncore.c has those of the last level and of
 * memory, pmu-iio.c those of I/O's ports.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef TARGET_I386_LAB_PMU_UNCORE_H
#define TARGET_I386_LAB_PMU_UNCORE_H

#include "hw/pci/pci_device.h"

#define COUNTER_MASK MAKE_64BIT_MASK(0, 48)
enum { BOX_RESET_CONTROL = 1 << 0, BOX_RESET_COUNTERS = 1 << 1, BOX_FREEZE = 1 << 8 };
/* Of an event select; bits below 16 name the event. */
enum { UNCORE_RESET = 1 << 17, UNCORE_EDGE = 1 << 18, UNCORE_TID = 1 << 19, UNCORE_ENABLE = 1 << 22 };
#define UNCORE_SHAPES (UNCORE_EDGE | 1 << 23 | 0xff000000u) /* edge, invert, threshold */

/* Four counters, their control and filters. */
typedef struct {
    uint64_t control, select[4], counters[4], filters[2];
} Box;

static inline bool box_runs(const Box *box, unsigned i)
{
    return (box->select[i] & UNCORE_ENABLE) && !(box->control & BOX_FREEZE);
}

/* A write to the register of control. */
void box_control(Box *box, uint64_t value);
/* Notes an event select that is not modelled. */
void uncore_note(uint64_t select);

/* A device moves data: the number of its port, or -1. This and the next ones are called below
 * the lock. */
int iio_moved(PCIDevice *device, uint64_t address, uint64_t bytes, bool store);
/* Memory's bytes that the transfers of a port needed. */
void iio_traffic(int port, uint64_t bytes);
bool iio_rdmsr(uint32_t msr, uint64_t *value);
bool iio_wrmsr(uint32_t msr, uint64_t value);
/* A line for each port that moved data: bytes in all, and memory's of them. */
void iio_log(FILE *log);

#endif
