//! Reads what this machine's PMUs support from the kernel's descriptions.

use std::fs::read_to_string;

use super::attributes::PmuCapabilities;
use crate::events::Pmus;

/// Returns the capabilities of this machine.
pub(crate) fn pmu_capabilities(pmus: &Pmus) -> PmuCapabilities {
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut capabilities = PmuCapabilities {
        has_pebs: cpuinfo_value(&cpuinfo, "vendor_id") == Some("GenuineIntel"),
        pebs_format: pebs_format(&cpuinfo),
        ..PmuCapabilities::default()
    };
    for name in pmus.names() {
        let Some(number) = pmus.number(&name) else {
            continue;
        };
        if name.starts_with("ibs_") {
            capabilities.ibs_pmus.push(number);
            let formats = pmus.formats(&name);
            capabilities.has_ibs_filter |= formats.iter().any(|(term, _)| term == "swfilt");
        } else if name.starts_with("arm_spe") {
            capabilities.spe_pmus.push(number);
        }
    }
    capabilities
}

fn cpuinfo_value<'a>(cpuinfo: &'a str, key: &str) -> Option<&'a str> {
    let line = cpuinfo.lines().find(|line| {
        let name = line.split(':').next().unwrap_or("");
        name.trim() == key
    });
    line?.split_once(':').map(|(_, value)| value.trim())
}

/// Models of family 6 before Skylake. Their PEBS records have no time
/// (`arch/x86/events/intel/core.c`, Linux 6.18).
const MODELS_BEFORE_SKYLAKE: &[u32] = &[
    0x1a, 0x1e, 0x1f, 0x2e, 0x25, 0x2c, 0x2f, 0x2a, 0x2d, 0x3a, 0x3e, 0x3c, 0x3f, 0x45, 0x46, 0x3d,
    0x47, 0x4f, 0x56, 0x17, 0x0f, 0x1d, 0x16,
];
/// Models of family 6 with Skylake's record, which has a time but no optional groups of fields.
const SKYLAKE_MODELS: &[u32] = &[0x4e, 0x5e, 0x55, 0x8e, 0x9e, 0xa5, 0xa6, 0x66];

/// Returns the format of a processor's PEBS records. An unknown processor counts as Ice Lake,
/// since no later format has fewer fields.
fn pebs_format(cpuinfo: &str) -> u8 {
    let number = |key| cpuinfo_value(cpuinfo, key).and_then(|value| value.parse::<u32>().ok());
    match (number("cpu family"), number("model")) {
        (Some(6), Some(model)) if MODELS_BEFORE_SKYLAKE.contains(&model) => 2,
        (Some(6), Some(model)) if SKYLAKE_MODELS.contains(&model) => 3,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(family: u32, model: u32, expected: u8) {
        let text =
            format!("vendor_id\t: GenuineIntel\ncpu family\t: {family}\nmodel\t\t: {model}\n");
        assert_eq!(pebs_format(&text), expected, "{model:#x}");
    }

    #[test]
    fn pebs_format_is_that_of_the_generation() {
        check(6, 0x3f, 2);
        check(6, 0x55, 3);
        check(6, 0x6a, 4);
        check(6, 0x8f, 4);
        check(19, 1, 4);
    }

    #[test]
    fn pmus_are_recognised_by_name() {
        let root = tempfile::tempdir().unwrap();
        for (name, number, format) in [("ibs_op", "9\n", "swfilt"), ("arm_spe_0", "11\n", "pa")] {
            let folder = root.path().join(name).join("format");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(root.path().join(name).join("type"), number).unwrap();
            std::fs::write(folder.join(format), "config2:0\n").unwrap();
        }
        let found = pmu_capabilities(&Pmus::from_dirs(root.path(), root.path()));
        assert_eq!(
            (found.ibs_pmus, found.has_ibs_filter, found.spe_pmus),
            (vec![9], true, vec![11])
        );
    }
}
