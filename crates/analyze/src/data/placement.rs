//! Which NUMA node uses which memory, and which pages should be moved.
//!
//! Accesses come as samples with a data address and the node of the CPU. The location of pages
//! comes through [`PageNodes`], so that this module runs without a NUMA machine.
//!
//! A region is cut into ranges. A gap between samples that is too long for chance ends a range.
//! Within a range, adjacent chunks of [`CHUNK_SAMPLES`] samples are merged if the same node uses
//! them most. A decision for each page was rejected: a page rarely has more than one sample, and
//! one sample does not show which node will use it next.

use std::collections::BTreeMap;

use ahash::{HashMap, HashMapExt};

use serde::Serialize;

use crate::sample_intervals::{wilson, wilson_95};

/// Number of samples in a chunk. One decision is made for each chunk.
const CHUNK_SAMPLES: u64 = 32;
/// Number of standard deviations by which a node's share must exceed one half for it to count as
/// the user. Among chunks that two nodes share equally, one in 10 000 is attributed to one of them.
const CERTAIN: f64 = 4.0;
/// A gap of this many mean gaps is not chance: random gaps are as long with a probability of
/// exp(-16).
const LONG_GAP: u64 = 16;
/// Minimum size of a gap that ends a range: one huge page.
const SHORTEST_GAP_BYTES: u64 = 2 << 20;
/// Share of a range's pages that may be on the wrong node without a recommendation to move them.
const NEGLIGIBLE: f64 = 0.01;
/// Maximum number of pages of each process whose node is queried. Larger ranges are sampled.
const MAX_QUERIED_PAGES: u64 = 1 << 20;
/// Maximum number of pages and nodes with samples.
const MAX_PAGES: usize = 1 << 22;

/// Samples by page and by node.
#[derive(Clone, Debug)]
pub struct PageUseByNode {
    page_bytes: u64,
    samples: HashMap<(u64, u32), u64>,
    most: usize,
    not_kept: u64,
}

impl PageUseByNode {
    /// Starts without samples. `page_bytes` is the page size of the machine.
    pub fn new(page_bytes: u64) -> PageUseByNode {
        PageUseByNode {
            page_bytes,
            samples: HashMap::new(),
            most: MAX_PAGES,
            not_kept: 0,
        }
    }

    /// Adds a sampled access from a node.
    pub fn take(&mut self, addr: u64, node: u32) {
        let key = (addr / self.page_bytes, node);
        let is_full = self.samples.len() >= self.most;
        match self.samples.get_mut(&key) {
            Some(samples) => *samples += 1,
            None if is_full => self.not_kept += 1,
            None => drop(self.samples.insert(key, 1)),
        }
    }

    /// Pages by address, each with its samples by node.
    fn by_page(&self) -> Vec<(u64, ByNode)> {
        let mut pages: BTreeMap<u64, ByNode> = BTreeMap::new();
        for (&(page, node), &samples) in &self.samples {
            *pages.entry(page).or_default().entry(node).or_default() += samples;
        }
        pages.into_iter().collect()
    }
}

/// A number for each node.
pub type ByNode = BTreeMap<u32, u64>;

/// A region of a process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// Name of the region.
    pub name: String,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// Finds the node that holds a page.
pub trait PageNodes {
    /// Node of each page by address. `None` for a page that is not in memory.
    fn nodes_of(&mut self, pages: &[u64]) -> Vec<Option<u32>>;
}

/// Recommendation for a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Advice {
    /// Its pages are on the node that uses them.
    Keep,
    /// Move its pages to this node.
    Move {
        /// The node that uses it.
        to: u32,
    },
    /// Several nodes use it, so it is remote for some of them on every node.
    Shared,
    /// There are too few samples.
    TooFewSamples,
}

/// A range of pages with uniform use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlacedRange {
    /// Region that contains it.
    pub region: String,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Samples in the range.
    pub samples: u64,
    /// Samples by node of the CPU.
    pub used_by: ByNode,
    /// Pages by node that holds them, of [`asked_pages`](Self::asked_pages).
    pub lies_on: ByNode,
    /// Number of pages whose node was queried: all, or a sample of a large range.
    pub asked_pages: u64,
    /// Number of pages.
    pub pages: u64,
    /// Share of samples from another node than the one that holds the page, of samples whose page
    /// is in memory.
    pub remote: Option<f64>,
    /// Bytes to move to follow the advice (estimated if not all pages were queried).
    pub bytes_to_move: u64,
    /// The recommendation.
    pub advice: Advice,
}

/// How a process's memory is placed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Placement {
    /// Samples with a data address.
    pub samples: u64,
    /// Samples in memory that is no longer mapped, or whose mapping is unknown.
    pub unmapped: u64,
    /// Samples beyond the maximum number of pages.
    pub not_kept: u64,
    /// Samples by node of the CPU.
    pub used_by: ByNode,
    /// Samples whose page was in memory when it was queried.
    pub placed: u64,
    /// Share of `placed` from another node than the one that holds the page.
    pub remote: Option<f64>,
    /// Wilson's 95 % interval of `remote` for independent samples.
    pub remote_interval: Option<(f64, f64)>,
    /// The share if all advice were followed and nothing else changed.
    pub remote_after: Option<f64>,
    /// Ranges, by address.
    pub ranges: Vec<PlacedRange>,
}

/// Splits the regions into ranges by use, and recommends where to move them.
pub fn placement(
    usage: &PageUseByNode,
    regions: &[MemoryRegion],
    nodes: &mut dyn PageNodes,
) -> Placement {
    let pages = usage.by_page();
    let addresses: Vec<u64> = pages.iter().map(|(p, _)| p * usage.page_bytes).collect();
    let lies_on = nodes.nodes_of(&addresses);
    let sampled: Vec<SampledPage> = pages
        .into_iter()
        .zip(lies_on)
        .map(|((page, used_by), lies_on)| SampledPage {
            page,
            used_by,
            lies_on,
        })
        .collect();

    let mut found = Placement {
        not_kept: usage.not_kept,
        ..Placement::default()
    };
    let mut cut = Vec::new();
    let mut mapped = 0;
    for region in regions {
        let first = region.start / usage.page_bytes;
        let last = region.end.div_ceil(usage.page_bytes);
        let from = sampled.partition_point(|s| s.page < first);
        let to = sampled.partition_point(|s| s.page < last);
        mapped += sampled[from..to]
            .iter()
            .map(SampledPage::samples)
            .sum::<u64>();
        let shortest = SHORTEST_GAP_BYTES / usage.page_bytes;
        for part in split_at_gaps(&sampled[from..to], shortest) {
            cut.extend(by_user(part).into_iter().map(|range| (region, range)));
        }
    }
    for page in &sampled {
        found.samples += page.samples();
        add(&mut found.used_by, &page.used_by);
    }
    found.unmapped = found.samples - mapped;
    found.samples += found.not_kept;

    let all_pages: u64 = cut.iter().map(|(_, range)| pages_of(range)).sum();
    let stride = all_pages.div_ceil(MAX_QUERIED_PAGES).max(1);
    let mut remote = (0, 0);
    for (region, range) in cut {
        let counted = remote_samples(range, None);
        let placed = place(range, region, (usage.page_bytes, stride), nodes);
        let after = match placed.advice {
            Advice::Move { to } => remote_samples(range, Some(to)).0,
            _ => counted.0,
        };
        remote = (remote.0 + counted.0, remote.1 + after);
        found.placed += counted.1;
        found.ranges.push(placed);
    }
    found.ranges.sort_by_key(|range| range.start);
    found.remote = ratio(remote.0, found.placed);
    found.remote_after = ratio(remote.1, found.placed);
    found.remote_interval = found
        .remote
        .and_then(|share| wilson_95(share, found.placed));
    found
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// A page with samples.
struct SampledPage {
    page: u64,
    used_by: ByNode,
    lies_on: Option<u32>,
}

impl SampledPage {
    fn samples(&self) -> u64 {
        self.used_by.values().sum()
    }
}

fn add(sums: &mut ByNode, more: &ByNode) {
    for (&node, samples) in more {
        *sums.entry(node).or_default() += samples;
    }
}

/// Number of pages from the first to the last one with samples.
fn pages_of(range: &[SampledPage]) -> u64 {
    match (range.first(), range.last()) {
        (Some(first), Some(last)) => last.page + 1 - first.page,
        _ => 0,
    }
}

/// Splits at gaps that are too long for chance.
fn split_at_gaps(pages: &[SampledPage], shortest: u64) -> Vec<&[SampledPage]> {
    let longest = longest_by_chance(pages).max(shortest);
    pages.chunk_by(|a, b| b.page - a.page <= longest).collect()
}

/// Longest gap by chance in pages: [`LONG_GAP`] times the mean of the gaps that are not longer than
/// that.
fn longest_by_chance(pages: &[SampledPage]) -> u64 {
    let samples: u64 = pages.iter().map(SampledPage::samples).sum();
    let mut longest = u64::MAX;
    loop {
        let gaps = pages.windows(2).map(|two| two[1].page - two[0].page);
        let sum: u64 = gaps.filter(|&gap| gap <= longest).sum();
        let shorter = (LONG_GAP * sum).div_ceil(samples.max(1)).min(longest);
        if shorter == longest {
            return longest;
        }
        longest = shorter;
    }
}

/// The node that makes most of these accesses with statistical significance.
fn user(used_by: &ByNode) -> Option<u32> {
    let samples: u64 = used_by.values().sum();
    let (&node, &most) = used_by.iter().max_by_key(|(_, samples)| **samples)?;
    let (low, _) = wilson(most as f64 / samples as f64, samples, CERTAIN)?;
    (low > 0.5).then_some(node)
}

fn used_by(pages: &[SampledPage]) -> ByNode {
    let mut sums = ByNode::new();
    pages.iter().for_each(|page| add(&mut sums, &page.used_by));
    sums
}

/// The node that makes most of these accesses, even if by little.
fn leader(used_by: &ByNode) -> Option<u32> {
    let most = used_by.iter().max_by_key(|(_, samples)| **samples);
    most.map(|(node, _)| *node)
}

/// Consecutive pages and the node that uses them.
struct PageRun<'a> {
    pages: &'a [SampledPage],
    user: Option<u32>,
}

/// Merges adjacent runs with the same user. `all` contains the pages of all runs.
fn merged<'a>(all: &'a [SampledPage], runs: &[PageRun<'a>]) -> Vec<PageRun<'a>> {
    let mut start = 0;
    let groups = runs.chunk_by(|a, b| a.user == b.user).map(|group| {
        let end = start + group.iter().map(|run| run.pages.len()).sum::<usize>();
        let pages = &all[start..end];
        start = end;
        PageRun {
            pages,
            user: group[0].user,
        }
    });
    groups.collect()
}

/// Splits into ranges that one node uses, or that several share.
fn by_user(pages: &[SampledPage]) -> Vec<&[SampledPage]> {
    let chunks = chunks(pages).into_iter().map(|pages| PageRun {
        pages,
        user: leader(&used_by(pages)),
    });
    let chunks: Vec<PageRun> = chunks.collect();
    // One chunk's leader may be chance. The same leader in many consecutive chunks is not.
    let mut runs = merged(pages, &chunks);
    for run in &mut runs {
        run.user = user(&used_by(run.pages));
    }
    // A chunk that differs by chance belongs to its neighbours if these agree.
    for n in 1..runs.len().saturating_sub(1) {
        let samples: u64 = runs[n].pages.iter().map(SampledPage::samples).sum();
        if runs[n].user.is_none()
            && samples < 2 * CHUNK_SAMPLES
            && runs[n - 1].user == runs[n + 1].user
        {
            runs[n].user = runs[n - 1].user;
        }
    }
    merged(pages, &runs)
        .into_iter()
        .map(|run| run.pages)
        .collect()
}

/// Splits pages into chunks of at least [`CHUNK_SAMPLES`] samples.
fn chunks(pages: &[SampledPage]) -> Vec<&[SampledPage]> {
    let mut ends = Vec::new();
    let mut samples = 0;
    for (page, end) in pages.iter().zip(1..) {
        samples += page.samples();
        if samples >= CHUNK_SAMPLES {
            ends.push(end);
            samples = 0;
        }
    }
    // Too few samples for a chunk. Append them to the previous one.
    ends.pop();
    ends.push(pages.len());
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts
        .zip(&ends)
        .map(|(start, &end)| &pages[start..end])
        .collect()
}

/// Samples from another node than the one that holds their page (or would hold it), and all samples
/// whose page is in memory.
fn remote_samples(range: &[SampledPage], moved_to: Option<u32>) -> (u64, u64) {
    let mut sums = (0, 0);
    for page in range {
        let Some(lies_on) = page.lies_on else {
            continue;
        };
        let near = moved_to.unwrap_or(lies_on);
        let local = page.used_by.get(&near).copied().unwrap_or(0);
        sums = (sums.0 + page.samples() - local, sums.1 + page.samples());
    }
    sums
}

fn place(
    range: &[SampledPage],
    region: &MemoryRegion,
    (page_bytes, stride): (u64, u64),
    nodes: &mut dyn PageNodes,
) -> PlacedRange {
    let first = range.first().map_or(0, |page| page.page);
    let pages = pages_of(range);
    let asked: Vec<u64> = (first..first + pages)
        .step_by(stride as usize)
        .map(|page| page * page_bytes)
        .collect();
    let mut lies_on = ByNode::new();
    for node in nodes.nodes_of(&asked).into_iter().flatten() {
        *lies_on.entry(node).or_default() += 1;
    }
    let by_node = used_by(range);
    let samples = by_node.values().sum();
    let present: u64 = lies_on.values().sum();
    let elsewhere = |to: u32| present - lies_on.get(&to).copied().unwrap_or(0);
    let (advice, misplaced) = match user(&by_node) {
        _ if samples < CHUNK_SAMPLES => (Advice::TooFewSamples, 0),
        None => (Advice::Shared, 0),
        Some(to) => match elsewhere(to) {
            few if few as f64 <= present as f64 * NEGLIGIBLE => (Advice::Keep, 0),
            many => (Advice::Move { to }, many),
        },
    };
    let (remote, placed) = remote_samples(range, None);
    PlacedRange {
        region: region.name.clone(),
        start: first * page_bytes,
        end: (first + pages) * page_bytes,
        samples,
        used_by: by_node,
        lies_on,
        asked_pages: asked.len() as u64,
        pages,
        remote: ratio(remote, placed),
        bytes_to_move: (misplaced * page_bytes * stride).min(pages * page_bytes),
        advice,
    }
}

#[cfg(test)]
mod tests;
