//! Changes to the modelled machine, for `--what-if`.

use std::fmt;
use std::str::FromStr;

use crate::{CacheConfig, Config, ConfigError, Prefetch};

/// A change to a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineChange {
    /// Pages of 2 MiB for all memory.
    HugePages,
    /// All prefetchers of the model enabled.
    Prefetch,
    /// Second-level cache with this many times the sets.
    L2(u32),
    /// Last-level cache with this many times the sets.
    Llc(u32),
    /// Another machine with the same prefetchers enabled.
    Machine(Box<Config>),
}

impl MachineChange {
    /// Changes that apply to every machine: those of `--what-if all`.
    pub const COMMON: [MachineChange; 4] = [
        MachineChange::HugePages,
        MachineChange::Prefetch,
        MachineChange::L2(2),
        MachineChange::Llc(2),
    ];

    /// Returns the changed machine.
    ///
    /// # Errors
    /// Returns an error if the model cannot represent it.
    pub fn apply(&self, config: &Config) -> Result<Config, ConfigError> {
        let mut changed = config.clone();
        match self {
            MachineChange::HugePages => changed.huge_pages = true,
            MachineChange::Prefetch => {
                changed.prefetch = Prefetch {
                    next_line: true,
                    stride: true,
                }
            }
            MachineChange::L2(times) => changed.l2 = larger(&changed.l2, *times),
            MachineChange::Llc(times) => changed.llc = larger(&changed.llc, *times),
            MachineChange::Machine(machine) => {
                changed = (**machine).clone();
                changed.prefetch = config.prefetch;
            }
        }
        changed.validate()?;
        Ok(changed)
    }
}

fn larger(cache: &CacheConfig, times: u32) -> CacheConfig {
    CacheConfig {
        size_bytes: cache.size_bytes.saturating_mul(u64::from(times)),
        ..*cache
    }
}

impl fmt::Display for MachineChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MachineChange::HugePages => f.write_str("huge-pages"),
            MachineChange::Prefetch => f.write_str("prefetch"),
            MachineChange::L2(times) => write!(f, "l2={times}x"),
            MachineChange::Llc(times) => write!(f, "llc={times}x"),
            MachineChange::Machine(machine) => write!(f, "machine={}", machine.name),
        }
    }
}

impl FromStr for MachineChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let times = || {
            let times = value.strip_suffix('x').and_then(|n| n.parse().ok());
            times
                .filter(|n| (2..=64).contains(n))
                .ok_or_else(|| format!("`{text}` needs a factor from 2x to 64x, such as {name}=2x"))
        };
        match name {
            "huge-pages" if value.is_empty() => Ok(MachineChange::HugePages),
            "prefetch" if value.is_empty() => Ok(MachineChange::Prefetch),
            "l2" => times().map(MachineChange::L2),
            "llc" => times().map(MachineChange::Llc),
            "machine" => match Config::preset(value) {
                Some(machine) => Ok(MachineChange::Machine(Box::new(machine))),
                None => {
                    let names = crate::presets().iter().map(|preset| preset.name.as_str());
                    let names = names.collect::<Vec<_>>().join(", ");
                    Err(format!("there is no machine `{value}`: use one of {names}"))
                }
            },
            _ => Err(format!(
                "there is no change `{text}`: use huge-pages, prefetch, l2=2x, llc=2x, \
                 machine=NAME, all, pad=TYPE, split=TYPE.MEMBER or reorder=TYPE"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_they_are_written() {
        let all = ["huge-pages", "prefetch", "l2=4x", "llc=2x", "machine=zen4"];
        for text in all {
            assert_eq!(text.parse::<MachineChange>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "l2",
            "l2=1x",
            "llc=3",
            "huge-pages=2",
            "machine=pentium",
        ] {
            assert!(text.parse::<MachineChange>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_larger_cache_has_more_sets() {
        let machine = Config::preset("zen4").unwrap();
        let changed = MachineChange::Llc(4).apply(&machine).unwrap();
        assert_eq!(changed.llc.sets(), 4 * machine.llc.sets());
        assert_eq!(changed.llc.ways, machine.llc.ways);
        assert_eq!(changed.l2, machine.l2);
        assert!(MachineChange::Llc(64).apply(&changed).is_err(), "8 GiB");
    }
}
