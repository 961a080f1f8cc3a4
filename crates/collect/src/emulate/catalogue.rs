//! What a process's code does to memory, block by block, as the plugin
//! decoded it: the catalogue.
//!
//! The plugin reports for each block its accesses and from which *leader* each
//! address follows. Here consecutive accesses that follow from one leader and
//! span less than a line are joined to a [`Run`]: when the whole run lies in
//! one line, one look at the cache stands for all of it.

use std::ops::Range;

use memgauge_trace::{AccessKind, VirtAddr};

use super::wire;

/// Ids are dense; one this far ahead of the last is damage.
const MAX_GAP: usize = 1 << 16;

/// More leaders than a block of 512 instructions has; more is damage.
const MAX_LEADERS: u16 = 4096;

/// Flag of a block whose record has not come yet; not on the wire.
const UNKNOWN: u16 = 1 << 15;

/// Lines of the machines modelled; longer ones would only join less.
const LINE_BYTES: u64 = 64;

/// One access of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// From the leader's address; the address itself for a constant one; the
    /// operand's bytes for a varying one.
    pub(super) delta: i64,
    /// Of the instruction, from the first byte of the block.
    pub(super) offset: u16,
    pub(super) insn: u16,
    pub(super) leader: u16,
    pub(super) size: u8,
    pub(super) kind: AccessKind,
}

/// Consecutive accesses with one leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// First byte of the run, from the value of `word`, modulo 2^64.
    pub(super) low: u64,
    /// First access, in the process's list.
    pub(super) first: u32,
    pub(super) accesses: u16,
    /// Which of the block's words the addresses follow from: its leader's, or 0,
    /// the block's own, whose value is known, where they are constants.
    pub(super) word: u16,
    /// Last byte of the run, from its first.
    pub(super) reach: u8,
    pub(super) store: bool,
}

impl Run {
    pub(super) fn accesses(&self) -> Range<u32> {
        self.first..self.first + u32::from(self.accesses)
    }
}

/// What an execution of a block adds to the thread's counts: two numbers in one
/// word, so that the hot loop adds half as often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Instructions; loads above bit 32.
    pub(super) insns_loads: u64,
    /// Stores; read-modify-writes (also in loads and stores) above bit 32.
    pub(super) stores_modifies: u64,
}

impl Tally {
    pub(super) fn instructions(insns: u32) -> Tally {
        Tally {
            insns_loads: u64::from(insns),
            stores_modifies: 0,
        }
    }

    pub(super) fn insns(&self) -> u32 {
        self.insns_loads as u32
    }

    pub(super) fn loads(&self) -> u32 {
        (self.insns_loads >> 32) as u32
    }

    pub(super) fn stores(&self) -> u32 {
        self.stores_modifies as u32
    }

    pub(super) fn modifies(&self) -> u32 {
        (self.stores_modifies >> 32) as u32
    }

    /// Adds one access.
    pub(super) fn access(&mut self, kind: AccessKind) {
        self.insns_loads += u64::from(kind != AccessKind::Store) << 32;
        self.stores_modifies += u64::from(kind != AccessKind::Load);
        self.stores_modifies += u64::from(kind == AccessKind::Modify) << 32;
    }

    #[inline(always)]
    pub(super) fn add(&mut self, other: Tally) {
        self.insns_loads += other.insns_loads;
        self.stores_modifies += other.stores_modifies;
    }
}

/// A block of code: what the hot loop needs, in one line of the host's cache.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(super) struct Block {
    /// Per execution, without accesses of rep and varying instructions.
    pub(super) tally: Tally,
    /// First and number of its runs, in the process's list.
    pub(super) first_run: u32,
    pub(super) runs: u16,
    /// Words it has in a thread's stream: its own and its leaders'.
    pub(super) words: u16,
    pub(super) flags: u16,
    /// Executions not yet written to the recording.
    pub(super) execs: u32,
    pub(super) vaddr: u64,
    pub(super) accesses: Range<u32>,
}

const _: () = assert!(size_of::<Block>() == 64);

impl Block {
    /// Whether its record has not come yet.
    pub(super) fn unknown(&self) -> bool {
        self.tally.insns() == 0
    }

    /// Whether it needs more than the hot loop does: the number of its accesses
    /// differs between executions, or it is not known yet.
    #[inline(always)]
    pub(super) fn special(&self) -> bool {
        self.flags != 0
    }

    /// Where its runs are, in the process's list.
    pub(super) fn run_range(&self) -> Range<usize> {
        let first = self.first_run as usize;
        first..first + usize::from(self.runs)
    }

    fn ends_rep(&self) -> bool {
        self.flags & wire::CODE_ENDS_REP != 0
    }
}

/// Everything known of a process's code. A forked child starts with a copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Catalogue {
    pub(super) blocks: Vec<Block>,
    pub(super) runs: Vec<Run>,
    pub(super) accesses: Vec<Access>,
}

/// Something other than code that a catalogue tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Happening {
    Mapped {
        range: Range<u64>,
        file_offset: u64,
        executable: bool,
        path: String,
    },
    Unmapped(Range<u64>),
    Break(u64),
    Program(String),
    NotFollowed(String),
}

/// A catalogue record that cannot be what the plugin writes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read catalogue record of kind {kind} and {bytes} bytes")]
pub(super) struct BadRecord {
    pub(super) kind: u32,
    pub(super) bytes: u32,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    field(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    field(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    field(bytes, at).map(u64::from_le_bytes)
}

fn access_at(bytes: &[u8], at: usize) -> Option<Access> {
    let kind = match bytes.get(at + 15)? {
        1 => AccessKind::Load,
        2 => AccessKind::Store,
        3 => AccessKind::Modify,
        _ => return None,
    };
    Some(Access {
        delta: u64_at(bytes, at)? as i64,
        offset: u16_at(bytes, at + 8)?,
        insn: u16_at(bytes, at + 10)?,
        leader: u16_at(bytes, at + 12)?,
        size: bytes[at + 14],
        kind,
    })
}

fn run_of(block: u32, index: u32, a: &Access) -> Run {
    let constant = a.leader == wire::LEADER_CONSTANT;
    let own_word = wire::WORD_BLOCK | u64::from(block);
    Run {
        low: (a.delta as u64).wrapping_sub(if constant { own_word } else { 0 }),
        first: index,
        accesses: 1,
        word: if constant { 0 } else { a.leader + 1 },
        reach: a.size.max(1) - 1,
        store: a.kind != AccessKind::Load,
    }
}

/// `run` and `next` as one, where both may lie in one line.
fn join(run: &Run, next: &Run) -> Option<Run> {
    let ahead = next.low.wrapping_sub(run.low) as i64;
    if run.word != next.word || ahead.unsigned_abs() >= LINE_BYTES {
        return None;
    }
    let (low, before) = if ahead < 0 {
        (next.low, -ahead)
    } else {
        (run.low, 0)
    };
    let end = (before + i64::from(run.reach)).max(before + ahead + i64::from(next.reach));
    (end.unsigned_abs() < LINE_BYTES).then(|| Run {
        low,
        reach: end as u8,
        store: run.store || next.store,
        accesses: run.accesses + next.accesses,
        ..*run
    })
}

impl Catalogue {
    /// Reads one record from the front of `bytes`; returns its length and what
    /// it told, if it was not code.
    ///
    /// # Errors
    /// A record the plugin cannot have written; nothing after it is readable.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<(usize, Option<Happening>), BadRecord> {
        let kind = u32_at(bytes, 0).unwrap_or(0);
        let length = u32_at(bytes, 4).unwrap_or(0);
        let bad = BadRecord {
            kind,
            bytes: length,
        };
        let body = bytes
            .get(..length as usize)
            .filter(|b| b.len() >= 8)
            .ok_or(BadRecord { ..bad })?;
        let happening = if kind == wire::record::CODE {
            self.add_code(body).ok_or(bad)?;
            None
        } else {
            Some(happening(kind, body).ok_or(bad)?)
        };
        Ok((length as usize, happening))
    }

    fn add_code(&mut self, body: &[u8]) -> Option<()> {
        let id = u32_at(body, 16)? as usize;
        let count = usize::from(u16_at(body, 22)?);
        let leaders = u16_at(body, 24)?;
        let mut block = Block {
            vaddr: u64_at(body, 8)?,
            tally: Tally::instructions(u32::from(u16_at(body, 20)?)),
            words: leaders + 1,
            flags: u16_at(body, 26)?,
            ..Block::default()
        };
        let first = self.accesses.len() as u32;
        for i in 0..count {
            let access = access_at(body, 32 + 16 * i)?;
            if access.leader < wire::LEADER_VARYING && access.leader >= leaders
                || leaders >= MAX_LEADERS
            {
                return None;
            }
            self.accesses.push(access);
        }
        block.accesses = first..self.accesses.len() as u32;
        self.count_accesses(&mut block);
        let runs = self.add_runs(id as u32, block.accesses.clone());
        block.first_run = runs.start;
        block.runs = (runs.end - runs.start) as u16;
        if id >= self.blocks.len() {
            // Ids are dense: a gap is a few blocks another thread is adding.
            let most = self.blocks.len() + MAX_GAP;
            let count = Some(id + 1).filter(|&count| count <= most)?;
            self.blocks.resize_with(count, || Block {
                flags: UNKNOWN,
                ..Block::default()
            });
        }
        self.blocks[id] = block;
        Some(())
    }

    fn count_accesses(&self, block: &mut Block) {
        let last_insn = (block.tally.insns() as u16).saturating_sub(1);
        for a in &self.accesses[to_usize(&block.accesses)] {
            let rep = block.ends_rep() && a.insn == last_insn;
            if rep || a.leader == wire::LEADER_VARYING {
                continue;
            }
            block.tally.access(a.kind);
        }
    }

    fn add_runs(&mut self, block: u32, accesses: Range<u32>) -> Range<u32> {
        let first = self.runs.len();
        for index in accesses {
            let next = run_of(block, index, &self.accesses[index as usize]);
            match self.runs[first..].last_mut() {
                Some(run) if join(run, &next).is_some() => {
                    *run = join(run, &next).unwrap_or(next);
                }
                _ => self.runs.push(next),
            }
        }
        first as u32..self.runs.len() as u32
    }

    /// The instruction at which access `index` of `block` happens.
    pub(super) fn ip(&self, block: &Block, index: u32) -> VirtAddr {
        VirtAddr(block.vaddr + u64::from(self.accesses[index as usize].offset))
    }
}

/// An index range as slices want it.
pub(super) fn to_usize(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

fn happening(kind: u32, body: &[u8]) -> Option<Happening> {
    let range = u64_at(body, 8)?..u64_at(body, 16)?;
    let prot = u32_at(body, 32)?;
    let path_bytes = u32_at(body, 36)? as usize;
    let path = String::from_utf8_lossy(body.get(40..40 + path_bytes)?).into_owned();
    const PROT_EXEC: u32 = 4;
    match kind {
        wire::record::MAP => Some(Happening::Mapped {
            range,
            file_offset: u64_at(body, 24)?,
            executable: prot & PROT_EXEC != 0,
            path,
        }),
        wire::record::UNMAP => Some(Happening::Unmapped(range)),
        wire::record::BRK => Some(Happening::Break(range.start)),
        wire::record::PROGRAM => Some(Happening::Program(path)),
        wire::record::NOT_FOLLOWED => Some(Happening::NotFollowed(path)),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A record as the plugin writes it.
    pub(in super::super) fn code(
        id: u32,
        vaddr: u64,
        insns: u16,
        flags: u16,
        accesses: &[Access],
    ) -> Vec<u8> {
        let leaders = accesses
            .iter()
            .map(|a| a.leader)
            .filter(|&l| l < wire::LEADER_VARYING);
        let leaders = leaders.max().map_or(0, |l| l + 1);
        let mut body = Vec::new();
        body.extend(wire::record::CODE.to_le_bytes());
        body.extend((32 + 16 * accesses.len() as u32).to_le_bytes());
        body.extend(vaddr.to_le_bytes());
        body.extend(id.to_le_bytes());
        for half in [insns, accesses.len() as u16, leaders, flags, 0, 0] {
            body.extend(half.to_le_bytes());
        }
        for a in accesses {
            body.extend(a.delta.to_le_bytes());
            for half in [a.offset, a.insn, a.leader] {
                body.extend(half.to_le_bytes());
            }
            body.extend([a.size, a.kind as u8]);
        }
        body
    }

    pub(in super::super) fn access(leader: u16, delta: i64, size: u8, kind: AccessKind) -> Access {
        Access {
            delta,
            offset: 0,
            insn: 0,
            leader,
            size,
            kind,
        }
    }

    fn runs_of(accesses: &[Access]) -> Vec<(u64, u8, u16, bool)> {
        let mut catalogue = Catalogue::default();
        catalogue.read(&code(0, 0x1000, 9, 0, accesses)).unwrap();
        catalogue
            .runs
            .iter()
            .map(|r| (r.low, r.reach, r.accesses, r.store))
            .collect()
    }

    #[test]
    fn neighbours_of_one_leader_become_a_run() {
        use AccessKind::{Load, Store};
        let pushes = [
            access(0, 0, 8, Store),
            access(0, -8, 8, Store),
            access(0, -16, 8, Load),
            access(1, 0, 4, Load),
            access(0, 100, 8, Load),
        ];
        assert_eq!(
            runs_of(&pushes),
            [
                (-16i64 as u64, 23, 3, true),
                (0, 3, 1, false),
                (100, 7, 1, false)
            ]
        );
    }

    #[test]
    fn constant_addresses_follow_from_the_block_s_own_word() {
        let constant = access(wire::LEADER_CONSTANT, 0x5000, 8, AccessKind::Load);
        let (low, ..) = runs_of(&[constant])[0];
        assert_eq!(low.wrapping_add(wire::WORD_BLOCK), 0x5000);
    }

    #[test]
    fn a_record_with_a_leader_it_does_not_have_is_refused() {
        let mut bytes = code(0, 0x1000, 1, 0, &[access(3, 0, 8, AccessKind::Load)]);
        bytes[24] = 3;
        assert!(Catalogue::default().read(&bytes).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic_or_grow_without_bound(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            kind in 0u32..8,
        ) {
            let mut catalogue = Catalogue::default();
            for (at, byte) in kind.to_le_bytes().into_iter().enumerate().take(bytes.len()) {
                bytes[at] = byte;
            }
            let _ = catalogue.read(&bytes);
            prop_assert!(catalogue.blocks.len() <= MAX_GAP + 1);
        }
    }
}
