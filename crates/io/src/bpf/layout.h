/* Layouts that the programs and memgauge share. `layout.rs` is its twin, and
 * this file asserts sizes and offsets. All fields are in the machine's byte order.
 *
 * Directions are the program's: `in` is read from a disk or received (the device
 * writes memory), `out` is written or sent (the device reads memory).
 */
#ifndef MEMGAUGE_IO_LAYOUT_H
#define MEMGAUGE_IO_LAYOUT_H

/* A process: its id in the upper half; in the lower one when it started, in units
 * of 2^20 ns of the boot clock. A process id that is used again is another owner.
 */
typedef u64 owner_t;

/* A device. A disk has netns 0 and its device number (major << 20 | minor). A network
 * device has the inode of its namespace and its index there.
 */
struct account_key {
	owner_t owner;
	u32 netns;
	u32 device;
};

struct flow {
	u64 bytes;        /* as handed to, or taken from, the device */
	u64 operations;   /* requests (bio), packets (skb) */
	u64 segments;     /* packets on the wire; 0 for disks */
	u64 header_bytes; /* further headers on the wire of segmented packets */
};

struct account {
	struct flow in;
	struct flow out;
};

/* Bytes that a process moved in the last interval, for programs that place processes;
 * the key is its id.
 */
struct io_rate {
	owner_t owner;
	u64 time_ns;     /* CLOCK_MONOTONIC at the interval's end */
	u64 interval_ns; /* its true length */
	u64 in_bytes_per_s;
	u64 out_bytes_per_s;
	u64 memory_bytes_per_s; /* at most: what devices of hardware moved */
	u64 in_bytes;           /* since the accounting began */
	u64 out_bytes;
};

struct owner_facts {
	u64 cgroup;
	u64 exec_id;
	u32 uid;
	u32 kernel; /* 1: a thread of the kernel */
	u32 process; /* of which the owner is a thread, where threads are owners */
	u32 pad;
	char command[16];
};

/* Losses by reason; units are in io/layout.rs. */
enum loss {
	LOSS_ACCOUNTS_FULL,
	LOSS_OWNERS_FULL,
	LOSS_WRITER_UNKNOWN,
	LOSS_SOCKET_UNTRACKED,
	LOSS_DEVICES_MIXED,
	LOSS_WRITERS_MIXED,
	LOSS_PAGES_UNREAD,
	LOSS_SENDER_UNKNOWN,
	LOSS_NEVER_READ,
	LOSSES,
};

_Static_assert(sizeof(struct account_key) == 16, "twin of io/layout.rs");
_Static_assert(sizeof(struct account) == 64, "twin of io/layout.rs");
_Static_assert(sizeof(struct owner_facts) == 48, "twin of io/layout.rs");
_Static_assert(sizeof(struct io_rate) == 64, "twin of io/layout.rs");
/* Offsets by which io/layout.rs reads and writes fields. */
#define AT(type, field, offset) \
	_Static_assert(__builtin_offsetof(struct type, field) == (offset), "twin of io/layout.rs")
AT(account_key, netns, 8);
AT(account_key, device, 12);
AT(flow, operations, 8);
AT(flow, segments, 16);
AT(flow, header_bytes, 24);
AT(account, out, 32);
AT(owner_facts, cgroup, 0);
AT(owner_facts, uid, 16);
AT(owner_facts, kernel, 20);
AT(owner_facts, process, 24);
AT(owner_facts, command, 32);
AT(io_rate, in_bytes_per_s, 24);
AT(io_rate, in_bytes, 48);
#undef AT
#endif
