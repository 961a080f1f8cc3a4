/* Sockets: each carries an account that sums its packets until their owner is known. A
 * packet costs a look-up of the account and two additions; `accounts` is touched when
 * the reader, writer or device changes, at the end, and at read-out.
 *
 * An account has three cache lines, by who writes them:
 *
 *   received   interrupts on the way in
 *   reading    the process that reads
 *   sent       the process that sends, interrupts that acknowledge
 *
 * Few sockets also need a `shared_socket`. It is made when the first of these happens:
 * packets of a second device, a second writer.
 */
#ifndef MEMGAUGE_IO_SOCKET_H
#define MEMGAUGE_IO_SOCKET_H

/* Bytes, operations and segments of a flow in two words, as two atomic additions
 * cost less than three. Read-outs come long before either half is full.
 */
struct sum {
	u64 bytes;
	u64 packets; /* operations << 32 | segments */
	u64 header_bytes;
};

struct received {
	struct sum sum;
	u32 ifindex; /* 0: nothing yet */
	u32 mixed;   /* several devices: `shared_socket` has the sums */
	u64 pad[4];
};

struct reading {
	owner_t owner;
	u32 settled; /* TCP: position in the stream up to which `owner` was charged */
	u32 read;    /* TCP: position up to which `owner` has read */
	u64 read_bytes;   /* UDP: of datagrams taken since the last charge */
	u64 read_packets;
	u32 known;   /* `settled` and `read` mean something */
	u32 shared;  /* UDP: several readers, charged one by one */
	u64 pad[3];
};

struct sent {
	struct sum sum;
	owner_t owner;
	u32 ifindex; /* 0: nothing yet */
	u32 shared;  /* several writers: TCP has their positions in `shared_socket` */
	u32 dead;    /* destroyed: what still comes is charged at once */
	u32 netns;   /* the namespace, once known: by the first packet sent, or read */
	u32 ports;   /* of the socket that has this slot (slots.h) */
	u32 pad[3];
};

struct socket_account {
	struct received received;
	struct reading reading;
	struct sent sent;
};
_Static_assert(sizeof(struct received) == 64, "a cache line");
_Static_assert(sizeof(struct reading) == 64, "a cache line");
_Static_assert(sizeof(struct sent) == 64, "a cache line");

enum { RUNS = 8, WRITERS = 4 };

/* Packets that came from one device in a row; positions are of the stream (TCP) or
 * numbers of datagrams (UDP).
 */
struct run {
	u32 ifindex;
	u32 start;
	u32 end;
	u32 pad;
	struct sum sum;
};

struct writer {
	u32 start; /* position of its first byte */
	u32 pad;
	owner_t owner;
};

struct shared_socket {
	u32 position; /* highest received */
	u32 first;    /* run being read */
	u32 last;     /* run being received */
	u32 writers;
	u32 busy;     /* the processor that changes the runs, plus one */
	u32 pad;
	struct run runs[RUNS];
	struct writer writer[WRITERS];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_account);
} socket_accounts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct shared_socket);
} shared_sockets SEC(".maps");

/* Who bound a listener, by its address: a handshake's answer knows no more of it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, owner_t);
} listeners SEC(".maps");

/* Listeners whose owner is not known, by their port: older than the programs, on a kernel
 * that does not show who has them open. Each goes to the first process that reads or
 * writes one of its connections.
 */
struct port {
	u32 netns;
	u32 number;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct port);
	__type(value, u64); /* address of the listener */
} ownerless SEC(".maps");
u32 any_ownerless; /* whether there ever was one: others look nothing up */

/* Whether there are UDP sockets. Their readers are seen at a hook that runs for every
 * receiving socket of any kind. So that program is attached only then, by a thread that
 * is told here.
 */
u32 datagrams;
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} first_datagrams SEC(".maps");

/* UDP, and sockets that send echo requests and get the answers. Other sockets of IP that
 * are not of a stream (raw ones) get copies of what others receive.
 */
static __always_inline bool are_datagrams(u32 type, u32 protocol)
{
	return protocol == IPPROTO_UDP ||
	       (type == SOCK_DGRAM && (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6));
}

static __always_inline bool is_datagram(struct sock *sk)
{
	u16 family = sk->__sk_common.skc_family;

	return (family == AF_INET || family == AF_INET6) && are_datagrams(sk->sk_type, sk->sk_protocol);
}

/* Whether a socket is the kernel's own: answers, errors and the search for neighbours
 * are sent through such ones. It must be a full socket.
 */
static __always_inline bool is_kernels(struct sock *sk)
{
	struct socket *socket = sk->sk_socket;

	return socket && !socket->file;
}

static __always_inline void say_datagrams(void)
{
	u32 one = 1;

	if (!datagrams && !__sync_lock_test_and_set(&datagrams, 1))
		bpf_ringbuf_output(&first_datagrams, &one, sizeof(one), 0);
}

/* a lies before b in a stream whose positions wrap. */
#define BEFORE(a, b) ((s32)((a) - (b)) < 0)

#define PACKETS(operations, segments) ((u64)(operations) << 32 | (u32)(segments))

static __always_inline void put(struct sum *sum, u32 bytes, u32 segments, u32 header_bytes)
{
	ADD(sum->bytes, bytes);
	ADD(sum->packets, PACKETS(1, segments));
	if (header_bytes)
		ADD(sum->header_bytes, header_bytes);
}

static __always_inline struct flow flow_of(const struct sum *sum)
{
	struct flow flow = {
		.bytes = sum->bytes,
		.operations = sum->packets >> 32,
		.segments = (u32)sum->packets,
		.header_bytes = sum->header_bytes,
	};
	return flow;
}

/* A packet's bytes from the network header on. The barrier keeps the compiler from
 * subtracting halves of pointers, which the kernel refuses.
 */
static __always_inline u32 network_bytes(struct sk_buff *skb)
{
	u64 before = (u64)skb->data - (u64)skb->head;

	asm volatile("" : "+r"(before));
	return skb->len + (u32)before - skb->network_header;
}

/* The TCP side of a socket that is known to have one. */
static __always_inline struct tcp_sock *tcp_of(struct sock *sk)
{
	if (bpf_rdonly_cast) /* 6.2: no call */
		return bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_sock));
	return bpf_skc_to_tcp_sock(sk);
}

static __always_inline u32 netns_of(struct sock *sk)
{
	return sk->__sk_common.skc_net.net->ns.inum;
}

static __always_inline struct account_key net_key(owner_t owner, u32 netns, u32 ifindex)
{
	struct account_key key = { .owner = owner, .netns = netns, .device = ifindex };
	return key;
}

/* All of a sum goes to the owner. */
static __noinline int settle(struct sum *sum, struct account_key *key, bool out)
{
	struct sum taken;
	struct flow flow;

	/* The two may have been taken apart while a packet was being added. */
	if (!sum->packets && !sum->bytes)
		return 0;
	taken.bytes = TAKE(sum->bytes);
	taken.packets = TAKE(sum->packets);
	taken.header_bytes = TAKE(sum->header_bytes);
	flow = flow_of(&taken);
	return charge(key, out, &flow);
}

/* Charges `part` bytes of the `whole` payload of a sum to the owner, headers in
 * proportion. `payload` is what the headers are not.
 */
static __noinline int settle_part(struct sum *sum, struct account_key *key, u32 part, u32 whole)
{
	struct sum seen = *sum;
	struct flow all = flow_of(&seen), flow;
	u64 headers = all.bytes > whole ? all.bytes - whole : 0;

	if (!whole)
		return 0;
	flow.bytes = part + headers * part / whole;
	if (flow.bytes > all.bytes)
		flow.bytes = all.bytes;
	flow.operations = all.operations * part / whole;
	flow.segments = all.segments * part / whole;
	flow.header_bytes = all.header_bytes * part / whole;
	ADD(sum->bytes, -flow.bytes);
	ADD(sum->packets, -PACKETS(flow.operations, flow.segments));
	ADD(sum->header_bytes, -flow.header_bytes);
	return charge(key, false, &flow);
}

static __always_inline owner_t reader_of(struct socket_account *account)
{
	return account->reading.owner ? account->reading.owner : account->sent.owner;
}

static __always_inline owner_t sender_of(struct socket_account *account)
{
	return account->sent.owner ? account->sent.owner : account->reading.owner;
}

/* Charges the bytes sent to their sender. */
static __always_inline void settle_sent(struct socket_account *account, u32 netns)
{
	struct account_key key = net_key(sender_of(account), netns, account->sent.ifindex);

	if (key.owner && key.device && netns)
		settle(&account->sent.sum, &key, true);
}

/* Bytes left in an account at its end are unattributed. */
static __always_inline void lose_unattributed(struct socket_account *account)
{
	if (account->received.sum.bytes)
		lose(LOSS_NEVER_READ, account->received.sum.bytes);
	if (account->sent.sum.bytes)
		lose(LOSS_SENDER_UNKNOWN, account->sent.sum.bytes);
}
#endif
