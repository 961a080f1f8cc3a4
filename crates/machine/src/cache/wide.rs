//! Sets with any number of ways and any replacement policy. The words are in no order, and each way
//! has a stamp of its last use.

use super::{EMPTY, LookupResult, Sets, tag_in, tree};
use crate::Replacement;

pub(crate) struct Wide {
    words: Vec<u64>,
    /// One stamp per word, for LRU.
    stamps: Vec<u64>,
    /// One tree per set, for tree-PLRU.
    trees: Vec<u64>,
    stamp: u64,
    ways: usize,
    sets: Sets,
}

impl Wide {
    pub(super) fn new(sets: u64, ways: usize, replacement: Replacement) -> Self {
        let words = sets as usize * ways;
        let (stamps, trees) = match replacement {
            Replacement::Lru => (words, 0),
            Replacement::TreePlru => (0, sets as usize),
        };
        Wide {
            words: vec![EMPTY; words],
            stamps: vec![0; stamps],
            trees: vec![0; trees],
            stamp: 0,
            ways,
            sets: Sets::new(sets),
        }
    }

    fn find(&self, set: usize, wanted: u64) -> Option<usize> {
        let words = &self.words[set * self.ways..][..self.ways];
        words.iter().position(|&word| tag_in(word) == wanted)
    }

    #[inline(never)]
    pub(super) fn take(&mut self, tag: u64, set_flags: u64, clear: u64) -> LookupResult {
        let set = self.sets.of(tag);
        let held = self.find(set, tag);
        let way = held.unwrap_or_else(|| self.coldest(set));
        let word = &mut self.words[set * self.ways + way];
        let before = *word;
        *word = if held.is_some() {
            (before & !clear) | set_flags
        } else {
            tag | set_flags
        };
        self.use_way(set, way);
        if held.is_some() {
            LookupResult::Hit(before)
        } else {
            LookupResult::Miss(before)
        }
    }

    fn coldest(&self, set: usize) -> usize {
        if let Some(way) = self.find(set, EMPTY) {
            return way;
        }
        if let Some(&tree) = self.trees.get(set) {
            return tree::coldest(tree, self.ways);
        }
        let stamps = self.stamps[set * self.ways..][..self.ways]
            .iter()
            .enumerate();
        stamps.min_by_key(|s| s.1).map_or(0, |s| s.0)
    }

    fn use_way(&mut self, set: usize, way: usize) {
        match self.trees.get_mut(set) {
            Some(tree) => *tree = tree::pointed_away(*tree, self.ways, way),
            None => {
                self.stamp += 1;
                self.stamps[set * self.ways + way] = self.stamp;
            }
        }
    }

    pub(super) fn holds(&self, tag: u64) -> bool {
        self.find(self.sets.of(tag), tag).is_some()
    }

    pub(super) fn drop_line(&mut self, tag: u64) -> Option<u64> {
        let set = self.sets.of(tag);
        let way = self.find(set, tag)?;
        Some(std::mem::replace(
            &mut self.words[set * self.ways + way],
            EMPTY,
        ))
    }

    pub(super) fn clear_flags(&mut self, tag: u64, flags: u64) -> Option<u64> {
        let set = self.sets.of(tag);
        let way = self.find(set, tag)?;
        let word = &mut self.words[set * self.ways + way];
        let before = *word;
        *word = before & !flags;
        Some(before)
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().copied().filter(|&word| word != EMPTY)
    }
}
