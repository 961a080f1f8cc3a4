//! Regions of interest of samples: a number for each way of being in regions, as `load`,
//! or `parse` within `load`.
//!
//! A sample in a ring has room for 16 bits. So a number stands for a region and the
//! regions around it, as a frame does for a call and its callers.

use std::collections::HashMap;

/// Regions that a sample's thread was in; [`crate::Profiler::region`] has their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u16);

/// A region of interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// The one that the thread entered before, and has not left.
    pub outer: Option<RegionId>,
}

/// All ways of being in regions that there were. Number 0 is none.
#[derive(Debug, Default)]
pub(crate) struct RegionTree {
    regions: Vec<Region>,
    numbers: HashMap<(u16, String), u16>,
    /// Samples whose regions have no number: there are too many ways.
    pub(crate) unnumbered: u64,
}

impl RegionTree {
    /// The number of regions, outermost first; of the outer ones, where there are too
    /// many.
    pub(crate) fn number<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) -> u16 {
        let mut outer = 0;
        for name in names {
            // A look-up by reference needs no copy of the name, but a key of its own.
            let key = (outer, name.to_owned());
            outer = match self.numbers.get(&key) {
                Some(&number) => number,
                None => match u16::try_from(self.regions.len() + 1) {
                    Ok(number) => {
                        let region = Region {
                            name: name.to_owned(),
                            outer: RegionId::of(outer),
                        };
                        self.regions.push(region);
                        self.numbers.insert(key, number);
                        number
                    }
                    Err(_) => {
                        self.unnumbered += 1;
                        return outer;
                    }
                },
            };
        }
        outer
    }

    pub(crate) fn region(&self, id: RegionId) -> Option<Region> {
        let at = usize::from(id.0).checked_sub(1)?;
        self.regions.get(at).cloned()
    }
}

impl RegionId {
    /// `None` for 0.
    pub(crate) fn of(number: u16) -> Option<RegionId> {
        (number > 0).then_some(RegionId(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_region_within_others_and_is_the_same_each_time() {
        let mut tree = RegionTree::default();
        let load = tree.number(["load"]);
        let inner = tree.number(["load", "parse"]);
        let alone = tree.number(["parse"]);
        assert_eq!((load, inner, alone), (1, 2, 3));
        assert_eq!(tree.number(["load", "parse"]), inner);
        assert_eq!(tree.number([]), 0);
        let region = tree.region(RegionId(inner)).expect("it is there");
        assert_eq!(
            (region.name.as_str(), region.outer),
            ("parse", Some(RegionId(load)))
        );
        assert_eq!(tree.region(RegionId(9)), None);
    }

    #[test]
    fn too_many_regions_count_as_the_ones_around_them() {
        let mut tree = RegionTree::default();
        let outer = tree.number(["outer"]);
        for n in 0..70_000 {
            tree.number(["outer", &n.to_string()]);
        }
        assert_eq!(tree.number(["outer", "another"]), outer);
        assert_eq!(tree.unnumbered, 70_000 - 65_534 + 1);
    }
}
