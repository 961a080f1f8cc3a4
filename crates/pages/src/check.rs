//! Checks which methods work on this machine.

use std::fs::{self, File};
use std::io::{self, Write as _};

use memgauge_host::checks::{Check, describe_os_error, verdict};

use crate::page_tables::PageTables;
use crate::process::{CLEAR_ACCESSED, tracks_soft_dirty};
use crate::rollup::MemoryUse;

/// Tries the accessed bits of this process, for `memgauge doctor`.
pub fn check() -> Check {
    let tried = File::options()
        .write(true)
        .open("/proc/self/clear_refs")
        .and_then(|mut file| file.write_all(CLEAR_ACCESSED))
        .and_then(|()| fs::read_to_string("/proc/self/smaps_rollup"));
    let works = match &tried {
        Ok(text) => MemoryUse::parse(text).is_some(),
        Err(_) => false,
    };
    let found = match tried {
        Err(e) if e.kind() == io::ErrorKind::NotFound => "this kernel has none".to_owned(),
        Err(e) => format!("refused: {}", describe_os_error(&e)),
        Ok(_) if !works => "not in /proc/PID/smaps_rollup".to_owned(),
        Ok(_) => {
            let reader = match PageTables::load(false) {
                Ok(_) => "page tables (BPF) and smaps_rollup".to_owned(),
                Err(why) => format!("smaps_rollup ({why})"),
            };
            match tracks_soft_dirty() {
                true => format!("{reader}, without flushing the TLB (soft-dirty bits are tracked)"),
                false => reader,
            }
        }
    };
    verdict(
        "accessed bits",
        works,
        found,
        "Linux 4.14 or later with CONFIG_PROC_PAGE_MONITOR; `mrc -p` needs them",
    )
}
