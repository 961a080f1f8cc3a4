//! Memory advice to the kernel, and available memory.

/// Requests huge pages for an array.
///
/// A refusal is ignored, since it only affects speed.
pub fn large_pages(address: usize, bytes: usize) {
    let page = rustix::param::page_size();
    let first = address.next_multiple_of(page);
    let end = (address + bytes) / page * page;
    if let Some(length) = end.checked_sub(first).filter(|&length| length > 0) {
        // SAFETY: this advice changes neither content nor protection of any page,
        // and the kernel refuses ranges that are not mapped.
        unsafe { libc::madvise(first as *mut libc::c_void, length, libc::MADV_HUGEPAGE) };
    }
}

/// Memory that programs can use before the machine swaps (the kernel's `MemAvailable`). `None` if
/// the kernel does not show it.
pub fn available_bytes() -> Option<u64> {
    let facts = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = facts.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes << 10)
}

/// Resident memory of this process in bytes. `None` if the kernel does not show it.
pub fn resident_bytes() -> Option<u64> {
    let facts = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = facts.lines().find(|l| l.starts_with("VmRSS:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    #[test]
    fn advice_changes_no_content_and_any_range_is_taken() {
        let array = vec![7u8; 8 << 20];
        super::large_pages(array.as_ptr() as usize, array.len());
        super::large_pages(array.as_ptr() as usize + 1, 10);
        super::large_pages(0, 0);
        assert!(array.iter().all(|&byte| byte == 7));
    }
}
