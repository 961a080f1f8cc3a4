//! Names of the code and data of one running process: its mappings now, and symbol tables.
//!
//! Lines and inlined functions are left out: reading debug information of a large program
//! takes seconds, in which keys would not be answered.

use std::collections::{BTreeMap, HashMap};
use std::fs::read_to_string;
use std::path::Path;
use std::time::{Duration, Instant};

use memgauge_analyze::{ModuleFile, Resolve, file_name};
use memgauge_host::program::identity;
use memgauge_symbols::Symbols;

use super::model::{Detail, Heat, Minute, heaviest};

/// Longest time for names between two drawings; what is left has its file's name until
/// the next one.
const NAMING: Duration = Duration::from_millis(100);
/// Names that are remembered.
const MOST_NAMES: usize = 100_000;

/// A mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    executable: bool,
    /// Guards stand between memory that is used.
    accessible: bool,
    file_offset: u64,
    /// Path, or a name such as `[heap]`; empty for anonymous memory.
    path: String,
}

/// Mappings of a process that is looked into, and names found so far.
pub(super) struct Places {
    pid: u32,
    mappings: Vec<Mapping>,
    symbols: Symbols,
    files: HashMap<String, ModuleFile>,
    names: HashMap<(String, u64), Option<String>>,
}

impl Places {
    pub(super) fn of(pid: u32) -> Places {
        let mut places = Places {
            pid,
            mappings: Vec::new(),
            // There is no recording that could have copies of files.
            symbols: Symbols::of(Path::new("")).by_symbol_tables(),
            files: HashMap::new(),
            names: HashMap::new(),
        };
        places.refresh();
        places
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Reads the mappings again. Those of a process that has ended stay known.
    pub(super) fn refresh(&mut self) {
        let text = read_to_string(format!("/proc/{}/maps", self.pid)).unwrap_or_default();
        let mappings: Vec<Mapping> = text.lines().filter_map(mapping).collect();
        if !mappings.is_empty() {
            self.mappings = mappings;
        }
    }

    fn at(&self, addr: u64) -> Option<(usize, &Mapping)> {
        let after = self.mappings.partition_point(|m| m.start <= addr);
        let index = after.checked_sub(1)?;
        let found = &self.mappings[index];
        (addr < found.end).then_some((index, found))
    }

    /// Sums of the last minute. `heat_of`: which of the data regions, by weight, the heat
    /// map shows.
    pub(super) fn detail(
        &mut self,
        minute: &Minute,
        (now_ns, heat_of, cells): (u64, usize, (usize, usize)),
    ) -> Detail {
        let with_address = minute.samples().filter(|s| s.addr.is_some()).count() as u64;
        let data = heaviest(self.data(minute));
        let shown = data.get(heat_of.checked_rem(data.len()).unwrap_or(0));
        let heat = shown.and_then(|place| {
            let within =
                |addr: u64| self.region(addr) == (place.name.clone(), place.within.clone());
            let samples = minute.samples();
            let samples = samples.filter_map(|s| Some((s.time_ns, s.addr?)));
            let samples: Vec<(u64, u64)> = samples.filter(|s| within(s.1)).collect();
            let region = place.name.clone();
            Heat::of(&samples, now_ns, cells).map(|heat| Heat { region, ..heat })
        });
        Detail {
            pid: self.pid,
            samples: minute.len() as u64,
            with_address,
            code: heaviest(self.code(minute)),
            data,
            heat,
        }
    }

    fn code(&mut self, minute: &Minute) -> BTreeMap<(String, String), (u64, u64)> {
        let mut by_ip: HashMap<u64, (u64, u64)> = HashMap::new();
        for sample in minute.samples() {
            let sums = by_ip.entry(sample.ip).or_default();
            *sums = (sums.0 + 1, sums.1 + sample.stands_for);
        }
        let mut by_ip: Vec<_> = by_ip.into_iter().collect();
        // The heaviest first: time for names may be over before the last.
        by_ip.sort_by_key(|(ip, sums)| (std::cmp::Reverse(sums.1), *ip));
        let end = Instant::now() + NAMING;
        let mut functions: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
        for (ip, (samples, stands_for)) in by_ip {
            let sums = functions.entry(self.function(ip, end)).or_default();
            *sums = (sums.0 + samples, sums.1 + stands_for);
        }
        functions
    }

    /// The function at an instruction, and its file.
    fn function(&mut self, ip: u64, end: Instant) -> (String, String) {
        const UNNAMED: &str = "[no name]";
        let named = |name: &str, file: &str| (name.to_owned(), file.to_owned());
        if ip >> 63 == 1 {
            return named(UNNAMED, "[kernel]");
        }
        let Some((_, mapping)) = self.at(ip) else {
            return named(UNNAMED, "[unknown]");
        };
        if mapping.path.is_empty() {
            return named(UNNAMED, "[generated code]");
        }
        let offset = ip - mapping.start + mapping.file_offset;
        let path = mapping.path.clone();
        let file = file_name(&path).to_owned();
        let key = (path, offset);
        if let Some(known) = self.names.get(&key) {
            return (known.clone().unwrap_or_else(|| UNNAMED.to_owned()), file);
        }
        if Instant::now() > end {
            return named(UNNAMED, &file);
        }
        let module = self.file(&key.0);
        let symbol = self.symbols.resolve(&module, offset);
        let name = symbol.map(|symbol| symbol.name);
        if self.names.len() >= MOST_NAMES {
            self.names.clear();
        }
        self.names.insert(key, name.clone());
        (name.unwrap_or_else(|| UNNAMED.to_owned()), file)
    }

    /// The file that is mapped, also where the process has another root.
    fn file(&mut self, path: &str) -> ModuleFile {
        if let Some(known) = self.files.get(path) {
            return known.clone();
        }
        let place = match Path::new(path).exists() {
            true => path.to_owned(),
            false => format!("/proc/{}/root{path}", self.pid),
        };
        let found = identity(Path::new(&place));
        let module = ModuleFile {
            build_id: found.map(|i| i.build_id).unwrap_or_default(),
            path: place,
            ..ModuleFile::default()
        };
        self.files.insert(path.to_owned(), module.clone());
        module
    }

    fn data(&self, minute: &Minute) -> BTreeMap<(String, String), (u64, u64)> {
        let mut regions: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
        let mut known: HashMap<u64, (String, String)> = HashMap::new();
        for sample in minute.samples() {
            let Some(addr) = sample.addr else { continue };
            // Mappings begin and end at pages.
            let region = known.entry(addr >> 12);
            let region = region.or_insert_with(|| self.region(addr)).clone();
            let sums = regions.entry(region).or_default();
            *sums = (sums.0 + 1, sums.1 + sample.stands_for);
        }
        regions
    }

    /// The region of a data address, and its size.
    fn region(&self, addr: u64) -> (String, String) {
        let Some((index, mapping)) = self.at(addr) else {
            return ("[unmapped now]".to_owned(), String::new());
        };
        let (start, end) = match mapping.path.as_str() {
            "" => self.anonymous(index),
            _ => (mapping.start, mapping.end),
        };
        let size = crate::units::spoken_bytes(end - start);
        let name = match mapping.path.as_str() {
            "" => self.zero_data(start).unwrap_or(format!("anon {start:#x}")),
            path if !path.starts_with('/') => path.to_owned(),
            path if mapping.executable => format!("{} code", file_name(path)),
            path => format!("{} data", file_name(path)),
        };
        (name, size)
    }

    /// First byte and one past the last of anonymous mappings that touch.
    fn anonymous(&self, index: usize) -> (u64, u64) {
        let used = |m: &Mapping| m.path.is_empty() && m.accessible;
        let joined = |a: &Mapping, b: &Mapping| used(a) && used(b) && a.end == b.start;
        let (mut first, mut last) = (index, index);
        while first > 0 && joined(&self.mappings[first - 1], &self.mappings[first]) {
            first -= 1;
        }
        while last + 1 < self.mappings.len()
            && joined(&self.mappings[last], &self.mappings[last + 1])
        {
            last += 1;
        }
        (self.mappings[first].start, self.mappings[last].end)
    }

    /// Anonymous memory behind a file's writable part is its zero-initialised data.
    fn zero_data(&self, start: u64) -> Option<String> {
        let (_, before) = self.at(start.checked_sub(1)?)?;
        let is_data = before.path.starts_with('/') && !before.executable;
        let code = || {
            let mut files = self.mappings.iter().filter(|m| m.executable);
            files.any(|m| m.path == before.path)
        };
        (is_data && code()).then(|| format!("{} zero data", file_name(&before.path)))
    }
}

/// A line of `/proc/PID/maps`.
fn mapping(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let (field, behind) = rest
            .trim_start()
            .split_once(' ')
            .unwrap_or((rest.trim(), ""));
        rest = behind;
        field
    };
    let (range, rights, offset) = (field(), field(), field());
    let (_device, _inode) = (field(), field());
    let (start, end) = range.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        executable: rights.as_bytes().get(2) == Some(&b'x'),
        accessible: !rights.starts_with("---"),
        file_offset: hex(offset)?,
        path: rest.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0001000 r--p 00000000 08:01 12  /usr/bin/a b
55d0c0001000-55d0c0002000 r-xp 00001000 08:01 12  /usr/bin/a b
55d0c0002000-55d0c0003000 rw-p 00002000 08:01 12  /usr/bin/a b
55d0c0003000-55d0c0005000 rw-p 00000000 00:00 0
55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0   [heap]
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
7f0000100000-7f0000200000 rwxp 00000000 00:00 0
7f0000200000-7f0000201000 ---p 00000000 00:00 0
7f0000201000-7f0000301000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0   [stack]
";

    fn places() -> Places {
        let mut places = Places::of(u32::MAX / 2);
        places.mappings = MAPS.lines().filter_map(mapping).collect();
        places
    }

    #[test]
    fn data_regions_have_the_names_that_users_know() {
        let places = places();
        assert_eq!(places.mappings.len(), 10);
        let check = |addr: u64, name: &str, size: &str| {
            let expected = (name.to_owned(), size.to_owned());
            assert_eq!(places.region(addr), expected, "{addr:#x}");
        };
        check(0x55d0_c000_0000, "a b data", "4.0 KiB");
        check(0x55d0_c000_1fff, "a b code", "4.0 KiB");
        check(0x55d0_c000_3000, "a b zero data", "8.0 KiB");
        check(0x55d0_c102_0fff, "[heap]", "132.0 KiB");
        check(0x55d0_c102_1000, "[unmapped now]", "");
        check(0x7f00_0010_0000, "anon 0x7f0000000000", "2.0 MiB");
        check(0x7f00_0020_1000, "anon 0x7f0000201000", "1.0 MiB");
        check(0x7ffc_0002_0fff, "[stack]", "132.0 KiB");
        check(0, "[unmapped now]", "");
        check(u64::MAX, "[unmapped now]", "");
    }

    #[test]
    fn code_without_a_file_says_what_it_is() {
        let mut places = places();
        let end = Instant::now() + Duration::from_secs(60);
        let mut within = |ip: u64| places.function(ip, end).1;
        assert_eq!(within(u64::MAX), "[kernel]");
        assert_eq!(within(0x7f00_0000_1000), "[generated code]");
        assert_eq!(within(0x10), "[unknown]");
        assert_eq!(within(0x55d0_c000_1000), "a b");
    }

    #[test]
    fn a_function_of_this_program_has_its_name() {
        let mut places = Places::of(std::process::id());
        let end = Instant::now() + Duration::from_secs(60);
        let here = places_of_tests_address();
        let (name, _) = places.function(here, end);
        assert!(name.contains("places_of_tests_address"), "{name}");
    }

    #[inline(never)]
    fn places_of_tests_address() -> u64 {
        places_of_tests_address as fn() -> u64 as usize as u64
    }
}
