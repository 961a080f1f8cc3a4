//! What this machine offers a memory profiler, found by trying.

use std::fs::read_to_string;
use std::io;
use std::path::Path;

use crate::emulate::{self, Emulator};
use crate::sys::probe::{Trial, bpf_map, perf_event};
use crate::sys::process::free_bytes;
use crate::{geometry, host};

/// One thing looked for.
#[derive(Clone, Debug)]
pub struct Check {
    /// What was looked for, in a word or two.
    pub name: &'static str,
    /// Whether it is there; `None` for a plain fact.
    pub ok: Option<bool>,
    /// What was found.
    pub found: String,
    /// What would make it work, where something can.
    pub fix: Option<String>,
}

fn fact(name: &'static str, found: String) -> Check {
    Check {
        name,
        ok: None,
        found,
        fix: None,
    }
}

pub(crate) fn verdict(name: &'static str, ok: bool, found: String, fix: &str) -> Check {
    Check {
        name,
        ok: Some(ok),
        found,
        fix: (!ok).then(|| fix.to_owned()),
    }
}

/// What the kernel means by refusing an event or a map.
pub(crate) fn in_words(error: &io::Error) -> String {
    let words = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => "this machine has no such event",
        Some(libc::EACCES | libc::EPERM) => "not allowed to this user",
        Some(libc::EOPNOTSUPP) => "the processor's counters cannot do that",
        Some(libc::EINVAL | libc::E2BIG) => "this kernel is too old for it",
        Some(libc::ENOSYS) => "the kernel was built without it, or a system-call filter hides it",
        Some(libc::EMFILE | libc::ENFILE) => "too many files are open",
        Some(libc::EBUSY) => "another program uses it",
        Some(libc::ENOMEM | libc::ENOSPC) => "no memory or counter is left for it",
        _ => return error.to_string(),
    };
    words.to_owned()
}

/// Everything, in the order it is shown.
pub fn examine() -> Vec<Check> {
    let mut checks = machine();
    checks.extend(pmu());
    checks.push(rights());
    checks.extend(crate::pmu::checks::checks());
    checks.push(bpf());
    checks.push(emulator());
    checks.push(shared_memory());
    checks
}

fn machine() -> Vec<Check> {
    let facts = host::facts();
    let config = geometry::host();
    let kib = |bytes: u64| format!("{} KiB", bytes / 1024);
    vec![
        fact(
            "processor",
            format!("{}, {} logical", facts.cpu, facts.cpus),
        ),
        fact("kernel", facts.kernel),
        fact(
            "memory",
            format!(
                "{:.1} GiB",
                facts.memory_bytes as f64 / f64::from(1u32 << 30)
            ),
        ),
        fact(
            "caches",
            format!(
                "L1D {} {}-way, L2 {} {}-way, LLC {} {}-way",
                kib(config.l1d.size_bytes),
                config.l1d.ways,
                kib(config.l2.size_bytes),
                config.l2.ways,
                kib(config.llc.size_bytes),
                config.llc.ways
            ),
        ),
    ]
}

/// Names of the kernel's performance-monitoring units.
fn units() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir("/sys/bus/event_source/devices")
        .map(|list| {
            list.flatten()
                .filter_map(|e| e.file_name().into_string().ok())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

fn virtualised() -> bool {
    read_to_string("/proc/cpuinfo").is_ok_and(|s| s.contains(" hypervisor"))
}

fn pmu() -> Vec<Check> {
    let units = units();
    let core = units
        .iter()
        .any(|u| u == "cpu" || u.starts_with("cpu_") || u.starts_with("armv8"));
    let why = if virtualised() {
        "this virtual machine has none: ask for one with a virtual PMU, or use --source emulate"
    } else {
        "the kernel found none: check the firmware's settings, or use --source emulate"
    };
    let cycles = perf_event(Trial::Cycles);
    let found = match (&cycles, core) {
        (Ok(()), _) => "core counters work".to_owned(),
        (Err(e), true) => format!("present, but it counts nothing: {}", in_words(e)),
        (Err(_), false) => "none: no cycles, cache or TLB misses can be counted".to_owned(),
    };
    let precise = perf_event(Trial::PreciseCycles);
    let sampler = ["ibs_op", "arm_spe_0"]
        .iter()
        .find(|s| units.iter().any(|u| u == **s));
    let precise_found = match (&precise, sampler) {
        (Ok(()), None) => "PEBS works".to_owned(),
        (Ok(()), Some(name)) => format!("{name} works"),
        (Err(_), Some(name)) => format!("{name} is present"),
        (Err(_), None) if !core => "none: it needs a core PMU".to_owned(),
        (Err(e), None) => format!("none: {}", in_words(e)),
    };
    let uncore: Vec<&str> = units
        .iter()
        .filter(|u| u.starts_with("uncore_") || u.starts_with("amd_"))
        .map(String::as_str)
        .collect();
    let clock = perf_event(Trial::CpuClock);
    vec![
        verdict("core PMU", cycles.is_ok(), found, why),
        verdict(
            "precise sampling",
            precise.is_ok() || sampler.is_some(),
            precise_found,
            why,
        ),
        verdict(
            "uncore counters",
            !uncore.is_empty(),
            if uncore.is_empty() {
                "none".to_owned()
            } else {
                format!("{} units", uncore.len())
            },
            "they need the bare machine; I/O and memory totals are estimated without them",
        ),
        verdict(
            "timer samples",
            clock.is_ok(),
            clock.map_or_else(|e| in_words(&e), |()| "cpu-clock works".to_owned()),
            "sysctl kernel.perf_event_paranoid=2, or run with CAP_PERFMON",
        ),
    ]
}

fn rights() -> Check {
    let read = |name: &str| {
        read_to_string(Path::new("/proc/sys/kernel").join(name))
            .ok()
            .and_then(|s| s.trim().parse::<i64>().ok())
    };
    let level = read("perf_event_paranoid");
    let mlock = read("perf_event_mlock_kb");
    let found = match (level, mlock) {
        (Some(l), Some(m)) => {
            format!("perf_event_paranoid {l}, {m} KiB of ring memory a processor")
        }
        _ => "this kernel has no perf events".to_owned(),
    };
    let ok = level.is_some_and(|l| l <= 2);
    verdict(
        "perf rights",
        ok,
        found,
        "sysctl kernel.perf_event_paranoid=2 (1 for kernel samples, 0 for whole processors)",
    )
}

fn bpf() -> Check {
    let btf = Path::new("/sys/kernel/btf/vmlinux").exists();
    let tried = bpf_map();
    let found = match (&tried, btf) {
        (Ok(()), true) => "maps and kernel types (BTF)".to_owned(),
        (Ok(()), false) => "maps, but no kernel types (BTF)".to_owned(),
        (Err(e), _) => format!("refused: {}", in_words(e)),
    };
    verdict(
        "BPF",
        tried.is_ok() && btf,
        found,
        "run as root or with CAP_BPF, on a kernel with CONFIG_DEBUG_INFO_BTF",
    )
}

fn emulator() -> Check {
    let tried = Emulator::find().and_then(|e| e.try_out().map(|()| e));
    match tried {
        Ok(e) => verdict(
            "emulator",
            true,
            format!("QEMU {} with plugin", e.version),
            "",
        ),
        Err(e) => Check {
            name: "emulator",
            ok: Some(false),
            found: "cannot record".to_owned(),
            fix: Some(e.to_string()),
        },
    }
}

fn shared_memory() -> Check {
    let free = free_bytes(Path::new("/dev/shm")).unwrap_or(0);
    let found = format!("{} MiB free in /dev/shm", free >> 20);
    verdict(
        "shared memory",
        free >= emulate::SHARED_MEMORY_BYTES,
        found,
        "mount a larger /dev/shm (a slower TMPDIR is used instead)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_shows_an_error_number_or_is_empty() {
        for check in examine() {
            let text = format!("{}: {} {:?}", check.name, check.found, check.fix);
            assert!(!text.contains("os error"), "{text}");
            assert!(!check.found.is_empty(), "{text}");
            // What does not work says what would help.
            assert_eq!(check.ok == Some(false), check.fix.is_some(), "{text}");
        }
    }

    #[test]
    fn a_refusal_is_told_in_words_and_an_unknown_one_as_it_is() {
        let of = |number| in_words(&io::Error::from_raw_os_error(number));
        assert_eq!(of(libc::EACCES), "not allowed to this user");
        assert!(of(libc::ENOENT).contains("no such event"));
        assert!(of(libc::EILSEQ).contains("os error"));
    }
}
