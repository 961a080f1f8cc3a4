//! Which pages of a process were used in which part of a run: heat map and unused memory by region.
//!
//! A collector reads the accessed bits at the end of each epoch, just before it clears them. The
//! bits say whether a page was used in the epoch, not when or how often. [`PageHistory`] keeps one
//! bit for each page and slice of the run, 4 KiB for each page table of 512 pages (0.2 % of the
//! memory). Epochs that end in the same slice are merged, so a run of any length has at most
//! [`SLICES`] columns.
//!
//! A page that was not resident at the end of an epoch starts anew: the memory may have been
//! unmapped and mapped again for something else.

use std::collections::BTreeMap;

/// Maximum number of columns of a heat map.
pub const SLICES: usize = 64;

/// Pages of a page table (x86-64).
const TABLE_PAGES: usize = 512;
const PAGE_SHIFT: u32 = 12;
const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
const TABLE_BYTES: u64 = TABLE_PAGES as u64 * PAGE_BYTES;

/// Bits for the pages of a table; page n is bit n % 64 of word n / 64.
pub type TableBits = [u64; TABLE_PAGES / 64];

/// Pages of one mapping in one page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableUse {
    /// Address of the page of bit 0. Further bits follow within its table.
    pub address: u64,
    /// Pages in memory.
    pub resident: TableBits,
    /// Pages used since the accessed bits were cleared.
    pub used: TableBits,
}

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// File, `[heap]`, `[stack]`, or another name.
    pub name: String,
}

/// Use of the pages of one process so far.
#[derive(Clone, Debug, Default)]
pub struct PageHistory {
    /// By address of the memory that a table maps.
    tables: BTreeMap<u64, PageTableUse>,
    mappings: Vec<Mapping>,
    /// Start of the first epoch in seconds.
    start_s: f64,
    /// For each slice, when its last epoch ended.
    ends_s: BTreeMap<usize, f64>,
}

#[derive(Clone, Debug)]
struct PageTableUse {
    resident: TableBits,
    /// For each page, a bit for each slice in which it was used.
    used: Box<[u64; TABLE_PAGES]>,
}

/// Use of pages by region and by address.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PageUse {
    /// Parts of the run, in order.
    pub columns: Vec<HeatColumn>,
    /// Memory by name of the mapping, the largest first.
    pub regions: Vec<RegionUse>,
    /// Memory by address, in rows of about equal size.
    pub rows: Vec<HeatRow>,
}

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeatColumn {
    /// Start in seconds.
    pub start_s: f64,
    /// End in seconds.
    pub end_s: f64,
}

/// Memory of all mappings with one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionUse {
    /// Name.
    pub name: String,
    /// Bytes in memory at the end.
    pub resident_bytes: u64,
    /// For each column, the bytes that were not used from its start to the end of the run.
    pub unused_bytes: Vec<u64>,
}

/// Memory in a range of addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatRow {
    /// Name of the mapping with the largest part.
    pub name: String,
    /// Address of the first resident page.
    pub start: u64,
    /// End of the last one.
    pub end: u64,
    /// Bytes in memory at the end.
    pub resident_bytes: u64,
    /// For each column, the share of this memory (0..=1) that was used in it.
    pub used: Vec<f64>,
}

impl PageHistory {
    /// Adds an epoch that ends in a slice of the run (below [`SLICES`]).
    pub fn push(
        &mut self,
        slice: usize,
        column: HeatColumn,
        tables: impl IntoIterator<Item = TableUse>,
        mappings: Vec<Mapping>,
    ) {
        if self.ends_s.is_empty() {
            self.start_s = column.start_s;
        }
        self.ends_s.insert(slice, column.end_s);
        self.mappings = mappings;
        for table in self.tables.values_mut() {
            table.resident = TableBits::default();
        }
        for found in tables {
            self.add(&found, 1 << slice);
        }
        self.tables.retain(|_, table| table.forget_absent());
    }

    fn add(&mut self, found: &TableUse, slice: u64) {
        let start = found.address / TABLE_BYTES * TABLE_BYTES;
        let first = ((found.address - start) >> PAGE_SHIFT) as usize;
        let table = self.tables.entry(start).or_insert_with(|| PageTableUse {
            resident: TableBits::default(),
            used: Box::new([0; TABLE_PAGES]),
        });
        for page in 0..TABLE_PAGES - first {
            if is_set(&found.resident, page) {
                let at = first + page;
                table.resident[at / 64] |= 1 << (at % 64);
                if is_set(&found.used, page) {
                    table.used[at] |= slice;
                }
            }
        }
    }

    /// Regions, and rows of about equal size.
    pub fn page_use(&self, rows: usize) -> PageUse {
        let mut columns = Vec::new();
        let mut start_s = self.start_s;
        for &end_s in self.ends_s.values() {
            columns.push(HeatColumn { start_s, end_s });
            start_s = end_s;
        }
        let slices: Vec<usize> = self.ends_s.keys().copied().collect();
        let resident = self.pages().count();
        let row_pages = resident.div_ceil(rows.max(1)).max(1);
        let mut regions: BTreeMap<&str, RegionUse> = BTreeMap::new();
        let mut heat = Vec::new();
        let mut row = OpenRow::new(slices.len());
        let mut mappings = self.mappings.iter().peekable();
        for page in self.pages() {
            while mappings.next_if(|m| m.end <= page.address).is_some() {}
            // A page that was mapped after the list of mappings was read has no name.
            let mapping = mappings.peek().filter(|m| m.start <= page.address);
            let name = mapping.map_or("[unknown]", |mapping| mapping.name.as_str());
            let region = regions.entry(name).or_insert_with(|| RegionUse {
                name: name.to_owned(),
                resident_bytes: 0,
                unused_bytes: vec![0; slices.len()],
            });
            region.resident_bytes += PAGE_BYTES;
            for (column, slice) in slices.iter().enumerate() {
                if page.used >> slice == 0 {
                    region.unused_bytes[column] += PAGE_BYTES;
                }
            }
            row.push(&page, name, &slices);
            if row.pages == row_pages {
                let full = std::mem::replace(&mut row, OpenRow::new(slices.len()));
                heat.extend(full.close());
            }
        }
        heat.extend(row.close());
        let mut regions: Vec<RegionUse> = regions.into_values().collect();
        regions.sort_by_key(|region| std::cmp::Reverse(region.resident_bytes));
        PageUse {
            columns,
            regions,
            rows: heat,
        }
    }

    /// Resident pages by address.
    fn pages(&self) -> impl Iterator<Item = UsedPage> {
        self.tables.iter().flat_map(|(&start, table)| {
            let resident = (0..TABLE_PAGES).filter(|&page| is_set(&table.resident, page));
            resident.map(move |page| UsedPage {
                address: start + page as u64 * PAGE_BYTES,
                used: table.used[page],
            })
        })
    }
}

impl PageTableUse {
    /// Forgets pages that are not resident. Returns whether any is left.
    fn forget_absent(&mut self) -> bool {
        for page in 0..TABLE_PAGES {
            if !is_set(&self.resident, page) {
                self.used[page] = 0;
            }
        }
        self.resident.iter().any(|&word| word != 0)
    }
}

struct UsedPage {
    address: u64,
    used: u64,
}

/// A row that grows.
struct OpenRow<'a> {
    start: u64,
    end: u64,
    pages: usize,
    used: Vec<usize>,
    names: BTreeMap<&'a str, usize>,
}

impl<'a> OpenRow<'a> {
    fn new(columns: usize) -> OpenRow<'a> {
        OpenRow {
            start: 0,
            end: 0,
            pages: 0,
            used: vec![0; columns],
            names: BTreeMap::new(),
        }
    }

    fn push(&mut self, page: &UsedPage, name: &'a str, slices: &[usize]) {
        if self.pages == 0 {
            self.start = page.address;
        }
        self.end = page.address + PAGE_BYTES;
        self.pages += 1;
        *self.names.entry(name).or_default() += 1;
        for (used, slice) in self.used.iter_mut().zip(slices) {
            *used += (page.used >> slice & 1) as usize;
        }
    }

    fn close(self) -> Option<HeatRow> {
        let name = self.names.into_iter().max_by_key(|&(_, pages)| pages)?.0;
        let share = |used: usize| used as f64 / self.pages as f64;
        Some(HeatRow {
            name: name.to_owned(),
            start: self.start,
            end: self.end,
            resident_bytes: self.pages as u64 * PAGE_BYTES,
            used: self.used.into_iter().map(share).collect(),
        })
    }
}

impl PageUse {
    /// Seconds from the start of a column to the end of the run.
    pub fn unused_for_s(&self, column: usize) -> f64 {
        match (self.columns.get(column), self.columns.last()) {
            (Some(first), Some(last)) => last.end_s - first.start_s,
            _ => 0.0,
        }
    }
}

fn is_set(bits: &TableBits, page: usize) -> bool {
    bits[page / 64] >> (page % 64) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 64 * TABLE_BYTES;

    fn bits(pages: impl IntoIterator<Item = usize>) -> TableBits {
        let mut bits = TableBits::default();
        for page in pages {
            bits[page / 64] |= 1 << (page % 64);
        }
        bits
    }

    fn epoch(n: usize) -> HeatColumn {
        HeatColumn {
            start_s: 10.0 * n as f64,
            end_s: 10.0 * (n + 1) as f64,
        }
    }

    fn mappings() -> Vec<Mapping> {
        let mapping = |start: u64, end: u64, name: &str| Mapping {
            start: BASE + start * PAGE_BYTES,
            end: BASE + end * PAGE_BYTES,
            name: name.to_owned(),
        };
        vec![mapping(0, 100, "[heap]"), mapping(100, 612, "file")]
    }

    /// Heap of 100 pages in the first table, a file in the same table and the next one. The even
    /// pages of the heap are used in the first epoch only, the file's in the last one only.
    fn history() -> PageHistory {
        let mut history = PageHistory::default();
        for (n, slice) in [0, 5, 63].into_iter().enumerate() {
            let heap = TableUse {
                address: BASE,
                resident: bits(0..100),
                used: bits((0..100).filter(|page| n == 0 && page % 2 == 0)),
            };
            let file = |address: u64, pages: usize| TableUse {
                address,
                resident: bits(0..pages),
                used: bits((0..pages).filter(|_| n == 2)),
            };
            let tables = [
                heap,
                file(BASE + 100 * PAGE_BYTES, 412),
                file(BASE + TABLE_BYTES, 100),
            ];
            history.push(slice, epoch(n), tables, mappings());
        }
        history
    }

    #[test]
    fn memory_is_unused_since_the_epoch_after_its_last_use() {
        let found = history().page_use(1);
        let [file, heap] = &found.regions[..] else {
            panic!("{found:?}")
        };
        assert_eq!(
            (&*file.name, file.resident_bytes),
            ("file", 512 * PAGE_BYTES)
        );
        assert_eq!(file.unused_bytes, [0, 0, 0]);
        assert_eq!(
            (&*heap.name, heap.resident_bytes),
            ("[heap]", 100 * PAGE_BYTES)
        );
        let pages: Vec<u64> = heap.unused_bytes.iter().map(|b| b / PAGE_BYTES).collect();
        assert_eq!(pages, [50, 100, 100]);
        assert_eq!(found.unused_for_s(0), 30.0);
        assert_eq!(found.unused_for_s(2), 10.0);
    }

    #[test]
    fn rows_follow_the_addresses_and_columns_the_time() {
        let found = history().page_use(6);
        assert_eq!(found.rows.len(), 6);
        let pages: u64 = found
            .rows
            .iter()
            .map(|r| r.resident_bytes / PAGE_BYTES)
            .sum();
        assert_eq!(pages, 612);
        assert!(found.rows.is_sorted_by_key(|row| row.start));
        let heap = &found.rows[0];
        assert_eq!((&*heap.name, heap.start), ("[heap]", BASE));
        // 102 pages: the heap and two of the file.
        assert_eq!(heap.used, [50.0 / 102.0, 0.0, 2.0 / 102.0]);
        assert_eq!(found.rows[5].used, [0.0, 0.0, 1.0]);
        assert_eq!(found.columns, [epoch(0), epoch(1), epoch(2)]);
    }

    #[test]
    fn memory_that_was_unmapped_in_between_starts_anew() {
        let mut history = PageHistory::default();
        let table = |used| TableUse {
            address: BASE,
            resident: bits([7]),
            used: bits(used),
        };
        history.push(0, epoch(0), [table(vec![7])], mappings());
        history.push(1, epoch(1), [], mappings());
        assert_eq!(history.page_use(4).regions, []);
        history.push(2, epoch(2), [table(vec![])], mappings());
        assert_eq!(history.page_use(4).regions[0].unused_bytes, [PAGE_BYTES; 3]);
    }

    #[test]
    fn epochs_in_one_slice_are_one_column() {
        let mut history = PageHistory::default();
        for (n, page) in [3, 4].into_iter().enumerate() {
            let table = TableUse {
                address: BASE,
                resident: bits(0..8),
                used: bits([page]),
            };
            history.push(9, epoch(n), [table], mappings());
        }
        let found = history.page_use(1);
        assert_eq!(
            found.columns,
            [HeatColumn {
                start_s: 0.0,
                end_s: 20.0
            }]
        );
        assert_eq!(found.rows[0].used, [0.25]);
        assert_eq!(PageHistory::default().page_use(3), PageUse::default());
    }
}
