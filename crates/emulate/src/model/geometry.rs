//! The machine to model: this one, a preset, or a file.

use std::fs::read_to_string;
use std::io::Read;
use std::path::Path;

use memgauge_machine::{CacheConfig, Config, TlbConfig};
use raw_cpuid::CpuId;

use crate::{Error, ErrorKind, Result};

const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";

/// The machine called `name`: `host`, a preset, or the path of a JSON file.
///
/// # Errors
/// [`ErrorKind::Usage`] for an unknown name (the presets are listed),
/// [`ErrorKind::Missing`] for a geometry that the model refuses. Also fails if the file cannot be
/// read.
pub fn machine(name: &str) -> Result<Config> {
    let config = if name == "host" {
        host()
    } else if let Some(preset) = Config::preset(name) {
        preset
    } else if Path::new(name).exists() {
        from_file(Path::new(name))?
    } else {
        let names: Vec<&str> = memgauge_machine::presets()
            .iter()
            .map(|p| p.name.as_str())
            .collect();
        return Err(Error::usage(format!(
            "failed to find machine `{name}`: name a JSON file, `host`, or one of {}",
            names.join(", ")
        )));
    };
    config.validate().map_err(|e| refused(e.to_string()))?;
    Ok(config)
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::Missing, message)
}

/// Maximum size of a machine's file. A larger file is something else.
const MAX_FILE_BYTES: u64 = 1 << 20;

fn from_file(path: &Path) -> Result<Config> {
    let failed = || format!("failed to read machine file `{}`", path.display());
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
        .map_err(|e| Error::system(failed(), e))?;
    let why = match serde_json::from_str::<Config>(&text) {
        _ if text.len() as u64 > MAX_FILE_BYTES => "it has more than 1 MiB".to_owned(),
        Ok(config) if config.name.contains(char::is_control) => {
            "its `name` has characters that cannot be shown".to_owned()
        }
        Ok(config) => return Ok(config),
        Err(e) => e.to_string(),
    };
    Err(refused(format!("{}: {why}", failed())))
}

/// A cache as sysfs describes it.
struct SysfsCache {
    level: u32,
    data: bool,
    size_bytes: u64,
    ways: u32,
}

fn read_cache(dir: &Path) -> Option<SysfsCache> {
    let get = |file: &str| {
        read_to_string(dir.join(file))
            .ok()
            .map(|s| s.trim().to_owned())
    };
    let kib = get("size")?.strip_suffix('K')?.parse::<u64>().ok()?;
    Some(SysfsCache {
        level: get("level")?.parse().ok()?,
        data: get("type")? != "Instruction",
        size_bytes: kib * 1024,
        ways: get("ways_of_associativity")?.parse().ok()?,
    })
}

fn caches() -> Vec<SysfsCache> {
    (0..8)
        .filter_map(|i| read_cache(&Path::new(CACHES).join(format!("index{i}"))))
        .collect()
}

/// The preset whose speeds are nearest to this processor's.
fn nearest_preset() -> &'static str {
    let id = CpuId::new();
    let amd = id
        .get_vendor_info()
        .is_some_and(|v| v.as_str() == "AuthenticAMD");
    let Some(f) = id.get_feature_info() else {
        return "skylake-sp";
    };
    match (amd, f.family_id(), f.model_id()) {
        (true, 0x1a.., _) => "zen5",
        (true, 0x19, 0x10..=0x1f | 0x60..=0xaf) => "zen4",
        (true, 0x17 | 0x19, _) => "zen3",
        (true, ..) => "opteron-6128",
        (false, 6, 0x6a | 0x6c | 0x8f | 0xcf) => "icelake-sp",
        _ => "skylake-sp",
    }
}

/// The first-level data TLB as an AMD processor reports it. Other processors do not report it in
/// one place, and hypervisors often invent the second level. In these cases the values of the
/// preset are used.
fn reported_dtlb() -> Option<TlbConfig> {
    let l1 = CpuId::new().get_l1_cache_and_tlb_info()?;
    let entries = u32::from(l1.dtlb_4k_size());
    (entries > 0).then(|| match l1.dtlb_4k_associativity() {
        raw_cpuid::Associativity::NWay(ways) => TlbConfig::fitted(entries, u32::from(ways)),
        _ => TlbConfig::fitted(entries, 0),
    })
}

fn highest_clock_hz() -> Option<u64> {
    let path = "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq";
    read_to_string(path)
        .ok()?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|khz| khz * 1000)
}

/// This processor: cache geometry from sysfs, first-level TLB and clock where
/// they are reported, everything else from the nearest preset.
pub fn host() -> Config {
    let mut config = Config::preset(nearest_preset())
        .or_else(|| memgauge_machine::presets().first().cloned())
        .expect("SANITY: the preset table is not empty");
    for c in caches().iter().filter(|c| c.data) {
        let place = match c.level {
            1 => &mut config.l1d,
            2 => &mut config.l2,
            _ => &mut config.llc,
        };
        *place = CacheConfig::fitted(c.size_bytes, c.ways, place.latency_cycles);
    }
    config.dtlb = reported_dtlb().unwrap_or(config.dtlb);
    config.frequency_hz = highest_clock_hz().unwrap_or(config.frequency_hz);
    config.name = format!("{} (like {})", memgauge_host::facts().cpu, config.name);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_a_machine_the_model_accepts() {
        machine("host").unwrap();
    }

    /// A name is printed, and an escape sequence in it could change what the terminal shows.
    #[test]
    fn a_name_that_cannot_be_shown_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let mut config = serde_json::to_value(machine("zen5").unwrap()).unwrap();
        for (name, is_fine) in [("mine", true), ("\u{1b}[2J", false)] {
            config["name"] = name.into();
            std::fs::write(path, config.to_string()).unwrap();
            let read = machine(path).map_err(|error| error.to_string());
            assert_eq!(read.is_ok(), is_fine, "{read:?}");
            assert!(read.err().is_none_or(|why| why.contains("cannot be shown")));
        }
    }

    #[test]
    fn an_unknown_name_lists_the_presets() {
        let message = machine("no-such-machine").unwrap_err().to_string();
        assert!(
            message.contains("zen5") && message.contains("no-such-machine"),
            "{message}"
        );
    }
}
