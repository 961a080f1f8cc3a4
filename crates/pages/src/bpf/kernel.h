/* The kernel's types that the programs use, with the fields that they use. */
#ifndef MEMGAUGE_PAGES_KERNEL_H
#define MEMGAUGE_PAGES_KERNEL_H

#include <memgauge/types.h>

/* Values of interfaces that the kernel keeps stable (linux/bpf.h). */
enum { BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6 };

/* Values inside the kernel that have not changed since 5.15. */
enum { VM_PFNMAP = 0x400, VM_HUGETLB = 0x400000 };

struct task_struct;

struct mm_struct {
	void *pgd;
} KERNEL_TYPE;

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	struct mm_struct *vm_mm;
	unsigned long vm_flags;
} KERNEL_TYPE;

struct bpf_iter_meta;

struct bpf_iter__task_vma {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	struct vm_area_struct *vma;
} KERNEL_TYPE;

#endif
