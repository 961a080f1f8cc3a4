//! The PMUs of this machine, as the kernel describes them in `/sys/bus/event_source/devices`. Each
//! has a folder with its number (`type`), the bits that its terms set (`format/`), its named events
//! (`events/`), and the CPUs on which it is read (`cpumask`).

use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

use super::{Event, near_it, nearest, number, simple};
use memgauge_perf::abi::{Attr, kind};

/// Directories with the descriptions.
#[derive(Clone, Debug)]
pub struct Pmus {
    devices: PathBuf,
    tracepoints: Vec<PathBuf>,
}

/// A named event of a PMU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alias {
    /// The PMU.
    pub pmu: String,
    /// The event.
    pub name: String,
    /// Terms that it stands for.
    pub terms: String,
}

impl Default for Pmus {
    fn default() -> Self {
        Pmus {
            devices: "/sys/bus/event_source/devices".into(),
            tracepoints: vec![
                "/sys/kernel/tracing/events".into(),
                "/sys/kernel/debug/tracing/events".into(),
            ],
        }
    }
}

type Parsed<T> = Result<T, String>;

fn text(path: &Path) -> Option<String> {
    read_to_string(path).ok().map(|s| s.trim().to_owned())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// True for files that describe an event and are not events themselves.
fn is_property(name: &str) -> bool {
    [".scale", ".unit", ".per-pkg", ".snapshot"]
        .iter()
        .any(|suffix| name.ends_with(suffix))
}

impl Pmus {
    /// Reads the descriptions from other directories, for tests.
    pub fn from_dirs(devices: &Path, tracepoints: &Path) -> Pmus {
        Pmus {
            devices: devices.to_owned(),
            tracepoints: vec![tracepoints.to_owned()],
        }
    }

    /// Names of the PMUs.
    pub fn names(&self) -> Vec<String> {
        names(&self.devices)
    }

    /// Names and bits of a PMU's terms.
    pub fn formats(&self, pmu: &str) -> Vec<(String, String)> {
        let folder = self.devices.join(pmu).join("format");
        let both = |name: String| text(&folder.join(&name)).map(|bits| (name, bits));
        names(&folder).into_iter().filter_map(both).collect()
    }

    /// Named events of all PMUs.
    pub fn aliases(&self) -> Vec<Alias> {
        let of = |pmu: String| {
            let folder = self.devices.join(&pmu).join("events");
            let names = names(&folder).into_iter().filter(|n| !is_property(n));
            let aliases = names.filter_map(move |name| {
                let terms = text(&folder.join(&name))?;
                let pmu = pmu.clone();
                Some(Alias { pmu, name, terms })
            });
            aliases.collect::<Vec<_>>()
        };
        self.names().into_iter().flat_map(of).collect()
    }

    /// The event with this name in any PMU.
    pub(super) fn by_alias(&self, name: &str) -> Option<Parsed<Event>> {
        let alias = self.aliases().into_iter().find(|a| a.name == name)?;
        Some(self.event(&format!("{}/{name}/", alias.pmu)))
    }

    /// `pmu/term,term=value/`.
    pub(super) fn event(&self, name: &str) -> Parsed<Event> {
        let (pmu, terms) = name.split_once('/').unwrap_or((name, ""));
        let terms = terms.strip_suffix('/').unwrap_or(terms);
        if terms.contains('/') {
            return Err("an event has two slashes: pmu/terms/".to_owned());
        }
        let mut event = simple(Attr::new(self.number_of(pmu)?, 0));
        event.cpus = self.cpus(pmu);
        self.set_terms(pmu, terms, &mut event, true)?;
        Ok(event)
    }

    /// Number of a PMU (`perf_event_attr.type`).
    pub fn number(&self, pmu: &str) -> Option<u32> {
        text(&self.devices.join(pmu).join("type"))?.parse().ok()
    }

    fn number_of(&self, pmu: &str) -> Parsed<u32> {
        let number = self.number(pmu);
        let valid = !pmu.is_empty() && !pmu.starts_with('.');
        number.filter(|_| valid).ok_or_else(|| {
            let mut near = nearest(pmu, self.names().into_iter(), 3);
            if near.is_empty() {
                near = self.names();
            }
            let is_core = matches!(pmu, "cpu" | "cpu_core" | "cpu_atom");
            let why = if is_core {
                ": this machine has no core PMU"
            } else {
                ""
            };
            format!(
                "there is no PMU `{pmu}`{why}; there are {}",
                near.join(", ")
            )
        })
    }

    /// CPUs on which the PMU must be read, one for each part of the machine.
    fn cpus(&self, pmu: &str) -> Option<Vec<u32>> {
        cpu_list(&text(&self.devices.join(pmu).join("cpumask"))?)
    }

    /// Sets the terms of an event. With `allow_aliases` a term may be the name of an event. Within
    /// the description of an event it may not, or the descriptions could be recursive.
    fn set_terms(
        &self,
        pmu: &str,
        terms: &str,
        event: &mut Event,
        allow_aliases: bool,
    ) -> Parsed<()> {
        for term in terms.split(',').map(str::trim).filter(|t| !t.is_empty()) {
            let (name, value) = term.split_once('=').unwrap_or((term, ""));
            let alias = self.devices.join(pmu).join("events").join(name);
            let is_name = !name.contains(['/', '.']) || !name.starts_with('.');
            match (allow_aliases && value.is_empty() && is_name, text(&alias)) {
                (true, Some(terms)) => {
                    self.set_terms(pmu, &terms, event, false)?;
                    self.set_scale(&alias, event);
                }
                _ => self.set_term(pmu, name, value, &mut event.attr)?,
            }
        }
        Ok(())
    }

    fn set_scale(&self, alias: &Path, event: &mut Event) {
        let property = |suffix| {
            let mut path = alias.as_os_str().to_owned();
            path.push(suffix);
            text(Path::new(&path))
        };
        if let Some(scale) = property(".scale").and_then(|s| s.parse::<f64>().ok()) {
            event.scale = scale;
        }
        if let Some(unit) = property(".unit") {
            event.unit = unit;
        }
    }

    fn set_term(&self, pmu: &str, name: &str, value: &str, attr: &mut Attr) -> Parsed<()> {
        let bare = value.is_empty();
        let value = match bare {
            true => 1,
            false => {
                number(value).ok_or_else(|| format!("`{value}` of `{name}` is not a number"))?
            }
        };
        match name {
            "config" => attr.config = value,
            "config1" => attr.config1 = value,
            "config2" => attr.config2 = value,
            "config3" => attr.config3 = value,
            "period" => attr.period = value,
            _ => {
                let bits = self.bits_of(pmu, name)?;
                return set_bits(&bits, name, value, attr);
            }
        }
        Ok(())
    }

    fn bits_of(&self, pmu: &str, name: &str) -> Parsed<String> {
        let formats = self.formats(pmu);
        let found = formats.iter().find(|f| f.0 == name).map(|f| f.1.clone());
        found.ok_or_else(|| {
            let terms: Vec<String> = formats.into_iter().map(|f| f.0).collect();
            format!(
                "PMU `{pmu}` has no term `{name}`; it has {}",
                terms.join(", ")
            )
        })
    }

    /// `system:name`, by the number the kernel gives it.
    pub(super) fn tracepoint(&self, name: &str) -> Parsed<Event> {
        let (system, event) = name.split_once(':').unwrap_or((name, ""));
        let valid = |part: &str| !part.is_empty() && !part.contains(['/', '.', '*']);
        if !valid(system) || !valid(event) {
            return Err(format!(
                "`{name}` is not a tracepoint, as in sched:sched_switch"
            ));
        }
        let path = |root: &PathBuf| root.join(system).join(event).join("id");
        let id = self
            .tracepoints
            .iter()
            .find_map(|root| text(&path(root))?.parse().ok());
        let id = id.ok_or_else(|| self.no_tracepoint(name))?;
        Ok(simple(Attr::new(kind::TRACEPOINT, id)))
    }

    fn no_tracepoint(&self, name: &str) -> String {
        let readable = self.tracepoints.iter().any(|root| read_dir(root).is_ok());
        match readable {
            true => {
                let near = near_it(name, self.all_tracepoints());
                format!("there is no tracepoint `{name}`{near}")
            }
            false => {
                let fix = match rustix::process::geteuid().is_root() {
                    true => "mount tracefs",
                    false => "run as root, with tracefs mounted",
                };
                format!(
                    "tracepoints cannot be read: {fix} (mount -t tracefs tracefs \
                     /sys/kernel/tracing)"
                )
            }
        }
    }

    /// Names of all tracepoints that match a pattern, at least one.
    pub(super) fn matching_tracepoints(&self, pattern: &str) -> Parsed<Vec<String>> {
        let has_id = |name: &String| {
            let path = name.replacen(':', "/", 1) + "/id";
            self.tracepoints
                .iter()
                .any(|root| root.join(&path).exists())
        };
        let matches =
            |name: &String| matches_pattern(pattern.as_bytes(), name.as_bytes()) && has_id(name);
        let mut names: Vec<String> = self.all_tracepoints().filter(matches).collect();
        // Both directories may have the same tracepoints.
        names.sort();
        names.dedup();
        match names.is_empty() {
            true => Err(self.no_tracepoint(pattern)),
            false => Ok(names),
        }
    }

    fn all_tracepoints(&self) -> impl Iterator<Item = String> {
        self.tracepoints.iter().flat_map(|root| {
            names(root).into_iter().flat_map(move |system| {
                let inside = names(&root.join(&system)).into_iter();
                inside.map(move |event| format!("{system}:{event}"))
            })
        })
    }
}

/// True if the name matches the pattern, in which `*` is any text and `?` any character.
fn matches_pattern(pattern: &[u8], name: &[u8]) -> bool {
    // Position of the last star, and the end of the text that it matches so far. Only the last star
    // may have to match more, so the time is at most the product of the lengths.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((at, matched)) = star else {
                    return false;
                };
                star = Some((at, matched + 1));
                (p, n) = (at + 1, matched + 1);
            }
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

/// Parses a list such as `0-3,8`. Numbers are bounded, since the list comes from a file.
pub fn cpu_list(text: &str) -> Option<Vec<u32>> {
    const MAX_CPU: u32 = 1 << 16;
    let mut all = Vec::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last >= MAX_CPU || first > last {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Distributes a value over the bits that a format file names, the lowest first. With
/// `config:0-7,32-35` these are eight bits and then four.
fn set_bits(format: &str, name: &str, value: u64, attr: &mut Attr) -> Parsed<()> {
    let broken = || format!("the kernel's format `{format}` of term `{name}` is not understood");
    let (word, ranges) = format.split_once(':').ok_or_else(broken)?;
    let word = match word {
        "config" => &mut attr.config,
        "config1" => &mut attr.config1,
        "config2" => &mut attr.config2,
        "config3" => &mut attr.config3,
        _ => return Err(broken()),
    };
    let bits = cpu_list(ranges).ok_or_else(broken)?;
    if bits.iter().any(|&bit| bit >= 64) || bits.len() > 64 {
        return Err(broken());
    }
    if bits.len() < 64 && value >> bits.len() != 0 {
        return Err(format!(
            "{value:#x} is too large for `{name}`, which has {} bits",
            bits.len()
        ));
    }
    for (index, bit) in bits.iter().enumerate() {
        *word = *word & !(1 << bit) | (value >> index & 1) << bit;
    }
    Ok(())
}
