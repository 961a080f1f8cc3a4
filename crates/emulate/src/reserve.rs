//! Reservations of address space that QEMU has no memory for.
//!
//! QEMU before 8.0 keeps 24 bytes for every page that a program maps, used or not: 6
//! MiB a GiB. Sanitizers reserve 16 TiB and more, which would take all memory of the
//! machine. The plugin lets such a reservation fail, as `ulimit -v` would. A run-time
//! that can do with less asks for less; others end with a message of their own.

use std::fs::read_to_string;

/// Bytes that QEMU keeps for a page.
const BYTES_PER_PAGE: u64 = 24;
const PAGE_BYTES: u64 = 4096;
/// Part of the free memory that QEMU may take for pages.
const SHARE: u64 = 4;

/// Bytes of address space that a program may reserve under this version of QEMU.
pub(super) fn most(version: &str) -> u64 {
    match (keeps_pages(version), free_memory_bytes()) {
        (true, Some(free)) => free / SHARE / BYTES_PER_PAGE * PAGE_BYTES,
        _ => u64::MAX,
    }
}

/// Message about a refused reservation.
pub(super) fn refused(bytes: u64, version: &str) -> String {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    format!(
        "memgauge refused to reserve {:.0} GiB of addresses for the program: QEMU {version} \
        would take {:.1} GiB of memory for them; if the program needs them (as with -fsanitize), \
        use --source clock, QEMU 8 or later, or a build without sanitizers",
        gib(bytes),
        gib(bytes / PAGE_BYTES * BYTES_PER_PAGE)
    )
}

fn keeps_pages(version: &str) -> bool {
    let major = version
        .split('.')
        .next()
        .and_then(|m| m.parse::<u32>().ok());
    major.is_some_and(|major| major < 8)
}

/// Free memory of the machine, or of this process's control group if that is less.
fn free_memory_bytes() -> Option<u64> {
    let machine = available(&read_to_string("/proc/meminfo").ok()?)?;
    let number = |name: &str| {
        let text = read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let group = number("memory.max")
        .zip(number("memory.current"))
        .map(|(most, used)| most.saturating_sub(used));
    Some(group.map_or(machine, |group| group.min(machine)))
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_emulators_keep_pages() {
        assert!(keeps_pages("7.2.22") && keeps_pages("6.0.0"));
        assert!(!keeps_pages("8.0.0") && !keeps_pages("10.0.2"));
        assert_eq!(most("10.0.2"), u64::MAX);
    }

    #[test]
    fn available_memory_is_read_in_kib() {
        let text = "MemTotal:  9 kB\nMemFree: 1 kB\nMemAvailable:     12 kB\n";
        assert_eq!(available(text), Some(12 * 1024));
        assert_eq!(available(""), None);
    }

    #[test]
    fn a_refusal_says_what_it_would_have_taken() {
        // 16 TiB are 2^32 pages of 24 bytes.
        assert!(refused(1 << 44, "7.2.22").contains("16384 GiB of addresses"));
        assert!(refused(1 << 44, "7.2.22").contains("would take 96.0 GiB"));
    }
}
