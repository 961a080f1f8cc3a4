/* Reads the frames of CPython at a sample, in the sampled thread itself.
 *
 * The kernel calls `sample` for each sample of an event, before it writes the sample into the ring.
 * The program writes the frames of the thread into the same ring. So the frames are those of the
 * sampled instruction, and the next sample of the thread in the ring is theirs. It describes each
 * code object once, when it first sees it, because the process may end before memgauge reads the
 * ring.
 *
 * `processes` has the addresses and offsets of each known interpreter. memgauge adds processes when
 * it sees that they have mapped one; forked children are found here by their parent.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "layout.h"

/* The kernel lends its functions only to programs that are also under the GPL. */
char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Threads that are looked at to find the sampled one, which is then remembered. */
#define MAX_THREADS 512
/* FRAME_OWNED_BY_CSTACK: a frame that marks where C code called the interpreter. */
#define OWNED_BY_C 3
/* Bytes that hold all used fields of a frame and of a code object. */
#define FRAME_BYTES 112
#define CODE_BYTES 144
/* In a text: PyASCIIObject.length, .hash and .state. Equal in all supported versions. */
#define TEXT_LENGTH 16
#define TEXT_HASH 24
#define TEXT_STATE 32
#define TABLE_LENGTH 16
#define TABLE_BYTES 32

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, struct interpreter);
} processes SEC(".maps");

/* Thread states by thread. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u64);
} threads SEC(".maps");

struct code_key {
	u64 process_start;
	u64 address;
};

/* Identities of the code objects that have been described. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, struct code_key);
	__type(value, u64);
} described SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__type(key, u32);
	__type(value, u32);
} rings SEC(".maps");

/* Samples without frames, or with frames that memgauge will not get. */
struct losses {
	u64 frames; /* the ring was full */
	u64 code;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct losses);
} lost SEC(".maps");

struct scratch {
	u8 frame[FRAME_BYTES + 8];
	u8 object[CODE_BYTES + 8];
	struct frames frames;
	struct code code;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

static __always_inline u64 read_word(u64 address)
{
	u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)address);
	return word;
}

/* A field of a structure that has been copied. */
static __always_inline u64 word_at(const u8 *copy, u32 offset, u32 bytes)
{
	barrier_var(offset);
	if (offset > bytes)
		return 0;
	return *(u64 *)(copy + offset);
}

static __always_inline u32 own_process(void)
{
	u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);
	struct bpf_pidns_info ids = {};

	if (!s || !s->namespace_device)
		return bpf_get_current_pid_tgid() >> 32;
	/* Fails for processes of an inner namespace. */
	if (bpf_get_ns_current_pid_tgid(s->namespace_device, s->namespace_inode, &ids, sizeof(ids)))
		return 0;
	return ids.tgid;
}

/* The interpreter of the current process. */
static __always_inline struct interpreter *find_interpreter(struct task_struct *task)
{
	u32 pid = own_process();
	u64 exe_file = (u64)BPF_CORE_READ(task, mm, exe_file);
	struct interpreter *found;
	struct interpreter inherited;

	if (!pid || !exe_file)
		return NULL;
	found = bpf_map_lookup_elem(&processes, &pid);
	if (found) {
		if (!found->exe_file)
			found->exe_file = exe_file;
		if (found->exe_file == exe_file)
			return found;
	}
	/* A forked child shares the file of its program with its parent until it executes another. */
	u32 parent = BPF_CORE_READ(task, group_leader, real_parent, tgid);

	found = bpf_map_lookup_elem(&processes, &parent);
	if (!found || found->exe_file != exe_file)
		return NULL;
	inherited = *found;
	bpf_map_update_elem(&processes, &pid, &inherited, BPF_ANY);
	return bpf_map_lookup_elem(&processes, &pid);
}

/* Address of the thread's innermost frame, 0 if it executes no Python. */
static __always_inline u64 innermost_frame(struct interpreter *python, u64 thread)
{
	u64 frame = read_word(thread + python->current_frame);

	if (frame && python->frame_in_cframe != NO_OFFSET)
		frame = read_word(frame + python->frame_in_cframe);
	return frame;
}

/* Functions that are not static are verified once and not for each call. */

/* The current thread is the one with the same value of `pthread_self`. */
__noinline u64 find_frame(struct interpreter *python, u64 self)
{
	u32 tid = bpf_get_current_pid_tgid();
	u64 *known, frame, thread, state;

	if (!python)
		return 0;
	known = bpf_map_lookup_elem(&threads, &tid);
	if (known && read_word(*known + python->thread_id) == self) {
		frame = innermost_frame(python, *known);
		if (frame)
			return frame;
	}
	/* The newest interpreter is the first one, so a thread that executes in several is in that. */
	state = read_word(python->runtime + python->first_interpreter);
	thread = state ? read_word(state + python->first_thread) : 0;
	for (u32 i = 0; i < MAX_THREADS && state; i++) {
		if (!thread) {
			state = read_word(state + python->next_interpreter);
			thread = state ? read_word(state + python->first_thread) : 0;
			continue;
		}
		if (read_word(thread + python->thread_id) == self) {
			frame = innermost_frame(python, thread);
			if (frame) {
				bpf_map_update_elem(&threads, &tid, &thread, BPF_ANY);
				return frame;
			}
		}
		thread = read_word(thread + python->next_thread);
	}
	return 0;
}

static __noinline void read_text(struct interpreter *python, u64 address, struct text *text)
{
	u32 state = 0;
	u64 characters = 0, bytes;

	if (!python || !text)
		return;
	text->address = address;
	text->width = 0;
	text->has_bytes = 0;
	if (bpf_probe_read_user(&state, sizeof(state), (void *)(address + TEXT_STATE)) ||
	    bpf_probe_read_user(&characters, sizeof(characters), (void *)(address + TEXT_LENGTH)))
		return;
	/* Bits: interned (2), width (3), compact, ASCII. */
	text->width = (state >> 2) & 7;
	text->characters = characters;
	text->address += state & (1 << 6) ? python->ascii_text : python->other_text;
	bytes = characters * text->width;
	if (!bytes || bytes > MAX_TEXT_BYTES)
		return;
	if (!bpf_probe_read_user(text->bytes, bytes, (void *)text->address))
		text->has_bytes = 1;
}

/* Describes a code object, of which `object` is a copy. Returns true if memgauge will get it. */
static __noinline int describe(struct bpf_perf_event_data *ctx, struct interpreter *python,
			       u64 address, u64 identity)
{
	u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct code *code;
	u64 table, bytes = 0;
	u32 size;

	if (!s || !python)
		return 0;
	code = &s->code;
	code->kind = RECORD_CODE;
	code->first_line = word_at(s->object, python->first_line, CODE_BYTES);
	code->address = address;
	code->identity = identity;
	code->minor_version = python->minor_version;
	read_text(python, word_at(s->object, python->file_name, CODE_BYTES), &code->file_name);
	read_text(python, word_at(s->object, python->shown_name, CODE_BYTES), &code->name);
	table = word_at(s->object, python->line_table, CODE_BYTES);
	bpf_probe_read_user(&bytes, sizeof(bytes), (void *)(table + TABLE_LENGTH));
	code->table_address = table + TABLE_BYTES;
	code->table_bytes = bytes;
	code->has_table = 0;
	size = bytes;
	barrier_var(size);
	if (size > MAX_TABLE_BYTES)
		size = 0;
	if (size && !bpf_probe_read_user(code->table, size, (void *)code->table_address))
		code->has_table = 1;
	else
		size = 0;
	size += __builtin_offsetof(struct code, table);
	barrier_var(size);
	if (size > sizeof(struct code))
		return 0;
	return !bpf_perf_event_output(ctx, &rings, BPF_F_CURRENT_CPU, code, size);
}

static __always_inline u64 mixed(u64 a, u64 b)
{
	return (a ^ b) * 0x9e3779b97f4a7c15ull ^ (a >> 29);
}

/* Reads a frame. Returns the address of its caller, 0 at the end. */
__noinline u64 add_frame(struct interpreter *python, u64 address)
{
	u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct frames *frames;
	struct frame *frame;
	u64 caller, instruction;
	u32 at;

	if (!s || !python)
		return 0;
	frames = &s->frames;
	if (bpf_probe_read_user(s->frame, FRAME_BYTES, (void *)address)) {
		frames->is_cut = 1;
		return 0;
	}
	caller = word_at(s->frame, python->caller, FRAME_BYTES);
	at = frames->count;
	if (python->owner != NO_OFFSET &&
	    (word_at(s->frame, python->owner, FRAME_BYTES) & 0xff) == OWNED_BY_C) {
		barrier_var(at);
		if (at && at <= MAX_FRAMES)
			frames->frames[at - 1].flags |= FRAME_IS_ENTRY;
		return caller;
	}
	barrier_var(at);
	if (at >= MAX_FRAMES) {
		frames->is_cut = 1;
		return 0;
	}
	frame = &frames->frames[at];
	frames->count = at + 1;
	frame->code = word_at(s->frame, python->code, FRAME_BYTES);
	frame->identity = 0;
	instruction = word_at(s->frame, python->instruction, FRAME_BYTES);
	if (python->instructions == NO_OFFSET)
		frame->offset = instruction;
	else
		frame->offset = instruction - frame->code - python->instructions;
	frame->flags = 0;
	/* Until 3.10, C code calls the interpreter for each frame. */
	if (python->owner == NO_OFFSET)
		frame->flags = FRAME_IS_ENTRY;
	else if (python->is_entry != NO_OFFSET &&
		 (word_at(s->frame, python->is_entry, FRAME_BYTES) & 0xff))
		frame->flags = FRAME_IS_ENTRY;
	return caller;
}

/* Identifies the code of a frame and describes it if it is new. */
__noinline int add_code(struct bpf_perf_event_data *ctx, struct interpreter *python, u32 at,
			u64 process_start)
{
	u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct losses *losses = bpf_map_lookup_elem(&lost, &zero);
	struct code_key key = { .process_start = process_start };
	u64 identity, name, *known;

	if (!s || !python || !losses || at >= MAX_FRAMES)
		return 0;
	key.address = s->frames.frames[at].code;
	if (bpf_probe_read_user(s->object, CODE_BYTES, (void *)key.address))
		return 0;
	name = word_at(s->object, python->name, CODE_BYTES);
	identity = word_at(s->object, python->first_line, CODE_BYTES) & 0xffffffff;
	identity = mixed(identity, word_at(s->object, python->file_name, CODE_BYTES));
	identity = mixed(identity, word_at(s->object, python->shown_name, CODE_BYTES));
	identity = mixed(identity, word_at(s->object, python->line_table, CODE_BYTES));
	/* The allocator uses memory of a freed name for that of another function. */
	identity = mixed(identity, read_word(name + TEXT_HASH)) | 1;
	s->frames.frames[at].identity = identity;
	known = bpf_map_lookup_elem(&described, &key);
	if (known && *known == identity)
		return 0;
	if (describe(ctx, python, key.address, identity))
		bpf_map_update_elem(&described, &key, &identity, BPF_ANY);
	else
		losses->code++;
	return 0;
}

SEC("perf_event")
int sample(struct bpf_perf_event_data *ctx)
{
	u32 zero = 0;
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct interpreter *python = find_interpreter(task);
	struct scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct losses *losses = bpf_map_lookup_elem(&lost, &zero);
	u64 frame, start;
	u32 size, count;

	/* The sample is written in any case. */
	if (!python || !s || !losses)
		return 1;
	frame = find_frame(python, BPF_CORE_READ(task, thread.fsbase));
	if (!frame)
		return 1;
	s->frames.kind = RECORD_FRAMES;
	s->frames.count = 0;
	s->frames.is_cut = 0;
	/* Twice as many, for the frames that mark calls from C. */
	for (u32 i = 0; i < 2 * MAX_FRAMES + 2 && frame; i++)
		frame = add_frame(python, frame);
	if (frame)
		s->frames.is_cut = 1;
	start = BPF_CORE_READ(task, group_leader, start_time);
	count = s->frames.count;
	for (u32 i = 0; i < MAX_FRAMES && i < count; i++)
		add_code(ctx, python, i, start);
	size = __builtin_offsetof(struct frames, frames) + count * sizeof(struct frame);
	barrier_var(size);
	if (size > sizeof(struct frames))
		return 1;
	if (bpf_perf_event_output(ctx, &rings, BPF_F_CURRENT_CPU, &s->frames, size))
		losses->frames++;
	return 1;
}
