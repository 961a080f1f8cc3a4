//! Samples by address and time in a resolution for pictures, with the main function and region of
//! each cell.
//!
//! The function of a cell is the candidate of a majority vote (R. Boyer and J Moore, 1981): the one
//! with more than half of the samples, if there is one. Memory is bounded: beyond [`MAX_CELLS`]
//! cells, blocks of addresses double in size.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ahash::{HashMap, HashMapExt};

use memgauge_trace::{Pid, Sample, VirtAddr};
use serde::Serialize;

use crate::code::address_spaces::{CodeLocation, PathId};
use crate::data::regions::DataLocation;

/// Process, address block and time bin.
type HeatKey = (Pid, u64, u32);

/// Number of columns (time).
const COLUMNS: u64 = 240;
/// Maximum number of rows (addresses) of a stretch.
const ROWS: u64 = 48;
/// Maximum number of stretches.
const STRETCHES: usize = 6;
/// Maximum number of cells, about 100 bytes each.
const MAX_CELLS: usize = 1 << 18;
/// Initial size of a block: a page.
const PAGE_SHIFT: u32 = 12;
/// A gap of this size separates two stretches: 4 MiB.
const GAP_BYTES: u64 = 4 << 20;

/// Owner of a cell's samples by majority vote.
#[derive(Clone, Copy, Debug)]
struct HeatCell {
    samples: u64,
    code: CodeLocation,
    region: DataLocation,
    votes: u64,
}

impl HeatCell {
    fn add(&mut self, other: &HeatCell) {
        self.samples += other.samples;
        if (self.code, self.region) == (other.code, other.region) {
            self.votes += other.votes;
        } else if other.votes > self.votes {
            (self.code, self.region) = (other.code, other.region);
            self.votes = other.votes - self.votes;
        } else {
            self.votes -= other.votes;
        }
    }
}

/// Cells by process, block and column.
#[derive(Clone, Debug)]
pub(crate) struct Cells {
    start_ns: u64,
    block_shift: u32,
    bin_ns: u64,
    end_ns: u64,
    samples: u64,
    cells: HashMap<HeatKey, HeatCell>,
}

impl Cells {
    /// Collects samples from `start_ns` on, where the first column starts.
    pub(crate) fn from(start_ns: u64) -> Self {
        Cells {
            start_ns,
            block_shift: PAGE_SHIFT,
            bin_ns: 1000,
            end_ns: 0,
            samples: 0,
            cells: HashMap::new(),
        }
    }

    pub(crate) fn add(
        &mut self,
        sample: &Sample,
        addr: VirtAddr,
        code: CodeLocation,
        region: DataLocation,
    ) {
        self.samples += 1;
        let time_ns = sample.time_ns.saturating_sub(self.start_ns);
        self.end_ns = self.end_ns.max(time_ns);
        while time_ns / self.bin_ns >= COLUMNS {
            self.bin_ns = self.bin_ns.saturating_mul(2);
            self.rekey(|(pid, block, bin)| (pid, block, bin / 2));
        }
        let bin = (time_ns / self.bin_ns) as u32;
        let cell = HeatCell {
            samples: 1,
            code,
            region,
            votes: 1,
        };
        self.put((sample.pid, addr.0 >> self.block_shift, bin), cell);
        self.fit();
    }

    pub(crate) fn merge(&mut self, mut other: Cells) {
        let bin_ns = self.bin_ns.max(other.bin_ns);
        for cells in [&mut *self, &mut other] {
            while cells.bin_ns < bin_ns {
                cells.bin_ns *= 2;
                cells.rekey(|(pid, block, bin)| (pid, block, bin / 2));
            }
        }
        let shift = self.block_shift.max(other.block_shift);
        for cells in [&mut *self, &mut other] {
            let by = shift - cells.block_shift;
            cells.block_shift = shift;
            cells.rekey(|(pid, block, bin)| (pid, block >> by, bin));
        }
        self.samples += other.samples;
        self.end_ns = self.end_ns.max(other.end_ns);
        for (key, cell) in other.cells {
            self.put(key, cell);
        }
        self.fit();
    }

    fn put(&mut self, key: HeatKey, cell: HeatCell) {
        let known = self.cells.entry(key);
        known.and_modify(|k| k.add(&cell)).or_insert(cell);
    }

    fn fit(&mut self) {
        while self.cells.len() > MAX_CELLS && self.block_shift < 63 {
            self.block_shift += 1;
            self.rekey(|(pid, block, bin)| (pid, block >> 1, bin));
        }
    }

    // In the order of keys, so that votes do not depend on the hash table's order.
    fn rekey(&mut self, key: impl Fn(HeatKey) -> HeatKey) {
        let mut cells: Vec<_> = std::mem::take(&mut self.cells).into_iter().collect();
        cells.sort_unstable_by_key(|c| c.0);
        for (old, cell) in cells {
            self.put(key(old), cell);
        }
    }

    /// The stretches with the most samples. `function` returns the name and module of a code
    /// location.
    pub(crate) fn finish(
        self,
        mut function: impl FnMut(PathId, u64) -> (String, String),
    ) -> Option<PlacedHeat> {
        if self.samples == 0 {
            return None;
        }
        let mut sorted: Vec<_> = self.cells.into_iter().collect();
        sorted.sort_unstable_by_key(|c| c.0);
        let gap = (GAP_BYTES >> self.block_shift).max(1);
        let mut stretches: Vec<Vec<(HeatKey, HeatCell)>> = Vec::new();
        for (key, cell) in sorted {
            let last = stretches.last_mut();
            let near = last.filter(|s| {
                let (pid, block, _) = s[s.len() - 1].0;
                pid == key.0 && key.1 - block <= gap
            });
            match near {
                Some(stretch) => stretch.push((key, cell)),
                None => stretches.push(vec![(key, cell)]),
            }
        }
        let samples = |s: &[(_, HeatCell)]| s.iter().map(|(_, c)| c.samples).sum::<u64>();
        stretches.sort_by_key(|s| (Reverse(samples(s)), s[0].0));
        let all = stretches.len();
        stretches.truncate(STRETCHES);
        stretches.sort_by_key(|s| s[0].0);
        let mut functions = NameTable::default();
        let shift = self.block_shift;
        let place = |s: &Vec<_>| stretch(s, shift, &mut |f, o| functions.of(function(f, o)));
        let stretches: Vec<PlacedStretch> = stretches.iter().map(place).collect();
        Some(PlacedHeat {
            heat: FineHeat {
                samples: self.samples,
                bin_ns: self.bin_ns,
                columns: self.end_ns / self.bin_ns + 1,
                functions: functions.names,
                regions: Vec::new(),
                other_stretches: (all - stretches.len()) as u64,
                stretches: Vec::new(),
            },
            stretches,
        })
    }
}

/// Numbers distinct names.
#[derive(Default)]
struct NameTable<T> {
    names: Vec<T>,
    numbers: HashMap<T, usize>,
}

impl<T: Clone + Eq + std::hash::Hash> NameTable<T> {
    fn of(&mut self, name: T) -> usize {
        let next = self.names.len();
        let number = *self.numbers.entry(name.clone()).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        number
    }
}

fn stretch(
    cells: &[(HeatKey, HeatCell)],
    shift: u32,
    function: &mut dyn FnMut(PathId, u64) -> usize,
) -> PlacedStretch {
    let (pid, first, _) = cells[0].0;
    let blocks = cells[cells.len() - 1].0.1 - first + 1;
    let blocks_a_row = blocks.div_ceil(ROWS);
    let mut rows: BTreeMap<(u64, u32), HeatCell> = BTreeMap::new();
    for ((_, block, bin), cell) in cells {
        let key = ((block - first) / blocks_a_row, *bin);
        let known = rows.entry(key);
        known.and_modify(|k| k.add(cell)).or_insert(*cell);
    }
    PlacedStretch {
        pid,
        start: first << shift,
        row_bytes: blocks_a_row << shift,
        rows: blocks.div_ceil(blocks_a_row),
        cells: rows
            .into_iter()
            .map(|((row, bin), c)| (row, bin, c.samples, function(c.code.0, c.code.1), c.region))
            .collect(),
    }
}

/// Stretches whose regions are not named yet.
pub(crate) struct PlacedHeat {
    heat: FineHeat,
    stretches: Vec<PlacedStretch>,
}

struct PlacedStretch {
    pid: Pid,
    start: u64,
    row_bytes: u64,
    rows: u64,
    cells: Vec<(u64, u32, u64, usize, DataLocation)>,
}

impl PlacedHeat {
    /// Names the regions.
    pub(crate) fn named(self, mut region: impl FnMut(Pid, DataLocation) -> String) -> FineHeat {
        let mut names = NameTable::default();
        let mut known: HashMap<(Pid, DataLocation), usize> = HashMap::new();
        let mut stretches = Vec::new();
        for s in self.stretches {
            let mut number = |place| {
                let known = known.entry((s.pid, place));
                *known.or_insert_with(|| names.of(region(s.pid, place)))
            };
            let cells = s.cells.iter();
            let cells = cells.map(|c| (c.0, c.1, c.2, c.3 as u64, number(c.4) as u64));
            stretches.push(FineStretch {
                pid: s.pid,
                start: format!("{:#x}", s.start),
                row_bytes: s.row_bytes,
                rows: s.rows,
                samples: s.cells.iter().map(|c| c.2).sum(),
                cells: cells.collect(),
            });
        }
        FineHeat {
            regions: names.names,
            stretches,
            ..self.heat
        }
    }
}

/// Samples by address and time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FineHeat {
    /// Samples with a data address.
    pub samples: u64,
    /// Width of a column in nanoseconds.
    pub bin_ns: u64,
    /// Number of columns.
    pub columns: u64,
    /// Functions that cells refer to, each with its module.
    pub functions: Vec<(String, String)>,
    /// Regions that cells refer to.
    pub regions: Vec<String>,
    /// The stretches with the most samples, by process and address.
    pub stretches: Vec<FineStretch>,
    /// Number of stretches that are not shown.
    pub other_stretches: u64,
}

/// A range of a process's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FineStretch {
    /// The process.
    pub pid: Pid,
    /// First byte in hexadecimal, since JavaScript cannot represent all 64-bit numbers.
    pub start: String,
    /// Bytes per row.
    pub row_bytes: u64,
    /// Number of rows.
    pub rows: u64,
    /// Samples in it.
    pub samples: u64,
    /// Row, column, samples, function and region of each cell with samples.
    pub cells: Vec<(u64, u32, u64, u64, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::address_spaces::{AddressSpaces, When};
    use crate::resolve::NoSymbols;
    use crate::{Analysis, Regions};

    fn heat(samples: &[(u64, u32, u64)]) -> Option<FineHeat> {
        let spaces = AddressSpaces::default();
        let mut cells = Cells::from(0);
        for &(time_ns, pid, addr) in samples {
            let sample = Sample {
                time_ns,
                pid: Pid(pid),
                ..Sample::default()
            };
            let region = crate::data::regions::locate(&spaces, sample.pid, addr, time_ns);
            let code = spaces.code_at(sample.pid, 0, When::Latest);
            cells.add(&sample, VirtAddr(addr), code, region);
        }
        let regions = Regions::new(&spaces).finish();
        let placed = cells.finish(|_, _| ("f".to_owned(), "m".to_owned()));
        placed.map(|p| p.named(|pid, r| regions.describe(&mut NoSymbols, pid, r).0))
    }

    #[test]
    fn processes_and_far_addresses_are_different_stretches() {
        let heat = heat(&[
            (0, 1, 0x1000),
            (1000, 1, 0x2000),
            (2000, 2, 0x1000),
            (2000, 1, 0x9000_0000),
        ])
        .expect("samples");
        let starts: Vec<_> = heat
            .stretches
            .iter()
            .map(|s| (s.pid.0, &*s.start))
            .collect();
        assert_eq!(starts, [(1, "0x1000"), (1, "0x90000000"), (2, "0x1000")]);
        assert_eq!(heat.stretches[0].cells, [(0, 0, 1, 0, 0), (1, 1, 1, 0, 0)]);
        assert_eq!((heat.columns, heat.samples), (3, 4));
    }

    #[test]
    fn late_samples_widen_columns_and_keep_counts() {
        let samples: Vec<_> = (0..1000).map(|i| (i * 7_000_000, 1, 0x1000 * i)).collect();
        let heat = heat(&samples).expect("samples");
        assert!(heat.columns <= COLUMNS);
        let counted: u64 = heat.stretches[0].cells.iter().map(|c| c.2).sum();
        assert_eq!(counted, 1000);
        assert!(heat.stretches[0].rows <= ROWS);
    }

    #[test]
    fn a_majority_is_found_in_any_order() {
        let spaces = AddressSpaces::default();
        let (unknown, _) = spaces.code_at(Pid(1), 0, When::Latest);
        let region = crate::data::regions::locate(&spaces, Pid(1), 0, 0);
        let vote = |offset| HeatCell {
            samples: 1,
            code: (unknown, offset),
            region,
            votes: 1,
        };
        for order in [[1, 2, 1, 3, 1], [2, 3, 1, 1, 1], [1, 1, 1, 2, 3]] {
            let mut cell = vote(order[0]);
            order[1..].iter().for_each(|&o| cell.add(&vote(o)));
            assert_eq!((cell.code.1, cell.samples), (1, 5), "{order:?}");
        }
    }
}
