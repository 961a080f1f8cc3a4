//! Which node of the machine uses which memory, and which pages should lie elsewhere.
//!
//! Accesses come in as samples: a data address, and the node of the processor that made the
//! access. Where pages lie comes through [`PageNodes`], so that all of this runs without
//! a machine of several nodes.
//!
//! A region of memory is cut into ranges. A gap without samples that chance does not make
//! ends a range; within one, neighbouring chunks of [`CHUNK_SAMPLES`] samples that the same
//! node uses most are put together. Rejected: a decision for each page. A page seldom has more than one sample,
//! and one sample says nothing about who will use it next.

use std::collections::BTreeMap;

use ahash::{HashMap, HashMapExt};

use serde::Serialize;

use crate::regions::{wilson, wilson_95};

/// Samples of a chunk, over whose node one decision is made.
const CHUNK_SAMPLES: u64 = 32;
/// Standard deviations by which a node's share must lie above a half to count as its user:
/// of chunks that two nodes share equally, one in 10 000 is taken for that of one.
const CERTAIN: f64 = 4.0;
/// A gap of so many mean gaps is no chance: gaps between samples at random have a
/// probability of exp(-16) to be that long.
const LONG_GAP: u64 = 16;
/// Bytes that a gap must have at least to end a range: one huge page.
const SHORTEST_GAP_BYTES: u64 = 2 << 20;
/// Part of a range's pages that may lie elsewhere without being worth a move.
const NEGLIGIBLE: f64 = 0.01;
/// Pages whose node is asked for, of each process; of larger ranges, one in so many.
const MOST_PAGES_ASKED: u64 = 1 << 20;
/// Pages and nodes with samples that are kept.
const MOST_KEPT: usize = 1 << 22;

/// Samples by page and by the node that accessed it.
#[derive(Clone, Debug)]
pub struct PageUse {
    page_bytes: u64,
    samples: HashMap<(u64, u32), u64>,
    most: usize,
    not_kept: u64,
}

impl PageUse {
    /// Nothing yet, of a machine with pages of this size.
    pub fn new(page_bytes: u64) -> PageUse {
        PageUse {
            page_bytes,
            samples: HashMap::new(),
            most: MOST_KEPT,
            not_kept: 0,
        }
    }

    /// Takes in a sampled access from this node.
    pub fn take(&mut self, addr: u64, node: u32) {
        let key = (addr / self.page_bytes, node);
        let is_full = self.samples.len() >= self.most;
        match self.samples.get_mut(&key) {
            Some(samples) => *samples += 1,
            None if is_full => self.not_kept += 1,
            None => drop(self.samples.insert(key, 1)),
        }
    }

    /// Pages by address, with samples by node.
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
    /// Its name.
    pub name: String,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// Where pages lie.
pub trait PageNodes {
    /// The node of each page, by its address; `None` for one that is not in memory.
    fn nodes_of(&mut self, pages: &[u64]) -> Vec<Option<u32>>;
}

/// Advice on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Advice {
    /// Its pages lie where they are used.
    Keep,
    /// Its pages should lie on this node.
    Move {
        /// The node that uses it.
        to: u32,
    },
    /// Several nodes use it; wherever it lies, somebody is far away.
    Shared,
    /// Too few samples to tell.
    TooFewSamples,
}

/// A range of pages that is used in one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlacedRange {
    /// Region that it is a part of.
    pub region: String,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Samples in it.
    pub samples: u64,
    /// Samples by the node of the processor.
    pub used_by: ByNode,
    /// Pages by the node that they lie on, of [`asked_pages`](Self::asked_pages).
    pub lies_on: ByNode,
    /// Pages whose node was asked for: all, or one in so many of a large range.
    pub asked_pages: u64,
    /// Pages that it has.
    pub pages: u64,
    /// Samples from another node than their page lies on, over samples of pages in memory.
    pub remote: Option<f64>,
    /// Bytes to move where the advice is followed (estimated where not all pages were asked for).
    pub bytes_to_move: u64,
    /// The advice.
    pub advice: Advice,
}

/// How a process's memory is placed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Placement {
    /// Samples with an address.
    pub samples: u64,
    /// Of them in memory that is no longer mapped, or was not told.
    pub unmapped: u64,
    /// Of them of more pages than are kept.
    pub not_kept: u64,
    /// Samples by the node of the processor.
    pub used_by: ByNode,
    /// Samples whose page was in memory when it was looked for.
    pub placed: u64,
    /// Samples from another node than their page lies on, over `placed`.
    pub remote: Option<f64>,
    /// Wilson's 95 % interval of `remote`, for independent samples.
    pub remote_interval: Option<(f64, f64)>,
    /// The same share if every advice were followed and nothing else changed.
    pub remote_after: Option<f64>,
    /// Ranges, by address.
    pub ranges: Vec<PlacedRange>,
}

/// Cuts the regions into ranges by their use, and says what to move where.
pub fn placement(
    usage: &PageUse,
    regions: &[MemoryRegion],
    nodes: &mut dyn PageNodes,
) -> Placement {
    let pages = usage.by_page();
    let addresses: Vec<u64> = pages.iter().map(|(p, _)| p * usage.page_bytes).collect();
    let lies_on = nodes.nodes_of(&addresses);
    let sampled: Vec<Sampled> = pages
        .into_iter()
        .zip(lies_on)
        .map(|((page, used_by), lies_on)| Sampled {
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
        mapped += sampled[from..to].iter().map(Sampled::samples).sum::<u64>();
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
    let stride = all_pages.div_ceil(MOST_PAGES_ASKED).max(1);
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
struct Sampled {
    page: u64,
    used_by: ByNode,
    lies_on: Option<u32>,
}

impl Sampled {
    fn samples(&self) -> u64 {
        self.used_by.values().sum()
    }
}

fn add(sums: &mut ByNode, more: &ByNode) {
    for (&node, samples) in more {
        *sums.entry(node).or_default() += samples;
    }
}

/// Pages from the first one with samples to the last.
fn pages_of(range: &[Sampled]) -> u64 {
    match (range.first(), range.last()) {
        (Some(first), Some(last)) => last.page + 1 - first.page,
        _ => 0,
    }
}

/// Parts between which lie gaps that are too long for chance.
fn split_at_gaps(pages: &[Sampled], shortest: u64) -> Vec<&[Sampled]> {
    let longest = longest_by_chance(pages).max(shortest);
    pages.chunk_by(|a, b| b.page - a.page <= longest).collect()
}

/// Longest gap that chance makes, in pages: [`LONG_GAP`] mean gaps, of gaps that are not
/// longer than that themselves.
fn longest_by_chance(pages: &[Sampled]) -> u64 {
    let samples: u64 = pages.iter().map(Sampled::samples).sum();
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

/// The node that certainly makes most of these accesses.
fn user(used_by: &ByNode) -> Option<u32> {
    let samples: u64 = used_by.values().sum();
    let (&node, &most) = used_by.iter().max_by_key(|(_, samples)| **samples)?;
    let (low, _) = wilson(most as f64 / samples as f64, samples, CERTAIN)?;
    (low > 0.5).then_some(node)
}

fn used_by(pages: &[Sampled]) -> ByNode {
    let mut sums = ByNode::new();
    pages.iter().for_each(|page| add(&mut sums, &page.used_by));
    sums
}

/// The node that makes most of these accesses, if by little.
fn leader(used_by: &ByNode) -> Option<u32> {
    let most = used_by.iter().max_by_key(|(_, samples)| **samples);
    most.map(|(node, _)| *node)
}

/// Pages in the order of their addresses, and who uses them.
struct Run<'a> {
    pages: &'a [Sampled],
    user: Option<u32>,
}

/// Puts neighbours with one user together. `all` holds the pages of all runs.
fn merged<'a>(all: &'a [Sampled], runs: &[Run<'a>]) -> Vec<Run<'a>> {
    let mut start = 0;
    let groups = runs.chunk_by(|a, b| a.user == b.user).map(|group| {
        let end = start + group.iter().map(|run| run.pages.len()).sum::<usize>();
        let pages = &all[start..end];
        start = end;
        Run {
            pages,
            user: group[0].user,
        }
    });
    groups.collect()
}

/// Ranges that one node uses, or several alike.
fn by_user(pages: &[Sampled]) -> Vec<&[Sampled]> {
    let chunks = chunks(pages).into_iter().map(|pages| Run {
        pages,
        user: leader(&used_by(pages)),
    });
    let chunks: Vec<Run> = chunks.collect();
    // Who leads a chunk may be chance; who leads many in a row is not.
    let mut runs = merged(pages, &chunks);
    for run in &mut runs {
        run.user = user(&used_by(run.pages));
    }
    // A chunk that stands out by chance belongs to those on both sides.
    for n in 1..runs.len().saturating_sub(1) {
        let samples: u64 = runs[n].pages.iter().map(Sampled::samples).sum();
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

/// Pages in pieces of [`CHUNK_SAMPLES`] samples or a little more.
fn chunks(pages: &[Sampled]) -> Vec<&[Sampled]> {
    let mut ends = Vec::new();
    let mut samples = 0;
    for (page, end) in pages.iter().zip(1..) {
        samples += page.samples();
        if samples >= CHUNK_SAMPLES {
            ends.push(end);
            samples = 0;
        }
    }
    // Too few for a chunk of their own: they belong to the one before.
    ends.pop();
    ends.push(pages.len());
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts
        .zip(&ends)
        .map(|(start, &end)| &pages[start..end])
        .collect()
}

/// Samples from another node than their page lies on (or would lie on), and all samples of
/// pages in memory.
fn remote_samples(range: &[Sampled], moved_to: Option<u32>) -> (u64, u64) {
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
    range: &[Sampled],
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
