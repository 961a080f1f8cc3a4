//! Mappings of a running process, and the memory regions that they belong to.

use memgauge_analyze::{MemoryRegion, file_name};
use memgauge_host::maps::{self, MapsLine as Mapping};

/// All mappings of a process by address.
#[derive(Debug, Default)]
pub(crate) struct ProcessMappings(Vec<Mapping>);

impl ProcessMappings {
    /// Current mappings of a process. Empty if it has ended.
    pub(crate) fn of(pid: u32) -> ProcessMappings {
        ProcessMappings(maps::of_process(pid))
    }

    /// True if there are no mappings.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn index_at(&self, addr: u64) -> Option<usize> {
        let index = self.0.partition_point(|m| m.start <= addr).checked_sub(1)?;
        (addr < self.0[index].end).then_some(index)
    }

    /// The mapping that contains this address.
    pub(crate) fn at(&self, addr: u64) -> Option<&Mapping> {
        self.index_at(addr).map(|index| &self.0[index])
    }

    /// The region that contains a data address.
    pub(crate) fn region(&self, addr: u64) -> Option<MemoryRegion> {
        self.index_at(addr).map(|index| self.region_of(index))
    }

    /// All accessible regions by address.
    pub(crate) fn regions(&self) -> Vec<MemoryRegion> {
        let used = (0..self.0.len()).filter(|&index| self.0[index].accessible);
        let mut regions: Vec<MemoryRegion> = used.map(|index| self.region_of(index)).collect();
        // Each mapping of an anonymous region yields the whole region.
        regions.dedup();
        regions
    }

    fn region_of(&self, index: usize) -> MemoryRegion {
        let mapping = &self.0[index];
        let (start, end) = match mapping.path.as_str() {
            "" => self.anonymous(index),
            _ => (mapping.start, mapping.end),
        };
        let name = match mapping.path.as_str() {
            "" => self.zero_data(start).unwrap_or(format!("anon {start:#x}")),
            path if !path.starts_with('/') => path.to_owned(),
            path if mapping.executable => format!("{} code", file_name(path)),
            path => format!("{} data", file_name(path)),
        };
        MemoryRegion { name, start, end }
    }

    /// Start and end of adjacent anonymous mappings.
    fn anonymous(&self, index: usize) -> (u64, u64) {
        let used = |m: &Mapping| m.path.is_empty() && m.accessible;
        let joined = |a: &Mapping, b: &Mapping| used(a) && used(b) && a.end == b.start;
        let (mut first, mut last) = (index, index);
        while first > 0 && joined(&self.0[first - 1], &self.0[first]) {
            first -= 1;
        }
        while last + 1 < self.0.len() && joined(&self.0[last], &self.0[last + 1]) {
            last += 1;
        }
        (self.0[first].start, self.0[last].end)
    }

    /// Name of anonymous memory after a file's writable part, which is the file's zero-initialised
    /// data.
    fn zero_data(&self, start: u64) -> Option<String> {
        let before = self.at(start.checked_sub(1)?)?;
        let is_data = before.path.starts_with('/') && !before.executable;
        let code = || {
            let mut files = self.0.iter().filter(|m| m.executable);
            files.any(|m| m.path == before.path)
        };
        (is_data && code()).then(|| format!("{} zero data", file_name(&before.path)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
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

    pub(crate) fn sample() -> ProcessMappings {
        ProcessMappings(maps::parse(MAPS.as_bytes()))
    }

    #[test]
    fn data_regions_have_the_names_that_users_know() {
        let mappings = sample();
        assert_eq!(mappings.0.len(), 10);
        let check = |addr: u64, name: &str, start: u64, bytes: u64| {
            let region = mappings.region(addr).unwrap();
            let found = (
                region.name.as_str(),
                region.start,
                region.end - region.start,
            );
            assert_eq!(found, (name, start, bytes), "{addr:#x}");
        };
        check(0x55d0_c000_0000, "a b data", 0x55d0_c000_0000, 4 << 10);
        check(0x55d0_c000_1fff, "a b code", 0x55d0_c000_1000, 4 << 10);
        check(0x55d0_c000_3000, "a b zero data", 0x55d0_c000_3000, 8 << 10);
        check(0x55d0_c102_0fff, "[heap]", 0x55d0_c100_0000, 132 << 10);
        check(
            0x7f00_0010_0000,
            "anon 0x7f0000000000",
            0x7f00_0000_0000,
            2 << 20,
        );
        check(
            0x7f00_0020_1000,
            "anon 0x7f0000201000",
            0x7f00_0020_1000,
            1 << 20,
        );
        check(0x7ffc_0002_0fff, "[stack]", 0x7ffc_0000_0000, 132 << 10);
        for outside in [0x55d0_c102_1000, 0, u64::MAX] {
            assert_eq!(mappings.region(outside), None);
        }
    }

    #[test]
    fn regions_are_apart_and_guards_are_none() {
        let regions = sample().regions();
        let names: Vec<&str> = regions.iter().map(|r| r.name.as_str()).collect();
        let expected = [
            "a b data",
            "a b code",
            "a b data",
            "a b zero data",
            "[heap]",
            "anon 0x7f0000000000",
            "anon 0x7f0000201000",
            "[stack]",
        ];
        assert_eq!(names, expected);
        assert!(regions.windows(2).all(|two| two[0].end <= two[1].start));
    }
}
