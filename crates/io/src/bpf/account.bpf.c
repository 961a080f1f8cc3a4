/* Exact I/O accounting: which process moves how many bytes through which device.
 *
 * account.h has owners and accounts, storage.h disks. socket.h has the account that a
 * socket carries, and slots.h its place. receive.h and send.h are the two ways through
 * a socket; its birth and end are here.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

/* libbpf loads programs in the order of their sections. A kernel may refuse one of this
 * section, for which another stands in, and all are loaded again: it comes first.
 */
asm(".section tp_btf/net_dev_queue, \"ax\", @progbits\n.text");

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
	struct socket_account *account;
	owner_t owner;

	if (are_datagrams(sk->type, sk->protocol))
		say_datagrams();
	if (sk->protocol != IPPROTO_TCP)
		return 1;
	owner = current_owner();
	bpf_map_update_elem(&listeners, &listener, &owner, BPF_ANY);
	account = NEW_STREAM_ACCOUNT(sk, sk->src_port << 16);
	if (account)
		account->sent.owner = owner;
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

/* A UDP socket's account is closed with its last descriptor. A TCP socket still sends
 * and hears its end, so at the close only bytes that nobody read get an owner.
 */
SEC("cgroup/sock_release")
int released(struct bpf_sock *sk)
{
	struct socket_account *account = slot_at(sk) ?: bpf_sk_storage_get(&socket_accounts, sk, 0, 0);
	struct account_key key;
	struct shared_socket *shared;

	if (sk->protocol == IPPROTO_TCP && sk->state == TCP_LISTEN) {
		u64 listener = (u64)sk;
		bpf_map_delete_elem(&listeners, &listener);
	}
	if (!account)
		return 1;
	if (!account->reading.owner && !account->sent.owner)
		account->reading.owner = current_owner();
	if (!are_datagrams(sk->type, sk->protocol))
		return 1;
	account->sent.dead = 1;
	if (!account->sent.netns) {
		lose(LOSS_NEVER_READ, account->received.sum.bytes);
		return 1;
	}
	settle_sent(account, account->sent.netns);
	key = net_key(reader_of(account), account->sent.netns, account->received.ifindex);
	shared = account->received.mixed ? bpf_sk_storage_get(&shared_sockets, sk, 0, 0) : NULL;
	if (shared)
		settle_runs(shared, key.owner, key.netns, ALL_RUNS);
	/* With runs: what another processor added while they were opened. */
	if (key.device)
		settle(&account->received.sum, &key, false);
	return 1;
}

/* Charges what came in; data that waits to be read is left for its reader. */
static __always_inline void settle_received_stream(struct socket_account *account, struct stream *stream)
{
	struct account_key key = net_key(reader_of(account), stream->netns, account->received.ifindex);

	if (!key.owner || !key.netns)
		return;
	/* With runs: what another processor added while they were opened. */
	if (!account->received.mixed && stream->unread) {
		if (account->reading.owner)
			settle_stream(account, &key, stream);
		return;
	}
	settle(&account->received.sum, &key, false);
	if (!account->received.mixed)
		account->reading.settled = account->reading.read;
}

static __always_inline void settle_received_datagrams(struct socket_account *account, struct sock *sk)
{
	struct account_key key = net_key(reader_of(account), netns_of(sk), account->received.ifindex);

	if (!key.owner)
		return;
	if (account->received.mixed)
		settle(&account->received.sum, &key, false);
	else
		settle_datagrams(account, &account->received.sum, &key);
}

SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(stream_ended, struct sock *sk)
{
	struct socket_account *account = STREAM_ACCOUNT(sk, ports_of(sk)), *later;
	struct stream stream = {};
	struct shared_socket *shared;
	owner_t owner;

	if (!account)
		return 0;
	stream.netns = account->sent.netns ?: netns_of(sk);
	shared = account->received.mixed ? bpf_sk_storage_get(&shared_sockets, sk, 0, 0) : NULL;
	owner = reader_of(account);
	if (shared && owner)
		settle_runs(shared, owner, stream.netns, ALL_RUNS);
	settle_received_stream(account, &stream);
	settle_sent(account, stream.netns);
	lose_unattributed(account);
	account->sent.dead = 1;
	owner = sender_of(account);
	leave_slot(sk);
	/* Packets on their way to a device below: the kernel keeps their sender's account. */
	if (sk->sk_wmem_alloc.refs.counter > 1) {
		later = bpf_sk_storage_get(&socket_accounts, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (later) {
			later->sent.owner = owner;
			later->sent.dead = 1;
		}
	}
	return 0;
}

/* Sockets older than the programs: a listener belongs to the first process that has it
 * open. Each other socket belongs to its next reader or writer.
 */
SEC("iter/task_file")
int seed(struct bpf_iter__task_file *context)
{
	struct task_struct *task = context->task;
	struct file *file = context->file;
	struct socket *socket;
	struct socket_account *account;
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
	account = NEW_STREAM_ACCOUNT(sk, ports_of(sk));
	if (account && !account->sent.owner) {
		u64 listener = (u64)sk;
		account->sent.owner = owner_of(task);
		bpf_map_update_elem(&listeners, &listener, &account->sent.owner, BPF_ANY);
	}
	return 0;
}

static long read_slot(u32 number, void *unused)
{
	struct socket_account *account = &slots[number & (SLOTS - 1)];
	struct tcp_sock *tcp = (void *)owns[number & (SLOTS - 1)];
	struct sock *sk = (void *)tcp;
	struct stream stream;

	if (tcp && is_freed(sk))
		return empty_slot(number, (u64)sk);
	if (!tcp || (!account->received.sum.packets && !account->sent.sum.packets))
		return 0;
	/* When a socket is being freed, only its account still knows the namespace. */
	stream.netns = account->sent.netns ?: BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
	stream.received = BPF_CORE_READ(tcp, rcv_nxt);
	stream.headers = stream_headers(BPF_CORE_READ(sk, __sk_common.skc_family),
					BPF_CORE_READ(tcp, tcp_header_len));
	/* The FIN takes a position, too. */
	stream.unread = BPF_CORE_READ(sk, __sk_common.skc_state) != TCP_LISTEN &&
			stream.received - BPF_CORE_READ(tcp, copied_seq) > 1;
	if (owns[number & (SLOTS - 1)] != (u64)tcp)
		return 0; /* gone meanwhile */
	settle_received_stream(account, &stream);
	settle_sent(account, stream.netns);
	return 0;
}

/* Run before each read-out: sums of live sockets go to `accounts`. This is for those
 * that have a slot.
 */
SEC("syscall")
int read_slots(void *context)
{
	bpf_loop(SLOTS, read_slot, NULL, 0);
	return 0;
}

/* And this for all others. The last call of the iterator has no socket. */
SEC("iter/bpf_sk_storage_map")
int read_out(struct bpf_iter__bpf_sk_storage_map *context)
{
	struct sock *sk = context->sk;
	struct stream stream = {};
	struct tcp_sock *tcp;
	struct socket_account *account;

	account = sk && context->value ? bpf_sk_storage_get(&socket_accounts, sk, 0, 0) : NULL;
	if (!account)
		return 0;
	if (is_datagram(sk)) {
		settle_received_datagrams(account, sk);
		settle_sent(account, netns_of(sk));
		return 0;
	}
	tcp = bpf_skc_to_tcp_sock(sk);
	stream.netns = account->sent.netns ?: netns_of(sk);
	if (tcp && sk->__sk_common.skc_state != TCP_LISTEN) {
		stream.received = tcp->rcv_nxt;
		stream.headers = stream_headers(sk->__sk_common.skc_family, tcp->tcp_header_len);
		stream.unread = stream.received - tcp->copied_seq > 1;
	}
	settle_received_stream(account, &stream);
	settle_sent(account, stream.netns);
	return 0;
}
