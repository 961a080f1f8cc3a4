/* Receiving: packets are summed when they reach their socket and charged to the
 * process that reads them.
 */
#ifndef MEMGAUGE_IO_RECEIVE_H
#define MEMGAUGE_IO_RECEIVE_H

/* ------------------------------------------------------------ several devices */
/* Runs are changed by interrupts of several processors and by readers. Whoever does not
 * get them after some tries goes without, and at once where this processor has them: it
 * has interrupted a reader, who will not let go before.
 */
enum { TRIES = 1024 };

static __always_inline bool enter(struct lanes *lanes)
{
	u32 me = bpf_get_smp_processor_id() + 1, holder;

	for (int i = 0; i < TRIES; i++) {
		holder = __sync_val_compare_and_swap(&lanes->busy, 0, me);
		if (!holder)
			return true;
		if (holder == me)
			return false;
	}
	return false;
}

static __always_inline void leave(struct lanes *lanes)
{
	__sync_lock_test_and_set(&lanes->busy, 0);
}

static __always_inline struct run *run_at(struct lanes *lanes, u32 n)
{
	return &lanes->runs[n & (RUNS - 1)];
}

/* The run that a packet of the device goes to. A full ring keeps up to six devices exact
 * and gives up the order, which is counted.
 */
static __always_inline struct run *run_for(struct lanes *lanes, u32 ifindex)
{
	struct run *last = run_at(lanes, lanes->last);

	if (last->ifindex == ifindex)
		return last;
	if (lanes->last - lanes->first >= RUNS - 1) {
		lose(LOSS_DEVICES_MIXED, 1);
#pragma unroll
		for (int back = 1; back < RUNS - 1; back++) {
			struct run *run = run_at(lanes, lanes->last - back);
			if (run->ifindex == ifindex)
				return run;
		}
		return last;
	}
	lanes->last++;
	last = run_at(lanes, lanes->last);
	last->start = last->end = lanes->position;
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
static __noinline int settle_runs(struct lanes *lanes, owner_t owner, u32 netns, u64 up_to)
{
	bool all = up_to >> 32;
	u32 position = up_to;

	if (!enter(lanes))
		return lose(LOSS_DEVICES_MIXED, 1);
	for (int i = 0; i < RUNS; i++) {
		struct run *run = run_at(lanes, lanes->first);
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
		if (lanes->first == lanes->last)
			break;
		run->ifindex = 0;
		lanes->first++;
	}
	leave(lanes);
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

/* From the first packet of a second device on, runs replace the sum. What was not read
 * until then is the first run: of a stream by position, of datagrams by number.
 */
static __always_inline void open_runs(struct book *book, struct lanes *lanes, struct arrival *arrival)
{
	struct run *run = &lanes->runs[0];

	run->ifindex = book->received.ifindex;
	if (arrival->end) {
		run->start = book->reading.settled;
		run->end = arrival->start;
	} else {
		run->start = 0;
		run->end = (book->received.sum.packets >> 32) - book->reading.read_packets;
	}
	run->sum.bytes = TAKE(book->received.sum.bytes);
	run->sum.packets = TAKE(book->received.sum.packets);
	run->sum.header_bytes = TAKE(book->received.sum.header_bytes);
	lanes->first = lanes->last = 0;
	lanes->position = run->end;
	book->received.mixed = 1;
}

/* Packets that another processor was adding to the sum when runs replaced it go to the
 * socket's reader as soon as there is one.
 */
static __always_inline int settle_latecomers(struct book *book)
{
	struct account_key key = net_key(reader_of(book), book->sent.netns, book->received.ifindex);

	if (!book->received.sum.packets || !key.owner || !key.netns)
		return 0;
	return settle(&book->received.sum, &key, false);
}

/* Adds a packet to its device's run. Where the runs are not to be had, it goes to the
 * socket's reader at once.
 */
static __noinline int arrive_in_lane(struct book *book, struct lanes *lanes, struct arrival *arrival, u32 ifindex)
{
	struct account_key key;
	struct run *run;
	struct sum sum = {};
	struct flow flow;

	if (!book || !lanes || !arrival)
		return 0;
	if (!enter(lanes)) {
		key = net_key(reader_of(book), book->sent.netns, ifindex);
		put(&sum, arrival->bytes, arrival->segments, arrival->header_bytes);
		flow = flow_of(&sum);
		lose(LOSS_DEVICES_MIXED, 1);
		return key.owner && key.netns ? charge(&key, false, &flow)
					      : lose(LOSS_NO_BOOK, arrival->bytes);
	}
	if (!book->received.mixed)
		open_runs(book, lanes, arrival);
	if (!arrival->end)
		arrival->end = lanes->position + 1;
	run = run_for(lanes, ifindex);
	put(&run->sum, arrival->bytes, arrival->segments, arrival->header_bytes);
	if (BEFORE(lanes->position, arrival->end)) {
		lanes->position = arrival->end;
		run->end = arrival->end;
	}
	leave(lanes);
	return settle_latecomers(book);
}

static __always_inline int tcp_arrived(struct __sk_buff *skb, struct bpf_sock *sk, struct book *book)
{
	struct arrival arrival = { .bytes = skb->len, .segments = skb->gso_segs ?: 1 };
	struct lanes *lanes;

	if (!book->received.ifindex)
		book->received.ifindex = skb->ifindex;
	if (!book->received.mixed && book->received.ifindex == skb->ifindex) {
		if (arrival.segments > 1)
			parse_tcp(skb, &arrival);
		put(&book->received.sum, arrival.bytes, arrival.segments, arrival.header_bytes);
		return 1;
	}
	lanes = bpf_sk_storage_get(&lanes_of, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!lanes || !parse_tcp(skb, &arrival)) {
		lose(LOSS_NO_BOOK, skb->len);
		return 1;
	}
	arrive_in_lane(book, lanes, &arrival, skb->ifindex);
	return 1;
}

static __always_inline u32 udp_headers(u32 family)
{
	return family == AF_INET ? 28 : 48;
}

static __always_inline int udp_arrived(struct __sk_buff *skb, struct bpf_sock *sk, struct book *book)
{
	struct arrival arrival = { .bytes = skb->len, .segments = skb->gso_segs ?: 1 };
	struct lanes *lanes;

	if (arrival.segments > 1)
		arrival.header_bytes = (arrival.segments - 1) * udp_headers(sk->family);
	if (!book->received.ifindex)
		book->received.ifindex = skb->ifindex;
	if (!book->received.mixed && book->received.ifindex == skb->ifindex) {
		put(&book->received.sum, arrival.bytes, arrival.segments, arrival.header_bytes);
		return 1;
	}
	lanes = bpf_sk_storage_get(&lanes_of, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!lanes) {
		lose(LOSS_NO_BOOK, skb->len);
		return 1;
	}
	arrive_in_lane(book, lanes, &arrival, skb->ifindex);
	return 1;
}

/* Where reading begins, when the first packet comes to a connection. */
static __always_inline void begin_stream(struct bpf_sock *sk, struct book *book)
{
	struct bpf_tcp_sock *tcp;

	if (book->reading.known || sk->state == TCP_SYN_SENT)
		return;
	tcp = bpf_tcp_sock(sk);
	if (!tcp)
		return;
	book->reading.settled = book->reading.read = tcp->rcv_nxt;
	book->reading.known = 1;
}

SEC("cgroup_skb/ingress")
int packet_arrived(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct book *book;
	u32 ports;

	if (!sk)
		return 1;
	ports = sk->src_port << 16 | sk->dst_port;
	book = slot_of(sk, ports);
	/* The usual packet, without a call. */
	if (book && book->reading.known && !book->received.mixed && skb->gso_segs <= 1 &&
	    book->received.ifindex == skb->ifindex) {
		put(&book->received.sum, skb->len, 1, 0);
		return 1;
	}
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return 1;
	if (are_datagrams(sk->type, sk->protocol)) {
		say_datagrams();
		book = bpf_sk_storage_get(&books, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!book) {
			lose(LOSS_NO_BOOK, skb->len);
			return 1;
		}
		return udp_arrived(skb, sk, book);
	}
	if (sk->protocol != IPPROTO_TCP)
		return 1;
	if (!book)
		book = sk->state == TCP_CLOSE ? bpf_sk_storage_get(&books, sk, 0, 0)
					      : NEW_STREAM_BOOK(sk, ports);
	if (!book) {
		lose(LOSS_NO_BOOK, skb->len);
		return 1;
	}
	begin_stream(sk, book);
	return tcp_arrived(skb, sk, book);
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

/* The stream up to `read` goes to its reader, the rest waits for the next one: also what
 * has arrived and has no place in the stream yet, as another process had the socket locked,
 * or a packet before it is missing.
 */
static __always_inline void settle_stream(struct book *book, struct account_key *key, struct stream *stream)
{
	struct reading *reading = &book->reading;
	u32 part = reading->read - reading->settled, whole = stream->received - reading->settled;
	u64 headers = (book->received.sum.packets >> 32) * stream->headers;
	u64 arrived = book->received.sum.bytes - headers;

	if (whole && part <= whole)
		settle_part(&book->received.sum, key, part,
			    book->received.sum.bytes > headers && arrived > whole ? arrived : whole);
	reading->settled = reading->read;
}

SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(stream_read, struct sock *sk)
{
	struct book *book = STREAM_BOOK(sk, ports_of(sk));
	struct account_key key;
	struct stream stream;
	struct tcp_sock *tcp;
	struct lanes *lanes;
	owner_t owner;
	u32 read;

	if (!book)
		return 0;
	tcp = tcp_of(sk);
	if (!tcp)
		return 0;
	read = tcp->copied_seq;
	if (!book->received.mixed && is_current(book->reading.owner)) {
		book->reading.read = read;
		return 0;
	}
	if (book->reading.known && read == book->reading.read)
		return 0; /* looked at, not taken */
	owner = current_owner();
	book->sent.netns = netns_of(sk);
	if (book->received.mixed) {
		lanes = bpf_sk_storage_get(&lanes_of, sk, 0, 0);
		book->reading.owner = owner;
		if (lanes)
			settle_runs(lanes, owner, netns_of(sk), read);
	} else if (book->reading.owner) {
		stream.netns = netns_of(sk);
		stream.received = tcp->rcv_nxt;
		stream.headers = stream_headers(sk->__sk_common.skc_family, tcp->tcp_header_len);
		key = net_key(book->reading.owner, stream.netns, book->received.ifindex);
		settle_stream(book, &key, &stream);
	}
	if (!book->reading.known) {
		book->reading.settled = tcp->rcv_nxt - (u32)tcp->bytes_received;
		book->reading.known = 1;
	}
	book->reading.read = read;
	book->reading.owner = owner;
	return 0;
}

/* Datagrams taken by the one reader of a socket; when the queue is empty, all. */
static __noinline int settle_datagrams(struct book *book, struct sum *sum, struct account_key *key)
{
	u64 bytes = TAKE(book->reading.read_bytes), packets = TAKE(book->reading.read_packets);
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
static __always_inline void take_from_lane(struct lanes *lanes, owner_t owner, u32 netns, u32 bytes)
{
	struct run *run = run_at(lanes, lanes->first);
	struct flow all, flow = { .bytes = bytes, .operations = 1 };
	struct account_key key;

	for (int i = 0; i < RUNS - 1; i++) {
		if (lanes->first == lanes->last || (run->start != run->end && run->sum.packets))
			break;
		settle_run(run, owner, netns);
		run->ifindex = 0;
		lanes->first++;
		run = run_at(lanes, lanes->first);
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

static __noinline int take_datagram(struct lanes *lanes, owner_t owner, u32 netns, u32 bytes)
{
	if (!lanes || !owner)
		return 0;
	if (!enter(lanes))
		return lose(LOSS_DEVICES_MIXED, 1);
	take_from_lane(lanes, owner, netns, bytes);
	leave(lanes);
	return 0;
}

static __noinline int datagram_taken(struct sock *sk, u32 payload)
{
	struct book *book = bpf_sk_storage_get(&books, sk, 0, 0);
	u32 headers = udp_headers(sk->__sk_common.skc_family);
	/* An answer to an echo request is handed over with its own header of 8 bytes. */
	u32 bytes = payload + headers - (sk->sk_protocol == IPPROTO_UDP ? 0 : 8);
	struct account_key key;
	struct lanes *lanes;
	owner_t owner;

	if (!book)
		return 0;
	if (!book->received.mixed && !book->reading.shared && is_current(book->reading.owner)) {
		ADD(book->reading.read_bytes, bytes);
		ADD(book->reading.read_packets, 1);
		return 0;
	}
	owner = current_owner();
	book->sent.netns = netns_of(sk);
	if (book->received.mixed) {
		lanes = bpf_sk_storage_get(&lanes_of, sk, 0, 0);
		if (!lanes)
			return 0;
		if (book->reading.read_packets) {
			/* Taken before the second device came. */
			key = net_key(book->reading.owner ? book->reading.owner : owner,
				      netns_of(sk), book->received.ifindex);
			if (lanes->first)
				TAKE(book->reading.read_packets); /* its run is charged */
			else
				settle_datagrams(book, &lanes->runs[0].sum, &key);
		}
		/* Before the runs are taken: what comes meanwhile is this reader's. */
		book->reading.owner = owner;
		take_datagram(lanes, owner, netns_of(sk), bytes);
		return 0;
	}
	key = net_key(book->reading.owner, netns_of(sk), book->received.ifindex);
	if (key.owner && key.owner != owner) {
		settle_datagrams(book, &book->received.sum, &key);
		book->reading.shared = 1;
	}
	ADD(book->reading.read_bytes, bytes);
	ADD(book->reading.read_packets, 1);
	key.owner = book->reading.owner = owner;
	if (book->reading.shared)
		settle_datagrams(book, &book->received.sum, &key);
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
	struct book *book = bpf_sk_storage_get(&books, sk, 0, 0);
	struct lanes *lanes;
	u32 bytes;

	if (!book)
		return 0;
	bytes = network_bytes(skb);
	if (!book->received.mixed) {
		ADD(book->reading.read_bytes, bytes);
		ADD(book->reading.read_packets, 1);
		return 0;
	}
	lanes = bpf_sk_storage_get(&lanes_of, sk, 0, 0);
	if (lanes)
		take_datagram(lanes, book->reading.owner, netns_of(sk), bytes);
	return 0;
}
#endif
