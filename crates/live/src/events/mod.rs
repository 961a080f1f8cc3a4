//! Resolves names of events, as perf spells them, to the kernel's attributes.
//!
//! ```text
//! list      := item (',' item)*
//! item      := '{' list '}' [':' modifiers] | event
//! event     := pmu '/' term (',' term)* '/' [':'] [modifiers]
//!            | 'mem:' address ['/' length] [':' rwx] [':' modifiers]
//!            | 'r' hex [':' modifiers]
//!            | system ':' tracepoint [':' modifiers], each perhaps with * and ?
//!            | name [':' modifiers]
//! ```
//!
//! `syntax` splits the text. `builtin` has the names that every kernel knows, `sysfs` those of this
//! machine's PMUs, whose `format` files say which bits a term sets. Nothing here opens an event, so
//! a name that resolves may still be an event that the machine cannot count.
//!
//! Names that neither knows are looked up in libpfm4 (`sys::pfm`), if it is installed:
//! `RETIRED_INSTRUCTIONS`, `MEM_LOAD_RETIRED:L3_MISS`.
//!
//! Rejected: a table of vendors' events in memgauge. It would be wrong for the next processor. The
//! kernel describes most events, and libpfm4 the rest.

mod suggest;
mod syntax;
mod sysfs;

use memgauge_perf::builtin;
pub use memgauge_perf::builtin::{NamedEvent, all as builtin_events};
pub use suggest::{near_it, nearest};
pub use sysfs::cpu_list;
pub use sysfs::{Alias, Pmus};

use crate::{Error, ErrorKind, Result};
use memgauge_perf::abi::{Attr, flag, kind};
use syntax::{Item, WrittenEvent};

/// An event ready to be opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The name as typed, modifiers included.
    pub name: String,
    /// Attributes to open it with.
    pub attr: Attr,
    /// Modifiers typed after the name.
    pub modifiers: Modifiers,
    /// Factor of a count, for events whose PMU has one.
    pub scale: f64,
    /// Unit of the scaled count; empty for plain counts.
    pub unit: String,
    /// CPUs that it is counted on, for PMUs outside the cores.
    pub cpus: Option<Vec<u32>>,
}

impl Event {
    /// True for a tracepoint of the kernel.
    pub fn is_tracepoint(&self) -> bool {
        self.attr.kind == kind::TRACEPOINT
    }

    /// True if the kernel counts it without a PMU, so that it never competes for a counter.
    pub fn is_software(&self) -> bool {
        matches!(self.attr.kind, kind::SOFTWARE | kind::TRACEPOINT)
    }
}

/// Modifiers after a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modifiers {
    /// `u`, `k`, `h`: count only in these modes. Without any of them, count in all.
    pub modes: Modes,
    /// Number of `p`: precision required.
    pub precise: u8,
    /// `P`: the highest precision there is.
    pub most_precise: bool,
    /// `D`: never multiplexed.
    pub pinned: bool,
    /// `e`: alone on the PMU.
    pub exclusive: bool,
    /// `I`: not in the idle loop.
    pub not_idle: bool,
    /// `W`: the group may be split if the PMU is too small for it.
    pub weak: bool,
}

/// Modes of the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// User space.
    pub user: bool,
    /// Kernel.
    pub kernel: bool,
    /// Hypervisor.
    pub hypervisor: bool,
}

impl Modes {
    fn any(self) -> bool {
        self.user || self.kernel || self.hypervisor
    }
}

impl Modifiers {
    /// Sets the modifiers in an attribute.
    pub fn apply(self, attr: &mut Attr) {
        let mut set = |on: bool, bits: u64| attr.flags |= if on { bits } else { 0 };
        if self.modes.any() {
            set(!self.modes.user, flag::EXCLUDE_USER);
            set(!self.modes.kernel, flag::EXCLUDE_KERNEL);
            set(!self.modes.hypervisor, flag::EXCLUDE_HV);
        }
        set(self.pinned, flag::PINNED);
        set(self.exclusive, flag::EXCLUSIVE);
        set(self.not_idle, flag::EXCLUDE_IDLE);
        attr.flags |= u64::from(self.precise) << flag::PRECISE_SHIFT;
    }
}

/// Events that are counted together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventGroup {
    /// In the order typed.
    pub events: Vec<Event>,
    /// True if the user put them in braces. Then all or none must be counted.
    pub braces: bool,
}

/// Resolves a list of events.
///
/// # Errors
/// The text is not a list of events, or an event is unknown on this machine. The message suggests
/// similar names.
pub fn parse(text: &str, pmus: &Pmus) -> Result<Vec<EventGroup>> {
    let items = syntax::items(text).map_err(|why| unusable(text, &why))?;
    let mut groups = Vec::new();
    for item in &items {
        match item {
            Item::One(event) => groups.extend(resolve_all(event, pmus)?.into_iter().map(|event| {
                let events = vec![event];
                EventGroup {
                    events,
                    braces: false,
                }
            })),
            Item::Group(events) => {
                let named: Vec<Vec<Event>> = events
                    .iter()
                    .map(|event| resolve_all(event, pmus))
                    .collect::<Result<_>>()?;
                groups.push(EventGroup {
                    events: named.into_iter().flatten().collect(),
                    braces: true,
                });
            }
        }
    }
    Ok(groups)
}

/// Returns the event, or all tracepoints that match a pattern such as `sched:*`.
fn resolve_all(written: &WrittenEvent, pmus: &Pmus) -> Result<Vec<Event>> {
    let is_pattern = written.name.contains(':') && written.name.contains(['*', '?']);
    if !is_pattern || written.name.starts_with("mem:") || written.name.ends_with('/') {
        return Ok(vec![resolve(written, pmus)?]);
    }
    let names = pmus
        .matching_tracepoints(&written.name)
        .map_err(|why| unusable(&written.text, &why))?;
    let modifiers = &written.text[written.name.len()..];
    let one = |name: String| {
        let text = format!("{name}{modifiers}");
        let modifiers = written.modifiers;
        resolve(
            &WrittenEvent {
                text,
                name,
                modifiers,
            },
            pmus,
        )
    };
    names.into_iter().map(one).collect()
}

fn unusable(text: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::Usage,
        format!("failed to read events `{text}`: {why}"),
    )
}

fn resolve(written: &WrittenEvent, pmus: &Pmus) -> Result<Event> {
    let mut event = match written.name.as_str() {
        name if name.starts_with("mem:") => breakpoint(name),
        name if name.ends_with('/') => pmus.event(name),
        name if name.contains(':') => {
            let tracepoint = pmus.tracepoint(name);
            let from_vendor = |why| vendor(name).and_then(std::result::Result::ok).ok_or(why);
            tracepoint
                .or_else(from_vendor)
                .map_err(|why| match name.split_once(':') {
                    // The name is known, so the letters after it are wrong.
                    Some((own, letters)) if resolve_name(own, pmus).is_ok() => {
                        syntax::no_modifiers(letters)
                    }
                    _ => why,
                })
        }
        name => resolve_name(name, pmus),
    }
    .map_err(|why| unusable(&written.text, &why))?;
    event.name.clone_from(&written.text);
    event.modifiers = written.modifiers;
    written.modifiers.apply(&mut event.attr);
    Ok(event)
}

fn simple(attr: Attr) -> Event {
    Event {
        name: String::new(),
        attr,
        modifiers: Modifiers::default(),
        scale: 1.0,
        unit: String::new(),
        cpus: None,
    }
}

fn resolve_name(name: &str, pmus: &Pmus) -> std::result::Result<Event, String> {
    if let Some(named) = builtin::find(name) {
        return Ok(simple(Attr::new(named.kind, named.config)));
    }
    if let Some(config) = raw(name) {
        return Ok(simple(Attr::new(kind::RAW, config)));
    }
    if let Some(event) = pmus.by_alias(name) {
        return event;
    }
    if let Some(Ok(event)) = vendor(name) {
        return Ok(event);
    }
    let known = builtin::all().into_iter().map(|n| n.name);
    let aliases = pmus.aliases().into_iter().map(|a| a.name);
    let vendors = crate::sys::pfm::events().into_iter().map(|v| v.name);
    let near = near_it(name, known.chain(aliases).chain(vendors));
    let more = match crate::sys::pfm::is_installed() {
        true => "",
        false => "; vendors' names need libpfm4",
    };
    Err(format!(
        "unknown event `{name}`{near} (see `memgauge list`{more})"
    ))
}

/// An event by its vendor's name, if libpfm4 is installed and knows it.
fn vendor(name: &str) -> Option<std::result::Result<Event, String>> {
    let encoded = crate::sys::pfm::encode(name)?;
    Some(encoded.map(simple))
}

/// `r1a8` is configuration 0x1a8 of the core PMU.
fn raw(name: &str) -> Option<u64> {
    let digits = name.strip_prefix('r')?;
    (!digits.is_empty())
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten()
}

/// A number as C spells it.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// `HW_BREAKPOINT_R`, `_W` and `_X`.
const BREAK_READ: u32 = 1;
const BREAK_WRITE: u32 = 2;
const BREAK_EXECUTE: u32 = 4;

/// `mem:ADDRESS[/LENGTH][:rwx]`.
fn breakpoint(name: &str) -> std::result::Result<Event, String> {
    let mut parts = name["mem:".len()..].split(':');
    let place = parts.next().unwrap_or("");
    let access = parts.next().unwrap_or("rw");
    let (address, length) = place.split_once('/').unwrap_or((place, ""));
    let address = number(address)
        .ok_or_else(|| format!("`{address}` is not an address, as in mem:0x601040/8:w"))?;
    let bp_type = access.chars().try_fold(0, |all, c| match c {
        'r' => Ok(all | BREAK_READ),
        'w' => Ok(all | BREAK_WRITE),
        'x' => Ok(all | BREAK_EXECUTE),
        _ => Err(format!("`{c}` is not one of r, w and x")),
    })?;
    let usual = if bp_type == BREAK_EXECUTE { 8 } else { 4 };
    let length = match length {
        "" => usual,
        text => number(text)
            .filter(|n| [1, 2, 4, 8].contains(n))
            .ok_or_else(|| format!("a breakpoint is 1, 2, 4 or 8 bytes long, not `{text}`"))?,
    };
    let mut event = simple(Attr::new(kind::BREAKPOINT, 0));
    event.attr.bp_type = bp_type;
    event.attr.config1 = address;
    event.attr.config2 = length;
    Ok(event)
}

#[cfg(test)]
mod tests;
