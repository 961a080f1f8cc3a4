/* Exact I/O accounting: which process moves how many bytes through which device.
 *
 * account.h has owners and accounts, storage.h disks, socket.h what a socket carries,
 * receive.h and send.h the two ways through it; here is its birth and end.
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

	if (sk->protocol != IPPROTO_TCP)
		return 1;
	owner = current_owner();
	bpf_map_update_elem(&listeners, &listener, &owner, BPF_ANY);
	book = bpf_sk_storage_get(&books, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
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
	struct book *book = bpf_sk_storage_get(&books, sk, 0, 0);
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
	if (sk->protocol != IPPROTO_UDP)
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

/* Charges what came in. Unless the socket has ended, data that waits to be read is
 * left for its reader.
 */
static __always_inline void settle_received(struct book *book, struct sock *sk, bool ended)
{
	struct account_key key = net_key(reader_of(book), netns_of(sk), book->received.ifindex);
	struct tcp_sock *tcp;
	struct lanes *lanes;

	if (!key.owner)
		return;
	if (book->received.mixed) {
		lanes = ended ? bpf_sk_storage_get(&lanes_of, sk, 0, 0) : NULL;
		if (lanes)
			settle_runs(lanes, key.owner, key.netns, ALL_RUNS);
		/* What another processor added while the runs were opened. */
		settle(&book->received.sum, &key, false);
		return;
	}
	if (is_udp(sk)) {
		settle_datagrams(book, &book->received.sum, &key);
		return;
	}
	tcp = bpf_skc_to_tcp_sock(sk);
	/* The FIN takes a position, too. */
	if (!ended && tcp && sk->__sk_common.skc_state != TCP_LISTEN &&
	    tcp->rcv_nxt - tcp->copied_seq > 1) {
		if (book->reading.owner)
			settle_stream(book, key.owner, key.netns, tcp->rcv_nxt);
		return;
	}
	settle(&book->received.sum, &key, false);
	book->reading.settled = book->reading.read;
}

SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(stream_ended, struct sock *sk)
{
	struct book *book = bpf_sk_storage_get(&books, sk, 0, 0);

	if (!book)
		return 0;
	settle_received(book, sk, true);
	settle_sent(book, netns_of(sk));
	book->sent.dead = 1;
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
	if (!sk || sk->sk_protocol != IPPROTO_TCP || sk->__sk_common.skc_state != TCP_LISTEN)
		return 0;
	book = bpf_sk_storage_get(&books, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (book && !book->sent.owner) {
		u64 listener = (u64)sk;
		book->sent.owner = owner_of(task);
		bpf_map_update_elem(&listeners, &listener, &book->sent.owner, BPF_ANY);
	}
	return 0;
}

/* Run before each read-out: what live sockets hold goes to the accounts. */
SEC("iter/bpf_sk_storage_map")
int read_out(struct bpf_iter__bpf_sk_storage_map *context)
{
	struct sock *sk = context->sk;
	struct book *book;

	if (!sk || !context->value)
		return 0;
	book = bpf_sk_storage_get(&books, sk, 0, 0);
	if (!book)
		return 0;
	settle_received(book, sk, false);
	settle_sent(book, netns_of(sk));
	return 0;
}
