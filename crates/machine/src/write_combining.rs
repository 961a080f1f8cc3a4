//! Non-temporal stores. They go past the caches to write-combining buffers, which write whole lines
//! to memory.
//!
//! A buffer is written when all 64 bytes of its line are there, or when another line needs the
//! buffer: the one that was opened first leaves. A partly filled buffer takes the path to memory for
//! as long as a full one. There are as many buffers as misses in flight, because processors use the
//! same buffers for both. Not modelled: fences and loads that write a buffer earlier, and buffers
//! that are occupied by misses. Buffers that are open at the end of the program are not written, as
//! dirty lines are not.

use std::collections::VecDeque;

use memgauge_trace::{AccessKind, DataSource};

use crate::cache::{DIRTY, tag_of};
use crate::coherence::{LineBytes, LineUse};
use crate::events::*;
use crate::{AccessOutcome, Core, LINE_BYTES, SharedLevels};

/// The buffers of a core.
pub(crate) struct WriteCombining {
    /// Open buffers, in the order in which they were opened.
    open: VecDeque<CombiningBuffer>,
    buffers: usize,
}

struct CombiningBuffer {
    tag: u64,
    /// Bytes that are there, as bits.
    stored: u64,
}

/// Effect of a store on the buffers.
#[derive(Default)]
struct Combined {
    /// Its line had no buffer.
    is_opened: bool,
    /// Number of lines that leave for memory.
    written: u32,
}

impl WriteCombining {
    pub(crate) fn new(buffers: u32) -> WriteCombining {
        WriteCombining {
            open: VecDeque::new(),
            buffers: buffers.max(1) as usize,
        }
    }

    fn store(&mut self, tag: u64, stored: u64) -> Combined {
        let mut combined = Combined::default();
        let at = self.open.iter().rposition(|buffer| buffer.tag == tag);
        let at = at.unwrap_or_else(|| {
            combined.is_opened = true;
            if self.open.len() == self.buffers {
                self.open.pop_front();
                combined.written += 1;
            }
            self.open.push_back(CombiningBuffer { tag, stored: 0 });
            self.open.len() - 1
        });
        self.open[at].stored |= stored;
        if self.open[at].stored == u64::MAX {
            self.open.remove(at);
            combined.written += 1;
        }
        combined
    }
}

impl Core {
    /// Performs a non-temporal store: translation, each of its lines, time and sampling. A store of
    /// 0 bytes counts as one byte.
    pub fn store_non_temporal(
        &mut self,
        shared: &mut SharedLevels,
        addr: u64,
        size: u32,
    ) -> AccessOutcome {
        let mut out = self.outcome_past_caches();
        let (mut at, end) = (addr, addr.wrapping_add(u64::from(size.max(1))));
        let last = end.wrapping_sub(1);
        out.latency_cycles += self.translate_all(addr, last, AccessKind::Store, &mut out);
        let line_bytes = u64::from(LINE_BYTES);
        while at != end {
            let room = line_bytes - at % line_bytes;
            let bytes = room.min(end.wrapping_sub(at));
            if at != addr {
                self.count_further(at.wrapping_sub(addr) <= line_bytes);
            }
            self.combine(shared, at, bytes as u32, &mut out);
            at = at.wrapping_add(bytes);
        }
        self.sample(addr, size, AccessKind::Store, &mut out);
        out
    }

    /// Performs the part of a non-temporal store that is in the line of `addr`, without its page.
    pub fn store_line_non_temporal(
        &mut self,
        shared: &mut SharedLevels,
        addr: u64,
        size: u32,
    ) -> AccessOutcome {
        let mut out = self.outcome_past_caches();
        let room = LINE_BYTES - (addr % u64::from(LINE_BYTES)) as u32;
        self.combine(shared, addr, size.clamp(1, room), &mut out);
        self.sample(addr, size, AccessKind::Store, &mut out);
        out
    }

    /// Returns the outcome of a store that finds a buffer, or of a prefetch: nothing waits for data.
    pub(crate) fn outcome_past_caches(&self) -> AccessOutcome {
        AccessOutcome {
            source: DataSource::Unknown,
            latency_cycles: 0,
            ..self.costs.plain_hit
        }
    }

    /// Stores bytes of a single line.
    fn combine(
        &mut self,
        shared: &mut SharedLevels,
        addr: u64,
        size: u32,
        out: &mut AccessOutcome,
    ) {
        self.past_caches += 1;
        let tag = tag_of(addr);
        let bytes = LineBytes::of(addr, size, AccessKind::Store);
        let combined = self.write_combining.store(tag, bytes.stored);
        if combined.is_opened {
            self.evict_everywhere(shared, tag, bytes, out);
        }
        for _ in 0..combined.written {
            self.counts[DRAM_WRITE_BYTES] += u64::from(LINE_BYTES);
            out.dram_write_bytes += LINE_BYTES;
            self.transfer_posted(shared, out);
        }
    }

    /// Removes a line from all caches. A dirty one is written to memory.
    fn evict_everywhere(
        &mut self,
        shared: &mut SharedLevels,
        tag: u64,
        bytes: LineBytes,
        out: &mut AccessOutcome,
    ) {
        if shared.is_coherent() {
            let line_use = LineUse {
                stores: true,
                bytes,
            };
            self.claim(shared, tag, line_use, out);
        }
        let mut flags = self.give_up(tag);
        flags |= shared.llc.drop_line(tag | self.space_bits).unwrap_or(0);
        if flags & DIRTY != 0 {
            self.write_dram(shared, out);
        }
    }
}
