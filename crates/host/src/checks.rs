//! Checks of a machine, with their results: the rows of `memgauge doctor`.

use std::io;
use std::path::Path;

use crate::sys::probe::try_create_bpf_map;
use crate::{facts, without_system_numbers};

/// Result of one check.
#[derive(Clone, Debug)]
pub struct Check {
    /// Subject of the check in a word or two.
    pub name: &'static str,
    /// True if it works, `None` for a plain fact.
    pub ok: Option<bool>,
    /// Result of the check.
    pub found: String,
    /// Remedy if it does not work.
    pub fix: Option<String>,
}

/// A fact that is neither good nor bad.
pub fn fact(name: &'static str, found: String) -> Check {
    Check {
        name,
        ok: None,
        found,
        fix: None,
    }
}

/// Something that works or not, with its remedy.
pub fn verdict(name: &'static str, ok: bool, found: String, fix: &str) -> Check {
    Check {
        name,
        ok: Some(ok),
        found,
        fix: (!ok).then(|| fix.to_owned()),
    }
}

/// Explains why the kernel refused an event or a map.
pub fn describe_os_error(error: &io::Error) -> String {
    let words = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => "this machine has no such event",
        Some(libc::EACCES | libc::EPERM) => "not allowed to this user",
        Some(libc::EOPNOTSUPP) => "the processor's counters cannot do that",
        Some(libc::EINVAL | libc::E2BIG) => "this kernel is too old for it",
        Some(libc::ENOSYS) => "the kernel was built without it, or a system-call filter hides it",
        Some(libc::EMFILE | libc::ENFILE) => "too many files are open",
        Some(libc::EBUSY) => "another program uses it",
        Some(libc::ENOMEM | libc::ENOSPC) => "no memory or counter is left for it",
        _ => return without_system_numbers(&error.to_string()),
    };
    words.to_owned()
}

/// Facts about this machine, except its caches.
pub fn machine() -> Vec<Check> {
    let facts = facts();
    let gib = facts.memory_bytes as f64 / f64::from(1u32 << 30);
    vec![
        fact(
            "processor",
            format!("{}, {} logical", facts.cpu, facts.cpus),
        ),
        fact("kernel", facts.kernel),
        fact("memory", format!("{gib:.1} GiB")),
    ]
}

/// Checks that BPF programs can be loaded.
pub fn bpf() -> Check {
    let btf = Path::new("/sys/kernel/btf/vmlinux").exists();
    let tried = try_create_bpf_map();
    let found = match (&tried, btf) {
        (Ok(()), true) => "maps and kernel types (BTF)".to_owned(),
        (Ok(()), false) => "maps, but no kernel types (BTF)".to_owned(),
        (Err(e), _) => format!("refused: {}", describe_os_error(e)),
    };
    verdict(
        "BPF",
        tried.is_ok() && btf,
        found,
        "run as root or with CAP_BPF, on a kernel with CONFIG_DEBUG_INFO_BTF",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_in_words_and_an_unknown_one_as_it_is() {
        let of = |number| describe_os_error(&io::Error::from_raw_os_error(number));
        assert_eq!(of(libc::EACCES), "not allowed to this user");
        assert!(of(libc::ENOENT).contains("no such event"));
        assert!(!of(libc::EILSEQ).contains("os error"));
    }
}
