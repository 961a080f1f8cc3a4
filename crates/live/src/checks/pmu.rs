//! Checks of the processor's counters, of sampling, and of the right to use them.

use std::fs::read_to_string;
use std::path::Path;

use memgauge_host::checks::{Check, describe_os_error, verdict};
use memgauge_host::sys::probe::{TestEvent, try_open_event};

/// Names of the kernel's PMUs.
fn pmu_names() -> Vec<String> {
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

fn is_virtual_machine() -> bool {
    read_to_string("/proc/cpuinfo").is_ok_and(|s| s.contains(" hypervisor"))
}

pub(super) fn pmu() -> Vec<Check> {
    let units = pmu_names();
    let has_core = units
        .iter()
        .any(|u| u == "cpu" || u.starts_with("cpu_") || u.starts_with("armv8"));
    let why = if is_virtual_machine() {
        "this virtual machine has no PMU: start it with a virtual PMU, or use --source emulate"
    } else {
        "the kernel found no PMU: check the firmware's settings, or use --source emulate"
    };
    let cycles = try_open_event(TestEvent::Cycles);
    let found = match (&cycles, has_core) {
        (Ok(()), _) => "core counters work".to_owned(),
        (Err(e), true) => format!("present, but it counts nothing: {}", describe_os_error(e)),
        (Err(_), false) => "none: no cycles, cache or TLB misses can be counted".to_owned(),
    };
    let precise = try_open_event(TestEvent::PreciseCycles);
    let sampler = ["ibs_op", "arm_spe_0"]
        .iter()
        .find(|s| units.iter().any(|u| u == **s));
    let levels = max_precision();
    let precise_found = match (&precise, sampler) {
        (Err(_), None) if levels > 0 => format!(
            "PEBS, level {levels} at most (`:p`): a sample names the instruction behind its own"
        ),
        (Ok(()), None) => "PEBS works".to_owned(),
        (Ok(()), Some(name)) => format!("{name} works"),
        (Err(_), Some(name)) => format!("{name} is present"),
        (Err(_), None) if !has_core => "none: it needs a core PMU".to_owned(),
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
                true if is_virtual_machine() => {
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
fn max_precision() -> u32 {
    let devices = Path::new("/sys/bus/event_source/devices");
    let files = ["cpu", "cpu_core"].map(|name| devices.join(name).join("caps/max_precise"));
    let read = files.iter().filter_map(|path| read_to_string(path).ok());
    read.filter_map(|text| text.trim().parse().ok())
        .max()
        .unwrap_or(0)
}

pub(super) fn rights() -> Check {
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
