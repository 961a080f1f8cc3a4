//! Resources that cores share: the last-level cache and memory.

use crate::cache::{Cache, DIRTY, EMPTY, Evicted, LookupResult, SPACE_SHIFT, tag_in};
use crate::clock::Clock;
use crate::coherence::Directory;
use crate::dram::Dram;
use crate::{Config, Core, LINE_BYTES};

/// Number of recalls kept for cores that are not running. If a core has missed more, all its lines
/// are checked when it runs next.
const KEPT_RECALLS: usize = 4096;

/// The part of the machine that all cores use.
pub struct SharedLevels {
    pub(crate) llc: Cache,
    pub(crate) dram: Dram,
    pub(crate) inclusive: bool,
    peers: Vec<PeerCore>,
    /// The latest recalls, in a ring. Each core reads them when it runs, so that a recall costs the
    /// same beside one core and a thousand.
    recalls: Vec<Recall>,
    recalled: u64,
    unattributed_write_bytes: u64,
    /// Cores that are not running, by index.
    pub(crate) cores: Vec<Option<Box<Core>>>,
    pub(crate) directory: Directory,
}

/// A line that an inclusive last-level cache evicted, and the core that has already dropped it.
#[derive(Clone, Copy)]
struct Recall {
    tag: u64,
    asking: usize,
}

/// A core as the last-level cache sees it.
struct PeerCore {
    space: u64,
    /// Number of recalls that it has handled.
    known: u64,
}

/// Lines that a core must drop because an inclusive last-level cache evicted them.
pub(crate) enum Recalls {
    These(Vec<u64>),
    /// Too many to list: all lines that the last-level cache does not hold.
    Unlisted,
}

impl SharedLevels {
    pub(crate) fn new(config: &Config, weight: u32) -> Self {
        let clock = Clock::new(config.frequency_hz);
        let rate = config.timing.dram_bytes_per_s;
        let line_bytes = u64::from(LINE_BYTES) * u64::from(weight);
        // An inclusive cache recalls clean lines, too.
        let evicted = match config.inclusive_llc {
            true => Evicted::All,
            false => Evicted::Dirty,
        };
        SharedLevels {
            llc: Cache::new(&config.llc, evicted),
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

    /// Returns true if lower levels can evict lines from the first. It must not run ahead then.
    pub fn recalls(&self) -> bool {
        self.inclusive
    }

    /// Returns true if lines are kept coherent between several cores.
    #[inline(always)]
    pub fn is_coherent(&self) -> bool {
        self.directory.is_on()
    }

    pub(crate) fn join(&mut self, space: u64) -> usize {
        self.peers.push(PeerCore {
            space,
            known: self.recalled,
        });
        self.peers.len() - 1
    }

    /// Bytes of dirty lines written to memory when cores that ended wrote back their lines. No core
    /// counts them.
    pub(crate) fn unattributed_write_bytes(&self) -> u64 {
        self.unattributed_write_bytes
    }

    /// Takes over a dirty line of a core that ends.
    pub(crate) fn adopt(&mut self, tag: u64) {
        let LookupResult::Miss(left) = self.llc.take(tag, DIRTY, 0) else {
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

    /// Recalls a line from every core of its address space except `asking`.
    pub(crate) fn recall(&mut self, asking: usize, tag: u64) {
        let recall = Recall { tag, asking };
        let at = self.recalled as usize % KEPT_RECALLS;
        match self.recalls.get_mut(at) {
            Some(oldest) => *oldest = recall,
            None => self.recalls.push(recall),
        }
        // A single core cannot miss recalls.
        if let Some(peer) = self.peers.get_mut(asking)
            && peer.known == self.recalled
        {
            peer.known += 1;
        }
        self.recalled += 1;
    }

    /// Returns the lines that a core must drop before it continues.
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
