//! Names of kernel functions, from `/proc/kallsyms`.
//!
//! The kernel's addresses change with each boot (KASLR), so the names are stored while it still
//! runs. Functions that occur in samples or call stacks are stored as generated code of process 0.
//! A user who may not see kernel addresses reads zeros, and gets no names.

use std::collections::BTreeSet;
use std::fs;

use memgauge_trace::{GeneratedCode, Pid, VirtAddr};

use super::hex;

/// Maximum number of distinct addresses to remember. The kernel has about ten million bytes of
/// code.
const MAX_ADDRESSES: usize = 1 << 20;
/// Assumed maximum size of a function. The last function in the list has no end.
const MAX_BYTES: u64 = 1 << 20;

/// Kernel code addresses that occur in a recording.
#[derive(Clone, Debug, Default)]
pub struct KernelCode(BTreeSet<u64>);

impl KernelCode {
    /// Remembers a code address if it belongs to the kernel.
    pub fn note(&mut self, ip: VirtAddr) {
        if ip.0 >> 63 == 1 && self.0.len() < MAX_ADDRESSES {
            self.0.insert(ip.0);
        }
    }

    /// Functions of the running kernel at these addresses.
    pub fn named(&self) -> Vec<GeneratedCode> {
        match self.0.is_empty() {
            true => Vec::new(),
            false => self.names_from(&read_kallsyms()),
        }
    }

    /// Functions at these addresses of the recorded kernel. Empty if another kernel runs, or if it
    /// was booted again.
    pub fn named_if_same_kernel(&self, kernel: &RecordedKernel<'_>) -> Vec<GeneratedCode> {
        if self.0.is_empty()
            || !kernel.matches_release_or_build_id(&running_release(), &running_build_id())
        {
            return Vec::new();
        }
        let kallsyms = read_kallsyms();
        match kernel.has_symbol_in(&kallsyms) {
            true => self.names_from(&kallsyms),
            false => Vec::new(),
        }
    }

    fn names_from(&self, kallsyms: &str) -> Vec<GeneratedCode> {
        let code = KernelSymbol::functions(kallsyms);
        let mut named = Vec::new();
        let mut last = None;
        for &ip in &self.0 {
            let behind = code.partition_point(|entry| entry.address <= ip);
            let Some(entry) = behind.checked_sub(1).map(|at| code[at]) else {
                continue;
            };
            let end = code.get(behind).map_or(u64::MAX, |next| next.address);
            let bytes = (end - entry.address).min(MAX_BYTES);
            if ip - entry.address < bytes && last.replace(entry.address) != Some(entry.address) {
                named.push(entry.row(bytes));
            }
        }
        named
    }
}

/// The kernel of a recording, as far as the recording describes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordedKernel<'a> {
    /// Name of a symbol.
    pub symbol: &'a str,
    /// Address of that symbol, or 0 if unknown.
    pub address: u64,
    /// Release as in `uname -r`, or empty.
    pub release: &'a str,
    /// Build ID in hexadecimal, or empty.
    pub build_id: &'a str,
}

impl RecordedKernel<'_> {
    /// True if the running kernel has this release or build ID. Without KASLR (`nokaslr`) the first
    /// symbol of all kernels has the same address and identifies nothing. A recording with neither
    /// release nor build ID therefore matches no kernel.
    fn matches_release_or_build_id(&self, release: &str, build_id: &str) -> bool {
        match self.build_id.is_empty() || build_id.is_empty() {
            true => !self.release.is_empty() && self.release == release,
            false => self.build_id == build_id,
        }
    }

    /// True if the running kernel has the symbol at the recorded address.
    fn has_symbol_in(&self, kallsyms: &str) -> bool {
        let mut all = kallsyms.lines().filter_map(KernelSymbol::of);
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

/// Finds the build ID in ELF notes. Each note has three words (length of the name, length of the
/// body, type), then name and body, each padded to four bytes.
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

/// Names of all functions of the running kernel, for live views.
#[derive(Clone, Debug, Default)]
pub struct KernelNames(Vec<(u64, String)>);

impl KernelNames {
    /// Reads the names. Empty if this user may not see kernel addresses.
    pub fn read() -> KernelNames {
        KernelNames::of(&read_kallsyms())
    }

    fn of(kallsyms: &str) -> KernelNames {
        let code = KernelSymbol::functions(kallsyms).into_iter();
        KernelNames(code.map(|e| (e.address, e.row(0).name)).collect())
    }

    /// Name of the function that contains an address.
    pub fn at(&self, ip: u64) -> Option<&str> {
        let behind = self.0.partition_point(|entry| entry.0 <= ip);
        let (start, name) = self.0.get(behind.checked_sub(1)?)?;
        (ip - start < MAX_BYTES).then_some(name.as_str())
    }
}

fn read_kallsyms() -> String {
    fs::read_to_string("/proc/kallsyms").unwrap_or_default()
}

/// A line of the list: `ffffffff81000000 T _text`. For a module's symbol, the module's name
/// follows.
#[derive(Clone, Copy)]
struct KernelSymbol<'a> {
    address: u64,
    is_code: bool,
    name: &'a str,
    module: Option<&'a str>,
}

impl<'a> KernelSymbol<'a> {
    fn of(line: &'a str) -> Option<KernelSymbol<'a>> {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let kind = words.next()?;
        let name = words.next()?;
        (address > 0).then(|| KernelSymbol {
            address,
            is_code: matches!(kind, "t" | "T" | "w" | "W"),
            name,
            module: words.next(),
        })
    }

    /// Functions by address. If an address has several names, uses the last one in the list, as
    /// perf does.
    fn functions(kallsyms: &'a str) -> Vec<KernelSymbol<'a>> {
        let code = kallsyms
            .lines()
            .filter_map(KernelSymbol::of)
            .filter(|e| e.is_code);
        let mut code: Vec<KernelSymbol> = code.collect();
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
        let is = |release, build_id| {
            kernel(release, build_id).matches_release_or_build_id("6.18.4", "ab01")
        };
        assert!(is("6.18.4", "ab01") && is("", "ab01") && is("6.18.4", ""));
        assert!(!is("4.14.18", "") && !is("", ""));
        // A kernel that was rebuilt under the same name has another build ID.
        assert!(!is("6.18.4", "ab02"));
        let here = "ffffffff81000000 T _text\n";
        assert!(kernel("", "").has_symbol_in(here));
        assert!(!kernel("", "").has_symbol_in("ffffffff9a000000 T _text\n"));
        let nowhere = RecordedKernel {
            address: 0,
            ..kernel("", "")
        };
        assert!(!nowhere.has_symbol_in("0000000000000000 T _text\n"));
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
        // These addresses are before all functions, and far after them.
        code.note(VirtAddr(0xffff_8000_0000_0000));
        code.note(VirtAddr(0xffff_ffff_f000_0000));
        let named = code.names_from(LIST);
        let named: Vec<_> = named.iter().map(|c| (c.start.0, c.name.as_str())).collect();
        let expected = [
            (0xffff_ffff_8100_0000, "startup_64"),
            (0xffff_ffff_8100_0100, "do_work"),
            (0xffff_ffff_c000_1000, "nf_hook [nf_tables]"),
        ];
        assert_eq!(named, expected);
        assert!(code.names_from("0000000000000000 T do_work\n").is_empty());
        let names = KernelNames::of(LIST);
        assert_eq!(names.at(0xffff_ffff_8100_01ff), Some("do_work"));
        assert_eq!(names.at(0xffff_ffff_8100_00ff), Some("startup_64"));
        assert_eq!((names.at(0x40_1000), names.at(u64::MAX)), (None, None));
    }
}
