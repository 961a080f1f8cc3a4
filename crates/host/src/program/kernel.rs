//! Names of the kernel's functions, from `/proc/kallsyms`.
//!
//! The kernel lies elsewhere after each boot, so names are written while it still runs: of
//! the functions that samples or calls are in, as generated code of process 0. A user whom
//! the kernel does not show its addresses reads zeros, and then there are no names.

use std::collections::BTreeSet;
use std::fs;

use memgauge_trace::{GeneratedCode, Pid, VirtAddr};

use super::hex;

/// Distinct addresses that are kept; the kernel has some ten million bytes of code.
const MOST_ADDRESSES: usize = 1 << 20;
/// The last function of the list has no end: no function is larger.
const MOST_BYTES: u64 = 1 << 20;

/// Addresses of the kernel's code that a recording has.
#[derive(Clone, Debug, Default)]
pub struct KernelCode(BTreeSet<u64>);

impl KernelCode {
    /// Notes an address of code, if it is the kernel's.
    pub fn note(&mut self, ip: VirtAddr) {
        if ip.0 >> 63 == 1 && self.0.len() < MOST_ADDRESSES {
            self.0.insert(ip.0);
        }
    }

    /// The functions of the running kernel at these addresses.
    pub fn named(&self) -> Vec<GeneratedCode> {
        match self.0.is_empty() {
            true => Vec::new(),
            false => self.named_by(&list()),
        }
    }

    /// The same of addresses that this kernel had: none if the running one is another, or
    /// has booted since.
    pub fn named_if_in(&self, kernel: &RecordedKernel<'_>) -> Vec<GeneratedCode> {
        if self.0.is_empty() || !kernel.is_of(&running_release(), &running_build_id()) {
            return Vec::new();
        }
        let list = list();
        match kernel.lies_as_in(&list) {
            true => self.named_by(&list),
            false => Vec::new(),
        }
    }

    fn named_by(&self, list: &str) -> Vec<GeneratedCode> {
        let code = Entry::code_of(list);
        let mut named = Vec::new();
        let mut last = None;
        for &ip in &self.0 {
            let behind = code.partition_point(|entry| entry.address <= ip);
            let Some(entry) = behind.checked_sub(1).map(|at| code[at]) else {
                continue;
            };
            let end = code.get(behind).map_or(u64::MAX, |next| next.address);
            let bytes = (end - entry.address).min(MOST_BYTES);
            if ip - entry.address < bytes && last.replace(entry.address) != Some(entry.address) {
                named.push(entry.row(bytes));
            }
        }
        named
    }
}

/// What a recording tells of the kernel that it is of.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordedKernel<'a> {
    /// A symbol of it, and the address where it was.
    pub symbol: &'a str,
    /// As above; 0 where nobody knows.
    pub address: u64,
    /// As `uname -r` says; empty where nobody knows.
    pub release: &'a str,
    /// In hexadecimal; empty where nobody knows.
    pub build_id: &'a str,
}

impl RecordedKernel<'_> {
    /// Whether it is the kernel with this release and build id. Kernels that are not moved
    /// at boot (`nokaslr`) have their first symbol at one address, so that this tells
    /// nothing: a recording that knows neither release nor build id is of no known kernel.
    fn is_of(&self, release: &str, build_id: &str) -> bool {
        match self.build_id.is_empty() || build_id.is_empty() {
            true => !self.release.is_empty() && self.release == release,
            false => self.build_id == build_id,
        }
    }

    /// Whether it lies where the kernel with these symbols does.
    fn lies_as_in(&self, list: &str) -> bool {
        let mut all = list.lines().filter_map(Entry::of);
        self.address != 0
            && all.any(|entry| entry.name == self.symbol && entry.address == self.address)
    }
}

fn running_release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

fn running_build_id() -> String {
    let notes = fs::read("/sys/kernel/notes").unwrap_or_default();
    build_id(&notes).map(hex).unwrap_or_default()
}

/// The build id among a file's notes: three words (bytes of the name, bytes of the body,
/// kind), then name and body, each padded to four bytes.
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    /// `NT_GNU_BUILD_ID`.
    const BUILD_ID: usize = 3;
    loop {
        let word = |at: usize| {
            let bytes = notes.get(at..)?.first_chunk::<4>()?;
            usize::try_from(u32::from_le_bytes(*bytes)).ok()
        };
        let (name_bytes, body_bytes, kind) = (word(0)?, word(4)?, word(8)?);
        let name = notes.get(12..)?.get(..name_bytes)?;
        let behind = notes.get(12 + name_bytes.next_multiple_of(4)..)?;
        let body = behind.get(..body_bytes)?;
        if kind == BUILD_ID && name == b"GNU\0" {
            return Some(body);
        }
        notes = behind.get(body_bytes.next_multiple_of(4)..)?;
    }
}

/// Names of all functions of the running kernel, for who looks while it samples.
#[derive(Clone, Debug, Default)]
pub struct KernelNames(Vec<(u64, String)>);

impl KernelNames {
    /// Of the running kernel; none where it shows this user no addresses.
    pub fn read() -> KernelNames {
        KernelNames::of(&list())
    }

    fn of(list: &str) -> KernelNames {
        let code = Entry::code_of(list).into_iter();
        KernelNames(code.map(|e| (e.address, e.row(0).name)).collect())
    }

    /// The function that an address is in.
    pub fn at(&self, ip: u64) -> Option<&str> {
        let behind = self.0.partition_point(|entry| entry.0 <= ip);
        let (start, name) = self.0.get(behind.checked_sub(1)?)?;
        (ip - start < MOST_BYTES).then_some(name.as_str())
    }
}

fn list() -> String {
    fs::read_to_string("/proc/kallsyms").unwrap_or_default()
}

/// A line of the list: `ffffffff81000000 T _text`, of a module with its name behind.
#[derive(Clone, Copy)]
struct Entry<'a> {
    address: u64,
    is_code: bool,
    name: &'a str,
    module: Option<&'a str>,
}

impl<'a> Entry<'a> {
    fn of(line: &'a str) -> Option<Entry<'a>> {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let kind = words.next()?;
        let name = words.next()?;
        (address > 0).then(|| Entry {
            address,
            is_code: matches!(kind, "t" | "T" | "w" | "W"),
            name,
            module: words.next(),
        })
    }

    /// Functions in the order of their addresses. Of several names at one address the list's
    /// last is taken, as perf does, so that both name a function alike.
    fn code_of(list: &'a str) -> Vec<Entry<'a>> {
        let code = list.lines().filter_map(Entry::of).filter(|e| e.is_code);
        let mut code: Vec<Entry> = code.collect();
        code.sort_by_key(|entry| entry.address);
        code.dedup_by(|next, kept| {
            let is_alias = next.address == kept.address;
            if is_alias {
                *kept = *next;
            }
            is_alias
        });
        code
    }

    fn row(&self, bytes: u64) -> GeneratedCode {
        let module = self.module.map(|module| format!(" {module}"));
        GeneratedCode {
            pid: Pid(0),
            start: VirtAddr(self.address),
            bytes,
            name: format!("{}{}", self.name, module.unwrap_or_default()),
            ..GeneratedCode::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_kernel_at_the_same_address_gives_no_names() {
        let kernel = |release, build_id| RecordedKernel {
            symbol: "_text",
            address: 0xffff_ffff_8100_0000,
            release,
            build_id,
        };
        let is = |release, build_id| kernel(release, build_id).is_of("6.18.4", "ab01");
        assert!(is("6.18.4", "ab01") && is("", "ab01") && is("6.18.4", ""));
        assert!(!is("4.14.18", "") && !is("", ""));
        // Built anew under the same name.
        assert!(!is("6.18.4", "ab02"));
        let here = "ffffffff81000000 T _text\n";
        assert!(kernel("", "").lies_as_in(here));
        assert!(!kernel("", "").lies_as_in("ffffffff9a000000 T _text\n"));
        let nowhere = RecordedKernel {
            address: 0,
            ..kernel("", "")
        };
        assert!(!nowhere.lies_as_in("0000000000000000 T _text\n"));
    }

    #[test]
    fn the_build_id_is_found_among_other_notes() {
        let note = |name: &[u8], kind: u8, body: &[u8]| {
            let mut bytes = vec![name.len() as u8, 0, 0, 0, body.len() as u8, 0, 0, 0];
            bytes.extend([kind, 0, 0, 0]);
            for part in [name, body] {
                bytes.extend(part);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        };
        let notes = [
            note(b"Linux\0", 3, b"xyz"),
            note(b"GNU\0", 1, b"abi!"),
            note(b"GNU\0", 3, &[0xab, 0x01, 0x7f]),
        ];
        assert_eq!(build_id(&notes.concat()), Some(&[0xab, 0x01, 0x7f][..]));
        assert_eq!(build_id(&notes[..2].concat()), None);
        // Cut off, and with lengths beyond the end.
        assert_eq!(build_id(&notes[2][..14]), None);
        assert_eq!(build_id(&[0xff; 16]), None);
        assert_eq!(build_id(&[]), None);
    }

    #[test]
    fn addresses_of_the_kernel_get_the_function_that_they_are_in() {
        const LIST: &str = "ffffffff81000000 T _text\n\
            ffffffff81000000 T startup_64\n\
            ffffffff81000100 t do_work\n\
            ffffffff81000180 d some_data\n\
            ffffffffc0001000 t nf_hook\t[nf_tables]\n\
            0000000000000000 T hidden\n";
        let mut code = KernelCode::default();
        for ip in [0x40_1000, 0xffff_ffff_8100_0010, 0xffff_ffff_8100_01ff] {
            code.note(VirtAddr(ip));
        }
        code.note(VirtAddr(0xffff_ffff_8100_0101));
        code.note(VirtAddr(0xffff_ffff_c000_1004));
        // Before and far behind all functions.
        code.note(VirtAddr(0xffff_8000_0000_0000));
        code.note(VirtAddr(0xffff_ffff_f000_0000));
        let named = code.named_by(LIST);
        let named: Vec<_> = named.iter().map(|c| (c.start.0, c.name.as_str())).collect();
        let expected = [
            (0xffff_ffff_8100_0000, "startup_64"),
            (0xffff_ffff_8100_0100, "do_work"),
            (0xffff_ffff_c000_1000, "nf_hook [nf_tables]"),
        ];
        assert_eq!(named, expected);
        assert!(code.named_by("0000000000000000 T do_work\n").is_empty());
        let names = KernelNames::of(LIST);
        assert_eq!(names.at(0xffff_ffff_8100_01ff), Some("do_work"));
        assert_eq!(names.at(0xffff_ffff_8100_00ff), Some("startup_64"));
        assert_eq!((names.at(0x40_1000), names.at(u64::MAX)), (None, None));
    }
}
