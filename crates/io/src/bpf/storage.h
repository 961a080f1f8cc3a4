/* Disks: every request is charged when it is queued at its device.
 *
 * Reads and direct writes belong to the current process. A buffered write is queued by
 * the process that writes pages back, so the processes that dirtied them are kept:
 *
 *   files:    mapping -> the only writer since the file was clean
 *   dirtiers: (life, page index / 16) -> 16 owners, once there is another
 *
 * A file nearly always has one writer, of whom nothing more is noted. From the second
 * writer on, pages are marked when a folio becomes dirty and, where the file
 * system tells, at each write. A large folio gets dirty once but may have many writers.
 * A page without a mark is the first writer's. Marks are never deleted, as a page may
 * be queued again. They belong to one life of the file, which ends when all of it is
 * clean and another process begins to write. The oldest give way when a map is full.
 * Both have room for twice the pages that the kernel lets be dirty.
 */
#ifndef MEMGAUGE_IO_STORAGE_H
#define MEMGAUGE_IO_STORAGE_H

enum { CHUNK_SHIFT = 4, CHUNK_PAGES = 1 << CHUNK_SHIFT, CHUNK_MASK = CHUNK_PAGES - 1 };
/* A page's descriptor, and where `PageAnon` and other non-files say so in `mapping`. */
enum { PAGE_BYTES = 64, MAPPING_KIND = 3 };
/* A request has at most 256 pieces of at most 2 MiB each on common drivers; a walk
 * that is longer is cut and counted.
 */
enum { LONGEST_WALK = 1 << 18 };
/* The upper half of a mapping's flags tells whether any page is dirty or being written
 * back. The bits depend on how the kernel was built.
 */
enum { MARKS_SHIFT = 16 };
/* Size of a thread's stack in the kernel, or of a part of it where it is larger. */
enum { STACK_SHIFT = 14 };

struct dirty_file {
	owner_t owner; /* 0: pages were dirty before anything was known of the file */
	u64 life;
	u64 shared;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, u64);
	__type(value, struct dirty_file);
} files SEC(".maps");

/* How often a file got an entry or a second writer. The only writer of a file then
 * looks its entry up again: each new entry may push out one that seems unused.
 */
u64 changes;

struct chunk_key {
	u64 life;
	u64 chunk;
};

struct chunk {
	owner_t owner[CHUNK_PAGES];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct chunk_key);
	__type(value, struct chunk);
} dirtiers SEC(".maps");

/* The last write that a file system reported on this processor. */
struct told {
	u64 mapping;
	u64 first; /* page */
	u64 last;
	u64 thread;
	u64 stack;
};

/* Last write to a file on this processor. As long as no file's entry changes, the same
 * thread need not look the file up again.
 */
struct recent {
	u64 mapping;
	u64 changes;
	u64 thread;
	u64 start;
	u64 exec_id;
	u64 life; /* in which pages must be marked; 0: the file has no other writer */
	owner_t owner;
};

/* A walk over the pages of a request being written. */
struct walk {
	struct bio_vec *pieces;
	u32 piece;
	u32 done;  /* bytes of the current piece */
	u32 left;  /* bytes of the request */
	u32 kthread;
	struct bio_vec current;
	u64 head;  /* first page of the folio looked at */
	u64 mapping;
	u64 index; /* of the folio's first page */
	u64 is_file;
	struct dirty_file file;
	struct chunk_key key;
	struct chunk chunk; /* copy of `key`'s */
	owner_t submitter;
	/* what is charged when the owner changes */
	owner_t owner;
	struct account_key account;
	u64 bytes;
	u64 operations;
	u64 fresh; /* a folio's descriptor follows in `raw` */
	u8 raw[PAGE_BYTES];
};

struct desk {
	struct recent recent;
	struct told told;
	struct walk walk;
	struct chunk empty;
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct desk);
} desks SEC(".maps");

static __always_inline struct desk *desk(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&desks, &zero);
}

/* ------------------------------------------------------------------ marking */
static __always_inline bool is_recent(const struct recent *recent, struct address_space *mapping,
				      struct task_struct *task)
{
	return recent->mapping == (u64)mapping && recent->changes == changes &&
	       recent->thread == (u64)task && recent->start == task->start_boottime &&
	       recent->exec_id == task->self_exec_id;
}

static __always_inline void note_recent(struct recent *recent, struct address_space *mapping, u64 seen,
					u64 life, owner_t owner)
{
	struct task_struct *task = bpf_get_current_task_btf();

	recent->mapping = (u64)mapping;
	recent->changes = seen;
	recent->thread = (u64)task;
	recent->start = task->start_boottime;
	recent->exec_id = task->self_exec_id;
	recent->life = life;
	recent->owner = owner;
}

/* Whether no page is dirty or being written back: the file's life may begin again. */
static __always_inline bool is_clean(struct address_space *mapping)
{
	return !(mapping->i_pages.xa_flags >> MARKS_SHIFT);
}

static __always_inline bool is_regular(struct address_space *mapping)
{
	return (mapping->host->i_mode & S_IFMT) == S_IFREG;
}

/* An entry for a file of which nothing is known, or which is clean. Pages of a file
 * system's own mappings are also written without becoming dirty (a journal does so).
 * Without a mark they have no owner.
 */
static __always_inline void begin_life(struct address_space *mapping, owner_t owner, bool lone, u64 how)
{
	u64 key = (u64)mapping;
	struct dirty_file fresh = {
		.owner = lone ? owner : 0,
		.life = bpf_ktime_get_ns() << 8 | (u8)bpf_get_smp_processor_id(),
		.shared = !lone,
	};

	ADD(changes, 1);
	bpf_map_update_elem(&files, &key, &fresh, how);
}

/* The entry of a file, with this owner among its writers. Its life begins again when no
 * page is dirty, but not while it is mapped: a page that is being written to may not be
 * marked dirty yet. Writers by other ways keep each other out.
 */
static __always_inline struct dirty_file *dirty_file(struct address_space *mapping, owner_t owner)
{
	u64 key = (u64)mapping;
	struct dirty_file *file = bpf_map_lookup_elem(&files, &key);
	bool lone;

	if (file && !file->shared && file->owner == owner)
		return file;
	lone = is_clean(mapping) && is_regular(mapping);
	if (!file || (lone && mapping->i_mmap_writable.counter <= 0)) {
		begin_life(mapping, owner, lone, file ? BPF_ANY : BPF_NOEXIST);
		file = bpf_map_lookup_elem(&files, &key);
	}
	if (file && !file->shared && file->owner != owner) {
		file->shared = 1;
		ADD(changes, 1);
	}
	return file;
}

/* The life of a file in which pages must be marked; 0: not, as it has one writer. */
static __always_inline u64 life_of(struct address_space *mapping, struct desk *d)
{
	u64 seen = changes, life;
	owner_t owner = current_owner();
	struct dirty_file *file = dirty_file(mapping, owner);

	if (!file)
		return 0;
	life = file->shared ? file->life : 0;
	note_recent(&d->recent, mapping, seen, life, owner);
	return life;
}

struct span {
	u64 life;
	u64 first;
	u64 last;
	owner_t owner;
};

static __always_inline struct chunk *chunk_of(struct chunk_key *key)
{
	struct chunk *chunk = bpf_map_lookup_elem(&dirtiers, key);
	struct desk *d;

	if (chunk)
		return chunk;
	d = desk();
	if (!d)
		return NULL;
	bpf_map_update_elem(&dirtiers, key, &d->empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(&dirtiers, key);
}

static long mark_chunk(u32 nth, struct span *span)
{
	u64 number = (span->first >> CHUNK_SHIFT) + nth, base = number << CHUNK_SHIFT;
	struct chunk_key key = { span->life, number };
	struct chunk *chunk = chunk_of(&key);
	u32 from = span->first > base ? span->first - base : 0;
	u32 to = span->last - base < CHUNK_MASK ? span->last - base : CHUNK_MASK;

	if (!chunk)
		return 1;
	/* Counted from the first page on: a test of each page against both ends makes newer
	 * compilers' code too long for the verifier.
	 */
	for (u32 n = 0; n < CHUNK_PAGES && n <= to - from; n++) {
		u32 page = from + n;

		barrier_var(page);
		chunk->owner[page & CHUNK_MASK] = span->owner;
	}
	return 0;
}

static __always_inline void mark(u64 life, u64 first, u64 last, owner_t owner)
{
	struct span span = { life, first, last, owner };
	struct chunk_key key = { life, first >> CHUNK_SHIFT };
	struct chunk *chunk;

	if (first == last) {
		chunk = chunk_of(&key);
		if (chunk)
			chunk->owner[first & CHUNK_MASK] = span.owner;
		return;
	}
	bpf_loop((last >> CHUNK_SHIFT) - (first >> CHUNK_SHIFT) + 1, mark_chunk, &span, 0);
}

/* Number of a folio's pages. The first tail page's flags hold the order since 6.1, when
 * file systems began to use large folios widely; before it is a single page.
 */
static __always_inline u64 pages_of(struct folio *folio)
{
	/* Its first word in all versions, plain or wrapped in a type. */
	unsigned long flags = *(volatile unsigned long *)folio;

	if (!(flags & 1UL << bpf_core_enum_value(enum pageflags, PG_head)))
		return 1;
	if (bpf_core_field_exists(folio->_flags_1))
		return 1UL << (folio->_flags_1 & 0xff);
	return 1;
}

/* A thread's stack, from an address on it, without a call. It becomes another thread's
 * when this one ends, so it tells only whether a moment ago was the same thread.
 */
static __always_inline u64 stack_of(const void *context)
{
	u32 half;

	asm volatile("%0 = %1" : "=w"(half) : "w"((u32)(u64)context));
	return half >> STACK_SHIFT;
}

/* The rare rest of the two below, apart from them so that they are quick to enter. */
static __noinline int dirtied(struct folio *folio, struct address_space *mapping)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct desk *d = desk();
	u64 first, last, life;

	if (!d || !folio || !mapping)
		return 0;
	first = folio->index;
	if (is_recent(&d->recent, mapping, task) && !d->recent.life)
		return 0;
	life = life_of(mapping, d);
	if (!life)
		return 0;
	last = first + pages_of(folio) - 1;
	if (d->told.mapping != (u64)mapping || d->told.first > last || d->told.last < first ||
	    d->told.thread != (u64)task)
		mark(life, first, last, d->recent.owner);
	return 0;
}

static __noinline int mark_told(struct address_space *mapping)
{
	struct desk *d = desk();
	u64 life;

	if (!d || !mapping)
		return 0;
	/* A clean file gets a new life, in which its writer may be the only one. */
	if (is_recent(&d->recent, mapping, bpf_get_current_task_btf()) && !is_clean(mapping))
		life = d->recent.life;
	else
		life = life_of(mapping, d);
	if (life)
		mark(life, d->told.first, d->told.last, d->recent.owner);
	return 0;
}

SEC("tp_btf/writeback_dirty_folio")
int BPF_PROG(folio_dirtied, struct folio *folio, struct address_space *mapping)
{
	struct desk *d = desk();
	u64 page;

	if (!mapping || !d)
		return 0;
	page = folio->index;
	if (d->told.mapping == (u64)mapping && d->told.first <= page && d->told.last >= page &&
	    d->told.stack == stack_of(ctx))
		return 0; /* by the write that was told of just now */
	return dirtied(folio, mapping);
}

/* Pages that are being written; ext4 reports them before the folio is marked dirty. */
static __always_inline int written(struct address_space *mapping, u64 position, u64 bytes, const void *context)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct desk *d = desk();

	if (!bytes || !d)
		return 0;
	d->told.mapping = (u64)mapping;
	d->told.first = position >> PAGE_SHIFT;
	d->told.last = (position + bytes - 1) >> PAGE_SHIFT;
	d->told.thread = (u64)task;
	d->told.stack = stack_of(context);
	if (is_recent(&d->recent, mapping, task) && !d->recent.life)
		return 0;
	return mark_told(mapping);
}

SEC("tp_btf/ext4_da_write_end")
int BPF_PROG(ext4_delayed_write, struct inode *inode, loff_t position, u32 length, u32 copied)
{
	return written(inode->i_mapping, position, copied, ctx);
}

SEC("tp_btf/ext4_write_end")
int BPF_PROG(ext4_write, struct inode *inode, loff_t position, u32 length, u32 copied)
{
	return written(inode->i_mapping, position, copied, ctx);
}

SEC("tp_btf/iomap_iter")
int BPF_PROG(iomap_write, struct iomap_iter *iter)
{
	if ((iter->flags & (IOMAP_WRITE | IOMAP_DIRECT)) != IOMAP_WRITE)
		return 0;
	return written(iter->inode->i_mapping, iter->pos, iter->len, ctx);
}

/* ------------------------------------------------------------------ charging */
static __always_inline void settle_walk(struct walk *walk)
{
	struct flow flow = { .bytes = walk->bytes, .operations = walk->operations };

	if (!walk->bytes)
		return;
	walk->account.owner = walk->owner;
	if (walk->owner)
		charge(&walk->account, true, &flow);
	else
		lose(LOSS_WRITER_UNKNOWN, walk->bytes);
	walk->bytes = 0;
	walk->operations = 0;
}

#define PAGE_FIELD(raw, field) \
	(*(u64 *)((raw) + (bpf_core_field_offset(struct page, field) & (PAGE_BYTES - 8))))

static __always_inline u64 index_in(const u8 *raw)
{
	if (bpf_core_field_exists(struct page, index))
		return PAGE_FIELD(raw, index);
	return *(u64 *)(raw + (bpf_core_field_offset(struct page___index, __folio_index) &
			       (PAGE_BYTES - 8)));
}

/* Reads the descriptor of the folio that `page` belongs to, once a folio. */
static __always_inline void look_at(struct walk *walk, u64 page)
{
	u64 head;

	if (bpf_probe_read_kernel(walk->raw, PAGE_BYTES, (void *)page))
		return;
	head = PAGE_FIELD(walk->raw, compound_head);
	head = head & 1 ? head - 1 : page;
	if (head == walk->head)
		return;
	if (head != page && bpf_probe_read_kernel(walk->raw, PAGE_BYTES, (void *)head))
		return;
	walk->head = head;
	walk->mapping = PAGE_FIELD(walk->raw, mapping);
	walk->index = index_in(walk->raw);
	walk->is_file = 0;
	if (walk->mapping && !(walk->mapping & MAPPING_KIND)) {
		struct address_space *mapping = (void *)walk->mapping;
		struct dirty_file *file = bpf_map_lookup_elem(&files, &walk->mapping);

		walk->is_file = (BPF_CORE_READ(mapping, host, i_mode) & S_IFMT) == S_IFREG;
		if (file)
			walk->file = *file;
		else
			__builtin_memset(&walk->file, 0, sizeof(walk->file));
	}
}

/* Who dirtied the page, or 0. */
static __always_inline owner_t dirtier(struct walk *walk, u64 index)
{
	if (!walk->file.shared)
		return walk->file.owner;
	if (walk->key.life != walk->file.life || walk->key.chunk != index >> CHUNK_SHIFT) {
		struct chunk *chunk;

		walk->key.life = walk->file.life;
		walk->key.chunk = index >> CHUNK_SHIFT;
		chunk = bpf_map_lookup_elem(&dirtiers, &walk->key);
		if (chunk)
			walk->chunk = *chunk;
		else
			__builtin_memset(&walk->chunk, 0, sizeof(walk->chunk));
	}
	return walk->chunk.owner[index & CHUNK_MASK] ?: walk->file.owner;
}

/* Owner 0 stands for a page that the kernel writes back and that nobody was seen to
 * dirty: it was dirtied before the programs ran.
 */
static __always_inline owner_t writer_of(struct walk *walk, u64 page)
{
	owner_t owner;

	look_at(walk, page);
	if (!walk->mapping || walk->mapping & MAPPING_KIND)
		return walk->submitter;
	owner = dirtier(walk, walk->index + (page - walk->head) / bpf_core_type_size(struct page));
	if (owner || !walk->is_file || !walk->kthread)
		return owner ? owner : walk->submitter;
	return 0;
}

static __always_inline bool next_piece(struct walk *walk)
{
	return !bpf_probe_read_kernel(&walk->current, sizeof(walk->current),
				      walk->pieces + walk->piece);
}

static long walk_page(u32 nth, void *unused)
{
	struct desk *d = desk();
	struct walk *walk;
	u32 offset, bytes;
	owner_t owner;

	if (!d || !d->walk.left)
		return 1;
	walk = &d->walk;
	if (walk->fresh && !next_piece(walk))
		return 1;
	walk->fresh = 0;
	offset = walk->current.bv_offset + walk->done;
	bytes = PAGE_SIZE - (offset & (PAGE_SIZE - 1));
	if (bytes > walk->current.bv_len - walk->done)
		bytes = walk->current.bv_len - walk->done;
	if (bytes > walk->left)
		bytes = walk->left;
	owner = writer_of(walk, (u64)walk->current.bv_page +
				(u64)(offset >> PAGE_SHIFT) * bpf_core_type_size(struct page));
	if (owner != walk->owner) {
		settle_walk(walk);
		walk->owner = owner;
		walk->operations = 1;
	}
	walk->bytes += bytes;
	walk->left -= bytes;
	walk->done += bytes;
	if (walk->done >= walk->current.bv_len) {
		walk->done = 0;
		walk->piece++;
		walk->fresh = 1;
	}
	return 0;
}

static __always_inline int written_back(struct bio *bio, struct account_key *key)
{
	struct desk *d = desk();
	struct walk *walk;

	if (!d)
		return 0;
	walk = &d->walk;
	walk->pieces = bio->bi_io_vec;
	walk->piece = bio->bi_iter.bi_idx;
	walk->done = bio->bi_iter.bi_bvec_done;
	walk->left = bio->bi_iter.bi_size;
	walk->kthread = !!(bpf_get_current_task_btf()->flags & PF_KTHREAD);
	walk->head = walk->mapping = walk->key.life = 0;
	walk->submitter = walk->owner = key->owner;
	walk->account = *key;
	walk->bytes = 0;
	walk->operations = walk->fresh = 1;
	bpf_loop(LONGEST_WALK, walk_page, NULL, 0);
	settle_walk(walk);
	if (walk->left)
		lose(LOSS_PAGES_UNREAD, walk->left);
	return 0;
}

SEC("tp_btf/block_bio_queue")
int BPF_PROG(request_queued, struct bio *bio)
{
	u32 operation = bio->bi_opf & REQ_OP_MASK, bytes = bio->bi_iter.bi_size;
	struct flow flow = { .bytes = bytes, .operations = 1 };
	struct account_key key = {};

	if (!bytes || (operation != REQ_OP_READ && operation != REQ_OP_WRITE &&
		       operation != REQ_OP_ZONE_APPEND))
		return 0;
	key.owner = current_owner();
	key.device = bio->bi_bdev->bd_disk->part0->bd_dev;
	if (operation != REQ_OP_READ)
		return written_back(bio, &key);
	return charge(&key, false, &flow);
}
#endif
