//! Finds the abilities of this machine's PMUs in the kernel's descriptions.

use std::fs::read_to_string;

use super::attributes::Facilities;
use crate::events::Pmus;

/// Abilities of this machine.
pub(crate) fn facilities(pmus: &Pmus) -> Facilities {
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut has = Facilities {
        intel: value(&cpuinfo, "vendor_id") == Some("GenuineIntel"),
        pebs_format: pebs_format(&cpuinfo),
        ..Facilities::default()
    };
    for name in pmus.names() {
        let Some(number) = pmus.number(&name) else {
            continue;
        };
        if name.starts_with("ibs_") {
            has.ibs.push(number);
            has.ibs_filter |= pmus.formats(&name).iter().any(|f| f.0 == "swfilt");
        } else if name.starts_with("arm_spe") {
            has.spe.push(number);
        }
    }
    has
}

fn value<'a>(cpuinfo: &'a str, key: &str) -> Option<&'a str> {
    let line = cpuinfo.lines().find(|l| {
        let name = l.split(':').next().unwrap_or("");
        name.trim() == key
    });
    line?.split_once(':').map(|(_, value)| value.trim())
}

/// Models of family 6 up to Broadwell, whose records have no time, and those of
/// Skylake's, whose records have no fixed groups (`arch/x86/events/intel/core.c`,
/// Linux 6.18).
const BEFORE_SKYLAKE: &[u32] = &[
    0x1a, 0x1e, 0x1f, 0x2e, 0x25, 0x2c, 0x2f, 0x2a, 0x2d, 0x3a, 0x3e, 0x3c, 0x3f, 0x45, 0x46, 0x3d,
    0x47, 0x4f, 0x56, 0x17, 0x0f, 0x1d, 0x16,
];
const SKYLAKE: &[u32] = &[0x4e, 0x5e, 0x55, 0x8e, 0x9e, 0xa5, 0xa6, 0x66];

/// The format that a processor's PEBS records have. One this version does not
/// know is taken to be at least of Ice Lake's: none that came later has less.
fn pebs_format(cpuinfo: &str) -> u8 {
    let number = |key| value(cpuinfo, key).and_then(|v| v.parse::<u32>().ok());
    match (number("cpu family"), number("model")) {
        (Some(6), Some(model)) if BEFORE_SKYLAKE.contains(&model) => 2,
        (Some(6), Some(model)) if SKYLAKE.contains(&model) => 3,
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
    fn processors_have_the_format_of_their_generation() {
        check(6, 0x3f, 2);
        check(6, 0x55, 3);
        check(6, 0x6a, 4);
        check(6, 0x8f, 4);
        check(19, 1, 4);
    }

    #[test]
    fn pmus_are_told_apart_by_name() {
        let root = tempfile::tempdir().unwrap();
        for (name, number, format) in [("ibs_op", "9\n", "swfilt"), ("arm_spe_0", "11\n", "pa")] {
            let folder = root.path().join(name).join("format");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(root.path().join(name).join("type"), number).unwrap();
            std::fs::write(folder.join(format), "config2:0\n").unwrap();
        }
        let has = facilities(&Pmus::at(root.path(), root.path()));
        assert_eq!(
            (has.ibs, has.ibs_filter, has.spe),
            (vec![9], true, vec![11])
        );
    }
}
