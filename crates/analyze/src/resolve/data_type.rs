//! Types of data as debug information describes them, and which of them an instruction accesses.

use std::rc::Rc;

use serde::Serialize;

/// A type with its members in a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataType {
    /// Name with namespaces: `node`, `shapes::Circle`, `long`.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Members by offset. An inner structure is replaced by its members: `inner.x`. Empty for a type
    /// without members.
    pub members: Vec<TypeMember>,
    /// Bytes that are in no member, by offset.
    pub holes: Vec<TypeHole>,
}

/// A member of a type.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeMember {
    /// Name within the type: `next`, `inner.x`, `slots[].key`, `Base::x`.
    pub name: String,
    /// Name of its type.
    pub type_name: String,
    /// Offset in the type. In an array of structures, that in its first element.
    pub offset: u64,
    /// Size in bytes. 0 for an array of unknown length at the end.
    pub bytes: u64,
    /// How often it occurs: once for each element of the arrays of structures that contain it.
    pub count: u64,
}

/// Bytes between members, or behind the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct TypeHole {
    /// Offset in the type.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

/// The data that an instruction accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataAccess {
    /// Type of the object. Elements of an array are objects of their own.
    pub of: Rc<DataType>,
    /// Index of the accessed member. `None` if the type has no members, or in a hole.
    pub member: Option<usize>,
    /// Offset in the object. `None` if it depends on an index into an array within the type.
    pub offset: Option<u64>,
}

/// Why the type of accessed data is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoType {
    /// The file has no debug information, or is no program.
    NoDebugInfo,
    /// The file's code has less than 1 % of the misses and stalled cycles, so its debug information
    /// was not read.
    FewMisses,
    /// Debug information is in a `.dwo` file that is missing.
    SplitDebugInfo,
    /// Debug information does not describe the function.
    NoFunction,
    /// The code cannot be read, is not that of x86-64, or the instruction has no operand in memory.
    NoOperand,
    /// No variable describes the register of the address.
    NoVariable,
    /// The pointer is one to `void`, or to a type that is only declared.
    VoidPointer,
    /// The access is outside of the type that the pointer has.
    OutsideType,
    /// Debug information does not describe the variable.
    UnknownVariable,
    /// Memory on the stack that is no variable: saved registers and temporary values.
    Stack,
    /// A variable of a thread.
    ThreadLocal,
}

impl NoType {
    /// The reason in words.
    pub fn in_words(self) -> &'static str {
        match self {
            NoType::NoDebugInfo => "no debug information",
            NoType::FewMisses => "file with few misses",
            NoType::SplitDebugInfo => "missing .dwo file",
            NoType::NoFunction => "function without debug information",
            NoType::NoOperand => "code that cannot be decoded",
            NoType::NoVariable => "register that no variable describes",
            NoType::VoidPointer => "pointer to void or to an incomplete type",
            NoType::OutsideType => "address outside of the pointer's type",
            NoType::UnknownVariable => "variable without debug information",
            NoType::Stack => "saved registers and temporary values",
            NoType::ThreadLocal => "thread-local variable",
        }
    }
}
