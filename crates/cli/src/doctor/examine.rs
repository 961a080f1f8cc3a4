//! Tests what this machine offers a memory profiler.

use std::fs::read_to_string;
use std::path::Path;

use memgauge_emulate::{self as emulate, Emulator, geometry};
use memgauge_host::checks::{Check, describe_os_error, fact, verdict};
use memgauge_host::sys::probe::{TestEvent, try_create_bpf_map, try_open_event};
use memgauge_host::sys::process::free_bytes;

/// All checks in display order.
pub(crate) fn examine() -> Vec<Check> {
    let mut checks = machine();
    checks.extend(pmu());
    checks.push(rights());
    checks.extend(memgauge_live::checks());
    checks.push(bpf());
    checks.push(memgauge_pages::check());
    checks.push(emulator());
    checks.push(shared_memory());
    checks
}

fn machine() -> Vec<Check> {
    let facts = memgauge_host::facts();
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

/// Names of the kernel's PMUs.
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
        "this virtual machine has no PMU: start it with a virtual PMU, or use --source emulate"
    } else {
        "the kernel found no PMU: check the firmware's settings, or use --source emulate"
    };
    let cycles = try_open_event(TestEvent::Cycles);
    let found = match (&cycles, core) {
        (Ok(()), _) => "core counters work".to_owned(),
        (Err(e), true) => format!("present, but it counts nothing: {}", describe_os_error(e)),
        (Err(_), false) => "none: no cycles, cache or TLB misses can be counted".to_owned(),
    };
    let precise = try_open_event(TestEvent::PreciseCycles);
    let sampler = ["ibs_op", "arm_spe_0"]
        .iter()
        .find(|s| units.iter().any(|u| u == **s));
    let levels = levels_of_precision();
    let precise_found = match (&precise, sampler) {
        (Err(_), None) if levels > 0 => format!(
            "PEBS, level {levels} at most (`:p`): a sample names the instruction behind its own"
        ),
        (Ok(()), None) => "PEBS works".to_owned(),
        (Ok(()), Some(name)) => format!("{name} works"),
        (Err(_), Some(name)) => format!("{name} is present"),
        (Err(_), None) if !core => "none: it needs a core PMU".to_owned(),
        (Err(e), None) => format!("none: {}", describe_os_error(e)),
    };
    let uncore: Vec<&str> = units
        .iter()
        .filter(|u| u.starts_with("uncore_") || u.starts_with("amd_"))
        .map(String::as_str)
        .collect();
    let clock = try_open_event(TestEvent::CpuClock);
    vec![
        verdict("core PMU", cycles.is_ok(), found, why),
        verdict(
            "precise sampling",
            precise.is_ok() || sampler.is_some() || levels > 0,
            precise_found,
            match cycles.is_ok() {
                true if virtualised() => {
                    "this virtual machine's PMU has no PEBS: let the hypervisor pass it on, or \
                    sample without precision (-e cycles)"
                }
                true => "this processor has none: sample without precision (-e cycles)",
                false => why,
            },
        ),
        verdict(
            "uncore counters",
            !uncore.is_empty(),
            if uncore.is_empty() {
                "none".to_owned()
            } else {
                format!("{} units", uncore.len())
            },
            "only a physical machine has them, and Intel's want `modprobe intel_uncore`; without \
             them I/O and memory totals are estimated",
        ),
        verdict(
            "timer samples",
            clock.is_ok(),
            clock.map_or_else(|e| describe_os_error(&e), |()| "cpu-clock works".to_owned()),
            "sysctl kernel.perf_event_paranoid=2, or run with CAP_PERFMON",
        ),
    ]
}

/// Maximum precision that the driver of the processor's PMU reports. 0 is imprecise.
fn levels_of_precision() -> u32 {
    let devices = Path::new("/sys/bus/event_source/devices");
    let told = ["cpu", "cpu_core"].map(|name| devices.join(name).join("caps/max_precise"));
    let read = told.iter().filter_map(|path| read_to_string(path).ok());
    read.filter_map(|text| text.trim().parse().ok())
        .max()
        .unwrap_or(0)
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

fn emulator() -> Check {
    let tried = Emulator::find().and_then(|e| e.try_out().map(|()| e));
    match tried {
        Ok(e) => verdict(
            "emulator",
            true,
            match e.pinned {
                true => format!("memgauge's engine (QEMU {})", e.version),
                false => format!(
                    "memgauge's engine (QEMU {}), built from later sources than the pinned ones",
                    e.version
                ),
            },
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
            // A check that failed names its fix.
            assert_eq!(check.ok == Some(false), check.fix.is_some(), "{text}");
        }
    }
}
