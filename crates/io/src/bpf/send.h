/* Sending: packets are charged when they are queued at their device, to the process
 * that gave their bytes to the socket.
 */
#ifndef MEMGAUGE_IO_SEND_H
#define MEMGAUGE_IO_SEND_H

/* Whether a packet's sender is known to be another task than the current one. */
enum awareness {
	AWARE,   /* by the processor's state */
	UNAWARE, /* only by the current task being the kernel's */
};

struct packet {
	u32 bytes; /* from the network header on */
	u32 segments;
	u32 header_bytes;
	u32 position; /* of its first byte in the stream, where needed */
};

static __always_inline u32 segments_of(struct sk_buff *skb)
{
	struct skb_shared_info *info = (void *)(skb->head + skb->end);
	u16 segments = 0;

	if (bpf_rdonly_cast) { /* 6.2: a plain load instead of a call */
		info = bpf_rdonly_cast(info, bpf_core_type_id_kernel(struct skb_shared_info));
		segments = info->gso_segs;
	} else {
		bpf_probe_read_kernel(&segments, sizeof(segments), &info->gso_segs);
	}
	return segments ? segments : 1;
}

static __always_inline void parse_sent(struct sk_buff *skb, struct packet *packet)
{
	u32 headers = skb->transport_header - skb->network_header;
	struct tcp_start tcp = {};

	bpf_probe_read_kernel(&tcp, sizeof(tcp), skb->head + skb->transport_header);
	headers += (tcp.offset >> 4) * 4;
	packet->header_bytes = (packet->segments - 1) * headers;
	packet->position = bpf_ntohl(tcp.seq);
}

static __always_inline int charge_sent(struct packet *packet, owner_t owner, u32 netns, u32 ifindex)
{
	struct account_key key = net_key(owner, netns, ifindex);
	struct flow flow = {
		.bytes = packet->bytes,
		.operations = 1,
		.segments = packet->segments,
		.header_bytes = packet->header_bytes,
	};

	if (!owner)
		return lose(LOSS_SENDER_UNKNOWN, packet->bytes);
	return charge(&key, true, &flow);
}

static __always_inline void sum_sent(struct socket_account *account, struct packet *packet, struct sock *sk, u32 ifindex)
{
	if (account->sent.ifindex != ifindex) {
		settle_sent(account, netns_of(sk));
		account->sent.ifindex = ifindex;
		account->sent.netns = netns_of(sk);
	}
	put(&account->sent.sum, packet->bytes, packet->segments, packet->header_bytes);
}

/* ---------------------------------------------------------------- several writers */
/* The writer whose bytes begin at or before the position; the oldest known for
 * bytes that are older still.
 */
static __always_inline owner_t writer_at(struct shared_socket *shared, u32 position)
{
	owner_t owner = 0, oldest = 0;

#pragma unroll
	for (u32 back = 1; back <= WRITERS; back++) {
		struct writer *writer = &shared->writer[(shared->writers - back) & (WRITERS - 1)];
		if (shared->writers < back)
			continue;
		oldest = writer->owner;
		if (!owner && !BEFORE(position, writer->start))
			owner = writer->owner;
	}
	return owner ? owner : oldest;
}

static __always_inline void add_writer(struct shared_socket *shared, owner_t owner, u32 start, u32 acknowledged)
{
	struct writer *oldest = &shared->writer[(shared->writers + 1) & (WRITERS - 1)];
	struct writer *writer = &shared->writer[shared->writers & (WRITERS - 1)];

	if (shared->writers >= WRITERS && BEFORE(acknowledged, oldest->start))
		lose(LOSS_WRITERS_MIXED, 1);
	writer->start = start;
	writer->owner = owner;
	shared->writers++;
}

/* Another process than before is about to send. */
static __noinline int begin_writer(struct sock *sk)
{
	u32 ports = ports_of(sk);
	struct socket_account *account = sk->__sk_common.skc_state == TCP_CLOSE ? STREAM_ACCOUNT(sk, ports)
								   : NEW_STREAM_ACCOUNT(sk, ports);
	struct tcp_sock *tcp;
	struct shared_socket *shared;
	owner_t owner;

	if (!account || is_current(account->sent.owner))
		return 0;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return 0;
	owner = current_owner();
	if (any_ownerless && !account->sent.owner)
		adopt_listener(sk, owner);
	if (!account->sent.owner || tcp->write_seq == tcp->snd_una) {
		/* No data of the previous writer is under way. */
		settle_sent(account, netns_of(sk));
		account->sent.shared = 0;
		account->sent.owner = owner;
		return 0;
	}
	shared = bpf_sk_storage_get(&shared_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!shared) {
		lose(LOSS_WRITERS_MIXED, 1);
		return 0;
	}
	settle_sent(account, netns_of(sk));
	if (!account->sent.shared) {
		shared->writers = 0;
		add_writer(shared, account->sent.owner, tcp->snd_una, tcp->snd_una);
	}
	add_writer(shared, owner, tcp->write_seq, tcp->snd_una);
	account->sent.shared = 1;
	account->sent.owner = owner;
	return 0;
}

/* Before the first byte of a send is queued. */
static __always_inline int about_to_send(struct sock *sk)
{
	struct socket_account *account = slot_of(sk, ports_of(sk));

	return account && is_current(account->sent.owner) ? 0 : begin_writer(sk);
}

SEC("tp_btf/tcp_sendmsg_locked")
int BPF_PROG(stream_write, struct sock *sk)
{
	return about_to_send(sk);
}

/* The same before 6.16, where there is no such tracepoint. */
SEC("fentry/tcp_sendmsg_locked")
int BPF_PROG(stream_write_entry, struct sock *sk)
{
	return about_to_send(sk);
}

/* ----------------------------------------------------------------------- queueing */
static __always_inline bool deferred(enum awareness awareness, owner_t sender)
{
	if (awareness == AWARE)
		return in_interrupt();
	return sender && bpf_get_current_task_btf()->flags & PF_KTHREAD;
}

static __always_inline int datagram_queued(struct sk_buff *skb, struct sock *sk, struct packet *packet,
					   enum awareness awareness)
{
	struct socket_account *account = bpf_sk_storage_get(&socket_accounts, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	u32 ifindex = skb->dev->ifindex;
	owner_t owner;

	say_datagrams();
	packet->header_bytes = (packet->segments - 1) *
			       (skb->transport_header - skb->network_header + 8);
	if (!account)
		return lose(LOSS_SOCKET_UNTRACKED, packet->bytes);
	if (account->sent.dead)
		return charge_sent(packet, sender_of(account), netns_of(sk), ifindex);
	/* Held back until its neighbour was known, and sent on by an interrupt. */
	if (deferred(awareness, account->sent.owner) || (is_current(account->sent.owner) && !account->sent.shared)) {
		sum_sent(account, packet, sk, ifindex);
		return 0;
	}
	owner = current_owner();
	if (account->sent.owner && account->sent.owner != owner) {
		settle_sent(account, netns_of(sk));
		account->sent.shared = 1;
	}
	account->sent.owner = owner;
	account->sent.netns = netns_of(sk);
	if (account->sent.shared)
		return charge_sent(packet, owner, netns_of(sk), ifindex);
	sum_sent(account, packet, sk, ifindex);
	return 0;
}

/* A closing socket sends little. If its account goes with it, those bytes are charged
 * at once. So nothing depends on whether the socket's end is seen.
 */
static __always_inline bool is_closing(u32 state)
{
	return state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2 || state == TCP_CLOSING ||
	       state == TCP_LAST_ACK;
}

static __always_inline int stream_queued(struct sk_buff *skb, struct sock *sk, u32 state, struct packet *packet)
{
	u32 ifindex = skb->dev->ifindex, ports = ports_of(sk);
	struct shared_socket *shared;
	struct socket_account *account;

	/* Queued at a device below the first one, a packet may outlive its socket. */
	account = state == TCP_CLOSE ? STREAM_ACCOUNT(sk, ports) : NEW_STREAM_ACCOUNT(sk, ports);
	if (!account)
		return is_kernels(sk) ? 0 : lose(LOSS_SOCKET_UNTRACKED, packet->bytes);
	if (packet->segments > 1 || account->sent.shared)
		parse_sent(skb, packet);
	if (state == TCP_SYN_SENT && !account->sent.owner)
		account->sent.owner = current_owner();
	if (account->sent.shared) {
		shared = bpf_sk_storage_get(&shared_sockets, sk, 0, 0);
		if (shared)
			return charge_sent(packet, writer_at(shared, packet->position),
					   netns_of(sk), ifindex);
	}
	if (account->sent.dead)
		return charge_sent(packet, sender_of(account), netns_of(sk), ifindex);
	sum_sent(account, packet, sk, ifindex);
	if (is_closing(state) && !slot_at(sk))
		settle_sent(account, netns_of(sk));
	return 0;
}

/* A handshake's answer goes to its listener's owner. Its account keeps the sum until
 * there is one.
 */
static __always_inline int answer_queued(struct sk_buff *skb, struct sock *sk, struct packet *packet)
{
	u64 listener = (u64)sk->__sk_common.skc_listener;
	struct socket_account *account = slot_at((void *)listener);
	u32 ifindex = skb->dev->ifindex;
	owner_t *owner;

	if (account && account->sent.owner) {
		sum_sent(account, packet, sk, ifindex);
		return 0;
	}
	owner = bpf_map_lookup_elem(&listeners, &listener);
	if (owner)
		return charge_sent(packet, *owner, netns_of(sk), ifindex);
	note_ownerless(sk, listener);
	if (!account)
		return lose(LOSS_SENDER_UNKNOWN, packet->bytes);
	sum_sent(account, packet, sk, ifindex);
	return 0;
}

/* The sender of echo requests gets the answers that no hook sees it read. */
static __noinline int note_sender(struct sock *sk, owner_t owner)
{
	struct socket_account *account = bpf_sk_storage_get(&socket_accounts, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (account) {
		account->sent.owner = owner;
		account->sent.netns = netns_of(sk);
	}
	return 0;
}

static __always_inline int queued(struct sk_buff *skb, enum awareness awareness)
{
	struct sock *sk = skb->sk;
	struct packet packet = {};
	owner_t owner;
	u16 family;
	u8 state;

	if (!sk)
		return 0;
	packet.bytes = network_bytes(skb);
	state = sk->__sk_common.skc_state;
	if (state == TCP_TIME_WAIT)
		return 0; /* what is left of a closed connection; has no owner */
	packet.segments = segments_of(skb);
	if (state == TCP_NEW_SYN_RECV)
		return answer_queued(skb, sk, &packet);
	family = sk->__sk_common.skc_family;
	if (family == AF_INET || family == AF_INET6) {
		if (sk->sk_protocol == IPPROTO_TCP)
			return stream_queued(skb, sk, state, &packet);
		if (is_kernels(sk))
			return 0; /* answers, errors, neighbours: nobody asked for them */
		if (sk->sk_protocol == IPPROTO_UDP)
			return datagram_queued(skb, sk, &packet, awareness);
	}
	owner = deferred(awareness, 1) ? 0 : current_owner();
	if (owner && is_datagram(sk))
		note_sender(sk, owner);
	return charge_sent(&packet, owner, netns_of(sk), skb->dev->ifindex);
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(packet_queued, struct sk_buff *skb)
{
	return queued(skb, AWARE);
}

/* The same on kernels whose data has no symbols. */
SEC("tp_btf/net_dev_queue")
int BPF_PROG(packet_queued_unaware, struct sk_buff *skb)
{
	return queued(skb, UNAWARE);
}
#endif
