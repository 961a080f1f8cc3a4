//! Memory of a process, and the sums that `/proc/PID/smaps_rollup` has over all mappings.

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// In memory (`Rss`).
    pub resident_bytes: u64,
    /// In memory and used since the accessed bits were cleared (`Referenced`).
    pub used_bytes: u64,
    /// Part of the resident memory that no process read before in the same reading maps. The source
    /// `smaps_rollup` cannot know, and has all resident memory here.
    pub first_resident_bytes: u64,
    /// Part of the used memory that no such process has used.
    pub first_used_bytes: u64,
    /// Part of the resident memory that is mapped by huge pages (2 MiB on x86-64).
    pub huge_bytes: u64,
    /// Part of the resident memory that other processes map as well.
    pub shared_bytes: u64,
    /// Paged out.
    pub swapped_bytes: u64,
    /// Pages of hugetlbfs, which the other numbers leave out.
    pub hugetlb_bytes: u64,
    /// Parts of the page tables that could not be read.
    pub unread_tables: u64,
}

impl MemoryUse {
    /// Reads the text of a `smaps_rollup` file. Returns `None` if `Rss` or `Referenced` is missing.
    pub(crate) fn parse(text: &str) -> Option<MemoryUse> {
        let mut found = MemoryUse::default();
        let (mut has_resident, mut has_used) = (false, false);
        for line in text.lines() {
            let Some((name, rest)) = line.split_once(':') else {
                continue;
            };
            let Some(kib) = rest.split_whitespace().next() else {
                continue;
            };
            let Ok(kib) = kib.parse::<u64>() else {
                continue;
            };
            let bytes = kib.saturating_mul(1024);
            match name {
                "Rss" => (found.resident_bytes, has_resident) = (bytes, true),
                "Referenced" => (found.used_bytes, has_used) = (bytes, true),
                "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => found.huge_bytes += bytes,
                "Shared_Clean" | "Shared_Dirty" => found.shared_bytes += bytes,
                "Swap" => found.swapped_bytes = bytes,
                "Shared_Hugetlb" | "Private_Hugetlb" => found.hugetlb_bytes += bytes,
                _ => {}
            }
        }
        (found.first_resident_bytes, found.first_used_bytes) =
            (found.resident_bytes, found.used_bytes);
        (has_resident && has_used).then_some(found)
    }

    /// Adds the memory of another process, without pages that an earlier one had.
    pub(crate) fn add(&mut self, other: &MemoryUse) {
        self.resident_bytes += other.first_resident_bytes;
        self.used_bytes += other.first_used_bytes;
        self.first_resident_bytes += other.first_resident_bytes;
        self.first_used_bytes += other.first_used_bytes;
        self.huge_bytes += other.huge_bytes;
        self.shared_bytes += other.shared_bytes;
        self.swapped_bytes += other.swapped_bytes;
        self.hugetlb_bytes += other.hugetlb_bytes;
        self.unread_tables += other.unread_tables;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_read_by_their_names() {
        // Lines as Linux 6.18 writes them.
        let text = "\
5581a0000000-7ffd5b5fd000 ---p 00000000 00:00 0                          [rollup]
Rss:                4096 kB
Pss:                3000 kB
Pss_Dirty:            40 kB
Shared_Clean:       1000 kB
Shared_Dirty:         24 kB
Referenced:         2048 kB
Anonymous:          3072 kB
AnonHugePages:      2048 kB
ShmemPmdMapped:        0 kB
Private_Hugetlb:    4096 kB
Swap:                 12 kB
";
        let kib = |n: u64| n * 1024;
        let expected = MemoryUse {
            resident_bytes: kib(4096),
            used_bytes: kib(2048),
            first_resident_bytes: kib(4096),
            first_used_bytes: kib(2048),
            huge_bytes: kib(2048),
            shared_bytes: kib(1024),
            swapped_bytes: kib(12),
            hugetlb_bytes: kib(4096),
            unread_tables: 0,
        };
        assert_eq!(MemoryUse::parse(text), Some(expected));
    }

    #[test]
    fn text_without_the_two_sums_is_refused() {
        assert_eq!(MemoryUse::parse(""), None);
        assert_eq!(MemoryUse::parse("Rss: 12 kB\n"), None);
        assert_eq!(MemoryUse::parse("Rss: x kB\nReferenced: 1 kB\n"), None);
    }
}
