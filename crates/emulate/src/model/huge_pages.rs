//! Huge pages that a program asks for with `madvise(MADV_HUGEPAGE)`.
//!
//! The kernel gives anonymous memory that is advised so a huge page for each 2 MiB that lie in it as
//! a whole, at the first access. The model does that at the call, also for memory that was accessed
//! before. It is assumed that huge pages are never short, and that the kernel's setting is
//! `madvise`: other memory has none.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use memgauge_machine::HUGE_PAGE_BYTES;

use crate::engine::catalogue::CatalogueEvent;

/// A change of a process's memory.
#[derive(Clone, Debug)]
enum AdviceChange {
    Advise(Range<u64>),
    /// Unmapped, mapped anew, or advised against.
    Clear(Range<u64>),
}

/// The huge pages of a process.
#[derive(Debug, Default)]
pub(crate) struct HugePages {
    /// Advised ranges by start. They do not overlap.
    advised: BTreeMap<u64, u64>,
    /// Changes that no thread has reached, with the end of their record in the catalogue.
    ahead: VecDeque<(u64, AdviceChange)>,
    /// Whole huge pages within the advised ranges, in order.
    whole: Arc<[Range<u64>]>,
}

impl HugePages {
    /// Creates the huge pages of a forked child.
    pub(crate) fn inherited(&self) -> HugePages {
        let mut child = HugePages {
            advised: self.advised.clone(),
            ahead: self.ahead.clone(),
            whole: Arc::clone(&self.whole),
        };
        child.reach(u64::MAX);
        child
    }

    /// Ranges in huge pages.
    pub(crate) fn ranges(&self) -> &Arc<[Range<u64>]> {
        &self.whole
    }

    /// Notes a change whose record ends at `bytes` of the catalogue.
    pub(crate) fn observe(&mut self, event: &CatalogueEvent, bytes: u64) {
        let change = match event {
            CatalogueEvent::Advised(range, true) => AdviceChange::Advise(range.clone()),
            // Most programs never advise. Nothing has to be kept for them.
            _ if self.advised.is_empty() && self.ahead.is_empty() => return,
            CatalogueEvent::Advised(range, false) | CatalogueEvent::Unmapped(range) => {
                AdviceChange::Clear(range.clone())
            }
            // Thread-local variables are inside another mapping, which keeps its pages.
            CatalogueEvent::Mapped(_, mapping) if mapping.is_thread_local() => return,
            CatalogueEvent::Mapped(start, mapping) => AdviceChange::Clear(*start..mapping.end),
            _ => return,
        };
        self.ahead.push_back((bytes, change));
    }

    /// Applies the changes in the first `bytes` of the catalogue, which a thread has reached.
    pub(crate) fn reach(&mut self, bytes: u64) {
        let mut has_changed = false;
        let is_reached = |ahead: &VecDeque<(u64, AdviceChange)>| {
            ahead.front().is_some_and(|(end, _)| *end <= bytes)
        };
        while is_reached(&self.ahead) {
            let Some((_, change)) = self.ahead.pop_front() else {
                break;
            };
            let (AdviceChange::Advise(range) | AdviceChange::Clear(range)) = &change;
            // Advice for an empty range must not split the advised range around it.
            if range.is_empty() {
                continue;
            }
            has_changed = true;
            self.clear(range);
            if let AdviceChange::Advise(range) = change {
                self.advise(range);
            }
        }
        if has_changed {
            self.whole = self.whole_pages();
        }
    }

    fn clear(&mut self, range: &Range<u64>) {
        let below = self.advised.range(..range.end).rev();
        let touched: Vec<_> = below
            .map(|(&start, &end)| (start, end))
            .take_while(|&(_, end)| end > range.start)
            .collect();
        for (start, end) in touched {
            self.advised.remove(&start);
            if start < range.start {
                self.advised.insert(start, range.start);
            }
            if end > range.end {
                self.advised.insert(range.end, end);
            }
        }
    }

    /// Adds a range that does not overlap advised ones. Adjacent ranges are merged, because a huge
    /// page may lie across their border.
    fn advise(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if let Some(behind) = self.advised.remove(&end) {
            end = behind;
        }
        if let Some((&before, &before_end)) = self.advised.range(..start).next_back()
            && before_end == start
        {
            start = before;
        }
        self.advised.insert(start, end);
    }

    fn whole_pages(&self) -> Arc<[Range<u64>]> {
        let advised = self.advised.iter();
        let whole = advised.filter_map(|(start, end)| {
            let start = start.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
            let end = end - end % HUGE_PAGE_BYTES;
            (start < end).then_some(start..end)
        });
        whole.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::address_space::Mapping;

    const PAGE: u64 = 4096;
    const PAGES_IN_HUGE: u64 = HUGE_PAGE_BYTES / PAGE;

    fn event(kind: u8, range: Range<u64>) -> CatalogueEvent {
        match kind {
            0 => CatalogueEvent::Advised(range, false),
            1 => CatalogueEvent::Unmapped(range),
            2 => {
                let mapping = Mapping::new(range.end, 0, false, String::new());
                CatalogueEvent::Mapped(range.start, mapping)
            }
            _ => CatalogueEvent::Advised(range, true),
        }
    }

    proptest! {
        #[test]
        fn pages_are_huge_if_every_small_page_in_them_is_advised(
            changes in proptest::collection::vec((0u8..6, 0u64..4000, 0u64..3000), 1..40),
            reached in 0usize..40,
        ) {
            let mut pages = HugePages::default();
            let mut advised = BTreeSet::new();
            for (number, &(kind, first, count)) in changes.iter().enumerate() {
                pages.observe(&event(kind, first * PAGE..(first + count) * PAGE), number as u64 + 1);
                for page in first..first + count {
                    match kind {
                        _ if number >= reached => false,
                        0..=2 => advised.remove(&page),
                        _ => advised.insert(page),
                    };
                }
            }
            pages.reach(reached as u64);
            let expected: Vec<u64> = (0..7000 / PAGES_IN_HUGE)
                .filter(|huge| (0..PAGES_IN_HUGE).all(|n| advised.contains(&(huge * PAGES_IN_HUGE + n))))
                .collect();
            let found: Vec<u64> = pages
                .ranges()
                .iter()
                .flat_map(|range| range.start / HUGE_PAGE_BYTES..range.end / HUGE_PAGE_BYTES)
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn advice_for_no_bytes_changes_nothing() {
        let mut pages = HugePages::default();
        let range = HUGE_PAGE_BYTES..2 * HUGE_PAGE_BYTES;
        let inside = range.start + PAGE..range.start + PAGE;
        for (range, is_advised) in [(&range, true), (&inside, true), (&inside, false)] {
            pages.observe(&CatalogueEvent::Advised(range.clone(), is_advised), 1);
        }
        pages.reach(1);
        assert_eq!(**pages.ranges(), [range]);
    }

    #[test]
    fn a_child_has_what_its_parent_has_announced() {
        let mut parent = HugePages::default();
        let range = HUGE_PAGE_BYTES..3 * HUGE_PAGE_BYTES;
        parent.observe(&CatalogueEvent::Advised(range.clone(), true), 100);
        assert!(parent.ranges().is_empty());
        assert_eq!(**parent.inherited().ranges(), [range]);
    }
}
