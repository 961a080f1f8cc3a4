//! Accessed bits read from the page tables by BPF programs (`bpf/`).
//!
//! A walk takes a thirtieth of the time of `smaps_rollup`, because it looks at no `struct page`. It
//! needs x86-64, Linux 6.1 with BTF, and the capabilities CAP_BPF and CAP_PERFMON.
//!
//! The programs turn physical addresses of tables into virtual ones with the base of the kernel's
//! direct map: the kernel's variable `page_offset_base`. Kernels without `CONFIG_KALLSYMS_ALL` do
//! not list its address. There, all possible bases are tried. In both cases the base counts only
//! if memgauge's own page tables then lead to random bytes that it has just written, so a wrong base
//! or another format of page tables (encrypted memory) is refused.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};

use libbpf_rs::{MapCore as _, MapFlags, Object, ObjectBuilder};
use memgauge_host::{Error, ErrorKind, Result};
use memgauge_mrc::{TableBits, TableUse};

use crate::sys;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/page_tables.bpf.o"));

const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Words of `struct direct_map` in layout.h.
const SETTINGS_WORDS: usize = 8;
/// Words of `struct walk` in layout.h.
const WALK_WORDS: usize = 13;
/// Word of `struct walk` that asks for a list of the pages.
const KEEP_WORD: usize = 7;
/// Word of `struct walk` with the number of the reading.
const READING_WORD: usize = 10;
/// Frames in a value of the map `frames`.
const FRAMES_PER_WORD: u64 = 32;
/// Words of `struct table_use` in layout.h.
const TABLE_WORDS: usize = 17;
const TABLES_PER_BLOCK: usize = 256;

const NONCE_BYTES: usize = 32;

/// Loaded programs, with a proven base of the direct map.
#[derive(Debug)]
pub struct PageTables {
    object: Object,
    /// Number of the current reading. 0 if frames are not compared.
    reading: u32,
}

/// Result of a walk over the page tables of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageTableWalk {
    /// Identifies the address space.
    pub(crate) address_space: u64,
    pub(crate) resident_pages: u64,
    pub(crate) used_pages: u64,
    pub(crate) huge_pages: u64,
    /// Tables and mappings that were not read to their end.
    pub(crate) unread: u64,
    /// Numbers of resident and used pages that were not already counted for a process walked
    /// earlier in the same reading.
    pub(crate) first_resident_pages: u64,
    pub(crate) first_used_pages: u64,
    /// Number of tables in the list, and number of tables that did not fit into it.
    listed: u64,
    pub(crate) unlisted: u64,
}

/// Use of the pages of a walk.
enum Pages {
    Count,
    List,
}

/// Pages of a process, one by one.
#[derive(Debug, Default)]
pub(crate) struct PageList {
    pub(crate) tables: Vec<TableUse>,
    /// Tables that found no room in the list.
    pub(crate) unlisted: u64,
}

impl PageTables {
    /// Loads the programs and finds the direct map. With `several` processes to walk, pages that they
    /// share can be counted once.
    ///
    /// # Errors
    /// The machine, the kernel or the permissions of this process do not allow it. The message says
    /// why.
    pub fn load(several: bool) -> Result<PageTables> {
        check_kernel().map_err(|why| missing(&why))?;
        // Messages of libbpf do not belong in the output.
        let previous = libbpf_rs::set_print(None);
        let loaded = ObjectBuilder::default()
            .name("memgauge_pages")
            .and_then(|builder| builder.open_memory(OBJECT))
            .and_then(|mut object| {
                if several
                    && let Some(mut frames) = object.maps_mut().find(|map| map.name() == "frames")
                {
                    frames.set_max_entries(frame_words())?;
                }
                object.load()
            });
        libbpf_rs::set_print(previous);
        let object = loaded.map_err(|e| match e.kind() {
            libbpf_rs::ErrorKind::PermissionDenied if !rustix::process::geteuid().is_root() => {
                missing("this user may not load BPF programs, which takes CAP_BPF and CAP_PERFMON")
            }
            _ => missing(&format!("the kernel refused the BPF programs: {e}")),
        })?;
        let tables = PageTables {
            object,
            reading: u32::from(several),
        };
        tables.find_direct_map()?;
        Ok(tables)
    }

    fn find_direct_map(&self) -> Result<()> {
        let failed = |e: io::Error| Error::system("failed to find the direct map", e);
        let mut nonce = vec![0; NONCE_BYTES];
        fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut nonce))
            .map_err(failed)?;
        let mut settings = vec![0, levels(), symbol_address(), nonce.as_ptr() as u64];
        settings.extend(words(&nonce));
        self.write("settings", &settings).map_err(failed)?;
        let link = self.attach("find_direct_map", std::process::id());
        link.and_then(|link| sys::run(link.as_fd()))
            .map_err(failed)?;
        // The compiler must not free or move the bytes before the program has looked for them.
        std::hint::black_box(&nonce);
        match self.read("settings", SETTINGS_WORDS).map_err(failed)?[0] {
            0 => Err(missing(
                "memgauge's own page tables do not lead to its memory: the memory is encrypted, or \
                 the kernel maps it in another way",
            )),
            _ => Ok(()),
        }
    }

    /// Begins a reading of all processes, in which each frame counts once.
    pub(crate) fn begin_reading(&mut self) {
        if self.reading > 0 {
            self.reading = self.reading.checked_add(1).unwrap_or(1);
        }
    }

    /// Attaches the walk to a process.
    pub(crate) fn attach_walk(&self, pid: u32) -> io::Result<OwnedFd> {
        self.attach("walk", pid)
    }

    /// Counts the pages of the process of a link. Returns `None` if it has no address space.
    pub(crate) fn walk(&self, link: &OwnedFd) -> io::Result<Option<PageTableWalk>> {
        self.run_walk(link, Pages::Count)
    }

    /// Lists the pages of the process of a link, if its address space is this one.
    pub(crate) fn list(&self, link: &OwnedFd, address_space: u64) -> io::Result<Option<PageList>> {
        let found = self.run_walk(link, Pages::List)?;
        let Some(walk) = found.filter(|walk| walk.address_space == address_space) else {
            return Ok(None);
        };
        let mut list = PageList {
            tables: Vec::with_capacity(walk.listed as usize),
            unlisted: walk.unlisted,
        };
        let mut left = walk.listed as usize;
        let mut block = 0u32;
        while left > 0 {
            let count = left.min(TABLES_PER_BLOCK);
            let words = self.words_at("blocks", block)?;
            let tables = words.chunks_exact(TABLE_WORDS).take(count);
            list.tables.extend(tables.map(table_use));
            left -= count;
            block += 1;
        }
        Ok(Some(list))
    }

    fn run_walk(&self, link: &OwnedFd, pages: Pages) -> io::Result<Option<PageTableWalk>> {
        let mut request = [0; WALK_WORDS];
        match pages {
            Pages::Count => request[READING_WORD] = u64::from(self.reading),
            Pages::List => request[KEEP_WORD] = 1,
        }
        self.write("result", &request)?;
        sys::run(link.as_fd())?;
        let found = self.read("result", WALK_WORDS)?;
        let [
            address_space,
            _next,
            resident_pages,
            used_pages,
            huge_pages,
            unreadable,
            truncated,
            _keep,
            listed,
            unlisted,
            _reading,
            first_resident_pages,
            first_used_pages,
        ] = found[..]
        else {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        };
        Ok((address_space != 0).then_some(PageTableWalk {
            address_space,
            resident_pages,
            used_pages,
            huge_pages,
            unread: unreadable + truncated,
            first_resident_pages: match self.reading {
                0 => resident_pages,
                _ => first_resident_pages,
            },
            first_used_pages: match self.reading {
                0 => used_pages,
                _ => first_used_pages,
            },
            listed,
            unlisted,
        }))
    }

    fn attach(&self, name: &str, pid: u32) -> io::Result<OwnedFd> {
        let program = self.object.progs().find(|program| program.name() == name);
        let program = program.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        sys::attach(program.as_fd(), pid)
    }

    fn read(&self, map: &str, count: usize) -> io::Result<Vec<u64>> {
        match self.words_at(map, 0)? {
            words if words.len() == count => Ok(words),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
        }
    }

    fn words_at(&self, map: &str, key: u32) -> io::Result<Vec<u64>> {
        let value = self.map(map)?.lookup(&key.to_ne_bytes(), MapFlags::ANY);
        Ok(words(&value.map_err(io::Error::other)?.unwrap_or_default()))
    }

    fn write(&self, map: &str, words: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.map(map)?
            .update(&0u32.to_ne_bytes(), &bytes, MapFlags::ANY)
            .map_err(io::Error::other)
    }

    fn map(&self, name: &str) -> io::Result<libbpf_rs::Map<'_>> {
        let found = self.object.maps().find(|map| map.name() == name);
        found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

/// Number of values in the map `frames`, for all memory of the machine. Pages in frames beyond them count
/// in each process.
fn frame_words() -> u32 {
    let zones = fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
    let words = last_frame(&zones).div_ceil(FRAMES_PER_WORD);
    u32::try_from(words).unwrap_or(u32::MAX).max(1)
}

/// End of the last zone of memory, as a number of frames.
fn last_frame(zones: &str) -> u64 {
    let number = |line: &str, name: &str| {
        line.trim()
            .strip_prefix(name)?
            .trim_start_matches(':')
            .trim()
            .parse::<u64>()
            .ok()
    };
    let (mut spanned, mut last) = (0, 0);
    for line in zones.lines() {
        spanned = number(line, "spanned").unwrap_or(spanned);
        if let Some(start) = number(line, "start_pfn") {
            last = last.max(start.saturating_add(spanned));
        }
    }
    last
}

fn missing(why: &str) -> Error {
    let message = format!("failed to read page tables: {why}");
    Error::new(ErrorKind::Missing, message)
}

/// Why this machine or its kernel cannot do it.
fn check_kernel() -> std::result::Result<(), String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("memgauge knows only those of x86-64".to_owned());
    }
    let types = fs::read(BTF).map_err(|_| {
        format!("the kernel has no `{BTF}`; it needs Linux 6.1 with CONFIG_DEBUG_INFO_BTF")
    })?;
    // Before Linux 6.1, an iterator visits all processes whichever is named.
    match memchr::memmem::find(&types, b"\0bpf_iter_attach_task\0") {
        Some(_) => Ok(()),
        None => Err("the kernel is too old; it needs Linux 6.1".to_owned()),
    }
}

/// Levels of the page tables. The kernel hides the flag if it uses four levels.
fn levels() -> u64 {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = processor.lines().find(|line| line.starts_with("flags"));
    match flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "la57")) {
        true => 5,
        false => 4,
    }
}

/// Address of the kernel's variable with the base of the direct map, 0 if it is not known.
fn symbol_address() -> u64 {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    address_in(&symbols).unwrap_or(0)
}

fn address_in(symbols: &str) -> Option<u64> {
    let is_it = |line: &&str| line.ends_with(" page_offset_base");
    let line = symbols.lines().find(is_it)?;
    u64::from_str_radix(line.split(' ').next()?, 16).ok()
}

fn table_use(words: &[u64]) -> TableUse {
    let (resident, used) = words[1..].split_at(TableBits::default().len());
    let bits = |words: &[u64]| TableBits::try_from(words).unwrap_or_default();
    TableUse {
        address: words[0],
        resident: bits(resident),
        used: bits(used),
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let (whole, _) = bytes.as_chunks::<8>();
    whole.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_frame_is_the_end_of_the_highest_zone() {
        let zones = "\
Node 0, zone      DMA
        spanned  4095
        present  3998
  start_pfn:           1
Node 0, zone   Normal
        spanned  6291456
  start_pfn:           1048576
";
        assert_eq!(last_frame(zones), 7_340_032);
        assert_eq!(last_frame(""), 0);
    }

    #[test]
    fn direct_map_is_read_from_the_symbol_where_the_kernel_lists_it() {
        let symbols = "\
ffffffff81000000 T _text
ffffffff8274a0c8 D page_offset_base_of_another
ffffffff8274a0d0 D page_offset_base
";
        assert_eq!(address_in(symbols), Some(0xffff_ffff_8274_a0d0));
        assert_eq!(address_in("ffffffff81000000 T _text\n"), None);
    }
}
