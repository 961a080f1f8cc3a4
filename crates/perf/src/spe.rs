//! Decodes packets of ARM's statistical profiling extension, which arrive as an AUX trace.
//!
//! A packet is a header byte (two for an extended one) and a payload of 2^n bytes, n in
//! bits 4 and 5 of the header. Packets up to a timestamp or an end make a record (*Arm
//! Architecture Reference Manual*, D17):
//!
//! ```text
//! 00000000 padding      01xx0010 events        10xx0iii address of index i
//! 00000001 end          01xx0011 data source   10xx1iii counter of index i
//! 01110001 timestamp    010010cc operation     001000ii extended: two more bits of i
//!                       011001cc context       001000xx 0000aaaa alignment
//! ```
//!
//! Example: `b2 43 da 5d e6 aa aa 00 00` is an address (`10`) of 2^3 bytes and
//! index 2, the data's virtual address, 0xaaaae65dda43.
//!
//! Pure: bytes in, packets and records out. Bytes that are not a packet end the record that they are
//! in. They are counted one by one until the next valid packet.

use std::fmt;

use memgauge_trace::{AccessKind, DataSource};

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Packet {
    /// Padding.
    Padding,
    /// The record ends without a time.
    End,
    /// The record's time, in ticks of the system counter; it ends the record.
    Timestamp(u64),
    /// Events of the operation, one bit each.
    Events(u64),
    /// Data source, in the processor's own numbers.
    Source(u64),
    /// Context register of exception level 1 or 2.
    Context {
        /// Exception level.
        level: u8,
        /// Its value.
        value: u64,
    },
    /// Class of the operation (0 other, 1 load or store, 2 branch), details.
    Operation {
        /// Class.
        class: u8,
        /// Bits of the class.
        detail: u8,
    },
    /// An address: 0 instruction, 1 branch target, 2 data, 3 data physical.
    Address {
        /// Index.
        index: u8,
        /// With its attribute bits.
        payload: u64,
    },
    /// Cycles: 0 all, 1 until issue, 2 in translation.
    Counter {
        /// Index.
        index: u8,
        /// Number of cycles.
        cycles: u64,
    },
}

/// Returns the first packet in `bytes` and its length, or `None` if it is not a packet. Alignment is
/// padding.
pub fn packet(bytes: &[u8]) -> Option<(Packet, usize)> {
    let first = *bytes.first()?;
    match first {
        0x00 => return Some((Packet::Padding, 1)),
        0x01 => return Some((Packet::End, 1)),
        _ => {}
    }
    if first & 0xfc == 0x20 {
        return extended(bytes, first);
    }
    let (payload, n) = payload(first, bytes.get(1..)?)?;
    Some((plain(first, payload)?, 1 + n))
}

/// Payload of a packet with this header, and its length.
fn payload(header: u8, bytes: &[u8]) -> Option<(u64, usize)> {
    let n = 1usize << (header >> 4 & 3);
    let mut word = [0u8; 8];
    word[..n].copy_from_slice(bytes.get(..n)?);
    Some((u64::from_le_bytes(word), n))
}

fn plain(header: u8, payload: u64) -> Option<Packet> {
    let low = header & 3;
    Some(match header {
        0x71 => Packet::Timestamp(payload),
        h if h & 0xcf == 0x42 => Packet::Events(payload),
        h if h & 0xcf == 0x43 => Packet::Source(payload),
        h if h & 0xfc == 0x64 => Packet::Context {
            level: low + 1,
            value: payload,
        },
        h if h & 0xfc == 0x48 => Packet::Operation {
            class: low,
            detail: payload as u8,
        },
        h => indexed(h, h & 7, payload)?,
    })
}

/// Decodes addresses and counters, which have an index.
fn indexed(header: u8, index: u8, payload: u64) -> Option<Packet> {
    let cycles = payload;
    match header & 0xf8 {
        0xb0 => Some(Packet::Address { index, payload }),
        0x98 => Some(Packet::Counter { index, cycles }),
        _ => None,
    }
}

fn extended(bytes: &[u8], first: u8) -> Option<(Packet, usize)> {
    let second = *bytes.get(1)?;
    if second & 0xf0 == 0 {
        // It fills up to the next multiple. The trace itself starts aligned.
        return Some((Packet::Padding, 2));
    }
    let index = (first & 3) << 3 | second & 7;
    let (payload, n) = payload(second, bytes.get(2..)?)?;
    Some((indexed(second, index, payload)?, 2 + n))
}

const EVENTS: &[(u32, &str)] = &[
    (0, "EXCEPTION-GEN"),
    (1, "RETIRED"),
    (2, "L1D-ACCESS"),
    (3, "L1D-REFILL"),
    (4, "TLB-ACCESS"),
    (5, "TLB-REFILL"),
    (6, "NOT-TAKEN"),
    (7, "MISPRED"),
    (8, "LLC-ACCESS"),
    (9, "LLC-REFILL"),
    (10, "REMOTE-ACCESS"),
    (11, "ALIGNMENT"),
    (17, "SVE-PARTIAL-PRED"),
    (18, "SVE-EMPTY-PRED"),
];

/// An address without its attribute bits.
const ADDRESS_MASK: u64 = (1 << 56) - 1;

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Packet::Padding => f.write_str("PAD"),
            Packet::End => f.write_str("END"),
            Packet::Timestamp(ticks) => write!(f, "TS {ticks}"),
            Packet::Source(code) => write!(f, "DATA-SOURCE {code}"),
            Packet::Context { level, value } => write!(f, "CONTEXT {value:#x} el{level}"),
            Packet::Events(bits) => {
                let set = EVENTS.iter().filter(|(bit, _)| bits >> bit & 1 == 1);
                f.write_str("EV")?;
                set.into_iter()
                    .try_for_each(|(_, name)| write!(f, " {name}"))
            }
            Packet::Operation { class, detail } => f.write_str(&operation(class, detail)),
            Packet::Address { index, payload } => address(f, index, payload),
            Packet::Counter { index, cycles } => match index {
                0 => write!(f, "LAT {cycles} TOT"),
                1 => write!(f, "LAT {cycles} ISSUE"),
                2 => write!(f, "LAT {cycles} XLAT"),
                _ => write!(f, "LAT {cycles} {index}"),
            },
        }
    }
}

fn operation(class: u8, detail: u8) -> String {
    let conditional = if detail & 1 == 1 { " COND" } else { "" };
    let indirect = if detail & 2 == 2 { " IND" } else { "" };
    match class {
        1 => {
            let direction = if detail & 1 == 1 { "ST" } else { "LD" };
            let what = match detail & 0xfe {
                0x00 => " GP-REG",
                0x04 => " SIMD-FP",
                0x10 => " UNSPEC-REG",
                0x14 => " MTE-TAG",
                0x20 | 0x24 => " MEM-SET-OR-COPY",
                0x30 => " NV-SYSREG",
                d if d & 0x0a == 0x08 => " SVE",
                d if d & 0xe2 == 0x02 => " ATOMIC-OR-EXCL",
                _ => "",
            };
            format!("{direction}{what}")
        }
        2 => format!("B{conditional}{indirect}"),
        _ => format!("OTHER{conditional}"),
    }
}

fn address(f: &mut fmt::Formatter<'_>, index: u8, payload: u64) -> fmt::Result {
    let (place, ns, level) = (payload & ADDRESS_MASK, payload >> 63, payload >> 61 & 3);
    match index {
        0 => write!(f, "PC {place:#x} el{level} ns={ns}"),
        1 => write!(f, "TGT {place:#x} el{level} ns={ns}"),
        2 => write!(f, "VA {place:#x}"),
        3 => {
            let (checked, pattern) = (payload >> 62 & 1, payload >> 56 & 0xf);
            write!(f, "PA {place:#x} ns={ns} ch={checked} pat={pattern}")
        }
        _ => write!(f, "ADDR{index} {place:#x}"),
    }
}

/// One sampled operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SampledOperation {
    /// Address of the instruction.
    pub ip: u64,
    /// Address of the data.
    pub addr: Option<u64>,
    /// Physical address of the data.
    pub phys: Option<u64>,
    /// Kind of its access to memory.
    pub kind: AccessKind,
    /// Cycles from dispatch to the end.
    pub latency_cycles: u32,
    /// Its events, one bit each.
    pub events: u64,
    /// Data source, in the processor's own numbers.
    pub source: Option<u64>,
    /// Value of the context register: the thread ID if the kernel is configured so.
    pub context: Option<u64>,
    /// Ticks of the system counter.
    pub timestamp: Option<u64>,
}

impl SampledOperation {
    fn happened(&self, bit: u32) -> bool {
        self.events >> bit & 1 == 1
    }

    /// The level that delivered the data, from accesses and refills. If the processor does not report its
    /// last-level cache, the level of a first-level miss is unknown.
    pub fn level(&self) -> DataSource {
        match (self.kind, self.addr) {
            (AccessKind::Unknown, _) | (_, None) => DataSource::Unknown,
            _ if self.happened(10) => DataSource::RemoteDram,
            _ if self.happened(9) => DataSource::Dram,
            _ if self.happened(8) => DataSource::Llc,
            _ if self.happened(3) => DataSource::Unknown,
            _ if self.happened(2) => DataSource::L1d,
            _ => DataSource::Unknown,
        }
    }

    /// The names of its events.
    pub fn words(&self) -> String {
        let kind = match self.kind {
            AccessKind::Load => "load",
            AccessKind::Store => "store",
            AccessKind::Modify => "load and store",
            AccessKind::Unknown => "other",
        };
        let named = [
            (3, ", L1 miss"),
            (8, ", L3 access"),
            (9, ", L3 miss"),
            (5, ", TLB miss"),
            (10, ", remote"),
        ];
        let said = named.iter().filter(|(bit, _)| self.happened(*bit));
        said.fold(kind.to_owned(), |all, (_, word)| all + word)
    }

    fn add(&mut self, packet: Packet) {
        match packet {
            Packet::Timestamp(ticks) => self.timestamp = Some(ticks),
            Packet::Events(bits) => self.events |= bits,
            Packet::Source(code) => self.source = Some(code),
            Packet::Context { value, .. } => self.context = Some(value),
            Packet::Operation { class: 1, detail } => {
                // Atomics and swaps read and write. They have a bit of their own.
                let both = detail & 0xe2 == 0x02 && detail & 0x04 != 0;
                self.kind = match (both, detail & 1) {
                    (true, _) => AccessKind::Modify,
                    (false, 1) => AccessKind::Store,
                    (false, _) => AccessKind::Load,
                };
            }
            Packet::Address { index, payload } => self.set_address(index, payload),
            Packet::Counter { index: 0, cycles } => {
                self.latency_cycles = u32::try_from(cycles).unwrap_or(u32::MAX);
            }
            _ => {}
        }
    }

    fn set_address(&mut self, index: u8, payload: u64) {
        let place = payload & ADDRESS_MASK;
        match index {
            0 => self.ip = canonical(place),
            2 => self.addr = Some(canonical(place)),
            3 => self.phys = Some(place),
            _ => {}
        }
    }
}

/// The top byte is a tag or the exception level. In a kernel address it must be all ones.
fn canonical(address: u64) -> u64 {
    match address >> 48 {
        0xff => address | 0xff << 56,
        _ => address,
    }
}

/// Decodes the records of a trace that arrives in pieces.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Decoder {
    rest: Vec<u8>,
    open: SampledOperation,
    has_packets: bool,
    /// Number of bytes that were not packets.
    pub unreadable_bytes: u64,
}

/// Length of the longest packet: an extended header and eight bytes.
const MAX_PACKET_BYTES: usize = 10;

impl Decoder {
    /// Decodes the next piece. A packet that is cut at its end waits for the next piece.
    pub fn feed(&mut self, piece: &[u8], mut each: impl FnMut(&SampledOperation)) {
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend_from_slice(piece);
        let mut at = 0;
        while at < bytes.len() {
            match packet(&bytes[at..]) {
                Some((packet, n)) => {
                    at += n;
                    self.process(packet, &mut each);
                }
                None if bytes.len() - at < MAX_PACKET_BYTES => break,
                None => {
                    at += 1;
                    self.skip();
                }
            }
        }
        self.rest = bytes.split_off(at);
    }

    /// Ends the trace. Bytes that still wait were cut off.
    pub fn finish(&mut self) {
        self.unreadable_bytes += self.rest.len() as u64;
        self.rest.clear();
    }

    fn skip(&mut self) {
        self.unreadable_bytes += 1;
        self.open = SampledOperation::default();
        self.has_packets = false;
    }

    fn process(&mut self, packet: Packet, each: &mut impl FnMut(&SampledOperation)) {
        if packet == Packet::Padding {
            return;
        }
        let ends = matches!(packet, Packet::End | Packet::Timestamp(_));
        self.open.add(packet);
        self.has_packets |= packet != Packet::End;
        if ends && std::mem::take(&mut self.has_packets) {
            each(&std::mem::take(&mut self.open));
        }
    }
}

#[cfg(test)]
mod tests;
