//! The parts that cores share: the last-level cache and memory.

use crate::cache::{Cache, DIRTY, EMPTY, Found, SPACE_SHIFT, tag_in};
use crate::clock::Clock;
use crate::dram::Dram;
use crate::{Config, LINE_BYTES};

/// Recalls kept for a core that is not running; with more, all its lines are
/// looked up when it runs next.
const MOST_RECALLS: usize = 4096;

/// The part of the machine all cores use.
pub struct Shared {
    pub(crate) llc: Cache,
    pub(crate) dram: Dram,
    pub(crate) inclusive: bool,
    peers: Vec<Peer>,
    unattributed_write_bytes: u64,
}

/// A core, as the last-level cache sees it.
struct Peer {
    present: bool,
    space: u64,
    recalls: Recalls,
}

/// Lines a core must give up because an inclusive last-level cache lost them.
pub(crate) enum Recalls {
    These(Vec<u64>),
    /// Too many to list: all lines that the last-level cache does not hold.
    Unlisted,
}

impl Shared {
    pub(crate) fn new(config: &Config, weight: u32) -> Self {
        let clock = Clock::new(config.frequency_hz);
        let rate = config.timing.dram_bytes_per_s;
        let line_bytes = u64::from(LINE_BYTES) * u64::from(weight);
        Shared {
            llc: Cache::new(&config.llc),
            dram: Dram::new(clock.transfer_millicycles(line_bytes, rate)),
            inclusive: config.inclusive_llc,
            peers: Vec::new(),
            unattributed_write_bytes: 0,
        }
    }

    /// Whether lines can be taken out of the first level from below: then it
    /// cannot be fed ahead.
    pub fn recalls(&self) -> bool {
        self.inclusive
    }

    pub(crate) fn join(&mut self, space: u64) -> usize {
        self.peers.push(Peer {
            present: true,
            space,
            recalls: Recalls::These(Vec::new()),
        });
        self.peers.len() - 1
    }

    pub(crate) fn leave(&mut self, id: usize) {
        self.peers[id].present = false;
        self.peers[id].recalls = Recalls::These(Vec::new());
    }

    /// Bytes of dirty lines written to memory when cores that ended handed their
    /// lines over; they are in no core's counts.
    pub(crate) fn unattributed_write_bytes(&self) -> u64 {
        self.unattributed_write_bytes
    }

    /// Takes over a dirty line of a core that ends.
    pub(crate) fn adopt(&mut self, tag: u64) {
        let Found::Miss(left) = self.llc.take(tag, DIRTY, 0) else {
            return;
        };
        if left == EMPTY {
            return;
        }
        if left & DIRTY != 0 {
            self.unattributed_write_bytes += u64::from(LINE_BYTES);
        }
        if self.inclusive {
            self.recall(usize::MAX, tag_in(left));
        }
    }

    /// Asks every core of the line's address space but `asking` to give it up.
    pub(crate) fn recall(&mut self, asking: usize, tag: u64) {
        for (id, peer) in self.peers.iter_mut().enumerate() {
            if id != asking && peer.present && peer.space == tag >> SPACE_SHIFT {
                peer.recalls.add(tag);
            }
        }
    }

    pub(crate) fn take_recalls(&mut self, id: usize) -> Recalls {
        std::mem::replace(&mut self.peers[id].recalls, Recalls::These(Vec::new()))
    }
}

impl Recalls {
    fn add(&mut self, tag: u64) {
        match self {
            Recalls::These(tags) if tags.len() < MOST_RECALLS => tags.push(tag),
            _ => *self = Recalls::Unlisted,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Recalls::These(tags) if tags.is_empty())
    }
}
