//! Detects that the shares of memory regions rest on too few samples.
//!
//! A timer sample has a data address only where the code around it has an operand whose
//! registers are still intact. If the hottest code has no such operand, the region table
//! describes other code, and its shares mislead however many samples it has.

use crate::code::hotspots::HotTable;
use crate::data::regions::{AddressGap, RegionTable, UnaddressedFunction};

/// Share of samples that a function must have before its lack of addresses matters.
const HOT_SHARE: f64 = 0.1;

/// Returns the gap of a region table, or `None` if at least half of all samples, and of each
/// hot function's samples, have an address.
pub(crate) fn address_gap(regions: &RegionTable, functions: &HotTable) -> Option<AddressGap> {
    let samples = regions.samples + regions.samples_without_address;
    let function = match functions.rank == regions.event {
        true => unaddressed_function(functions),
        false => None,
    };
    let is_gap = is_minority(regions.samples, samples) || function.is_some();
    is_gap.then_some(AddressGap {
        samples,
        with_address: regions.samples,
        function,
    })
}

fn unaddressed_function(functions: &HotTable) -> Option<UnaddressedFunction> {
    functions.rows.iter().find_map(|row| {
        let share = row.share.filter(|&share| share >= HOT_SHARE)?;
        let (samples, with_address) = (row.samples?, row.samples_with_address?);
        is_minority(with_address, samples).then(|| UnaddressedFunction {
            name: row.function.clone(),
            module: row.module.clone(),
            share,
            samples,
            with_address,
        })
    })
}

fn is_minority(part: u64, all: u64) -> bool {
    2 * part < all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::hotspots::HotRow;

    fn function(name: &str, share: f64, samples: u64, with_address: u64) -> HotRow {
        HotRow {
            function: name.to_owned(),
            share: Some(share),
            samples: Some(samples),
            samples_with_address: Some(with_address),
            ..HotRow::default()
        }
    }

    fn gap(samples: u64, samples_without_address: u64, rows: Vec<HotRow>) -> Option<AddressGap> {
        let regions = RegionTable {
            event: "cpu-clock".to_owned(),
            samples,
            samples_without_address,
            ..RegionTable::default()
        };
        let functions = HotTable {
            rank: "cpu-clock".to_owned(),
            rows,
            ..HotTable::default()
        };
        address_gap(&regions, &functions)
    }

    #[test]
    fn the_hottest_function_without_addresses_is_named_even_if_most_samples_have_one() {
        let rows = vec![
            function("sum", 0.55, 55, 55),
            function("chase", 0.45, 45, 4),
        ];
        let found = gap(59, 41, rows).expect("a gap");
        assert_eq!((found.samples, found.with_address), (100, 59));
        let function = found.function.expect("a function");
        assert_eq!(function.name, "chase");
        assert_eq!((function.samples, function.with_address), (45, 4));
    }

    #[test]
    fn many_cool_functions_without_addresses_are_a_gap_without_a_name() {
        let cool = |i| function(&format!("f{i}"), 0.05, 5, 2);
        let found = gap(40, 60, (0..20).map(cool).collect()).expect("a gap");
        assert_eq!(found.function, None);
    }

    #[test]
    fn half_of_the_samples_with_an_address_are_enough() {
        assert_eq!(gap(50, 50, vec![function("f", 1.0, 100, 50)]), None);
        // Counted events have no samples at all.
        assert_eq!(gap(0, 0, vec![HotRow::default()]), None);
    }
}
