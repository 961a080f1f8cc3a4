//! Traces of single accesses as text: valgrind's lackey (`--trace-mem=yes`) and the view tool of
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
//! Each access becomes a sample with weight 1. Neither format has times, so an instruction of a
//! thread counts as one nanosecond.

use std::collections::BTreeMap;
use std::collections::HashMap;

use memgauge_recording::Writer;
use memgauge_trace::{AccessKind, EventId, Pid, Sample, SiteCount, Tid, VirtAddr, catalogue};

use super::text_format::{LineReader, TextFormat};
use crate::Result;
use crate::lackey::{self, LackeyLine};

/// Size of a cache line in bytes, to count accesses that cross a line boundary.
const LINE_BYTES: u64 = 64;
/// Number of rows handed to the writer at once.
const BATCH_ROWS: usize = 1 << 13;

/// Meaning of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TraceLine {
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

/// An access with the instruction and time that its line may leave out.
#[derive(Clone, Copy, Debug)]
struct TracedAccess {
    tid: u32,
    ip: u64,
    time_ns: u64,
    addr: u64,
    bytes: u16,
    kind: AccessKind,
}

/// State of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct TracedThread {
    instructions: u64,
    ip: u64,
}

/// State of reading a trace.
#[derive(Debug, Default)]
pub(super) struct AccessTrace {
    threads: BTreeMap<u32, TracedThread>,
    sites: HashMap<(u64, EventId), u64>,
    rows: Vec<Sample>,
    pub(super) samples: BTreeMap<EventId, u64>,
    pub(super) command: String,
    /// Whether the first and the last lines of the tool's output were seen.
    has_start: bool,
    has_end: bool,
    pub(super) unreadable: u64,
    pub(super) first_unreadable: Option<u64>,
}

impl AccessTrace {
    /// Reads a file and writes its samples to `writer`.
    pub(super) fn read(
        lines: &mut LineReader,
        format: TextFormat,
        writer: &mut Writer,
    ) -> Result<AccessTrace> {
        let mut trace = AccessTrace::default();
        loop {
            let number = lines.number + 1;
            let Some(line) = lines.next()? else {
                break;
            };
            let line_content = match format {
                TextFormat::Drcachesim => parse_view(&line),
                _ => parse_lackey(&line),
            };
            match line_content {
                Some(line_content) => trace.apply(line_content),
                None if is_remark(&line, format) => trace.read_remark(&line),
                None => {
                    trace.unreadable += 1;
                    trace.first_unreadable.get_or_insert(number);
                }
            }
            if trace.rows.len() >= BATCH_ROWS {
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

    fn apply(&mut self, line_content: TraceLine) {
        let (TraceLine::Instruction { tid, .. } | TraceLine::Access { tid, .. }) = line_content;
        let thread = self.threads.entry(tid).or_default();
        match line_content {
            TraceLine::Instruction { ip, .. } => {
                thread.instructions += 1;
                thread.ip = ip;
                self.count(ip, catalogue::INSTRUCTIONS);
            }
            TraceLine::Access {
                ip,
                addr,
                bytes,
                kind,
                ..
            } => {
                let ip = ip.unwrap_or(thread.ip);
                let time_ns = thread.instructions;
                self.add_access(TracedAccess {
                    tid,
                    ip,
                    time_ns,
                    addr,
                    bytes,
                    kind,
                });
            }
        }
    }

    fn add_access(&mut self, access: TracedAccess) {
        let TracedAccess {
            tid,
            ip,
            time_ns,
            addr,
            bytes,
            kind,
        } = access;
        let events: &[EventId] = match kind {
            AccessKind::Modify => &[catalogue::LOADS, catalogue::STORES, catalogue::MODIFIES],
            AccessKind::Store => &[catalogue::STORES],
            _ => &[catalogue::LOADS],
        };
        events.iter().for_each(|&event| self.count(ip, event));
        let last = addr.saturating_add(u64::from(bytes).max(1) - 1);
        if addr / LINE_BYTES != last / LINE_BYTES {
            self.count(ip, catalogue::SPLITS);
        }
        // One sample per access. That of a modify counts as a load.
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

    /// Returns whether the start of the tool's output was seen, but not its end.
    pub(super) fn is_cut(&self) -> bool {
        self.has_start && !self.has_end
    }

    /// Reads a line without an access: lackey reports the command and its exit code, the view
    /// starts and ends with headings.
    fn read_remark(&mut self, line: &str) {
        self.has_start |= line.contains("== Command: ") || line.starts_with("Output format:");
        self.has_end |= line.contains("== Exit code: ") || line.starts_with("View tool results:");
        if let Some((_, command)) = line.split_once("== Command: ") {
            command.trim().clone_into(&mut self.command);
        }
    }

    /// Returns the threads and their numbers of instructions.
    pub(super) fn threads(&self) -> impl Iterator<Item = (u32, u64)> {
        self.threads
            .iter()
            .map(|(&tid, thread)| (tid, thread.instructions))
    }

    /// Returns the counts of events by instruction, in address order.
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

/// Returns whether a line is not an access: valgrind's own messages (`==123== …`), or headings,
/// markers and notes of the view. Output of the program can be between lackey's lines as well.
fn is_remark(line: &str, format: TextFormat) -> bool {
    match format {
        TextFormat::Drcachesim => !line.contains(" byte(s) @ "),
        _ => !line.starts_with("I  ") && !is_access_line(line),
    }
}

fn is_access_line(line: &str) -> bool {
    [" L ", " S ", " M "]
        .iter()
        .any(|head| line.starts_with(head))
}

fn parse_lackey(line: &str) -> Option<TraceLine> {
    Some(match lackey::parse(line)? {
        LackeyLine::Instruction { address } => TraceLine::Instruction {
            tid: 1,
            ip: address,
        },
        LackeyLine::Access {
            kind,
            address,
            bytes,
        } => TraceLine::Access {
            tid: 1,
            ip: None,
            addr: address,
            bytes,
            kind,
        },
    })
}

fn parse_view(line: &str) -> Option<TraceLine> {
    let (_, rest) = line.split_once(": ")?;
    let mut words = rest.split_whitespace();
    // The thread; later versions add the workload: `W0.T292`.
    let thread = words.next()?;
    let tid = thread.rsplit('T').next()?.parse().ok()?;
    let what = words.next()?;
    let bytes = words.next()?.parse().ok()?;
    (words.next()? == "byte(s)" && words.next()? == "@").then_some(())?;
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let address = hex(words.next()?)?;
    let kind = match what {
        "ifetch" => return Some(TraceLine::Instruction { tid, ip: address }),
        "read" => AccessKind::Load,
        "write" => AccessKind::Store,
        _ => return None,
    };
    let ip = (words.next() == Some("by") && words.next() == Some("PC")).then(|| words.next());
    let ip = ip.flatten().and_then(hex);
    Some(TraceLine::Access {
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
    fn lines_of_lackey_are_parsed() {
        let access = |addr, bytes, kind| {
            Some(TraceLine::Access {
                tid: 1,
                ip: None,
                addr,
                bytes,
                kind,
            })
        };
        for (line, line_content) in [
            (
                "I  0401ab73,5",
                Some(TraceLine::Instruction {
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
            assert_eq!(parse_lackey(line), line_content, "{line}");
        }
    }

    /// The lines are from DynamoRIO's documentation of the tool.
    #[test]
    fn lines_of_the_view_are_parsed() {
        let line = "       47445       37770:     2765543 ifetch       5 byte(s) @ \
                    0x0000000000404a7e 48 8b 5c 24 08       mov    0x08(%rsp)[8byte] -> %rbx";
        let instruction = TraceLine::Instruction {
            tid: 2_765_543,
            ip: 0x404a7e,
        };
        assert_eq!(parse_view(line), Some(instruction));
        let line = "       47446       37770:     2765543 read         8 byte(s) @ \
                    0x00007fdf64e2adc8 by PC 0x0000000000404a7e";
        let read = TraceLine::Access {
            tid: 2_765_543,
            ip: Some(0x404a7e),
            addr: 0x7fdf_64e2_adc8,
            bytes: 8,
            kind: AccessKind::Load,
        };
        assert_eq!(parse_view(line), Some(read));
        for line in [
            "           1           0:     2765542 <marker: version 5>",
            "<--record#-> <--instr#->: <---tid---> <record details>",
            "------------------------------------------------------------",
        ] {
            assert_eq!(parse_view(line), None);
            assert!(is_remark(line, TextFormat::Drcachesim));
        }
    }
}
