/* Where the account of a TCP socket lies: in a slot of a table, found by the socket's
 * address without a call. Memory that the kernel allocates and frees with a socket (1.5
 * us each) would cost a short connection more than all its sums.
 *
 *   owns[hash]   address of the socket that has the slot, 0: free
 *   slots[hash]  its account
 *
 * A socket whose slot is taken keeps its account in the kernel's storage. So do UDP
 * sockets, which send and receive after their end. A slot is given back when the socket
 * is destroyed. If that goes unseen, the slot is given back in one of two other ways: a
 * read-out finds that nobody holds the socket, or the ports tell that the address is
 * another socket's.
 */
#ifndef MEMGAUGE_IO_SLOTS_H
#define MEMGAUGE_IO_SLOTS_H

enum { SLOT_BITS = 13, SLOTS = 1 << SLOT_BITS };
enum { BEING_EMPTIED = 1 }; /* in place of an address */

u64 owns[SLOTS] __attribute__((aligned(64)));
struct socket_account slots[SLOTS] __attribute__((aligned(64)));

/* Sockets are multiples of 64 bytes apart; the factor is 2^32 divided by the golden
 * ratio. The kernel lets half a pointer be copied, but not be calculated with.
 */
static __always_inline u32 slot_number(const void *sk)
{
	u32 half;

	asm volatile("%0 = %1" : "=w"(half) : "w"((u32)(u64)sk));
	return (half >> 6) * 2654435769u >> (32 - SLOT_BITS);
}

static __always_inline u32 ports_of(struct sock *sk)
{
	return (u32)sk->__sk_common.skc_num << 16 | sk->__sk_common.skc_dport;
}

/* Resets an account that another socket has used: bytes left in it go to that socket's
 * owner. */
static __noinline int renew(struct socket_account *account, u32 ports)
{
	struct account_key key;

	if (!account)
		return 0;
	key = net_key(reader_of(account), account->sent.netns, account->received.ifindex);
	if (key.owner && key.netns) {
		settle(&account->received.sum, &key, false);
		settle_sent(account, key.netns);
	}
	lose_unattributed(account);
	__builtin_memset(account, 0, sizeof(*account));
	account->sent.ports = ports;
	return 0;
}

/* The account in the slot that has the socket's address. `sk` is one of several types of
 * pointer.
 */
static __always_inline struct socket_account *slot_at(const void *sk)
{
	u32 number = slot_number(sk) & (SLOTS - 1);
	struct socket_account *account = owns[number] == (u64)sk ? &slots[number] : NULL;

	/* This pointer is tested later: the verifier would not see a test of the
	 * address. */
	asm volatile("" : "+r"(account));
	return account;
}

/* The account in a socket's slot, if it has one. A socket without a port of its own is one
 * that has given it back at its end.
 */
static __always_inline struct socket_account *slot_of(const void *sk, u32 ports)
{
	struct socket_account *account = slot_at(sk);

	/* Another processor may have taken the slot for this socket and not yet noted the ports. */
	if (account && account->sent.ports && account->sent.ports != ports && ports >> 16)
		renew(account, ports);
	return account;
}

static __always_inline struct socket_account *take_slot(const void *sk, u32 ports)
{
	u32 number = slot_number(sk);
	struct socket_account *account = &slots[number];
	u64 holder;

	if (!ends_seen)
		return NULL;
	holder = __sync_val_compare_and_swap(&owns[number], 0, (u64)sk);
	if (!holder)
		account->sent.ports = ports;
	return !holder || holder == (u64)sk ? account : NULL;
}

/* Leaves the slot empty for another socket. */
static __always_inline void leave_slot(const void *sk)
{
	u32 number = slot_number(sk);

	if (owns[number] != (u64)sk)
		return;
	__builtin_memset(&slots[number], 0, sizeof(slots[number]));
	owns[number] = 0;
}

/* Whether the socket was freed: nobody holds it any more. */
static __always_inline bool is_freed(struct sock *sk)
{
	return !BPF_CORE_READ(sk, __sk_common.skc_refcnt.refs.counter);
}

/* Empties the slot of a socket that was freed, of which another may have the address
 * meanwhile: that one finds the slot taken.
 */
static __noinline int empty_slot(u32 number, u64 socket)
{
	number &= SLOTS - 1;
	if (__sync_val_compare_and_swap(&owns[number], socket, BEING_EMPTIED) != socket)
		return 0;
	renew(&slots[number], 0);
	owns[number] = 0;
	return 0;
}

/* A TCP socket's account, if it has one. */
#define STREAM_ACCOUNT(sk, ports) (slot_of(sk, ports) ?: bpf_sk_storage_get(&socket_accounts, sk, 0, 0))

/* The same, made where there is none; not for a socket that has been destroyed. */
#define NEW_STREAM_ACCOUNT(sk, ports)                                                     \
	(slot_of(sk, ports) ?: bpf_sk_storage_get(&socket_accounts, sk, 0, 0) ?:                 \
	 take_slot(sk, ports) ?: bpf_sk_storage_get(&socket_accounts, sk, 0, BPF_SK_STORAGE_GET_F_CREATE))

/* `request` is a connection that the listener is about to make. */
static __noinline int note_ownerless(struct sock *request, u64 listener)
{
	struct port port = { .netns = netns_of(request), .number = request->__sk_common.skc_num };

	bpf_map_update_elem(&ownerless, &port, &listener, BPF_ANY);
	any_ownerless = 1;
	return 0;
}

/* The owner reads or writes its first bytes of a connection: a listener without an owner
 * that made the connection becomes the owner's.
 */
static __noinline int adopt_listener(struct sock *sk, owner_t owner)
{
	struct port port = { .netns = netns_of(sk), .number = sk->__sk_common.skc_num };
	u64 *found = bpf_map_lookup_elem(&ownerless, &port), listener;
	struct socket_account *account;

	if (!found)
		return 0;
	listener = *found;
	bpf_map_delete_elem(&ownerless, &port);
	account = slot_at((void *)listener);
	/* The address may be another socket's meanwhile. */
	if (account && !account->sent.owner && account->sent.ports == port.number << 16)
		account->sent.owner = owner;
	bpf_map_update_elem(&listeners, &listener, &owner, BPF_NOEXIST);
	return 0;
}
#endif
