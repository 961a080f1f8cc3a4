/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The part of QEMU's TCG plugin interface that the recorder uses, declared here because
 * distributions ship no header for it. Names and types are QEMU's ABI (its
 * documentation: docs/devel/tcg-plugins). All declarations exist since interface
 * version 1 (QEMU 6.0 to 8.2) and are unchanged in later ones.
 */
#ifndef MG_QEMU_API_H
#define MG_QEMU_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MG_EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
/* The beginning of what QEMU tells at start. */
typedef struct {
    const char *target_name;
    struct {
        int min, cur; /* versions of this interface it understands */
    } version;
} qemu_info_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;

enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
enum qemu_plugin_mem_rw { QEMU_PLUGIN_MEM_R = 1, QEMU_PLUGIN_MEM_W, QEMU_PLUGIN_MEM_RW };

typedef void (*qemu_plugin_tb_trans_cb_t)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*qemu_plugin_exec_cb_t)(unsigned vcpu, void *udata);
typedef void (*qemu_plugin_mem_cb_t)(unsigned vcpu, qemu_plugin_meminfo_t info,
                                     uint64_t vaddr, void *udata);
typedef void (*qemu_plugin_syscall_cb_t)(qemu_plugin_id_t, unsigned vcpu, int64_t num,
                                         uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4,
                                         uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8);
typedef void (*qemu_plugin_syscall_ret_cb_t)(qemu_plugin_id_t, unsigned vcpu, int64_t num,
                                             int64_t ret);

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, qemu_plugin_tb_trans_cb_t);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, qemu_plugin_exec_cb_t,
                                          enum qemu_plugin_cb_flags, void *udata);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, qemu_plugin_exec_cb_t,
                                            enum qemu_plugin_cb_flags, void *udata);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, qemu_plugin_mem_cb_t,
                                      enum qemu_plugin_cb_flags, enum qemu_plugin_mem_rw,
                                      void *udata);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, qemu_plugin_syscall_cb_t);
void qemu_plugin_register_vcpu_syscall_ret_cb(qemu_plugin_id_t, qemu_plugin_syscall_ret_cb_t);

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
void *qemu_plugin_insn_haddr(const struct qemu_plugin_insn *);
unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t);

#endif
