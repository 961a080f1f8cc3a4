//! Names of the code and data of one running process, from its current mappings and symbol tables.
//!
//! Lines and inlined functions are left out: reading the debug information of a large program takes
//! seconds in which keys would not be handled.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use memgauge_analyze::{ModuleFile, Resolve, file_name};
use memgauge_host::program::{GeneratedNames, KernelNames, identity};
use memgauge_symbols::Symbols;

use super::model::{ProcessDetail, RecentSamples, RegionHeat, largest_first};
use crate::mappings::ProcessMappings;

/// Maximum time for resolving names between two drawings. The remaining locations have the name of
/// their file until the next one.
const NAMING_LIMIT: Duration = Duration::from_millis(100);
/// Name of memory that has been unmapped since.
const UNMAPPED: &str = "[unmapped now]";
/// Maximum number of cached names.
const MAX_NAMES: usize = 100_000;

/// Mappings of the process shown in detail, and the names found so far.
pub(super) struct PlaceNames {
    pid: u32,
    mappings: ProcessMappings,
    symbols: Symbols,
    files: HashMap<String, ModuleFile>,
    names: HashMap<(String, u64), Option<String>>,
    generated: GeneratedNames,
}

impl PlaceNames {
    pub(super) fn of(pid: u32) -> PlaceNames {
        let mut places = PlaceNames {
            pid,
            mappings: ProcessMappings::default(),
            // There is no recording that could contain copies of files.
            symbols: Symbols::of(Path::new("")).without_debug_info(),
            files: HashMap::new(),
            names: HashMap::new(),
            generated: GeneratedNames::of(pid),
        };
        places.refresh();
        places
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Reads the mappings again. Keeps those of an ended process.
    pub(super) fn refresh(&mut self) {
        let mappings = ProcessMappings::of(self.pid);
        if !mappings.is_empty() {
            self.mappings = mappings;
            self.generated.refresh();
        }
    }

    /// Sums of the last minute. `heat_of` is the index of the data region, by falling weight, that
    /// the heat map shows.
    pub(super) fn detail(
        &mut self,
        recent: &RecentSamples,
        (now_ns, heat_of, cells): (u64, usize, (usize, usize)),
    ) -> ProcessDetail {
        let with_address = recent.samples().filter(|s| s.addr.is_some()).count() as u64;
        let data = largest_first(self.data(recent));
        let shown = data.get(heat_of.checked_rem(data.len()).unwrap_or(0));
        // Addresses outside any region would be far apart.
        let shown = shown.filter(|place| place.name != UNMAPPED);
        let heat = shown.and_then(|place| {
            let within =
                |addr: u64| self.region(addr) == (place.name.clone(), place.within.clone());
            let samples = recent.samples();
            let samples = samples.filter_map(|s| Some((s.time_ns, s.addr?)));
            let samples: Vec<(u64, u64)> = samples.filter(|s| within(s.1)).collect();
            let region = place.name.clone();
            RegionHeat::of(&samples, now_ns, cells).map(|heat| RegionHeat { region, ..heat })
        });
        ProcessDetail {
            pid: self.pid,
            samples: recent.len() as u64,
            with_address,
            code: largest_first(self.code(recent)),
            is_thinned: recent.is_thinned(),
            ended_unseen: self.mappings.is_empty(),
            lost: 0,
            data,
            heat,
            regions: Vec::new(),
        }
    }

    fn code(&mut self, recent: &RecentSamples) -> BTreeMap<(String, String), (u64, u64)> {
        let mut by_ip: HashMap<u64, (u64, u64)> = HashMap::new();
        for sample in recent.samples() {
            let sums = by_ip.entry(sample.ip).or_default();
            *sums = (sums.0 + 1, sums.1 + sample.stands_for);
        }
        let mut by_ip: Vec<_> = by_ip.into_iter().collect();
        // Start with the largest sums, since the time limit may end the loop early.
        by_ip.sort_by_key(|(ip, sums)| (std::cmp::Reverse(sums.1), *ip));
        let end = Instant::now() + NAMING_LIMIT;
        let mut functions: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
        for (ip, (samples, stands_for)) in by_ip {
            let sums = functions.entry(self.function(ip, end)).or_default();
            *sums = (sums.0 + samples, sums.1 + stands_for);
        }
        functions
    }

    /// Function that contains an instruction, and its file.
    fn function(&mut self, ip: u64, end: Instant) -> (String, String) {
        const UNNAMED: &str = "[no name]";
        let named = |name: &str, file: &str| (name.to_owned(), file.to_owned());
        if ip >> 63 == 1 {
            static KERNEL: LazyLock<KernelNames> = LazyLock::new(KernelNames::read);
            return named(KERNEL.at(ip).unwrap_or(UNNAMED), "[kernel]");
        }
        let Some(mapping) = self.mappings.at(ip) else {
            return named(UNNAMED, "[unknown]");
        };
        if mapping.path.is_empty() {
            return named(self.generated.at(ip).unwrap_or(UNNAMED), "[generated code]");
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
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        self.names.insert(key, name.clone());
        (name.unwrap_or_else(|| UNNAMED.to_owned()), file)
    }

    /// The mapped file, also if the process has another root.
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

    fn data(&self, recent: &RecentSamples) -> BTreeMap<(String, String), (u64, u64)> {
        let mut regions: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
        let mut known: HashMap<u64, (String, String)> = HashMap::new();
        for sample in recent.samples() {
            let Some(addr) = sample.addr else { continue };
            // Mappings start and end at page boundaries.
            let region = known.entry(addr >> 12);
            let region = region.or_insert_with(|| self.region(addr)).clone();
            let sums = regions.entry(region).or_default();
            *sums = (sums.0 + 1, sums.1 + sample.stands_for);
        }
        regions
    }

    /// Region that contains a data address, and its size.
    fn region(&self, addr: u64) -> (String, String) {
        match self.mappings.region(addr) {
            Some(region) => {
                let size = memgauge_console::quantities::spoken_bytes(region.end - region.start);
                (region.name, size)
            }
            None => (UNMAPPED.to_owned(), String::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> PlaceNames {
        let mut places = PlaceNames::of(u32::MAX / 2);
        places.mappings = crate::mappings::tests::sample();
        places
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
    fn generated_code_has_the_names_that_its_program_writes() {
        let pid = std::process::id();
        let map = format!("/tmp/perf-{pid}.map");
        std::fs::write(&map, "7f0000001000 100 JS:~sum\n").expect("a map");
        let mut places = PlaceNames::of(pid);
        std::fs::remove_file(&map).expect("it is ours");
        places.mappings = crate::mappings::tests::sample();
        let end = Instant::now() + Duration::from_secs(60);
        let mut at = |ip: u64| places.function(ip, end);
        let named = |name: &str| (name.to_owned(), "[generated code]".to_owned());
        assert_eq!(at(0x7f00_0000_1010), named("JS:~sum"));
        assert_eq!(at(0x7f00_0000_1100), named("[no name]"));
    }

    #[test]
    fn addresses_that_are_mapped_no_more_have_no_heat_map() {
        let mut places = places();
        let mut recent = RecentSamples::default();
        for addr in [0x10, 0x7fff_ffff_0000] {
            recent.take(&memgauge_online::Sample {
                addr: Some(memgauge_online::VirtAddr(addr)),
                stands_for: 1,
                ..memgauge_online::Sample::default()
            });
        }
        let detail = places.detail(&recent, (0, 0, (8, 60)));
        assert_eq!(detail.data[0].name, UNMAPPED);
        assert_eq!(detail.heat, None);
    }

    #[test]
    fn a_function_of_this_program_has_its_name() {
        let mut places = PlaceNames::of(std::process::id());
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
