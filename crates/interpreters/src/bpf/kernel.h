/* The kernel's types that the program uses, with the fields that it uses. */
#ifndef MEMGAUGE_INTERPRETERS_KERNEL_H
#define MEMGAUGE_INTERPRETERS_KERNEL_H

#include <memgauge/types.h>

/* Values of interfaces that the kernel keeps stable (linux/bpf.h). */
enum {
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERF_EVENT_ARRAY = 4,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
};
#define BPF_F_CURRENT_CPU 0xffffffffull
#define BPF_ANY 0

/* linux/bpf_perf_event.h. The program only passes it on; its name tells the verifier what it is. */
struct bpf_perf_event_data {
	u64 registers[21];
	u64 sample_period;
	u64 addr;
};

struct bpf_pidns_info {
	u32 pid;
	u32 tgid;
};

struct file;

struct mm_struct {
	struct file *exe_file;
} KERNEL_TYPE;

struct thread_struct {
	unsigned long fsbase;
} KERNEL_TYPE;

struct task_struct {
	int tgid;
	u64 start_time;
	struct mm_struct *mm;
	struct task_struct *group_leader;
	struct task_struct *real_parent;
	struct thread_struct thread;
} KERNEL_TYPE;

#endif
