//! Traces of single accesses as text: valgrind's lackey (`--trace-mem=yes`) and the view of
//! drcachesim.
//!
//! ```text
//! I  0401ab73,5                lackey: an instruction, its address and bytes;
//!  S 1fff000758,8              then what it stores, loads (L) or modifies (M)
//!
//! 47445 37770: 2765543 ifetch 5 byte(s) @ 0x0000000000404a7e 48 8b 5c 24 08 mov …
//! 47446 37770: 2765543 read   8 byte(s) @ 0x00007fdf64e2adc8 by PC 0x0000000000404a7e
//! ```
//!
//! Each access is a sample that stands for itself. Neither text has times: an instruction of a
//! thread is taken to last a nanosecond.

use std::collections::BTreeMap;
use std::collections::HashMap;

use memgauge_recording::Writer;
use memgauge_trace::{AccessKind, EventId, Pid, Sample, SiteCount, Tid, VirtAddr, catalogue};

use super::text::{Lines, Text};
use crate::Result;

/// Bytes of a cache line, for accesses that lie in two.
const LINE: u64 = 64;
/// Rows that are handed over at once.
const BATCH: usize = 1 << 13;

/// What a line of a trace says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Instruction {
        tid: u32,
        ip: u64,
    },
    Access {
        tid: u32,
        ip: Option<u64>,
        addr: u64,
        bytes: u16,
        kind: AccessKind,
    },
}

/// A thread so far.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    instructions: u64,
    ip: u64,
}

/// A trace under way.
#[derive(Debug, Default)]
pub(super) struct Trace {
    threads: BTreeMap<u32, Thread>,
    sites: HashMap<(u64, EventId), u64>,
    rows: Vec<Sample>,
    pub(super) samples: BTreeMap<EventId, u64>,
    pub(super) command: String,
    /// Whether the tool's first and last words were seen.
    began: bool,
    ended: bool,
    pub(super) unreadable: u64,
    pub(super) first_unreadable: Option<u64>,
}

impl Trace {
    /// Reads a file, whose samples go to `writer`.
    pub(super) fn read(lines: &mut Lines, text: Text, writer: &mut Writer) -> Result<Trace> {
        let mut trace = Trace::default();
        loop {
            let number = lines.number + 1;
            let Some(line) = lines.next()? else {
                break;
            };
            let step = match text {
                Text::Drcachesim => view(&line),
                _ => lackey(&line),
            };
            match step {
                Some(step) => trace.take(step),
                None if is_remark(&line, text) => trace.remark(&line),
                None => {
                    trace.unreadable += 1;
                    trace.first_unreadable.get_or_insert(number);
                }
            }
            if trace.rows.len() >= BATCH {
                writer.append(&trace.rows)?;
                trace.rows.clear();
                writer.flush_due()?;
            }
        }
        writer.append(&trace.rows)?;
        trace.rows.clear();
        Ok(trace)
    }

    fn count(&mut self, ip: u64, event: EventId) {
        *self.sites.entry((ip, event)).or_default() += 1;
    }

    fn take(&mut self, step: Step) {
        let (Step::Instruction { tid, .. } | Step::Access { tid, .. }) = step;
        let thread = self.threads.entry(tid).or_default();
        match step {
            Step::Instruction { ip, .. } => {
                thread.instructions += 1;
                thread.ip = ip;
                self.count(ip, catalogue::INSTRUCTIONS);
            }
            Step::Access {
                ip,
                addr,
                bytes,
                kind,
                ..
            } => {
                let ip = ip.unwrap_or(thread.ip);
                let time_ns = thread.instructions;
                self.access((tid, ip, time_ns), addr, bytes, kind);
            }
        }
    }

    fn access(&mut self, at: (u32, u64, u64), addr: u64, bytes: u16, kind: AccessKind) {
        let (tid, ip, time_ns) = at;
        let events: &[EventId] = match kind {
            AccessKind::Modify => &[catalogue::LOADS, catalogue::STORES, catalogue::MODIFIES],
            AccessKind::Store => &[catalogue::STORES],
            _ => &[catalogue::LOADS],
        };
        events.iter().for_each(|&event| self.count(ip, event));
        let last = addr.saturating_add(u64::from(bytes).max(1) - 1);
        if addr / LINE != last / LINE {
            self.count(ip, catalogue::SPLITS);
        }
        // One access, one sample: a modify is one of its load.
        let event = events[0];
        *self.samples.entry(event).or_default() += 1;
        self.rows.push(Sample {
            time_ns,
            pid: Pid(1),
            tid: Tid(tid),
            event,
            ip: VirtAddr(ip),
            addr: Some(VirtAddr(addr)),
            kind,
            size_bytes: bytes,
            period: 1,
            ..Sample::default()
        });
    }

    /// Whether the tool's first words are there and its last are not.
    pub(super) fn is_cut(&self) -> bool {
        self.began && !self.ended
    }

    /// lackey says what it ran, and how that ended; the view begins and ends with headings.
    fn remark(&mut self, line: &str) {
        self.began |= line.contains("== Command: ") || line.starts_with("Output format:");
        self.ended |= line.contains("== Exit code: ") || line.starts_with("View tool results:");
        if let Some((_, command)) = line.split_once("== Command: ") {
            command.trim().clone_into(&mut self.command);
        }
    }

    /// Threads, with the instructions of each.
    pub(super) fn threads(&self) -> impl Iterator<Item = (u32, u64)> {
        self.threads
            .iter()
            .map(|(&tid, thread)| (tid, thread.instructions))
    }

    /// Counts of events by instruction, in the order of addresses.
    pub(super) fn sites(&self) -> Vec<SiteCount> {
        let site = |(&(ip, event), &count): (&(u64, EventId), &u64)| SiteCount {
            pid: Pid(1),
            ip: VirtAddr(ip),
            event,
            count,
            set_group: None,
            code_ns: None,
        };
        let mut sites: Vec<SiteCount> = self.sites.iter().map(site).collect();
        sites.sort_by_key(|site| (site.ip, site.event));
        sites
    }
}

/// Lines that are no accesses: valgrind's own (`==123== …`), and heads, markers and notes of
/// the view. The program's output may lie between lackey's lines too, but is no access.
fn is_remark(line: &str, text: Text) -> bool {
    match text {
        Text::Drcachesim => !line.contains(" byte(s) @ "),
        _ => !line.starts_with("I  ") && !is_marked(line),
    }
}

fn is_marked(line: &str) -> bool {
    [" L ", " S ", " M "]
        .iter()
        .any(|head| line.starts_with(head))
}

fn lackey(line: &str) -> Option<Step> {
    let (head, rest) = line.split_at_checked(3)?;
    let (address, bytes) = rest.trim_end().split_once(',')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let bytes = bytes.parse().ok()?;
    let kind = match head {
        "I  " => {
            return Some(Step::Instruction {
                tid: 1,
                ip: address,
            });
        }
        " L " => AccessKind::Load,
        " S " => AccessKind::Store,
        " M " => AccessKind::Modify,
        _ => return None,
    };
    Some(Step::Access {
        tid: 1,
        ip: None,
        addr: address,
        bytes,
        kind,
    })
}

fn view(line: &str) -> Option<Step> {
    let (_, rest) = line.split_once(": ")?;
    let mut words = rest.split_whitespace();
    // A thread, in later versions with its workload: `W0.T292`.
    let thread = words.next()?;
    let tid = thread.rsplit('T').next()?.parse().ok()?;
    let what = words.next()?;
    let bytes = words.next()?.parse().ok()?;
    (words.next()? == "byte(s)" && words.next()? == "@").then_some(())?;
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let address = hex(words.next()?)?;
    let kind = match what {
        "ifetch" => return Some(Step::Instruction { tid, ip: address }),
        "read" => AccessKind::Load,
        "write" => AccessKind::Store,
        _ => return None,
    };
    let ip = (words.next() == Some("by") && words.next() == Some("PC")).then(|| words.next());
    let ip = ip.flatten().and_then(hex);
    Some(Step::Access {
        tid,
        ip,
        addr: address,
        bytes,
        kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_lackey_are_read() {
        let access = |addr, bytes, kind| {
            Some(Step::Access {
                tid: 1,
                ip: None,
                addr,
                bytes,
                kind,
            })
        };
        for (line, step) in [
            (
                "I  0401ab73,5",
                Some(Step::Instruction {
                    tid: 1,
                    ip: 0x401ab73,
                }),
            ),
            (
                " S 1fff000758,8",
                access(0x1fff000758, 8, AccessKind::Store),
            ),
            (
                " L 1ffeffe7e8,32",
                access(0x1ffeffe7e8, 32, AccessKind::Load),
            ),
            (" M 0421c7cc,4", access(0x421c7cc, 4, AccessKind::Modify)),
            (" X 0421c7cc,4", None),
            (" L 0421c7cc", None),
            ("==1== Command: ls", None),
            ("", None),
        ] {
            assert_eq!(lackey(line), step, "{line}");
        }
    }

    /// Lines of DynamoRIO's documentation of the tool.
    #[test]
    fn lines_of_the_view_are_read() {
        let line = "       47445       37770:     2765543 ifetch       5 byte(s) @ \
                    0x0000000000404a7e 48 8b 5c 24 08       mov    0x08(%rsp)[8byte] -> %rbx";
        let instruction = Step::Instruction {
            tid: 2_765_543,
            ip: 0x404a7e,
        };
        assert_eq!(view(line), Some(instruction));
        let line = "       47446       37770:     2765543 read         8 byte(s) @ \
                    0x00007fdf64e2adc8 by PC 0x0000000000404a7e";
        let read = Step::Access {
            tid: 2_765_543,
            ip: Some(0x404a7e),
            addr: 0x7fdf_64e2_adc8,
            bytes: 8,
            kind: AccessKind::Load,
        };
        assert_eq!(view(line), Some(read));
        for line in [
            "           1           0:     2765542 <marker: version 5>",
            "<--record#-> <--instr#->: <---tid---> <record details>",
            "------------------------------------------------------------",
        ] {
            assert_eq!(view(line), None);
            assert!(is_remark(line, Text::Drcachesim));
        }
    }
}
