//! Sizes, names and members of types.

use std::rc::Rc;

use memgauge_analyze::{DataType, TypeHole, TypeMember};

use super::debug_info::DebugInfo;
use super::definitions::{FlatType, Fold, Leaf, Member, RecordType, Type, TypeRef};

/// Maximum nesting of records and arrays. Deeper ones come from damaged files.
const MAX_DEPTH: usize = 16;
/// Maximum number of members of a type that are distinguished.
const MAX_MEMBERS: usize = 4096;
/// Maximum size of a type whose holes are searched.
const MAX_BYTES_FOR_HOLES: u64 = 1 << 16;
/// Types of libraries. Their members are of no interest to users.
const LIBRARIES: [&str; 5] = ["std::", "core::", "alloc::", "__gnu_cxx::", "hashbrown::"];

/// Path to a part of a type that is being flattened.
#[derive(Clone, Default)]
struct Path {
    name: String,
    offset: u64,
    folds: Vec<Fold>,
    depth: usize,
    /// The whole type is one of a library's.
    is_library: bool,
}

impl Path {
    fn member(&self, name: &str, offset: u64) -> Path {
        let is_inner = !self.name.is_empty() && !name.is_empty();
        let separator = if is_inner && !self.name.ends_with("::") {
            "."
        } else {
            ""
        };
        Path {
            name: format!("{}{separator}{name}", self.name),
            offset: self.offset.saturating_add(offset),
            folds: self.folds.clone(),
            depth: self.depth + 1,
            is_library: self.is_library,
        }
    }
}

impl DebugInfo {
    /// Size of a type in bytes; 0 if unknown.
    pub(super) fn bytes(&mut self, of: TypeRef) -> u64 {
        self.bytes_within(of, 0)
    }

    /// Size of an element of an array, or of another type. 0 if unknown.
    pub(super) fn element_bytes(&mut self, of: TypeRef) -> u64 {
        match &*self.type_at(of) {
            Type::Array { of, .. } => self.bytes(*of),
            _ => self.bytes(of),
        }
    }

    /// The same for sums with offsets; 0 if it is too large.
    pub(super) fn signed_bytes(&mut self, of: TypeRef) -> i64 {
        i64::try_from(self.bytes(of)).unwrap_or(0)
    }

    fn bytes_within(&mut self, of: TypeRef, depth: usize) -> u64 {
        match &*self.type_at(of) {
            Type::Scalar { bytes, .. } => *bytes,
            Type::Pointer { .. } => 8,
            Type::Record(record) => record.bytes,
            Type::Array { of, count } if depth < MAX_DEPTH => {
                let element = self.bytes_within(*of, depth + 1);
                element.saturating_mul(count.unwrap_or(0))
            }
            _ => 0,
        }
    }

    /// Name of a type for users.
    pub(super) fn type_name(&mut self, of: TypeRef) -> String {
        self.name_within(of, 0)
    }

    fn name_within(&mut self, of: TypeRef, depth: usize) -> String {
        if depth > MAX_DEPTH {
            return String::new();
        }
        match &*self.type_at(of) {
            Type::Unknown => "?".to_owned(),
            Type::Scalar { name, .. } => name.clone(),
            Type::Record(record) => record.name.clone(),
            Type::Function { .. } => "function".to_owned(),
            Type::Array { of, count } => {
                let count = count.map_or(String::new(), |count| count.to_string());
                format!("{}[{count}]", self.name_within(*of, depth + 1))
            }
            Type::Pointer { to } => {
                let to = to.map(|to| self.name_within(to, depth + 1));
                format!("{} *", to.as_deref().unwrap_or("void")).replace("* *", "**")
            }
        }
    }

    /// The element type of arrays, and whether there was an array.
    pub(super) fn element(&mut self, of: TypeRef) -> (TypeRef, bool) {
        let (mut of, mut is_array) = (of, false);
        for _ in 0..MAX_DEPTH {
            match *self.type_at(of) {
                Type::Array { of: element, .. } => (of, is_array) = (element, true),
                _ => break,
            }
        }
        (of, is_array)
    }

    /// The scalar or pointer that begins at an offset of a type. If several overlap, a pointer.
    pub(super) fn scalar_at(&mut self, of: TypeRef, offset: u64) -> Option<TypeRef> {
        self.scalar_within(of, offset, 0)
    }

    fn scalar_within(&mut self, of: TypeRef, offset: u64, depth: usize) -> Option<TypeRef> {
        if depth > MAX_DEPTH {
            return None;
        }
        match &*self.type_at(of) {
            Type::Scalar { .. } | Type::Pointer { .. } => (offset == 0).then_some(of),
            Type::Array { of, .. } => {
                let element = self.bytes(*of);
                let offset = offset.checked_rem(element)?;
                self.scalar_within(*of, offset, depth + 1)
            }
            Type::Record(record) => {
                let mut first = None;
                for member in &record.members {
                    let Some(within) = offset.checked_sub(member.offset) else {
                        continue;
                    };
                    let is_open =
                        matches!(*self.type_at(member.of), Type::Array { count: None, .. });
                    if within >= self.bytes(member.of) && !is_open {
                        continue;
                    }
                    let found = self.scalar_within(member.of, within, depth + 1);
                    if found.is_some_and(|found| self.pointee(found).is_some()) {
                        return found;
                    }
                    first = first.or(found);
                }
                first
            }
            Type::Unknown | Type::Function { .. } => None,
        }
    }

    /// Elements and members on the way to an offset of a type: `[3].hits`. Empty for types without
    /// parts, and cut short in a hole. If members overlap, the first.
    pub(super) fn part_at(&mut self, of: TypeRef, offset: u64) -> String {
        let (mut of, mut offset, mut part) = (of, offset, String::new());
        for _ in 0..MAX_DEPTH {
            let found = match &*self.type_at(of) {
                Type::Array { of, .. } => {
                    let element = self.bytes(*of);
                    let index = offset.checked_div(element);
                    index.map(|index| (*of, offset % element, format!("[{index}]")))
                }
                Type::Record(record) => self.member_of(record, offset),
                _ => None,
            };
            let Some((inner, within, name)) = found else {
                break;
            };
            (of, offset) = (inner, within);
            part += &name;
        }
        part
    }

    /// The first member of a record at an offset, the offset in it, and its name.
    fn member_of(&mut self, record: &RecordType, offset: u64) -> Option<(TypeRef, u64, String)> {
        record.members.iter().find_map(|member| {
            let within = offset.checked_sub(member.offset)?;
            let bytes = member.bit_bytes.unwrap_or_else(|| self.bytes(member.of));
            let name = match &member.name {
                Some(name) if !member.is_base => format!(".{name}"),
                _ => String::new(),
            };
            (within < bytes).then_some((member.of, within, name))
        })
    }

    /// Returns the type that a pointer points to. `None` if it is no pointer, or one to `void`.
    pub(super) fn pointee(&mut self, of: TypeRef) -> Option<TypeRef> {
        match *self.type_at(of) {
            Type::Pointer { to } => to,
            _ => None,
        }
    }

    /// The type of the elements that the pointer at an offset of a type leads to, if the type of the
    /// pointer has it no longer, as in a `Vec` of Rust.
    pub(super) fn erased_elements(&mut self, of: TypeRef, offset: u64) -> Option<TypeRef> {
        let (mut of, mut offset) = (of, offset);
        for _ in 0..MAX_DEPTH {
            (of, offset) = match &*self.type_at(of) {
                Type::Array { of, .. } => (*of, offset.checked_rem(self.bytes(*of))?),
                Type::Record(record) if record.elements.is_some() => return record.elements,
                Type::Record(record) => {
                    let (inner, within, _) = self.member_of(record, offset)?;
                    (inner, within)
                }
                _ => return None,
            };
        }
        None
    }

    /// A type with its members in a row.
    pub(super) fn flat(&mut self, of: TypeRef) -> Rc<FlatType> {
        if let Some(known) = self.flat.get(&of) {
            return Rc::clone(known);
        }
        let mut members = Members::default();
        if let Type::Record(record) = &*self.type_at(of) {
            let path = Path {
                is_library: is_library(&record.name),
                ..Path::default()
            };
            self.flatten(record, &path, &mut members);
        }
        let bytes = self.bytes(of);
        let flat = Rc::new(FlatType {
            data_type: Rc::new(DataType {
                name: self.type_name(of),
                bytes,
                holes: members.holes(bytes),
                members: members.listed,
            }),
            leaves: members.leaves,
        });
        self.flat.insert(of, Rc::clone(&flat));
        flat
    }

    fn flatten(&mut self, record: &RecordType, path: &Path, out: &mut Members) {
        for member in &record.members {
            if out.leaves.len() >= MAX_MEMBERS {
                return;
            }
            let (element, is_array) = self.element(member.of);
            let element_type = self.type_at(element);
            let is_empty = matches!(&*element_type, Type::Record(base) if base.members.is_empty());
            if member.is_base && is_empty {
                continue;
            }
            let inner = match &*element_type {
                Type::Record(inner) if is_opened(inner, member, path) => Some(inner),
                _ => None,
            };
            let name = match (&member.name, inner) {
                _ if member.is_base => match &*element_type {
                    Type::Record(base) => format!("{}::", last_name(&base.name)),
                    _ => String::new(),
                },
                (Some(name), _) => name.clone(),
                (None, Some(_)) => String::new(),
                (None, None) => self.first_name(&element_type),
            };
            let mut at = path.member(&name, member.offset);
            let bytes = member.bit_bytes.unwrap_or_else(|| self.bytes(member.of));
            if is_array {
                at.name += "[]";
            }
            let Some(inner) = inner else {
                let type_name = self.type_name(member.of);
                out.push(at, bytes, type_name, member.bit_bytes.is_some());
                continue;
            };
            if is_array && inner.bytes > 0 {
                at.folds.push(Fold {
                    start: at.offset,
                    stride: inner.bytes,
                    count: bytes / inner.bytes,
                });
            }
            self.flatten(inner, &at, out);
        }
    }

    /// Name for an anonymous union: that of its first member.
    fn first_name(&mut self, of: &Type) -> String {
        let Type::Record(record) = of else {
            return String::new();
        };
        let named = record.members.iter().find_map(|member| member.name.clone());
        named.unwrap_or_else(|| "union".to_owned())
    }
}

/// Whether the members of a member are listed in its place. Unions, wrappers of a single value and
/// types of standard libraries stay whole.
fn is_opened(inner: &RecordType, member: &Member, path: &Path) -> bool {
    let is_foreign = is_library(&inner.name) && !path.is_library;
    let is_wrapper = inner.members.len() < 2 && !member.is_base;
    !inner.is_union && !is_foreign && !is_wrapper && path.depth < MAX_DEPTH
}

fn is_library(name: &str) -> bool {
    LIBRARIES.iter().any(|library| name.starts_with(library))
}

/// `Base` of `shapes::Base<int>`, with its arguments.
fn last_name(name: &str) -> &str {
    let plain = name.split_once('<').map_or(name, |(plain, _)| plain);
    plain.rfind("::").map_or(name, |at| &name[at + 2..])
}

#[derive(Default)]
struct Members {
    listed: Vec<TypeMember>,
    leaves: Vec<Leaf>,
    /// Whether the last one is bits of the leaf's bytes.
    ends_with_bits: bool,
}

impl Members {
    fn push(&mut self, path: Path, bytes: u64, type_name: String, is_bits: bool) {
        let follows_bits = std::mem::replace(&mut self.ends_with_bits, is_bits);
        // An access cannot distinguish bits of the same bytes.
        if is_bits
            && follows_bits
            && let Some((leaf, member)) = self.leaves.last_mut().zip(self.listed.last_mut())
            && path.offset < leaf.offset.saturating_add(leaf.bytes)
        {
            let known_end = leaf.offset.saturating_add(leaf.bytes);
            let end = path.offset.saturating_add(bytes).max(known_end);
            leaf.bytes = end - leaf.offset;
            member.bytes = leaf.bytes;
            if !member.name.ends_with('…') {
                member.name += "…";
            }
            return;
        }
        if self.leaves.len() >= MAX_MEMBERS {
            return;
        }
        let counts = path.folds.iter().map(|fold| fold.count);
        let name = path.name.strip_suffix("::").unwrap_or(&path.name);
        self.listed.push(TypeMember {
            name: name.to_owned(),
            type_name,
            offset: path.offset,
            bytes,
            count: counts.fold(1, u64::saturating_mul),
        });
        self.leaves.push(Leaf {
            offset: path.offset,
            bytes,
            folds: path.folds,
        });
    }

    /// Bytes of the type in no member.
    fn holes(&self, bytes: u64) -> Vec<TypeHole> {
        if bytes > MAX_BYTES_FOR_HOLES || self.leaves.is_empty() {
            return Vec::new();
        }
        let mut covered = vec![false; bytes as usize];
        for leaf in &self.leaves {
            self.cover(leaf, 0, leaf.offset, &mut covered);
        }
        let mut holes: Vec<TypeHole> = Vec::new();
        for (at, _) in covered.iter().enumerate().filter(|(_, covered)| !**covered) {
            match holes
                .last_mut()
                .filter(|hole| hole.offset + hole.bytes == at as u64)
            {
                Some(hole) => hole.bytes += 1,
                None => holes.push(TypeHole {
                    offset: at as u64,
                    bytes: 1,
                }),
            }
        }
        holes
    }

    fn cover(&self, leaf: &Leaf, fold: usize, offset: u64, covered: &mut [bool]) {
        match leaf.folds.get(fold) {
            Some(array) => {
                let starts = (0..array.count).map(|n| offset.saturating_add(n * array.stride));
                let end = covered.len() as u64;
                for start in starts.take_while(|&start| start < end) {
                    self.cover(leaf, fold + 1, start, covered);
                }
            }
            None => {
                let end = (offset.saturating_add(leaf.bytes) as usize).min(covered.len());
                if let Some(bytes) = covered.get_mut(offset as usize..end) {
                    bytes.fill(true);
                }
            }
        }
    }
}
