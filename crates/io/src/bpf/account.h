/* Owners, accounts and losses: where every byte ends up. */
#ifndef MEMGAUGE_IO_ACCOUNT_H
#define MEMGAUGE_IO_ACCOUNT_H

/* An interrupt may come between any two instructions of a program, and its own
 * program may touch the same numbers on the same processor.
 */
#define ADD(place, n) __sync_fetch_and_add(&(place), (u64)(n))
#define TAKE(place) __sync_lock_test_and_set(&(place), 0)

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct account_key);
	__type(value, struct account);
} accounts SEC(".maps");

/* Bytes without room there, by control group in place of the owner: sums stay whole. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 2048);
	__type(key, struct account_key);
	__type(value, struct account);
} folded SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, owner_t);
	__type(value, struct owner_facts);
} owners SEC(".maps");

/* Owners without room there: the oldest entries give way. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, owner_t);
	__type(value, struct owner_facts);
} more_owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LOSSES);
	__type(key, u32);
	__type(value, u64);
} losses SEC(".maps");

/* Written by memgauge, read by any other program. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct io_rate);
} io_rates SEC(".maps");

/* The owner whose facts this processor wrote last. */
struct noted {
	owner_t owner;
	u64 exec_id;
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct noted);
} last_noted SEC(".maps");

/* Constants, set by their places: whether each thread is an owner of its own, and whether
 * the end of a TCP socket is seen.
 */
const volatile u8 by_thread = 0;
const volatile u8 ends_seen = 1;

extern const int __preempt_count __ksym __weak;
extern const struct pcpu_hot pcpu_hot __ksym __weak;
extern void *bpf_rdonly_cast(const void *object, u32 type) __ksym __weak;

static __noinline int lose(u32 reason, u64 amount)
{
	u64 *lost = bpf_map_lookup_elem(&losses, &reason);

	if (lost)
		ADD(*lost, amount);
	return 0;
}

/* Whether the current task is only what an interrupt happened upon. */
static __always_inline bool in_interrupt(void)
{
	if (&pcpu_hot) {
		const struct pcpu_hot *hot = bpf_this_cpu_ptr(&pcpu_hot);
		return hot->preempt_count & IN_INTERRUPT;
	}
	if (&__preempt_count)
		return *(const int *)bpf_this_cpu_ptr(&__preempt_count) & IN_INTERRUPT;
	return false;
}

static __always_inline owner_t owner_of(struct task_struct *task)
{
	if (by_thread)
		return (u64)task->pid << 32 | (u32)(task->start_boottime >> 20);
	return (u64)task->tgid << 32 | (u32)(task->group_leader->start_boottime >> 20);
}

static __noinline int note_facts(owner_t owner, u64 exec_id)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 cgroup = bpf_get_current_cgroup_id();
	struct owner_facts *known = bpf_map_lookup_elem(&owners, &owner);
	struct owner_facts facts = {
		.cgroup = cgroup,
		.exec_id = exec_id,
		.uid = (u32)bpf_get_current_uid_gid(),
		.kernel = !!(task->flags & PF_KTHREAD),
		.process = task->tgid,
	};

	if (known && known->exec_id == exec_id && known->cgroup == cgroup)
		return 0;
	bpf_probe_read_kernel_str(facts.command, sizeof(facts.command),
				  by_thread ? task->comm : task->group_leader->comm);
	if (bpf_map_update_elem(&owners, &owner, &facts, BPF_ANY) &&
	    bpf_map_update_elem(&more_owners, &owner, &facts, BPF_ANY))
		lose(LOSS_OWNERS_FULL, 1);
	return 0;
}

/* The current process. Its name, user and cgroup are noted for the time after its end,
 * once per program that it runs, as long as no other owner comes between.
 */
static __always_inline owner_t current_owner(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	owner_t owner = owner_of(task);
	u64 exec_id = task->self_exec_id;
	u32 zero = 0;
	struct noted *noted = bpf_map_lookup_elem(&last_noted, &zero);

	if (noted && (noted->owner != owner || noted->exec_id != exec_id)) {
		noted->owner = owner;
		noted->exec_id = exec_id;
		note_facts(owner, exec_id);
	}
	return owner;
}

static __always_inline bool is_current(owner_t owner)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return (u32)(owner >> 32) == (by_thread ? task->pid : task->tgid);
}

static __always_inline struct account *account_in(void *map, struct account_key *key)
{
	struct account *account = bpf_map_lookup_elem(map, key);
	struct account fresh = {};

	if (account)
		return account;
	bpf_map_update_elem(map, key, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(map, key);
}

static __always_inline void add_flow(struct account *account, bool out, struct flow *flow)
{
	struct flow *sum = out ? &account->out : &account->in;

	ADD(sum->bytes, flow->bytes);
	ADD(sum->operations, flow->operations);
	if (flow->segments)
		ADD(sum->segments, flow->segments);
	if (flow->header_bytes)
		ADD(sum->header_bytes, flow->header_bytes);
}

/* Without an account of its own an owner is charged through its control group. */
static __noinline int fold(struct account_key *key, bool out, struct flow *flow)
{
	owner_t owner = key->owner;
	struct owner_facts *facts = bpf_map_lookup_elem(&owners, &owner);
	struct account_key group = { .netns = key->netns, .device = key->device };
	struct account *account;

	if (!facts)
		facts = bpf_map_lookup_elem(&more_owners, &owner);
	if (facts)
		group.owner = facts->cgroup;
	account = account_in(&folded, &group);
	if (!account)
		return lose(LOSS_ACCOUNTS_FULL, flow->bytes);
	add_flow(account, out, flow);
	return 0;
}

static __noinline int charge(struct account_key *key, bool out, struct flow *flow)
{
	struct account *account = account_in(&accounts, key);

	if (!account)
		return fold(key, out, flow);
	add_flow(account, out, flow);
	return 0;
}
#endif
