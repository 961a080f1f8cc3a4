//! Regions of interest of samples. Each nesting of regions, such as `load` or `parse` within
//! `load`, has a number.
//!
//! A sample in a ring has 16 bits for it, so the number stands for a region and all regions around
//! it, as a node of a call tree stands for a function and its callers.

use std::collections::HashMap;

/// A region of interest and the regions around it. [`crate::Profiler::region`] returns their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u16);

/// A region of interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Name of the region.
    pub name: String,
    /// The innermost region around this one.
    pub outer: Option<RegionId>,
}

/// All nestings of regions seen so far. Number 0 means no region.
#[derive(Debug, Default)]
pub(crate) struct RoiTree {
    regions: Vec<Region>,
    numbers: HashMap<(u16, String), u16>,
    /// Number of samples whose innermost region has no number because there are too many regions.
    pub(crate) unnumbered: u64,
}

impl RoiTree {
    /// Returns the number of nested regions, given outermost first. If there are too many regions,
    /// this is the number of an outer one.
    pub(crate) fn number<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) -> u16 {
        let mut outer = 0;
        for name in names {
            // A lookup without a copy of the name would need a key type of its own.
            let key = (outer, name.to_owned());
            outer = match self.numbers.get(&key) {
                Some(&number) => number,
                None => match u16::try_from(self.regions.len() + 1) {
                    Ok(number) => {
                        let region = Region {
                            name: name.to_owned(),
                            outer: RegionId::from_number(outer),
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
    /// Returns `None` for 0.
    pub(crate) fn from_number(number: u16) -> Option<RegionId> {
        (number > 0).then_some(RegionId(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_of_regions_has_a_stable_number() {
        let mut tree = RoiTree::default();
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
    fn region_beyond_the_limit_counts_as_its_outer_region() {
        let mut tree = RoiTree::default();
        let outer = tree.number(["outer"]);
        for n in 0..70_000 {
            tree.number(["outer", &n.to_string()]);
        }
        assert_eq!(tree.number(["outer", "another"]), outer);
        assert_eq!(tree.unnumbered, 70_000 - 65_534 + 1);
    }
}
