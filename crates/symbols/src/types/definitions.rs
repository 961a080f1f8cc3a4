//! Types as debug information describes them.
//!
//! References between types are offsets in `.debug_info`, and a type is read when it is first
//! needed: a pointer in one structure would otherwise pull in the types of half the program.

use std::rc::Rc;

use memgauge_analyze::DataType;

/// Offset of a type's entry in `.debug_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TypeRef(pub(super) usize);

/// A type without its qualifiers and typedefs.
#[derive(Clone, Debug, Default)]
pub(super) enum Type {
    /// A type that debug information does not describe, or only declares.
    #[default]
    Unknown,
    /// Number, character, truth value or enumeration.
    Scalar { name: String, bytes: u64 },
    /// Pointer or reference. `None` points to `void`.
    Pointer { to: Option<TypeRef> },
    /// Array of a known or unknown number of elements.
    Array { of: TypeRef, count: Option<u64> },
    /// Function that returns this type.
    Function { returns: Option<TypeRef> },
    /// Structure, class, union or enum of Rust.
    Record(RecordType),
}

/// Structure, class, union or enum of Rust.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordType {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) members: Vec<Member>,
    /// Members overlap.
    pub(super) is_union: bool,
    /// Type that its pointers to bytes point to: the elements of a `RawVec` of Rust.
    pub(super) elements: Option<TypeRef>,
}

/// Member or base class of a record.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// `None` if it is anonymous.
    pub(super) name: Option<String>,
    pub(super) offset: u64,
    pub(super) of: TypeRef,
    pub(super) is_base: bool,
    /// Bytes that contain it, if it is a bit field.
    pub(super) bit_bytes: Option<u64>,
}

/// A type with its members in a row.
#[derive(Clone, Debug)]
pub(super) struct FlatType {
    pub(super) data_type: Rc<DataType>,
    /// As many as there are members.
    pub(super) leaves: Vec<Leaf>,
}

/// A member that has no members.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Arrays of records that contain the leaf, outermost first.
    pub(super) folds: Vec<Fold>,
}

/// An array whose elements are treated as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold {
    pub(super) start: u64,
    pub(super) stride: u64,
    pub(super) count: u64,
}

impl Fold {
    fn apply(self, offset: u64) -> u64 {
        let within = offset.wrapping_sub(self.start);
        match within < self.stride.saturating_mul(self.count) {
            true => self.start + within % self.stride,
            false => offset,
        }
    }
}

impl FlatType {
    /// Index of the member at an offset in the type. An offset behind the end belongs to a last
    /// member of unknown length.
    pub(super) fn member_at(&self, offset: u64) -> Option<usize> {
        let holds = |leaf: &Leaf| {
            let folded = leaf.folds.iter().fold(offset, |at, fold| fold.apply(at));
            (leaf.offset..leaf.offset.saturating_add(leaf.bytes)).contains(&folded)
        };
        let found = self.leaves.iter().position(holds);
        found.or_else(|| {
            let (index, last) = self.leaves.iter().enumerate().next_back()?;
            (last.bytes == 0 && last.offset <= offset).then_some(index)
        })
    }

    /// Whether the last member is an array of unknown length at or before this offset.
    pub(super) fn is_open_at(&self, offset: u64) -> bool {
        let last = self.leaves.last();
        last.is_some_and(|last| last.bytes == 0 && last.offset <= offset)
    }
}
