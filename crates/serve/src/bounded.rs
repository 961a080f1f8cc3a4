//! Names from outside as values of a label: the first so many, all others together.

use std::collections::BTreeSet;

/// Name for all that are not named.
pub const OTHER: &str = "other";

/// Values of a label that is open to the world.
///
/// A name that has a place keeps it, so that each counter only grows; those that come
/// when all places are taken are `other` for good. Rejected: the largest so many of each
/// moment (a counter would vanish and begin anew elsewhere).
#[derive(Debug)]
pub struct Bounded {
    most: usize,
    names: BTreeSet<String>,
}

impl Bounded {
    /// Room for so many names.
    pub fn new(most: usize) -> Bounded {
        Bounded {
            most,
            names: BTreeSet::new(),
        }
    }

    /// The label's value for a name.
    pub fn value<'a>(&mut self, name: &'a str) -> &'a str {
        if self.names.contains(name) {
            return name;
        }
        if self.names.len() >= self.most || name == OTHER || name.is_empty() {
            return OTHER;
        }
        self.names.insert(name.to_owned());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_names_keep_their_places() {
        let mut bounded = Bounded::new(2);
        assert_eq!(bounded.value("a"), "a");
        assert_eq!(bounded.value(""), OTHER);
        assert_eq!(bounded.value(OTHER), OTHER);
        assert_eq!(bounded.value("b"), "b");
        for _ in 0..2 {
            assert_eq!(bounded.value("c"), OTHER);
            assert_eq!(bounded.value("a"), "a");
            assert_eq!(bounded.value("b"), "b");
        }
    }
}
