/* Layouts that the programs and memgauge share, in the machine's byte order. `page_tables.rs` reads
 * and writes them as a list of 64-bit words.
 */
#ifndef MEMGAUGE_PAGES_LAYOUT_H
#define MEMGAUGE_PAGES_LAYOUT_H

struct direct_map {
	u64 base;          /* virtual address of physical address 0; found by `find_direct_map` */
	u64 levels;        /* of the page tables: 4 or 5 */
	u64 symbol;        /* address of `page_offset_base`, 0 if the kernel does not list it */
	u64 nonce_address; /* where memgauge keeps the nonce */
	u64 nonce[4];
};

struct walk {
	u64 mm;              /* identifies the address space; 0 if there is none */
	u64 next;            /* end of the last mapping that was walked */
	u64 resident_pages;
	u64 used_pages;      /* resident, with the accessed bit */
	u64 huge_pages;      /* part of the resident pages, in units of small pages */
	u64 unreadable;      /* entries and tables that could not be read */
	u64 truncated;       /* mappings that were too large to be walked to their end */
	u64 keep;            /* 1: list the pages in `blocks` */
	u64 listed;          /* number of elements of `blocks` that are in use */
	u64 unlisted;        /* tables that found no room there */
	u64 reading;         /* number of the reading, below 2^32; 0: count no frames */
	u64 first_resident_pages; /* resident pages in frames that are new in this reading */
	u64 first_used_pages;     /* pages that are the first to use their frame in this reading */
};

/* Frames that a reading of several processes has found. The upper half of each word is the number of
 * the reading, so that nothing must be cleared for the next one.
 */
struct frames {
	u64 resident;
	u64 used;
};

#define FRAMES_PER_WORD 32

/* Pages of one mapping in one table. Bit n % 64 of word n / 64 is the page n of those from `address`
 * on.
 */
struct table_use {
	u64 address;
	u64 resident[8];
	u64 used[8];
};

#define TABLES_PER_BLOCK 256

struct block {
	struct table_use tables[TABLES_PER_BLOCK];
};

_Static_assert(sizeof(struct direct_map) == 8 * 8, "page_tables.rs: SETTINGS_WORDS");
_Static_assert(sizeof(struct walk) == 13 * 8, "page_tables.rs: WALK_WORDS");
_Static_assert(sizeof(struct table_use) == 17 * 8, "page_tables.rs: TABLE_WORDS");

#endif
