//! Machine code of the hottest functions, with the cost of each instruction.
//!
//! A listing starts from a hot instruction, so a function that was inlined everywhere appears in
//! the function that contains its code. A long function is cut to the part around that
//! instruction.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::code::address_spaces::{PathId, is_file};
use crate::code::hotspots::{Rank, module_of};
use crate::code::sites::SiteTotals;
use crate::counts::{Counts, EventNames, EventSums};
use crate::resolve::{Instruction, Resolve};

/// Maximum number of listings.
const LISTINGS: usize = 6;
/// Maximum number of instructions of a listing.
const INSTRUCTIONS: usize = 200;
/// Minimum share of the sort order in per cent for an instruction to have its function listed.
const LEAST_PERCENT: u64 = 1;

/// Machine code of a function.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CodeListing {
    /// The function that contains the code. Others may be inlined into it.
    pub function: String,
    /// Path of its file.
    pub module: String,
    /// Instructions by address. Empty if the code cannot be read.
    pub instructions: Vec<ListedInstruction>,
    /// Number of further instructions of the function.
    pub omitted: u64,
    /// Reason for missing instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// An instruction and its cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ListedInstruction {
    /// Byte offset in the file.
    pub offset: u64,
    /// Address as in the file's symbols, which branches refer to.
    pub address: u64,
    /// The instruction in AT&T syntax, as in perf and objdump.
    pub text: String,
    /// Source file of the innermost function, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Line in the source file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Value of the tables' sort order.
    pub value: u64,
    /// Count of every event by name.
    pub counts: Counts,
}

/// Listings of the functions with the hottest instructions.
pub(crate) fn listings(
    sites: &SiteTotals,
    symbols: &mut dyn Resolve,
    names: &EventNames,
    rank: &Rank,
) -> Vec<CodeListing> {
    let spaces = sites.spaces;
    let mut by_place: BTreeMap<(PathId, u64), &EventSums> = BTreeMap::new();
    let mut hottest: Vec<(u64, (PathId, u64))> = Vec::new();
    for (place, tally, _) in &sites.rows {
        by_place.insert(*place, tally);
        hottest.push((tally.sum(&rank.events), *place));
    }
    hottest.sort_by_key(|&(value, place)| (std::cmp::Reverse(value), place));
    let least = sites.totals.sum(&rank.events).saturating_mul(LEAST_PERCENT) / 100;
    let mut listings: Vec<CodeListing> = Vec::new();
    let mut covered: Vec<(PathId, std::ops::RangeInclusive<u64>)> = Vec::new();
    for (_, place) in hottest.into_iter().take_while(|&(value, _)| value > least) {
        let (id, offset) = place;
        let is_covered = covered
            .iter()
            .any(|(path, range)| *path == id && range.contains(&offset));
        if is_covered || !is_file(spaces.path(id)) {
            continue;
        }
        if listings.len() == LISTINGS {
            break;
        }
        let file = spaces.file(id);
        let symbol = symbols.resolve(file, offset).unwrap_or_default();
        let outermost = symbol
            .inlined_into
            .last()
            .map(|caller| caller.function.clone());
        let mut listing = CodeListing {
            function: outermost.unwrap_or(symbol.name),
            module: module_of(spaces, place).to_owned(),
            ..CodeListing::default()
        };
        match symbols.disassemble(file, offset) {
            Ok(code) => {
                let first = code.first().map_or(offset, |i| i.offset);
                let last = code.last().map_or(offset, |i| i.offset);
                covered.push((id, first..=last));
                let shown = around(&code, offset);
                listing.omitted = (code.len() - shown.len()) as u64;
                for instruction in shown {
                    let at = symbols
                        .resolve(file, instruction.offset)
                        .unwrap_or_default();
                    let tally = by_place.get(&(id, instruction.offset));
                    listing.instructions.push(ListedInstruction {
                        offset: instruction.offset,
                        address: instruction.address,
                        text: instruction.text.clone(),
                        file: at.file,
                        line: at.line,
                        value: tally.map_or(0, |tally| tally.sum(&rank.events)),
                        counts: tally.map_or_else(Counts::default, |tally| tally.named(names)),
                    });
                }
            }
            Err(why) => {
                let is_known = |known: &CodeListing| {
                    (&known.function, &known.module) == (&listing.function, &listing.module)
                };
                if listings.iter().any(is_known) {
                    continue;
                }
                listing.missing = Some(why);
            }
        }
        listings.push(listing);
    }
    listings
}

/// At most [`INSTRUCTIONS`] instructions around the one at `offset`.
fn around(code: &[Instruction], offset: u64) -> &[Instruction] {
    let hot = code.partition_point(|instruction| instruction.offset < offset);
    let last_start = code.len().saturating_sub(INSTRUCTIONS);
    let start = hot.saturating_sub(INSTRUCTIONS / 2).min(last_start);
    &code[start..code.len().min(start + INSTRUCTIONS)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_function_is_listed_around_its_hot_instruction() {
        let code: Vec<Instruction> = (0..1000)
            .map(|i| Instruction {
                offset: 4 * i,
                ..Instruction::default()
            })
            .collect();
        let ends = |offset| {
            let shown = around(&code, offset);
            (shown.len(), shown[0].offset / 4)
        };
        assert_eq!(ends(2000), (200, 400));
        assert_eq!(ends(0), (200, 0));
        assert_eq!(ends(3996), (200, 800));
        assert_eq!(around(&code[..7], 8).len(), 7);
    }
}
