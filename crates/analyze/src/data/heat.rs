//! Heat map: samples by block of addresses and time bin, and the blocks and lines with the most
//! samples.
//!
//! Memory is bounded: beyond [`MAX_BLOCKS`] blocks, the blocks double in size, and beyond [`BINS`]
//! bins, the bins double in width.

use std::collections::BTreeMap;

use ahash::{HashMap, HashMapExt};
use memgauge_trace::{EventId, LINE_BYTES, Sample, VirtAddr};
use serde::{Deserialize, Serialize};

use crate::Analysis;
use crate::sample_intervals::wilson_95;

/// Maximum number of time bins.
const BINS: usize = 64;
/// Maximum number of blocks.
const MAX_BLOCKS: usize = 1 << 16;
/// Initial size of a block: a page.
const PAGE_SHIFT: u32 = 12;
/// Maximum number of lines. Samples of further lines are only summed.
const MAX_LINES_COUNTED: usize = 1 << 20;
/// A gap of this size separates two stretches: 4 MiB.
const GAP_BYTES: u64 = 4 << 20;
/// Maximum number of stretches and of rows.
const STRETCHES: usize = 3;
const ROWS: usize = 8;

/// Samples of one event by address and time.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Heat {
    block_shift: u32,
    bin_ns: u64,
    cells: HashMap<u64, Vec<u64>>,
    lines: HashMap<u64, u64>,
    samples: u64,
    end_ns: u64,
}

impl Default for Heat {
    fn default() -> Self {
        Heat {
            block_shift: PAGE_SHIFT,
            bin_ns: 1000,
            cells: HashMap::new(),
            lines: HashMap::new(),
            samples: 0,
            end_ns: 0,
        }
    }
}

/// A range of memory over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stretch {
    /// First byte.
    pub start: VirtAddr,
    /// Bytes per row.
    pub row_bytes: u64,
    /// Samples in it.
    pub samples: u64,
    /// Samples by row (address) and column (time).
    pub rows: Vec<Vec<u64>>,
}

/// A block or line with its share of the samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HotPlace {
    /// First byte.
    pub start: VirtAddr,
    /// Number of samples.
    pub samples: u64,
    /// Share of all samples with an address, in 0..=1.
    pub share: f64,
    /// Ends of the 95 % confidence interval. Both are the share itself if each event has a sample.
    pub interval: (f64, f64),
}

/// A heat map of one event.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HeatMap {
    /// Name of the event.
    pub event: String,
    /// Samples with a data address.
    pub samples: u64,
    /// The stretches with the most samples, by address.
    pub stretches: Vec<Stretch>,
    /// The pages with the most samples, or larger blocks of `page_bytes`.
    pub pages: Vec<HotPlace>,
    /// Size of the pages.
    pub page_bytes: u64,
    /// The cache lines (64 bytes) with the most samples.
    pub lines: Vec<HotPlace>,
    /// Time of the whole width in nanoseconds.
    pub duration_ns: u64,
}

impl HeatMap {
    /// Removes the intervals, since each event has a sample.
    pub(crate) fn remove_intervals(&mut self) {
        for place in self.pages.iter_mut().chain(&mut self.lines) {
            place.interval = (place.share, place.share);
        }
    }
}

fn count(map: &mut HashMap<u64, u64>, key: u64, n: u64) {
    if let Some(known) = map.get_mut(&key) {
        *known += n;
    } else if map.len() < MAX_LINES_COUNTED {
        map.insert(key, n);
    }
}

fn add(sum: &mut Vec<u64>, other: &[u64]) {
    sum.resize(sum.len().max(other.len()), 0);
    for (sum, n) in sum.iter_mut().zip(other) {
        *sum += n;
    }
}

impl Heat {
    fn add(&mut self, time_ns: u64, address: VirtAddr) {
        self.samples += 1;
        self.end_ns = self.end_ns.max(time_ns);
        while time_ns / self.bin_ns >= BINS as u64 {
            self.double_bins();
        }
        let bin = (time_ns / self.bin_ns) as usize;
        let block = address.0 >> self.block_shift;
        let cell = self.cells.entry(block).or_default();
        cell.resize(cell.len().max(bin + 1), 0);
        cell[bin] += 1;
        while self.cells.len() > MAX_BLOCKS {
            self.double_blocks();
        }
        count(&mut self.lines, address.0 / LINE_BYTES, 1);
    }

    fn double_bins(&mut self) {
        self.bin_ns *= 2;
        for cell in self.cells.values_mut() {
            *cell = cell.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
    }

    fn double_blocks(&mut self) {
        self.block_shift += 1;
        for (block, cell) in std::mem::take(&mut self.cells) {
            add(self.cells.entry(block >> 1).or_default(), &cell);
        }
    }

    fn stretches(&self) -> Vec<Stretch> {
        let gap = (GAP_BYTES >> self.block_shift).max(1);
        let mut groups: Vec<Vec<(u64, &Vec<u64>)>> = Vec::new();
        let mut blocks: Vec<(u64, &Vec<u64>)> = self.cells.iter().map(|(b, c)| (*b, c)).collect();
        blocks.sort_unstable_by_key(|(block, _)| *block);
        for (block, cell) in blocks {
            match groups
                .last_mut()
                .filter(|g| block - g[g.len() - 1].0 <= gap)
            {
                Some(group) => group.push((block, cell)),
                None => groups.push(vec![(block, cell)]),
            }
        }
        let mut all: Vec<Stretch> = groups.iter().map(|group| self.stretch(group)).collect();
        all.sort_by_key(|s| (std::cmp::Reverse(s.samples), s.start));
        all.truncate(STRETCHES);
        all.sort_by_key(|s| s.start);
        all
    }

    fn stretch(&self, group: &[(u64, &Vec<u64>)]) -> Stretch {
        let (first, last) = (group[0].0, group[group.len() - 1].0);
        let blocks_a_row = (last - first + 1).div_ceil(ROWS as u64);
        let rows = (last - first + 1).div_ceil(blocks_a_row) as usize;
        let columns = (self.end_ns / self.bin_ns) as usize + 1;
        let mut table = vec![vec![0; columns]; rows];
        for (block, cell) in group {
            add(&mut table[((block - first) / blocks_a_row) as usize], cell);
        }
        Stretch {
            start: VirtAddr(first << self.block_shift),
            row_bytes: blocks_a_row << self.block_shift,
            samples: table.iter().flatten().sum(),
            rows: table,
        }
    }

    fn hottest(&self, counts: impl Iterator<Item = (u64, u64)>, n: usize) -> Vec<HotPlace> {
        let mut all: Vec<(u64, u64)> = counts.collect();
        all.sort_by_key(|&(key, count)| (std::cmp::Reverse(count), key));
        let place = |&(start, samples): &(u64, u64)| {
            let share = samples as f64 / self.samples as f64;
            HotPlace {
                start: VirtAddr(start),
                samples,
                share,
                interval: wilson_95(share, self.samples).unwrap_or((0.0, 1.0)),
            }
        };
        all.iter().take(n).map(place).collect()
    }
}

/// Maximum number of listed pages and lines.
const LISTED: usize = 10;

/// Collects samples with a data address by event. Samples of different events represent different
/// things, so their sum has no meaning.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HeatByEvent {
    events: BTreeMap<EventId, Heat>,
}

/// A heat map of each event that has samples with a data address.
pub type HeatMaps = BTreeMap<EventId, HeatMap>;

impl Analysis for HeatByEvent {
    type Row = Sample;
    type Output = HeatMaps;

    fn observe(&mut self, batch: &[Sample]) {
        for sample in batch {
            if let Some(address) = sample.addr {
                let heat = self.events.entry(sample.event).or_default();
                heat.add(sample.time_ns, address);
            }
        }
    }

    fn merge(&mut self, other: Self) {
        for (event, heat) in other.events {
            self.events.entry(event).or_default().merge(heat);
        }
    }

    fn finish(self) -> HeatMaps {
        let events = self.events.into_iter();
        events.map(|(event, heat)| (event, heat.finish())).collect()
    }
}

impl Heat {
    fn merge(&mut self, mut other: Self) {
        while self.bin_ns < other.bin_ns {
            self.double_bins();
        }
        while other.bin_ns < self.bin_ns {
            other.double_bins();
        }
        while self.block_shift < other.block_shift {
            self.double_blocks();
        }
        while other.block_shift < self.block_shift {
            other.double_blocks();
        }
        for (block, cell) in other.cells {
            add(self.cells.entry(block).or_default(), &cell);
        }
        while self.cells.len() > MAX_BLOCKS {
            self.double_blocks();
        }
        other
            .lines
            .into_iter()
            .for_each(|(key, n)| count(&mut self.lines, key, n));
        self.samples += other.samples;
        self.end_ns = self.end_ns.max(other.end_ns);
    }

    fn finish(self) -> HeatMap {
        let columns = self.end_ns / self.bin_ns + 1;
        let by_block = self
            .cells
            .iter()
            .map(|(b, cell)| (b << self.block_shift, cell.iter().sum()));
        let by_line = self.lines.iter().map(|(line, n)| (line * LINE_BYTES, *n));
        HeatMap {
            event: String::new(),
            samples: self.samples,
            stretches: self.stretches(),
            pages: self.hottest(by_block, LISTED),
            page_bytes: 1 << self.block_shift,
            lines: self.hottest(by_line, LISTED),
            duration_ns: columns * self.bin_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time_ns: u64, addr: u64) -> Sample {
        Sample {
            time_ns,
            addr: Some(VirtAddr(addr)),
            ..Sample::default()
        }
    }

    /// A sweep over 1 MiB in 1 ms, and one hot line far away.
    fn sweep() -> Vec<Sample> {
        let swept = (0..1000).map(|i| sample(i * 1000, 0x10_0000 + i * 1048));
        let hot = (0..500).map(|i| sample(i * 2000, 0x7000_0000));
        swept.chain(hot).collect()
    }

    fn map(batches: &[&[Sample]]) -> HeatMap {
        let mut heat = HeatByEvent::default();
        for batch in batches {
            heat.observe(batch);
        }
        heat.finish().remove(&EventId::default()).expect("samples")
    }

    #[test]
    fn a_sweep_is_a_diagonal() {
        let map = map(&[&sweep()]);
        assert_eq!(map.samples, 1500);
        let stretch = &map.stretches[0];
        assert_eq!(
            (stretch.start.0, stretch.samples, stretch.rows.len()),
            (0x10_0000, 1000, 8)
        );
        let centre = |row: &Vec<u64>| {
            let weighted: u64 = row.iter().zip(0..).map(|(n, at)| n * at).sum();
            weighted / row.iter().sum::<u64>()
        };
        let centres: Vec<u64> = stretch.rows.iter().map(centre).collect();
        assert!(
            centres.is_sorted() && centres[7] - centres[0] > 30,
            "{centres:?}"
        );
        assert_eq!(map.stretches[1].samples, 500);
    }

    #[test]
    fn hot_places_come_with_their_share() {
        let map = map(&[&sweep()]);
        let hot = &map.lines[0];
        assert_eq!((hot.start.0, hot.samples), (0x7000_0000, 500));
        assert!(hot.interval.0 < 1.0 / 3.0 && 1.0 / 3.0 < hot.interval.1);
        assert_eq!(map.pages[0].start.0, 0x7000_0000);
    }

    #[test]
    fn parts_merge_to_the_whole() {
        let all = sweep();
        let (a, b) = all.split_at(700);
        let whole = map(&[&all]);
        assert_eq!(map(&[a, b]), whole);
        let mut first = HeatByEvent::default();
        first.observe(a);
        let mut second = HeatByEvent::default();
        second.observe(b);
        first.merge(second);
        assert_eq!(first.finish()[&EventId::default()], whole);
    }

    #[test]
    fn more_blocks_than_are_told_apart_become_larger() {
        let samples: Vec<Sample> = (0..MAX_BLOCKS as u64 + 5)
            .map(|i| sample(i, i << 12))
            .collect();
        let map = map(&[&samples]);
        assert_eq!(map.page_bytes, 8192);
        assert_eq!(
            map.stretches.iter().map(|s| s.samples).sum::<u64>(),
            samples.len() as u64
        );
    }
}
