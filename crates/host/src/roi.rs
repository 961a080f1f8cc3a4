//! Regions of interest that a thread has entered. Used by all sources that see marks.
//!
//! A region is entered at its first begin and left at its last end, so a recursive function enters
//! it once. Regions may overlap, and each contains everything that happens inside it.

use glob::Pattern;
use memgauge_trace::{CodeRegion, EventId};

use crate::{Error, Result};

/// Names of regions or functions that a user requested, literally or as patterns.
#[derive(Clone, Debug, Default)]
pub struct RequestedNames(Vec<(String, Pattern)>);

impl RequestedNames {
    /// Parses names such as `sort*`, which `option` gave.
    ///
    /// # Errors
    /// A pattern has an unclosed bracket.
    pub fn new(option: &str, names: &[String]) -> Result<RequestedNames> {
        let read = |name: &String| {
            // `**` only has a meaning for paths. Names have no folders.
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

    /// True if no names were requested.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the name was requested.
    pub fn holds(&self, name: &str) -> bool {
        let mut all = self.0.iter();
        all.any(|(text, pattern)| text == name || pattern.matches(name))
    }

    /// Requested names that match none of these names.
    pub fn unmatched<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
        let is_unmatched = |(text, pattern): &&(String, Pattern)| {
            let mut names = names.clone();
            !names.any(|name| text == name || pattern.matches(name))
        };
        let unmatched = self.0.iter().filter(is_unmatched);
        unmatched.map(|(text, _)| text.clone()).collect()
    }
}

/// Maximum number of spans to keep for each thread, 40 bytes each. Further ones are merged.
pub const MAX_SPANS: usize = 8192;

/// A region that a thread has entered.
#[derive(Debug)]
pub struct OpenRegion<N, T> {
    /// Name or number of the region.
    pub name: N,
    /// Counters or time when the thread entered it.
    pub since: T,
    /// Number of begins without an end.
    depth: u32,
}

/// Regions that a thread has entered, in order of entry.
#[derive(Debug)]
pub struct OpenRegions<N, T>(Vec<OpenRegion<N, T>>);

/// Effect of the end of a region.
#[derive(Debug)]
pub enum RegionEnd<N, T> {
    /// The thread left the region.
    Left(OpenRegion<N, T>),
    /// The region continues because of an earlier begin.
    Within,
    /// The region was not entered.
    Unmatched,
}

impl<N, T> Default for OpenRegions<N, T> {
    fn default() -> OpenRegions<N, T> {
        OpenRegions(Vec::new())
    }
}

impl<N: PartialEq, T> OpenRegions<N, T> {
    /// Begins a region. Returns true if the thread was not inside it before.
    pub fn begin(&mut self, name: N, since: T) -> bool {
        if let Some(open) = self.0.iter_mut().find(|open| open.name == name) {
            open.depth += 1;
            return false;
        }
        self.0.push(OpenRegion {
            name,
            since,
            depth: 1,
        });
        true
    }

    /// Ends a region.
    pub fn end(&mut self, name: &N) -> RegionEnd<N, T> {
        let Some(at) = self.0.iter().position(|open| open.name == *name) else {
            return RegionEnd::Unmatched;
        };
        self.0[at].depth -= 1;
        match self.0[at].depth {
            0 => RegionEnd::Left(self.0.remove(at)),
            _ => RegionEnd::Within,
        }
    }

    /// The regions that the thread is inside.
    pub fn iter(&self) -> std::slice::Iter<'_, OpenRegion<N, T>> {
        self.0.iter()
    }

    /// Leaves all regions.
    pub fn end_all(&mut self) -> std::vec::IntoIter<OpenRegion<N, T>> {
        std::mem::take(&mut self.0).into_iter()
    }
}

/// Rows about a thread's activity in a region: `row` with entries and time, and one for each event.
pub fn rows(
    row: CodeRegion,
    counts: impl IntoIterator<Item = (EventId, u64)>,
) -> impl Iterator<Item = CodeRegion> {
    let event_row = CodeRegion {
        entries: 0,
        time_ns: 0,
        ..row.clone()
    };
    let counted = counts.into_iter().map(move |(event, count)| CodeRegion {
        event: Some(event),
        count,
        ..event_row.clone()
    });
    std::iter::once(row).chain(counted)
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
        assert_eq!(asked.unmatched(seen.into_iter()), ["x[0-9]", "nosuch?"]);
        let refused = names(&["sort["]).unwrap_err().to_string();
        assert!(refused.contains("pattern `sort[` of --region"), "{refused}");
    }

    #[test]
    fn a_region_within_itself_is_entered_once_and_others_end_for_themselves() {
        let mut open = OpenRegions::default();
        assert!(open.begin("a", 1));
        assert!(open.begin("b", 2));
        assert!(!open.begin("a", 3));
        assert!(matches!(open.end(&"a"), RegionEnd::Within));
        assert!(matches!(open.end(&"a"), RegionEnd::Left(left) if left.since == 1));
        assert!(matches!(open.end(&"a"), RegionEnd::Unmatched));
        assert!(open.begin("a", 4));
        let left: Vec<_> = open.end_all().map(|left| (left.name, left.since)).collect();
        assert_eq!(left, [("b", 2), ("a", 4)]);
        assert_eq!(open.iter().count(), 0);
    }
}
