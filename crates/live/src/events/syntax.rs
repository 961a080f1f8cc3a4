//! Splits a list of events into names and modifiers, without resolving the names.

use super::{Modes, Modifiers};

/// An event as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WrittenEvent {
    /// The whole text.
    pub(super) text: String,
    /// The text without modifiers.
    pub(super) name: String,
    pub(super) modifiers: Modifiers,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    One(WrittenEvent),
    Group(Vec<WrittenEvent>),
}

type Parsed<T> = Result<T, String>;

pub(super) fn items(text: &str) -> Parsed<Vec<Item>> {
    if text.trim().is_empty() {
        return Err("the list is empty".to_owned());
    }
    split_list(text)?.into_iter().map(item).collect()
}

/// Splits at commas outside braces and slashes.
fn split_list(text: &str) -> Parsed<Vec<&str>> {
    let (mut parts, mut start, mut depth, mut in_terms) = (Vec::new(), 0, 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '{' if depth == 1 => return Err("groups cannot hold groups".to_owned()),
            '{' => depth += 1,
            '}' if depth == 0 => return Err("`}` closes nothing".to_owned()),
            '}' => depth -= 1,
            '/' if text[start..at].contains("mem:") => {}
            '/' => in_terms = !in_terms,
            ',' if depth == 0 && !in_terms => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    match (depth, in_terms) {
        (0, false) => {}
        (0, true) => return Err("a `/` is not closed".to_owned()),
        _ => return Err("a `{` is not closed".to_owned()),
    }
    parts.push(text[start..].trim());
    match parts.iter().any(|part| part.is_empty()) {
        true => Err("there is no event between two commas".to_owned()),
        false => Ok(parts),
    }
}

fn item(text: &str) -> Parsed<Item> {
    let Some(inner) = text.strip_prefix('{') else {
        return event(text).map(Item::One);
    };
    let (inner, suffix) = inner.split_once('}').ok_or("a `{` is not closed")?;
    let shared = suffix.strip_prefix(':').unwrap_or(suffix);
    let shared = modifiers(shared).ok_or_else(|| no_modifiers(shared))?;
    let events = split_list(inner)?.into_iter().map(|text| {
        let mut event = event(text)?;
        event.modifiers = merged(event.modifiers, shared);
        Ok(event)
    });
    events.collect::<Parsed<_>>().map(Item::Group)
}

fn event(text: &str) -> Parsed<WrittenEvent> {
    let (name, modifiers) = match text.rfind('/') {
        Some(slash) if !text.starts_with("mem:") => split_after_slash(text, slash)?,
        _ => split_after_colon(text)?,
    };
    if name.is_empty() {
        return Err("there is no name before the modifiers".to_owned());
    }
    Ok(WrittenEvent {
        text: text.to_owned(),
        name,
        modifiers,
    })
}

fn split_after_slash(text: &str, slash: usize) -> Parsed<(String, Modifiers)> {
    let letters = &text[slash + 1..];
    let letters = letters.strip_prefix(':').unwrap_or(letters);
    let modifiers = modifiers(letters).ok_or_else(|| no_modifiers(letters))?;
    Ok((text[..=slash].to_owned(), modifiers))
}

/// Splits off the part after the last colon if it can be modifiers. In `sched:sched_switch` it
/// cannot. The `:rw` of a breakpoint is not a modifier either. It comes before the modifiers.
fn split_after_colon(text: &str) -> Parsed<(String, Modifiers)> {
    let Some((name, letters)) = text.rsplit_once(':') else {
        return Ok((text.to_owned(), Modifiers::default()));
    };
    let whole = Ok((text.to_owned(), Modifiers::default()));
    let is_access = || letters.chars().all(|c| "rwx".contains(c));
    if name == "mem" || (text.starts_with("mem:") && is_access()) {
        return whole;
    }
    match modifiers(letters) {
        Some(modifiers) => Ok((name.to_owned(), modifiers)),
        // A tracepoint, a vendor's event with its mask, or an unknown name.
        None if !name.contains(':') || is_mask(letters) => whole,
        None => Err(no_modifiers(letters)),
    }
}

/// Masks of vendors' events have capital letters, or a value (`c=1`).
fn is_mask(letters: &str) -> bool {
    let plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    letters.contains('=') || letters.len() > 1 && letters.chars().all(plain)
}

pub(super) fn no_modifiers(letters: &str) -> String {
    format!("`{letters}` are not modifiers (u, k, h, p, pp, ppp, P, D, e, I, W, S, G, H)")
}

fn modifiers(letters: &str) -> Option<Modifiers> {
    let mut all = Modifiers::default();
    for c in letters.chars() {
        match c {
            'u' => all.modes.user = true,
            'k' => all.modes.kernel = true,
            'h' => all.modes.hypervisor = true,
            'p' if all.precise < 3 => all.precise += 1,
            'P' => all.most_precise = true,
            'D' => all.pinned = true,
            'e' => all.exclusive = true,
            'I' => all.not_idle = true,
            'W' => all.weak = true,
            // memgauge reads the whole group at each sample anyway, and leaves guests and hosts
            // to the kernel's default.
            'S' | 'G' | 'H' => {}
            _ => return None,
        }
    }
    Some(all)
}

fn merged(own: Modifiers, of_group: Modifiers) -> Modifiers {
    let modes = Modes {
        user: own.modes.user || of_group.modes.user,
        kernel: own.modes.kernel || of_group.modes.kernel,
        hypervisor: own.modes.hypervisor || of_group.modes.hypervisor,
    };
    Modifiers {
        modes,
        precise: own.precise.max(of_group.precise),
        most_precise: own.most_precise || of_group.most_precise,
        pinned: own.pinned || of_group.pinned,
        exclusive: own.exclusive || of_group.exclusive,
        not_idle: own.not_idle || of_group.not_idle,
        weak: own.weak || of_group.weak,
    }
}
