//! The parts that cores share: the last-level cache and memory.

use crate::cache::{Cache, DIRTY, EMPTY, Found, SPACE_SHIFT, tag_in};
use crate::clock::Clock;
use crate::coherence::Directory;
use crate::dram::Dram;
use crate::{Config, Core, LINE_BYTES};

/// Recalls kept for cores that are not running. All lines of a core that has missed more are
/// looked up when it runs next.
const KEPT_RECALLS: usize = 4096;

/// The part of the machine all cores use.
pub struct Shared {
    pub(crate) llc: Cache,
    pub(crate) dram: Dram,
    pub(crate) inclusive: bool,
    peers: Vec<Peer>,
    /// The last recalls, by their number modulo how many are kept. Each core reads them when
    /// it runs, so that a recall costs as much beside a thousand cores as beside one.
    recalls: Vec<Recall>,
    recalled: u64,
    unattributed_write_bytes: u64,
    /// The cores that are not running, by place.
    pub(crate) cores: Vec<Option<Box<Core>>>,
    pub(crate) directory: Directory,
}

/// A line that an inclusive last-level cache lost, and the core that gave it up by itself.
#[derive(Clone, Copy)]
struct Recall {
    tag: u64,
    asking: usize,
}

/// A core, as the last-level cache sees it.
struct Peer {
    space: u64,
    /// Recalls before this one it knows.
    known: u64,
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
            recalls: Vec::new(),
            recalled: 0,
            unattributed_write_bytes: 0,
            cores: Vec::new(),
            directory: Directory::default(),
        }
    }

    /// Whether lines can be taken out of the first level from below: then it
    /// cannot be fed ahead.
    pub fn recalls(&self) -> bool {
        self.inclusive
    }

    /// Whether lines are kept coherent between cores, of which there are several.
    #[inline(always)]
    pub fn is_coherent(&self) -> bool {
        self.directory.is_on()
    }

    pub(crate) fn join(&mut self, space: u64) -> usize {
        self.peers.push(Peer {
            space,
            known: self.recalled,
        });
        self.peers.len() - 1
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
        let recall = Recall { tag, asking };
        let at = self.recalled as usize % KEPT_RECALLS;
        match self.recalls.get_mut(at) {
            Some(oldest) => *oldest = recall,
            None => self.recalls.push(recall),
        }
        // The only one that runs falls behind no others.
        if let Some(peer) = self.peers.get_mut(asking)
            && peer.known == self.recalled
        {
            peer.known += 1;
        }
        self.recalled += 1;
    }

    /// What a core must give up before it runs on.
    pub(crate) fn take_recalls(&mut self, id: usize) -> Recalls {
        let peer = &mut self.peers[id];
        let known = std::mem::replace(&mut peer.known, self.recalled);
        if self.recalled - known > KEPT_RECALLS as u64 {
            return Recalls::Unlisted;
        }
        let new = (known..self.recalled).map(|n| self.recalls[n as usize % KEPT_RECALLS]);
        let of_others =
            new.filter(|recall| recall.asking != id && recall.tag >> SPACE_SHIFT == peer.space);
        Recalls::These(of_others.map(|recall| recall.tag).collect())
    }
}

impl Recalls {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Recalls::These(tags) if tags.is_empty())
    }
}
