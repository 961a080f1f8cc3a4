//! Lines of valgrind's lackey (`--trace-mem=yes`).
//!
//! ```text
//! I  0401ab73,5                an instruction, its address and bytes;
//!  S 1fff000758,8              then what it stores, loads (L) or modifies (M)
//! ```

use memgauge_trace::AccessKind;

/// Meaning of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LackeyLine {
    /// An instruction fetch.
    Instruction { address: u64 },
    /// A load, store or modify.
    Access {
        kind: AccessKind,
        address: u64,
        bytes: u16,
    },
}

/// Parses a line. `None` if it is none of lackey's.
pub(crate) fn parse(line: &str) -> Option<LackeyLine> {
    let (head, rest) = line.split_at_checked(3)?;
    let (address, bytes) = rest.trim_end().split_once(',')?;
    let address = digits_of(address, 16)?;
    let bytes = bytes.parse().ok()?;
    let kind = match head {
        "I  " => return Some(LackeyLine::Instruction { address }),
        " L " => AccessKind::Load,
        " S " => AccessKind::Store,
        " M " => AccessKind::Modify,
        _ => return None,
    };
    Some(LackeyLine::Access {
        kind,
        address,
        bytes,
    })
}

/// A number without a sign, which `from_str_radix` would accept.
pub(crate) fn digits_of(text: &str, radix: u32) -> Option<u64> {
    let unsigned = text.starts_with(|c: char| c.is_digit(radix));
    unsigned
        .then(|| u64::from_str_radix(text, radix).ok())
        .flatten()
}
