/* The kernel's types that the programs use, with the fields that they use. A name with three
 * underscores is another version's form of the type before them.
 */
#ifndef MEMGAUGE_IO_KERNEL_H
#define MEMGAUGE_IO_KERNEL_H

#include <memgauge/types.h>

typedef s64 loff_t;
typedef _Bool bool;
#define false 0
#define true 1

/* Values of interfaces that the kernel keeps stable (linux/bpf.h, linux/in.h). */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_MAP_TYPE_RINGBUF = 27,
};
enum { BPF_ANY, BPF_NOEXIST };
enum { BPF_F_NO_PREALLOC = 1 };
enum { BPF_SK_STORAGE_GET_F_CREATE = 1 };
enum { IPPROTO_ICMP = 1, IPPROTO_TCP = 6, IPPROTO_UDP = 17, IPPROTO_ICMPV6 = 58 };
enum { SOCK_DGRAM = 2 };
enum { AF_INET = 2, AF_INET6 = 10 };
enum { MSG_PEEK = 2 };

/* Values inside the kernel that have not changed since 5.15. */
enum {
	TCP_SYN_SENT = 2,
	TCP_FIN_WAIT1 = 4,
	TCP_FIN_WAIT2 = 5,
	TCP_TIME_WAIT = 6,
	TCP_CLOSE = 7,
	TCP_LAST_ACK = 9,
	TCP_LISTEN = 10,
	TCP_CLOSING = 11,
	TCP_NEW_SYN_RECV = 12,
};
enum { REQ_OP_READ = 0, REQ_OP_WRITE = 1, REQ_OP_ZONE_APPEND = 7, REQ_OP_MASK = 0xff };
enum { IOMAP_WRITE = 1 << 0, IOMAP_DIRECT = 1 << 4 };
enum { PF_KTHREAD = 0x00200000 };
enum { S_IFMT = 0170000, S_IFREG = 0100000 };
/* preempt_count: in a softirq, a hard interrupt or an NMI, not merely with softirqs off. */
enum { IN_INTERRUPT = 0x00ff0100 };
enum { PAGE_SHIFT = 12, PAGE_SIZE = 1 << PAGE_SHIFT };

struct task_struct {
	u32 flags;
	int pid;
	int tgid;
	u64 start_boottime;
	u64 self_exec_id;
	struct task_struct *group_leader;
	char comm[16];
} KERNEL_TYPE;

struct pcpu_hot {
	int preempt_count;
} KERNEL_TYPE;

typedef struct {
	int counter;
} KERNEL_TYPE atomic_t;

/* ------------------------------------------------------------- block and pages */
struct inode;
struct xarray {
	u32 xa_flags;
} KERNEL_TYPE;

struct address_space {
	struct inode *host;
	struct xarray i_pages;
	atomic_t i_mmap_writable;
} KERNEL_TYPE;

struct inode {
	u16 i_mode;
	struct address_space *i_mapping;
} KERNEL_TYPE;

enum pageflags { PG_head = 6 }; /* the number is asked from the kernel */

struct page {
	unsigned long flags;
	unsigned long compound_head;
	struct address_space *mapping;
	unsigned long index;
	/* Its size, 64, is asked from the kernel; this only gives the name a type. */
} KERNEL_TYPE;

struct page___index {
	unsigned long __folio_index;
} KERNEL_TYPE;

struct folio {
	unsigned long index;
	struct address_space *mapping;
	unsigned long _flags_1;
} KERNEL_TYPE;

struct gendisk;
struct block_device {
	struct gendisk *bd_disk;
	u32 bd_dev;
} KERNEL_TYPE;

struct gendisk {
	struct block_device *part0;
} KERNEL_TYPE;

struct bvec_iter {
	u32 bi_size;
	u32 bi_idx;
	u32 bi_bvec_done;
} KERNEL_TYPE;

/* Copied as a whole: unchanged since 2.5. */
struct bio_vec {
	struct page *bv_page;
	u32 bv_len;
	u32 bv_offset;
};

struct bio {
	struct block_device *bi_bdev;
	u32 bi_opf;
	struct bvec_iter bi_iter;
	struct bio_vec *bi_io_vec;
} KERNEL_TYPE;

struct iomap_iter {
	struct inode *inode;
	loff_t pos;
	u64 len;
	u32 flags;
} KERNEL_TYPE;

/* --------------------------------------------------------------------- network */
struct ns_common {
	u32 inum;
} KERNEL_TYPE;

struct net {
	struct ns_common ns;
} KERNEL_TYPE;

typedef struct {
	struct net *net;
} KERNEL_TYPE possible_net_t;

typedef struct refcount_struct {
	atomic_t refs;
} KERNEL_TYPE refcount_t;

struct sock;
struct sock_common {
	u16 skc_family;
	volatile u8 skc_state;
	u16 skc_num;
	__be16 skc_dport;
	possible_net_t skc_net;
	struct sock *skc_listener;
	refcount_t skc_refcnt;
} KERNEL_TYPE;

struct file;
struct sock;
struct socket {
	struct file *file;
	struct sock *sk;
} KERNEL_TYPE;

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
	u16 sk_type;
	u16 sk_protocol;
	refcount_t sk_wmem_alloc;
} KERNEL_TYPE;

struct tcp_sock {
	u32 rcv_nxt;
	u32 copied_seq;
	u32 write_seq;
	u32 snd_una;
	u16 tcp_header_len;
	u64 bytes_received;
} KERNEL_TYPE;

struct net_device {
	int ifindex;
} KERNEL_TYPE;

struct sk_buff {
	struct sock *sk;
	struct net_device *dev;
	u32 len;
	u32 end;
	u16 network_header;
	u16 transport_header;
	unsigned char *head;
	unsigned char *data;
} KERNEL_TYPE;

struct skb_shared_info {
	u16 gso_segs;
} KERNEL_TYPE;

struct msghdr;

/* --------------------------------------------- contexts of programs (linux/bpf.h) */
struct bpf_sock {
	u32 bound_dev_if;
	u32 family;
	u32 type;
	u32 protocol;
	u32 mark;
	u32 priority;
	u32 src_ip4;
	u32 src_ip6[4];
	u32 src_port;
	__be16 dst_port;
	u16 zero;
	u32 dst_ip4;
	u32 dst_ip6[4];
	u32 state;
};

struct bpf_tcp_sock {
	u32 snd_cwnd;
	u32 srtt_us;
	u32 rtt_min;
	u32 snd_ssthresh;
	u32 rcv_nxt;
};

struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping;
	u32 protocol;
	u32 vlan_present;
	u32 vlan_tci;
	u32 vlan_proto;
	u32 priority;
	u32 ingress_ifindex;
	u32 ifindex;
	u32 tc_index;
	u32 cb[5];
	u32 hash;
	u32 tc_classid;
	u32 data;
	u32 data_end;
	u32 napi_id;
	u32 family;
	u32 remote_ip4;
	u32 local_ip4;
	u32 remote_ip6[4];
	u32 local_ip6[4];
	u32 remote_port;
	u32 local_port;
	u32 data_meta;
	u64 flow_keys __attribute__((aligned(8)));
	u64 tstamp;
	u32 wire_len;
	u32 gso_segs;
	struct bpf_sock *sk __attribute__((aligned(8)));
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
	u64 session_id;
	u64 seq_num;
} KERNEL_TYPE;

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
} KERNEL_TYPE;

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
} KERNEL_TYPE;

/* On the wire. */
struct tcp_start {
	__be16 source, dest;
	__be32 seq, ack_seq;
	u8 offset, flags;
	__be16 window;
};
#endif
