//! Facts about the machine a recording is made on.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::jit_names;
use memgauge_trace::{HostFacts, Manifest, SourceFacts};

fn first_line(path: &str) -> String {
    read_to_string(path)
        .map(|s| s.lines().next().unwrap_or("").trim().to_owned())
        .unwrap_or_default()
}

/// Value after the colon in the first line of `text` that starts with `key`.
fn first_value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .find(|l| l.starts_with(key))?
        .split_once(':')
        .map(|(_, v)| v.trim())
}

/// Name, kernel, processor and memory of this machine. Fields that `/proc` does not show are empty.
pub fn facts() -> HostFacts {
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let meminfo = read_to_string("/proc/meminfo").unwrap_or_default();
    let total_kib = first_value(&meminfo, "MemTotal")
        .and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0);
    HostFacts {
        name: first_line("/proc/sys/kernel/hostname"),
        kernel: first_line("/proc/sys/kernel/osrelease"),
        cpu: first_value(&cpuinfo, "model name")
            .unwrap_or("unknown")
            .to_owned(),
        cpus: cpuinfo
            .lines()
            .filter(|l| l.starts_with("processor"))
            .count() as u32,
        memory_bytes: total_kib * 1024,
    }
}

static LABELS: OnceLock<BTreeMap<String, String>> = OnceLock::new();

/// Sets the labels of the recordings that this process makes. They are in the manifest from the
/// start, so that a killed recorder leaves them, too. The first call counts.
pub fn set_labels(labels: BTreeMap<String, String>) {
    LABELS.get_or_init(|| labels);
}

/// Manifest of a recording that starts now. The source adds events and the modelled machine.
pub fn new_manifest(mut source: SourceFacts, command: Vec<String>, clock: &str) -> Manifest {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default();
    source.settings.jit_names = jit_names::setting();
    Manifest {
        recorder: concat!("memgauge ", env!("CARGO_PKG_VERSION")).to_owned(),
        command,
        labels: LABELS.get().cloned().unwrap_or_default(),
        started_unix_s: now.as_secs(),
        started_unix_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
        clock: clock.to_owned(),
        source,
        host: facts(),
        ..Manifest::default()
    }
}
