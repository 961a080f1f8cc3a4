/* The kernel's types that the programs use, with the fields that they use. The loader finds the
 * fields by name in the kernel's description of its types (BTF).
 */
#ifndef MEMGAUGE_PAGES_KERNEL_H
#define MEMGAUGE_PAGES_KERNEL_H

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef __u32 u32;
typedef __u64 u64;
#define NULL ((void *)0)

/* Values of interfaces that the kernel keeps stable (linux/bpf.h). */
enum { BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6 };

/* Values inside the kernel that have not changed since 5.15. */
enum { VM_PFNMAP = 0x400, VM_HUGETLB = 0x400000 };

#define KERNEL_TYPE __attribute__((preserve_access_index))

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
