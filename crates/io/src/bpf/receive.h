/* Receiving: packets are summed when they reach their socket and charged to the
 * process that reads them.
 */
#ifndef MEMGAUGE_IO_RECEIVE_H
#define MEMGAUGE_IO_RECEIVE_H

/* ------------------------------------------------------------ several devices */
/* Runs are changed by interrupts of several processors and by readers. A processor that
 * does not get them after some tries goes without. It does so at once if it holds them
 * itself: it has interrupted a reader, who cannot let go before.
 */
enum { TRIES = 1024 };

static __always_inline bool enter(struct shared_socket *shared)
{
	u32 me = bpf_get_smp_processor_id() + 1, holder;

	for (int i = 0; i < TRIES; i++) {
		holder = __sync_val_compare_and_swap(&shared->busy, 0, me);
		if (!holder)
			return true;
		if (holder == me)
			return false;
	}
	return false;
}

static __always_inline void leave(struct shared_socket *shared)
{
	__sync_lock_test_and_set(&shared->busy, 0);
}

static __always_inline struct run *run_at(struct shared_socket *shared, u32 n)
{
	return &shared->runs[n & (RUNS - 1)];
}

/* The run that a packet of the device goes to. A full ring keeps up to six devices exact
 * and gives up the order, which is counted.
 */
static __always_inline struct run *run_for(struct shared_socket *shared, u32 ifindex)
{
	struct run *last = run_at(shared, shared->last);

	if (last->ifindex == ifindex)
		return last;
	if (shared->last - shared->first >= RUNS - 1) {
		lose(LOSS_DEVICES_MIXED, 1);
#pragma unroll
		for (int back = 1; back < RUNS - 1; back++) {
			struct run *run = run_at(shared, shared->last - back);
			if (run->ifindex == ifindex)
				return run;
		}
		return last;
	}
	shared->last++;
	last = run_at(shared, shared->last);
	last->start = last->end = shared->position;
	last->ifindex = ifindex;
	return last;
}

static __always_inline void settle_run(struct run *run, owner_t owner, u32 netns)
{
	struct account_key key = net_key(owner, netns, run->ifindex);

	settle(&run->sum, &key, false);
	run->start = run->end;
}

/* Charges runs up to a position of the stream, or all of them. */
static __noinline int settle_runs(struct shared_socket *shared, owner_t owner, u32 netns, u64 up_to)
{
	bool all = up_to >> 32;
	u32 position = up_to;

	if (!enter(shared))
		return lose(LOSS_DEVICES_MIXED, 1);
	for (int i = 0; i < RUNS; i++) {
		struct run *run = run_at(shared, shared->first);
		struct account_key key = net_key(owner, netns, run->ifindex);

		if (!all && BEFORE(position, run->end)) {
			if (BEFORE(run->start, position)) {
				settle_part(&run->sum, &key, position - run->start,
					    run->end - run->start);
				run->start = position;
			}
			break;
		}
		settle_run(run, owner, netns);
		if (shared->first == shared->last)
			break;
		run->ifindex = 0;
		shared->first++;
	}
	leave(shared);
	return 0;
}
enum { ALL_RUNS_SHIFT = 32 };
#define ALL_RUNS (1ULL << ALL_RUNS_SHIFT)

/* ------------------------------------------------------------------- arriving */
struct arrival {
	u32 bytes;
	u32 segments;
	u32 header_bytes;
	u32 start; /* position in the stream */
	u32 end;   /* 0: of datagrams, the next one */
};

/* Position and header lengths of a TCP packet from the network header on. Headers
 * of IPv6 extensions are taken for payload: only the split of a shared stream
 * between its readers would notice.
 */
static __always_inline bool parse_tcp(struct __sk_buff *skb, struct arrival *arrival)
{
	u32 headers = 40;
	struct tcp_start tcp;
	u8 first;

	if (bpf_skb_load_bytes(skb, 0, &first, 1))
		return false;
	if (first >> 4 == 4)
		headers = (first & 15) * 4;
	if (bpf_skb_load_bytes(skb, headers, &tcp, sizeof(tcp)))
		return false;
	headers += (tcp.offset >> 4) * 4;
	arrival->header_bytes = (arrival->segments - 1) * headers;
	arrival->start = bpf_ntohl(tcp.seq);
	arrival->end = arrival->start + (arrival->bytes > headers ? arrival->bytes - headers : 0);
	return true;
}

/* From the first packet of a second device on, runs replace the sum. Packets not yet
 * read are the first run: of a stream by position, of datagrams by number.
 */
static __always_inline void open_runs(struct socket_account *account, struct shared_socket *shared, struct arrival *arrival)
{
	struct run *run = &shared->runs[0];

	run->ifindex = account->received.ifindex;
	if (arrival->end) {
		run->start = account->reading.settled;
		run->end = arrival->start;
	} else {
		run->start = 0;
		run->end = (account->received.sum.packets >> 32) - account->reading.read_packets;
	}
	run->sum.bytes = TAKE(account->received.sum.bytes);
	run->sum.packets = TAKE(account->received.sum.packets);
	run->sum.header_bytes = TAKE(account->received.sum.header_bytes);
	shared->first = shared->last = 0;
	shared->position = run->end;
	account->received.mixed = 1;
}

/* Packets that another processor was adding to the sum when runs replaced it go to the
 * socket's reader as soon as there is one.
 */
static __always_inline int settle_latecomers(struct socket_account *account)
{
	struct account_key key = net_key(reader_of(account), account->sent.netns, account->received.ifindex);

	if (!account->received.sum.packets || !key.owner || !key.netns)
		return 0;
	return settle(&account->received.sum, &key, false);
}

/* Adds a packet to its device's run. Where the runs are not to be had, it goes to the
 * socket's reader at once.
 */
static __noinline int arrive_in_run(struct socket_account *account, struct shared_socket *shared, struct arrival *arrival, u32 ifindex)
{
	struct account_key key;
	struct run *run;
	struct sum sum = {};
	struct flow flow;

	if (!account || !shared || !arrival)
		return 0;
	if (!enter(shared)) {
		key = net_key(reader_of(account), account->sent.netns, ifindex);
		put(&sum, arrival->bytes, arrival->segments, arrival->header_bytes);
		flow = flow_of(&sum);
		lose(LOSS_DEVICES_MIXED, 1);
		return key.owner && key.netns ? charge(&key, false, &flow)
					      : lose(LOSS_SOCKET_UNTRACKED, arrival->bytes);
	}
	if (!account->received.mixed)
		open_runs(account, shared, arrival);
	if (!arrival->end)
		arrival->end = shared->position + 1;
	run = run_for(shared, ifindex);
	put(&run->sum, arrival->bytes, arrival->segments, arrival->header_bytes);
	if (BEFORE(shared->position, arrival->end)) {
		shared->position = arrival->end;
		run->end = arrival->end;
	}
	leave(shared);
	return settle_latecomers(account);
}

static __always_inline int tcp_arrived(struct __sk_buff *skb, struct bpf_sock *sk, struct socket_account *account)
{
	struct arrival arrival = { .bytes = skb->len, .segments = skb->gso_segs ?: 1 };
	struct shared_socket *shared;

	if (!account->received.ifindex)
		account->received.ifindex = skb->ifindex;
	if (!account->received.mixed && account->received.ifindex == skb->ifindex) {
		if (arrival.segments > 1)
			parse_tcp(skb, &arrival);
		put(&account->received.sum, arrival.bytes, arrival.segments, arrival.header_bytes);
		return 1;
	}
	shared = bpf_sk_storage_get(&shared_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!shared || !parse_tcp(skb, &arrival)) {
		lose(LOSS_SOCKET_UNTRACKED, skb->len);
		return 1;
	}
	arrive_in_run(account, shared, &arrival, skb->ifindex);
	return 1;
}

static __always_inline u32 udp_headers(u32 family)
{
	return family == AF_INET ? 28 : 48;
}

static __always_inline int udp_arrived(struct __sk_buff *skb, struct bpf_sock *sk, struct socket_account *account)
{
	struct arrival arrival = { .bytes = skb->len, .segments = skb->gso_segs ?: 1 };
	struct shared_socket *shared;

	if (arrival.segments > 1)
		arrival.header_bytes = (arrival.segments - 1) * udp_headers(sk->family);
	if (!account->received.ifindex)
		account->received.ifindex = skb->ifindex;
	if (!account->received.mixed && account->received.ifindex == skb->ifindex) {
		put(&account->received.sum, arrival.bytes, arrival.segments, arrival.header_bytes);
		return 1;
	}
	shared = bpf_sk_storage_get(&shared_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!shared) {
		lose(LOSS_SOCKET_UNTRACKED, skb->len);
		return 1;
	}
	arrive_in_run(account, shared, &arrival, skb->ifindex);
	return 1;
}

/* Where reading begins, when the first packet comes to a connection. */
static __always_inline void begin_stream(struct bpf_sock *sk, struct socket_account *account)
{
	struct bpf_tcp_sock *tcp;

	if (account->reading.known || sk->state == TCP_SYN_SENT)
		return;
	tcp = bpf_tcp_sock(sk);
	if (!tcp)
		return;
	account->reading.settled = account->reading.read = tcp->rcv_nxt;
	account->reading.known = 1;
}

SEC("cgroup_skb/ingress")
int packet_arrived(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct socket_account *account;
	u32 ports;

	if (!sk)
		return 1;
	ports = sk->src_port << 16 | sk->dst_port;
	account = slot_of(sk, ports);
	/* The usual packet, without a call. */
	if (account && account->reading.known && !account->received.mixed && skb->gso_segs <= 1 &&
	    account->received.ifindex == skb->ifindex) {
		put(&account->received.sum, skb->len, 1, 0);
		return 1;
	}
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return 1;
	if (are_datagrams(sk->type, sk->protocol)) {
		say_datagrams();
		account = bpf_sk_storage_get(&socket_accounts, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!account) {
			lose(LOSS_SOCKET_UNTRACKED, skb->len);
			return 1;
		}
		return udp_arrived(skb, sk, account);
	}
	if (sk->protocol != IPPROTO_TCP)
		return 1;
	if (!account)
		account = sk->state == TCP_CLOSE ? bpf_sk_storage_get(&socket_accounts, sk, 0, 0)
					      : NEW_STREAM_ACCOUNT(sk, ports);
	if (!account) {
		lose(LOSS_SOCKET_UNTRACKED, skb->len);
		return 1;
	}
	begin_stream(sk, account);
	return tcp_arrived(skb, sk, account);
}

/* --------------------------------------------------------------------- reading */
/* Where the stream of a socket is. */
struct stream {
	u32 netns;
	u32 received; /* position up to which it came in order */
	u32 headers;  /* bytes of a packet that are not payload */
	bool unread;  /* data waits for a reader */
};

static __always_inline u32 stream_headers(u16 family, u16 tcp_headers)
{
	return (family == AF_INET ? 20 : 40) + tcp_headers;
}

/* Charges the stream up to `read` to its reader; the remainder waits for the next one.
 * Bytes without a place in the stream wait, too: another process had the socket locked,
 * or an earlier packet is missing.
 */
static __always_inline void settle_stream(struct socket_account *account, struct account_key *key, struct stream *stream)
{
	struct reading *reading = &account->reading;
	u32 part = reading->read - reading->settled, whole = stream->received - reading->settled;
	u64 headers = (account->received.sum.packets >> 32) * stream->headers;
	u64 arrived = account->received.sum.bytes - headers;

	if (whole && part <= whole)
		settle_part(&account->received.sum, key, part,
			    account->received.sum.bytes > headers && arrived > whole ? arrived : whole);
	reading->settled = reading->read;
}

SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(stream_read, struct sock *sk)
{
	struct socket_account *account = STREAM_ACCOUNT(sk, ports_of(sk));
	struct account_key key;
	struct stream stream;
	struct tcp_sock *tcp;
	struct shared_socket *shared;
	owner_t owner;
	u32 read;

	if (!account)
		return 0;
	tcp = tcp_of(sk);
	if (!tcp)
		return 0;
	read = tcp->copied_seq;
	if (!account->received.mixed && is_current(account->reading.owner)) {
		account->reading.read = read;
		return 0;
	}
	if (account->reading.known && read == account->reading.read)
		return 0; /* looked at, not taken */
	owner = current_owner();
	if (any_ownerless && !account->reading.owner)
		adopt_listener(sk, owner);
	account->sent.netns = netns_of(sk);
	if (account->received.mixed) {
		shared = bpf_sk_storage_get(&shared_sockets, sk, 0, 0);
		account->reading.owner = owner;
		if (shared)
			settle_runs(shared, owner, netns_of(sk), read);
	} else if (account->reading.owner) {
		stream.netns = netns_of(sk);
		stream.received = tcp->rcv_nxt;
		stream.headers = stream_headers(sk->__sk_common.skc_family, tcp->tcp_header_len);
		key = net_key(account->reading.owner, stream.netns, account->received.ifindex);
		settle_stream(account, &key, &stream);
	}
	if (!account->reading.known) {
		account->reading.settled = tcp->rcv_nxt - (u32)tcp->bytes_received;
		account->reading.known = 1;
	}
	account->reading.read = read;
	account->reading.owner = owner;
	return 0;
}

/* Datagrams taken by the one reader of a socket; when the queue is empty, all. */
static __noinline int settle_datagrams(struct socket_account *account, struct sum *sum, struct account_key *key)
{
	u64 bytes = TAKE(account->reading.read_bytes), packets = TAKE(account->reading.read_packets);
	struct flow all, flow;

	if (packets >= sum->packets >> 32)
		return settle(sum, key, false);
	if (!packets)
		return 0;
	all = flow_of(sum);
	flow.bytes = bytes < all.bytes ? bytes : all.bytes;
	flow.operations = packets;
	flow.segments = all.segments * packets / all.operations;
	flow.header_bytes = all.header_bytes * packets / all.operations;
	ADD(sum->bytes, -flow.bytes);
	ADD(sum->packets, -PACKETS(flow.operations, flow.segments));
	ADD(sum->header_bytes, -flow.header_bytes);
	return charge(key, false, &flow);
}

/* A datagram of a socket that several devices feed. A run that is through is charged
 * whole: what two processors did at once may have put its end one off.
 */
static __always_inline void take_from_runs(struct shared_socket *shared, owner_t owner, u32 netns, u32 bytes)
{
	struct run *run = run_at(shared, shared->first);
	struct flow all, flow = { .bytes = bytes, .operations = 1 };
	struct account_key key;

	for (int i = 0; i < RUNS - 1; i++) {
		if (shared->first == shared->last || (run->start != run->end && run->sum.packets))
			break;
		settle_run(run, owner, netns);
		run->ifindex = 0;
		shared->first++;
		run = run_at(shared, shared->first);
	}
	all = flow_of(&run->sum);
	if (!all.operations)
		return;
	if (run->start != run->end)
		run->start++;
	key = net_key(owner, netns, run->ifindex);
	if (all.operations == 1) {
		settle(&run->sum, &key, false);
		return;
	}
	if (flow.bytes > all.bytes)
		flow.bytes = all.bytes;
	flow.segments = all.segments / all.operations;
	flow.header_bytes = all.header_bytes / all.operations;
	ADD(run->sum.bytes, -flow.bytes);
	ADD(run->sum.packets, -PACKETS(1, flow.segments));
	ADD(run->sum.header_bytes, -flow.header_bytes);
	charge(&key, false, &flow);
}

static __noinline int take_datagram(struct shared_socket *shared, owner_t owner, u32 netns, u32 bytes)
{
	if (!shared || !owner)
		return 0;
	if (!enter(shared))
		return lose(LOSS_DEVICES_MIXED, 1);
	take_from_runs(shared, owner, netns, bytes);
	leave(shared);
	return 0;
}

static __noinline int datagram_taken(struct sock *sk, u32 payload)
{
	struct socket_account *account = bpf_sk_storage_get(&socket_accounts, sk, 0, 0);
	u32 headers = udp_headers(sk->__sk_common.skc_family);
	/* An answer to an echo request is handed over with its own header of 8 bytes. */
	u32 bytes = payload + headers - (sk->sk_protocol == IPPROTO_UDP ? 0 : 8);
	struct account_key key;
	struct shared_socket *shared;
	owner_t owner;

	if (!account)
		return 0;
	if (!account->received.mixed && !account->reading.shared && is_current(account->reading.owner)) {
		ADD(account->reading.read_bytes, bytes);
		ADD(account->reading.read_packets, 1);
		return 0;
	}
	owner = current_owner();
	account->sent.netns = netns_of(sk);
	if (account->received.mixed) {
		shared = bpf_sk_storage_get(&shared_sockets, sk, 0, 0);
		if (!shared)
			return 0;
		if (account->reading.read_packets) {
			/* Taken before the second device came. */
			key = net_key(account->reading.owner ? account->reading.owner : owner,
				      netns_of(sk), account->received.ifindex);
			if (shared->first)
				TAKE(account->reading.read_packets); /* its run is charged */
			else
				settle_datagrams(account, &shared->runs[0].sum, &key);
		}
		/* Before the runs are taken: what comes meanwhile is this reader's. */
		account->reading.owner = owner;
		take_datagram(shared, owner, netns_of(sk), bytes);
		return 0;
	}
	key = net_key(account->reading.owner, netns_of(sk), account->received.ifindex);
	if (key.owner && key.owner != owner) {
		settle_datagrams(account, &account->received.sum, &key);
		account->reading.shared = 1;
	}
	ADD(account->reading.read_bytes, bytes);
	ADD(account->reading.read_packets, 1);
	key.owner = account->reading.owner = owner;
	if (account->reading.shared)
		settle_datagrams(account, &account->received.sum, &key);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(datagram_read, struct sock *sk, int length, int flags)
{
	if (!sk || length < 0 || flags & MSG_PEEK || !is_datagram(sk))
		return 0;
	return datagram_taken(sk, length);
}

/* The same before 6.3, where there is no such tracepoint. */
SEC("fexit/udp_recvmsg")
int BPF_PROG(datagram_read_ipv4, struct sock *sk, struct msghdr *message, u64 room, int flags,
	     int *address_length, int length)
{
	return length < 0 || flags & MSG_PEEK ? 0 : datagram_taken(sk, length);
}

SEC("fexit/udpv6_recvmsg")
int BPF_PROG(datagram_read_ipv6, struct sock *sk, struct msghdr *message, u64 room, int flags,
	     int *address_length, int length)
{
	return length < 0 || flags & MSG_PEEK ? 0 : datagram_taken(sk, length);
}

/* A datagram for which the socket has no room was moved to memory all the same. It
 * is charged to the socket's reader as if it had been read.
 */
SEC("tp_btf/udp_fail_queue_rcv_skb")
int BPF_PROG(datagram_dropped, int error, struct sock *sk, struct sk_buff *skb)
{
	struct socket_account *account = bpf_sk_storage_get(&socket_accounts, sk, 0, 0);
	struct shared_socket *shared;
	u32 bytes;

	if (!account)
		return 0;
	bytes = network_bytes(skb);
	if (!account->received.mixed) {
		ADD(account->reading.read_bytes, bytes);
		ADD(account->reading.read_packets, 1);
		return 0;
	}
	shared = bpf_sk_storage_get(&shared_sockets, sk, 0, 0);
	if (shared)
		take_datagram(shared, account->reading.owner, netns_of(sk), bytes);
	return 0;
}
#endif
