//! Sharing of cache lines between threads, by the code that accesses them.

use std::collections::HashMap;

use memgauge_machine::{AccessOutcome, LINE_BYTES, LineBytes, LineSharing};

use crate::model::data::DataMap;

const LINE: u64 = LINE_BYTES as u64;
/// Maximum number of places per thread, 8 MiB. Events of further places are counted as dropped.
const MAX_PLACES: usize = 1 << 16;

/// An access of the code to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SharingPlace {
    /// First address of the line.
    pub(crate) line: u64,
    pub(crate) block: u32,
    /// Number of the access in the catalogue.
    pub(crate) index: u32,
}

/// Sharing events of an access to a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharingSums {
    /// Allocation site of the line's memory at the first event.
    pub(crate) site: Option<u32>,
    pub(crate) bytes: LineBytes,
    pub(crate) hitm: u64,
    pub(crate) invalidating: u64,
    pub(crate) true_sharing: u64,
    pub(crate) false_sharing: u64,
    pub(crate) stalled_millicycles: u64,
}

/// Sharing of one thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadSharing {
    places: HashMap<SharingPlace, SharingSums>,
    /// Number of events beyond [`MAX_PLACES`].
    pub(crate) dropped: u64,
    /// Places whose miss in this turn is not known to be true sharing yet.
    regained: Vec<SharingPlace>,
}

impl ThreadSharing {
    pub(crate) fn add(
        &mut self,
        place: SharingPlace,
        bytes: LineBytes,
        outcome: &AccessOutcome,
        data: Option<&DataMap>,
    ) {
        let place = SharingPlace {
            line: place.line & !(LINE - 1),
            ..place
        };
        if self.places.len() >= MAX_PLACES && !self.places.contains_key(&place) {
            self.dropped += 1;
            return;
        }
        let first_address = place.line + u64::from((bytes.loaded | bytes.stored).trailing_zeros());
        let sums = self.places.entry(place).or_insert_with(|| SharingSums {
            site: data.and_then(|data| data.site_at(first_address)),
            ..SharingSums::default()
        });
        let sharing = outcome.sharing;
        sums.bytes.loaded |= bytes.loaded;
        sums.bytes.stored |= bytes.stored;
        sums.hitm += u64::from(sharing.has(LineSharing::HITM));
        sums.invalidating += u64::from(sharing.has(LineSharing::INVALIDATES));
        if sharing.has(LineSharing::HITM) {
            sums.stalled_millicycles += outcome.stalled.latency;
        }
        if sharing.has(LineSharing::REGAINS) {
            self.regained.push(place);
        }
        if sharing.has(LineSharing::TRUE) {
            self.share_truly(place.line);
        }
    }

    /// Counts true sharing for the place that missed the line in this turn.
    fn share_truly(&mut self, line: u64) {
        if let Some(at) = self.regained.iter().position(|place| place.line == line) {
            let place = self.regained.swap_remove(at);
            if let Some(sums) = self.places.get_mut(&place) {
                sums.true_sharing += 1;
            }
        }
    }

    /// Ends a turn. The remaining misses are false sharing.
    pub(crate) fn end_turn(&mut self) {
        for place in self.regained.drain(..) {
            if let Some(sums) = self.places.get_mut(&place) {
                sums.false_sharing += 1;
            }
        }
    }

    /// Removes and returns all places, ordered by line.
    pub(crate) fn take(&mut self) -> Vec<(SharingPlace, SharingSums)> {
        let mut all: Vec<_> = self.places.drain().collect();
        all.sort_unstable_by_key(|(place, _)| *place);
        all
    }
}
