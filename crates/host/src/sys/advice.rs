//! Advice to the kernel about memory, and what it has.

/// Asks for large pages where the pages of an array lie.
///
/// Only speed depends on the answer, so a refusal is passed over.
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

/// Bytes of memory that programs can take before the machine swaps
/// (`MemAvailable` of the kernel); `None` where it does not say.
pub fn available_bytes() -> Option<u64> {
    let facts = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = facts.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes << 10)
}

/// Bytes of memory that this process has; `None` where the kernel does not say.
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
