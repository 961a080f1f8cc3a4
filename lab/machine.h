/*
 * The modelled machine: twin of machine/src/lib.rs.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef LAB_MACHINE_H
#define LAB_MACHINE_H

typedef struct LabMachine LabMachine;

enum { LAB_L1D = 1, LAB_L2, LAB_LLC, LAB_MEMORY };

typedef struct {
    uint32_t latency_cycles;
    uint16_t l1d_misses, l2_misses, llc_misses, dtlb_misses, walks;
    uint16_t source; /* LAB_L1D and so on: the farthest level that delivered a line */
} LabOutcome;

typedef struct {
    uint8_t missed, writebacks;
} LabDeviceOutcome;

LabMachine *lab_machine_new(const char *name);
/* The number of a new core. */
uint32_t lab_machine_add_core(LabMachine *lab);
void lab_machine_level(const LabMachine *lab, uint32_t level, uint64_t *bytes, uint32_t *ways);
/* Whether there is a level between the first and the last, and not a stand-in for it. */
bool lab_machine_has_l2(const LabMachine *lab);
LabOutcome lab_machine_access(LabMachine *lab, uint32_t core, uint64_t address, uint32_t size,
                              uint32_t store);
void lab_machine_retire(LabMachine *lab, uint32_t core, uint32_t loads, uint32_t stores);
uint64_t lab_machine_cycles(const LabMachine *lab, uint32_t core);
/* Bytes that a core read from memory and wrote to it. */
void lab_machine_traffic(LabMachine *lab, uint32_t core, uint64_t *read, uint64_t *written);
/* A device reads or writes a line. */
LabDeviceOutcome lab_machine_device(LabMachine *lab, uint64_t address, uint32_t store);

#endif
