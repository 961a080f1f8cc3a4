/* Exact I/O accounting: which process moves how many bytes through which device.
 *
 * account.h has owners and accounts, storage.h disks, socket.h what a socket carries and
 * slots.h where, receive.h and send.h the two ways through it; here is its birth and end.
 * docs/io.md tells which hook serves which case.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "layout.h"
#include "account.h"
#include "storage.h"
#include "socket.h"
#include "slots.h"
#include "receive.h"
#include "send.h"

/* The kernel lends what these programs need only to such as are also under the GPL. */
char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Handshakes of a listener belong to the process that bound it. */
static __always_inline int bound(struct bpf_sock *sk)
{
	u64 listener = (u64)sk;
	struct book *book;
	owner_t owner;

	if (are_datagrams(sk->type, sk->protocol))
		say_datagrams();
	if (sk->protocol != IPPROTO_TCP)
		return 1;
	owner = current_owner();
	bpf_map_update_elem(&listeners, &listener, &owner, BPF_ANY);
	book = NEW_STREAM_BOOK(sk, sk->src_port << 16);
	if (book)
		book->sent.owner = owner;
	return 1;
}

SEC("cgroup/post_bind4")
int bound_ipv4(struct bpf_sock *sk)
{
	return bound(sk);
}

SEC("cgroup/post_bind6")
int bound_ipv6(struct bpf_sock *sk)
{
	return bound(sk);
}

/* A UDP socket's account is closed with its last descriptor; a TCP socket still has
 * its end to say and hear, so that only an owner is found for what nobody read.
 */
SEC("cgroup/sock_release")
int released(struct bpf_sock *sk)
{
	struct book *book = slot_at(sk) ?: bpf_sk_storage_get(&books, sk, 0, 0);
	struct account_key key;
	struct lanes *lanes;

	if (sk->protocol == IPPROTO_TCP && sk->state == TCP_LISTEN) {
		u64 listener = (u64)sk;
		bpf_map_delete_elem(&listeners, &listener);
	}
	if (!book)
		return 1;
	if (!book->reading.owner && !book->sent.owner)
		book->reading.owner = current_owner();
	if (!are_datagrams(sk->type, sk->protocol))
		return 1;
	book->sent.dead = 1;
	if (!book->sent.netns) {
		lose(LOSS_NEVER_READ, book->received.sum.bytes);
		return 1;
	}
	settle_sent(book, book->sent.netns);
	key = net_key(reader_of(book), book->sent.netns, book->received.ifindex);
	lanes = book->received.mixed ? bpf_sk_storage_get(&lanes_of, sk, 0, 0) : NULL;
	if (lanes)
		settle_runs(lanes, key.owner, key.netns, ALL_RUNS);
	/* With runs: what another processor added while they were opened. */
	if (key.device)
		settle(&book->received.sum, &key, false);
	return 1;
}

/* Charges what came in; data that waits to be read is left for its reader. */
static __always_inline void settle_received_stream(struct book *book, struct stream *stream)
{
	struct account_key key = net_key(reader_of(book), stream->netns, book->received.ifindex);

	if (!key.owner || !key.netns)
		return;
	/* With runs: what another processor added while they were opened. */
	if (!book->received.mixed && stream->unread) {
		if (book->reading.owner)
			settle_stream(book, &key, stream);
		return;
	}
	settle(&book->received.sum, &key, false);
	if (!book->received.mixed)
		book->reading.settled = book->reading.read;
}

static __always_inline void settle_received_datagrams(struct book *book, struct sock *sk)
{
	struct account_key key = net_key(reader_of(book), netns_of(sk), book->received.ifindex);

	if (!key.owner)
		return;
	if (book->received.mixed)
		settle(&book->received.sum, &key, false);
	else
		settle_datagrams(book, &book->received.sum, &key);
}

SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(stream_ended, struct sock *sk)
{
	struct book *book = STREAM_BOOK(sk, ports_of(sk)), *later;
	struct stream stream = {};
	struct lanes *lanes;
	owner_t owner;

	if (!book)
		return 0;
	stream.netns = book->sent.netns ?: netns_of(sk);
	lanes = book->received.mixed ? bpf_sk_storage_get(&lanes_of, sk, 0, 0) : NULL;
	owner = reader_of(book);
	if (lanes && owner)
		settle_runs(lanes, owner, stream.netns, ALL_RUNS);
	settle_received_stream(book, &stream);
	settle_sent(book, stream.netns);
	lose_rest(book);
	book->sent.dead = 1;
	owner = sender_of(book);
	leave_slot(sk);
	/* Packets on their way to a device below: the kernel keeps their sender's book. */
	if (sk->sk_wmem_alloc.refs.counter > 1) {
		later = bpf_sk_storage_get(&books, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (later) {
			later->sent.owner = owner;
			later->sent.dead = 1;
		}
	}
	return 0;
}

/* Sockets that were there before the programs: a listener belongs to the first
 * process that has it open; of others the next reader or writer says whose they are.
 */
SEC("iter/task_file")
int seed(struct bpf_iter__task_file *context)
{
	struct task_struct *task = context->task;
	struct file *file = context->file;
	struct socket *socket;
	struct book *book;
	struct sock *sk;

	if (!task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = socket->sk;
	if (sk && is_datagram(sk))
		say_datagrams();
	if (!sk || sk->sk_protocol != IPPROTO_TCP || sk->__sk_common.skc_state != TCP_LISTEN)
		return 0;
	book = NEW_STREAM_BOOK(sk, ports_of(sk));
	if (book && !book->sent.owner) {
		u64 listener = (u64)sk;
		book->sent.owner = owner_of(task);
		bpf_map_update_elem(&listeners, &listener, &book->sent.owner, BPF_ANY);
	}
	return 0;
}

static long read_slot(u32 number, void *unused)
{
	struct book *book = &slots[number & (SLOTS - 1)];
	struct tcp_sock *tcp = (void *)owns[number & (SLOTS - 1)];
	struct sock *sk = (void *)tcp;
	struct stream stream;

	if (tcp && is_freed(sk))
		return empty_slot(number, (u64)sk);
	if (!tcp || (!book->received.sum.packets && !book->sent.sum.packets))
		return 0;
	/* Of a socket that is being freed only its book still tells. */
	stream.netns = book->sent.netns ?: BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
	stream.received = BPF_CORE_READ(tcp, rcv_nxt);
	stream.headers = stream_headers(BPF_CORE_READ(sk, __sk_common.skc_family),
					BPF_CORE_READ(tcp, tcp_header_len));
	/* The FIN takes a position, too. */
	stream.unread = BPF_CORE_READ(sk, __sk_common.skc_state) != TCP_LISTEN &&
			stream.received - BPF_CORE_READ(tcp, copied_seq) > 1;
	if (owns[number & (SLOTS - 1)] != (u64)tcp)
		return 0; /* gone meanwhile */
	settle_received_stream(book, &stream);
	settle_sent(book, stream.netns);
	return 0;
}

/* Run before each read-out: what live sockets hold goes to the accounts. The last call
 * of the iterator has no socket.
 */
SEC("iter/bpf_sk_storage_map")
int read_out(struct bpf_iter__bpf_sk_storage_map *context)
{
	struct sock *sk = context->sk;
	struct stream stream = {};
	struct tcp_sock *tcp;
	struct book *book;

	if (!sk) {
		bpf_loop(SLOTS, read_slot, NULL, 0);
		return 0;
	}
	book = context->value ? bpf_sk_storage_get(&books, sk, 0, 0) : NULL;
	if (!book)
		return 0;
	if (is_datagram(sk)) {
		settle_received_datagrams(book, sk);
		settle_sent(book, netns_of(sk));
		return 0;
	}
	tcp = bpf_skc_to_tcp_sock(sk);
	stream.netns = book->sent.netns ?: netns_of(sk);
	if (tcp && sk->__sk_common.skc_state != TCP_LISTEN) {
		stream.received = tcp->rcv_nxt;
		stream.headers = stream_headers(sk->__sk_common.skc_family, tcp->tcp_header_len);
		stream.unread = stream.received - tcp->copied_seq > 1;
	}
	settle_received_stream(book, &stream);
	settle_sent(book, stream.netns);
	return 0;
}
