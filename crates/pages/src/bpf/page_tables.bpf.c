/* Counts the resident and the used pages of a process by walking its page tables (x86-64).
 *
 * The kernel calls `walk` for each mapping and holds the lock of the address space meanwhile. Page
 * tables contain physical addresses; the direct map, in which the kernel sees all memory, makes
 * virtual ones of them. `find_direct_map` finds its base and proves it: the page tables of memgauge
 * itself must lead to random bytes that memgauge has just written.
 *
 * Entries of page tables: Intel SDM volume 3, chapter 4.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "layout.h"

/* The kernel lends its functions only to programs that are also under the GPL. */
char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define PAGE_SHIFT 12
#define ENTRIES 512
#define TABLE_BYTES (ENTRIES * 8)

#define PRESENT (1ull << 0)
#define ACCESSED (1ull << 5)
#define LEAF (1ull << 7)
/* Without PRESENT: a mapping without access rights, as NUMA balancing makes them. */
#define NO_ACCESS (1ull << 8)
/* The kernel's mark for pages that it does not count as memory of the process: the zero page and
 * memory of devices.
 */
#define SPECIAL (1ull << 9)
#define PHYSICAL 0x000ffffffffff000ull

#define LARGE_SHIFT 21
#define GIANT_SHIFT 30

/* The direct map begins at a multiple of 1 GiB, at most the machine's memory below any address in
 * it. 64 TiB are the most that four levels of page tables can map there.
 */
#define MAX_DIRECT_MAP_STEPS (1u << 16)
/* BPF_MAX_LOOPS: 16 TiB of mapped memory, since unmapped parts are skipped in larger steps. */
#define MAX_STEPS (1u << 23)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct direct_map);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct walk);
} result SEC(".maps");

/* Enough for 64 GiB without holes, in 4.5 MiB. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 128);
	__type(key, u32);
	__type(value, struct block);
} blocks SEC(".maps");

/* memgauge sets the size by the memory of the machine, if it observes several processes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct frames);
} frames SEC(".maps");

struct table {
	u64 entries[ENTRIES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct table);
} copy SEC(".maps");

/* Where a walk is. */
struct cursor {
	u64 root;
	u64 base;
	u64 levels;
	u64 address;
	u64 end;
};

/* What maps an address. */
struct found {
	u64 entry; /* of a leaf, or of the table of small pages; 0 if nothing maps it */
	u32 shift; /* bytes that an entry of that level covers, as a power of two */
	u32 failed; /* a table could not be read */
};

static __always_inline u64 read_entry(u64 table, u64 address, u32 shift, struct found *found)
{
	u64 entry = 0;
	u64 at = table + ((address >> shift) & (ENTRIES - 1)) * 8;

	found->shift = shift;
	if (bpf_probe_read_kernel(&entry, sizeof(entry), (void *)at))
		found->failed = 1;
	return entry;
}

/* Follows the page tables down to a leaf of 1 GiB or 2 MiB, or to a table of small pages. */
static __always_inline void find(struct cursor *c, struct found *found)
{
	u64 table = c->root;
	u64 entry;

	found->entry = 0;
	found->failed = 0;
	if (c->levels == 5) {
		entry = read_entry(table, c->address, 48, found);
		if (!(entry & PRESENT))
			return;
		table = c->base + (entry & PHYSICAL);
	}
	entry = read_entry(table, c->address, 39, found);
	if (!(entry & PRESENT))
		return;
	table = c->base + (entry & PHYSICAL);
	entry = read_entry(table, c->address, GIANT_SHIFT, found);
	if (!(entry & PRESENT))
		return;
	if (entry & LEAF) {
		found->entry = entry;
		return;
	}
	table = c->base + (entry & PHYSICAL);
	entry = read_entry(table, c->address, LARGE_SHIFT, found);
	if (entry & ((entry & LEAF) ? PRESENT | NO_ACCESS : PRESENT))
		found->entry = entry;
}

/* Room for the pages from an address on, if they are to be listed. */
static __always_inline struct table_use *list(struct walk *walk, u64 address)
{
	u64 at = walk->listed;
	u32 key = at / TABLES_PER_BLOCK;
	struct block *block;
	struct table_use *use;

	if (!walk->keep)
		return NULL;
	block = bpf_map_lookup_elem(&blocks, &key);
	if (!block) {
		walk->unlisted++;
		return NULL;
	}
	walk->listed = at + 1;
	use = &block->tables[at % TABLES_PER_BLOCK];
	use->address = address;
	return use;
}

static __always_inline void list_large(struct walk *walk, u64 address, u64 pages, u64 entry)
{
	struct table_use *use;

	if (!walk->keep)
		return;
	if (pages > ENTRIES) {
		walk->unlisted += pages / ENTRIES;
		return;
	}
	use = list(walk, address);
	if (!use)
		return;
	for (u32 word = 0; word < ENTRIES / 64; word++) {
		u64 bits = word < pages / 64 ? ~0ull : 0;

		use->resident[word] = bits;
		use->used[word] = entry & ACCESSED ? bits : 0;
	}
}

/* Adds the frame to those of a reading. Returns whether it is new there. */
static __always_inline u64 is_new(u64 *word, u64 reading, u64 bit)
{
	u64 known = *word >> FRAMES_PER_WORD == reading ? *word : reading << FRAMES_PER_WORD;

	*word = known | bit;
	return !(known & bit);
}

/* Counts `pages` pages unless an earlier process of this reading had the frame of the first one. */
static __always_inline void count_frame(struct walk *walk, u64 entry, u64 pages)
{
	u64 frame = (entry & PHYSICAL) >> PAGE_SHIFT;
	u64 bit = 1ull << (frame % FRAMES_PER_WORD);
	u32 key = frame / FRAMES_PER_WORD;
	struct frames *seen = bpf_map_lookup_elem(&frames, &key);

	if (!seen) {
		walk->first_resident_pages += pages;
		walk->first_used_pages += entry & ACCESSED ? pages : 0;
		return;
	}
	if (is_new(&seen->resident, walk->reading, bit))
		walk->first_resident_pages += pages;
	if (entry & ACCESSED && is_new(&seen->used, walk->reading, bit))
		walk->first_used_pages += pages;
}

#define FRAMES_PER_STEP 16

/* Counts the frames of 16 entries of the copy; `context` is the number of valid ones. */
static long count_frames_of_copy(u64 index, void *context)
{
	u32 zero = 0, count = *(u32 *)context;
	struct walk *walk = bpf_map_lookup_elem(&result, &zero);
	struct table *table = bpf_map_lookup_elem(&copy, &zero);

	if (!walk || !table || index >= ENTRIES / FRAMES_PER_STEP)
		return 1;
	for (u32 n = 0; n < FRAMES_PER_STEP; n++) {
		u64 entry = table->entries[index * FRAMES_PER_STEP + n];

		if (index * FRAMES_PER_STEP + n >= count)
			break;
		if (entry & (PRESENT | NO_ACCESS) && !(entry & SPECIAL))
			count_frame(walk, entry, 1);
	}
	return 0;
}

/* Counts the `count` pages from `address` on, which one table maps. */
static __always_inline void count_small(struct cursor *c, u64 entry, u32 count, struct walk *walk)
{
	u32 zero = 0;
	u64 resident = 0, used = 0;
	u64 first = (c->address >> PAGE_SHIFT) & (ENTRIES - 1);
	u64 at = c->base + (entry & PHYSICAL) + first * 8;
	struct table *table = bpf_map_lookup_elem(&copy, &zero);
	struct table_use *use;

	if (!table || !count)
		return;
	/* Keeps the compiler from checking a copy of `count`, which the verifier does not follow. */
	barrier_var(count);
	if (count > ENTRIES)
		return;
	if (bpf_probe_read_kernel(table, count * 8, (void *)at)) {
		walk->unreadable++;
		return;
	}
	use = list(walk, c->address);
	for (u32 word = 0; word < ENTRIES / 64; word++) {
		u64 resident_bits = 0, used_bits = 0;

		for (u32 bit = 0; bit < 64; bit++) {
			u32 i = word * 64 + bit;
			u64 page, is_resident;

			if (i >= count)
				break;
			page = table->entries[i];
			is_resident = (page & (PRESENT | NO_ACCESS)) && !(page & SPECIAL);
			resident_bits |= is_resident << bit;
			used_bits |= (is_resident & !!(page & ACCESSED)) << bit;
		}
		resident += __builtin_popcountll(resident_bits);
		used += __builtin_popcountll(used_bits);
		if (use) {
			use->resident[word] = resident_bits;
			use->used[word] = used_bits;
		}
	}
	walk->resident_pages += resident;
	walk->used_pages += used;
	if (walk->reading)
		bpf_loop((count + FRAMES_PER_STEP - 1) / FRAMES_PER_STEP, count_frames_of_copy, &count, 0);
}

/* Counts what one entry of the second lowest level maps, or skips to the next mapped part. */
static long step(u64 index, void *context)
{
	struct cursor *c = context;
	u32 zero = 0;
	struct walk *walk = bpf_map_lookup_elem(&result, &zero);
	struct found found;
	u64 next, pages;

	if (!walk || c->address >= c->end)
		return 1;
	find(c, &found);
	walk->unreadable += found.failed;
	next = ((c->address >> found.shift) + 1) << found.shift;
	if (next > c->end)
		next = c->end;
	pages = (next - c->address) >> PAGE_SHIFT;
	if (!found.entry) {
		/* Nothing is mapped. */
	} else if (found.entry & LEAF) {
		if (!(found.entry & SPECIAL)) {
			walk->resident_pages += pages;
			walk->huge_pages += pages;
			list_large(walk, c->address, pages, found.entry);
			if (found.entry & ACCESSED)
				walk->used_pages += pages;
			if (walk->reading)
				count_frame(walk, found.entry, pages);
		}
	} else {
		count_small(c, found.entry, pages, walk);
	}
	c->address = next;
	return 0;
}

SEC("iter/task_vma")
int walk(struct bpf_iter__task_vma *context)
{
	struct vm_area_struct *vma = context->vma;
	u32 zero = 0;
	struct direct_map *direct = bpf_map_lookup_elem(&settings, &zero);
	struct walk *walk = bpf_map_lookup_elem(&result, &zero);
	struct cursor c = {};

	if (!vma || !direct || !walk)
		return 0;
	c.address = vma->vm_start;
	c.end = vma->vm_end;
	/* A thread with its own table of files makes the kernel list the mappings again. */
	if (c.address < walk->next)
		return 0;
	walk->next = c.end;
	walk->mm = (u64)vma->vm_mm;
	/* The same as clear_refs and smaps leave out. */
	if (vma->vm_flags & (VM_PFNMAP | VM_HUGETLB))
		return 0;
	c.root = (u64)BPF_CORE_READ(vma, vm_mm, pgd);
	c.base = direct->base;
	c.levels = direct->levels;
	bpf_loop(MAX_STEPS, step, &c, 0);
	if (c.address < c.end)
		walk->truncated++;
	return 0;
}

/* Whether the page tables lead to the nonce if the direct map begins at `c->base`. */
static __always_inline int leads_to_nonce(struct cursor *c, struct direct_map *direct)
{
	struct found found;
	u64 bytes[4] = {};
	u64 entry, inside;

	find(c, &found);
	entry = found.entry;
	if (!entry)
		return 0;
	if (!(entry & LEAF)) {
		entry = read_entry(c->base + (entry & PHYSICAL), c->address, PAGE_SHIFT, &found);
		if (!(entry & PRESENT))
			return 0;
	}
	inside = (1ull << found.shift) - 1;
	/* Bit 12 of a large leaf belongs to its memory type. */
	entry = (entry & PHYSICAL & ~inside) | (c->address & inside);
	if (bpf_probe_read_kernel(bytes, sizeof(bytes), (void *)(c->base + entry)))
		return 0;
	return bytes[0] == direct->nonce[0] && bytes[1] == direct->nonce[1] &&
	       bytes[2] == direct->nonce[2] && bytes[3] == direct->nonce[3];
}

static long try_base(u64 index, void *context)
{
	struct cursor *c = context;
	u32 zero = 0;
	struct direct_map *direct = bpf_map_lookup_elem(&settings, &zero);

	if (!direct)
		return 1;
	if (leads_to_nonce(c, direct)) {
		direct->base = c->base;
		return 1;
	}
	c->base -= 1ull << GIANT_SHIFT;
	return 0;
}

SEC("iter/task_vma")
int find_direct_map(struct bpf_iter__task_vma *context)
{
	struct vm_area_struct *vma = context->vma;
	u32 zero = 0, steps = MAX_DIRECT_MAP_STEPS;
	struct direct_map *direct = bpf_map_lookup_elem(&settings, &zero);
	struct cursor c = {};

	if (!vma || !direct || direct->base)
		return 0;
	if (direct->nonce_address < vma->vm_start || direct->nonce_address >= vma->vm_end)
		return 0;
	c.root = (u64)BPF_CORE_READ(vma, vm_mm, pgd);
	c.levels = direct->levels;
	c.address = direct->nonce_address;
	/* Kernels without KALLSYMS_ALL do not list the symbol. Then try all possible bases. */
	c.base = c.root >> GIANT_SHIFT << GIANT_SHIFT;
	if (direct->symbol) {
		steps = 1;
		bpf_probe_read_kernel(&c.base, sizeof(c.base), (void *)direct->symbol);
	}
	bpf_loop(steps, try_base, &c, 0);
	return 0;
}
