//! Regions of interest that a thread is in, for every source that sees their marks.
//!
//! A region is entered where its first begin is and left where its last end is: one that
//! begins again within itself, as a recursive function does, is entered once. Regions may
//! overlap; each has all that happens within it.

use glob::Pattern;
use memgauge_trace::{CodeRegion, EventId, Pid, Tid};

use crate::{Error, Result};

/// Names of regions that a user asks for: as they are, or as patterns.
#[derive(Clone, Debug, Default)]
pub struct RequestedNames(Vec<(String, Pattern)>);

impl RequestedNames {
    /// Reads names as in `sort*` that `option` gave.
    ///
    /// # Errors
    /// A pattern is not closed.
    pub fn new(option: &str, names: &[String]) -> Result<RequestedNames> {
        let read = |name: &String| {
            // Two stars are one: names have no folders.
            let text = name.split("**").collect::<Vec<_>>().join("*");
            let pattern = Pattern::new(&text).map_err(|_| {
                Error::usage(format!(
                    "failed to read pattern `{name}` of {option}: it has a `[` without its `]`: \
                     write `[[]` for the character itself"
                ))
            })?;
            Ok((name.clone(), pattern))
        };
        Ok(RequestedNames(
            names.iter().map(read).collect::<Result<_>>()?,
        ))
    }

    /// Whether none were asked for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the name is one of them.
    pub fn holds(&self, name: &str) -> bool {
        let mut all = self.0.iter();
        all.any(|(text, pattern)| text == name || pattern.matches(name))
    }

    /// Those that none of these names is.
    pub fn absent<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
        let is_absent = |(text, pattern): &&(String, Pattern)| {
            let mut names = names.clone();
            !names.any(|name| text == name || pattern.matches(name))
        };
        let absent = self.0.iter().filter(is_absent);
        absent.map(|(text, _)| text.clone()).collect()
    }
}

/// Stays that are kept of a thread, 40 bytes each; more are joined.
pub const MOST_SPANS: usize = 8192;

/// A region that a thread is in.
#[derive(Debug)]
pub struct Open<N, T> {
    /// Name or number.
    pub name: N,
    /// Read when the thread entered.
    pub since: T,
    /// Begins without their ends.
    depth: u32,
}

/// The regions that a thread is in, in order of entry.
#[derive(Debug)]
pub struct OpenRegions<N, T>(Vec<Open<N, T>>);

/// What an end of a region means.
#[derive(Debug)]
pub enum End<N, T> {
    /// The thread has left the region.
    Left(Open<N, T>),
    /// It is still within an earlier begin.
    Within,
    /// The region had not begun.
    Unmatched,
}

impl<N, T> Default for OpenRegions<N, T> {
    fn default() -> OpenRegions<N, T> {
        OpenRegions(Vec::new())
    }
}

impl<N: PartialEq, T> OpenRegions<N, T> {
    /// Begins a region; whether the thread entered it: it was not within it already.
    pub fn begin(&mut self, name: N, since: T) -> bool {
        if let Some(open) = self.0.iter_mut().find(|open| open.name == name) {
            open.depth += 1;
            return false;
        }
        self.0.push(Open {
            name,
            since,
            depth: 1,
        });
        true
    }

    /// Ends a region.
    pub fn end(&mut self, name: &N) -> End<N, T> {
        let Some(at) = self.0.iter().position(|open| open.name == *name) else {
            return End::Unmatched;
        };
        self.0[at].depth -= 1;
        match self.0[at].depth {
            0 => End::Left(self.0.remove(at)),
            _ => End::Within,
        }
    }

    /// The regions that the thread is in.
    pub fn iter(&self) -> std::slice::Iter<'_, Open<N, T>> {
        self.0.iter()
    }

    /// Leaves all.
    pub fn end_all(&mut self) -> std::vec::IntoIter<Open<N, T>> {
        std::mem::take(&mut self.0).into_iter()
    }
}

/// Rows of what a thread did in a region: one of entries and time, one an event.
pub fn rows(
    (pid, tid): (Pid, Tid),
    name: String,
    (entries, time_ns): (u64, u64),
    counts: impl IntoIterator<Item = (EventId, u64)>,
) -> impl Iterator<Item = CodeRegion> {
    let row = CodeRegion {
        pid,
        tid,
        name,
        ..CodeRegion::default()
    };
    let head = CodeRegion {
        entries,
        time_ns,
        ..row.clone()
    };
    let counted = counts.into_iter().map(move |(event, count)| CodeRegion {
        event: Some(event),
        count,
        ..row.clone()
    });
    std::iter::once(head).chain(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_asked_for_by_patterns_and_broken_ones_are_refused() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            RequestedNames::new("--region", &names)
        };
        let asked = names(&["sort*", "load", "**_end", "x[0-9]", "nosuch?"]).unwrap();
        for (name, held) in [
            ("sort_lines", true),
            ("load", true),
            ("loads", false),
            ("the_end", true),
            ("x7", true),
            ("xx", false),
        ] {
            assert_eq!(asked.holds(name), held, "{name}");
        }
        let seen = ["sort", "load", "_end"];
        assert_eq!(asked.absent(seen.into_iter()), ["x[0-9]", "nosuch?"]);
        let refused = names(&["sort["]).unwrap_err().to_string();
        assert!(refused.contains("pattern `sort[` of --region"), "{refused}");
    }

    #[test]
    fn a_region_within_itself_is_entered_once_and_others_end_for_themselves() {
        let mut open = OpenRegions::default();
        assert!(open.begin("a", 1));
        assert!(open.begin("b", 2));
        assert!(!open.begin("a", 3));
        assert!(matches!(open.end(&"a"), End::Within));
        assert!(matches!(open.end(&"a"), End::Left(left) if left.since == 1));
        assert!(matches!(open.end(&"a"), End::Unmatched));
        assert!(open.begin("a", 4));
        let left: Vec<_> = open.end_all().map(|left| (left.name, left.since)).collect();
        assert_eq!(left, [("b", 2), ("a", 4)]);
        assert_eq!(open.iter().count(), 0);
    }
}
