//! Other layouts of a type's objects, for `--what-if pad=…`, `split=…` and `reorder=…`, and of the elements
//! of a variable.
//!
//! A layout moves whole members of the outermost level. Members inside a moved member stay
//! together. It only changes addresses, so a copy of an object has the size that the compiler gave
//! it.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::resolve::data_type::DataType;

/// Size of a cache line.
const LINE: u64 = 64;
/// Maximum alignment that a member needs. Wider vectors and lines are aligned by hand.
const MAX_ALIGNMENT: u64 = 8;

/// Change of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LayoutKind {
    Pad,
    Split,
    Reorder,
}

impl LayoutKind {
    const NAMED: [(&str, LayoutKind); 3] = [
        ("pad", LayoutKind::Pad),
        ("split", LayoutKind::Split),
        ("reorder", LayoutKind::Reorder),
    ];
}

/// Members that a change of layout names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NamedMembers {
    None,
    All,
    These(Vec<String>),
}

/// A change of the layout of a type: `pad=TYPE`, `pad=TYPE.a+b`, `split=TYPE.a+b` or
/// `reorder=TYPE.a+b`. Or of an array: `pad=VARIABLE[]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutChange {
    kind: LayoutKind,
    type_name: String,
    members: NamedMembers,
}

/// New positions of the parts of a type's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectLayout {
    /// Size of an object in the original layout, in bytes.
    bytes: u64,
    parts: Vec<MovedPart>,
    /// Distance between two elements of each new array, in bytes.
    strides: Vec<u64>,
    /// Objects stay where they are, and only their members move.
    is_in_place: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MovedPart {
    /// Its bytes in the object.
    from: Range<u64>,
    /// Array that it goes to, and offset in that array's element.
    array: usize,
    offset: u64,
}

/// New position of an accessed byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedOffset {
    /// Number of the array that has this part of all objects. `None` if each object stays where it
    /// is.
    pub array: Option<usize>,
    /// Size of its elements.
    pub stride: u64,
    /// Offset in the element.
    pub offset: u64,
}

/// A change of layout that a type does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The type has no member of this name.
    NoMember {
        /// Name of the type.
        of: String,
        /// Name that was given.
        name: String,
        /// Names that the type has.
        known: String,
    },
    /// The type has no members to move.
    NoMembers(String),
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutError::NoMember { of, name, known } => {
                write!(f, "`{of}` has no member `{name}`: it has {known}")
            }
            LayoutError::NoMembers(of) => write!(f, "`{of}` has no members"),
        }
    }
}

impl std::error::Error for LayoutError {}

/// A member of the outermost level, including the members inside it.
struct OuterMember<'a> {
    name: &'a str,
    range: Range<u64>,
}

/// Members of the outermost level by offset. Overlapping ones are one block.
fn blocks(of: &DataType) -> Vec<OuterMember<'_>> {
    let mut blocks: Vec<OuterMember<'_>> = Vec::new();
    for member in &of.members {
        let name = outermost_member(&member.name);
        let own_bytes = match member.count {
            // Elements of the array follow one another up to the next member.
            2.. => 0,
            _ => member.bytes,
        };
        let range = member.offset..member.offset.saturating_add(own_bytes.max(1)).min(of.bytes);
        match blocks.last_mut() {
            Some(last) if last.name == name || range.start < last.range.end => {
                last.range.end = last.range.end.max(range.end);
            }
            _ => blocks.push(OuterMember { name, range }),
        }
        if member.count > 1 {
            let next = of.members.iter().map(|other| other.offset);
            let is_behind = |&at: &u64| at > member.offset && !is_within(of, name, at);
            let end = next.filter(is_behind).min().unwrap_or(of.bytes);
            if let Some(last) = blocks.last_mut() {
                last.range.end = last.range.end.max(end);
            }
        }
    }
    blocks
}

fn is_within(of: &DataType, name: &str, offset: u64) -> bool {
    let mut members = of.members.iter();
    members.any(|member| member.offset == offset && outermost_member(&member.name) == name)
}

/// The member of the outermost level that contains a listed one: `inner` of `inner.x`, `slots` of
/// `slots[].key`, `Base` of `Base::x`.
pub(crate) fn outermost_member(name: &str) -> &str {
    let end = name.find("::").into_iter().chain(name.find(['.', '[']));
    &name[..end.min().unwrap_or(name.len())]
}

/// Alignment that a block seems to need.
fn alignment(range: &Range<u64>) -> u64 {
    let bytes = range.end - range.start;
    let both = bytes | range.start | MAX_ALIGNMENT;
    1 << both.trailing_zeros()
}

/// Places blocks one after the other. Blocks with `is_apart` get lines of their own.
#[derive(Default)]
struct Element {
    end: u64,
    alignment: u64,
}

impl Element {
    fn push(&mut self, range: &Range<u64>, is_apart: bool) -> u64 {
        let needed = if is_apart { LINE } else { alignment(range) };
        self.alignment = self.alignment.max(needed);
        let offset = self.end.next_multiple_of(needed);
        self.end = offset + (range.end - range.start);
        if is_apart {
            self.end = self.end.next_multiple_of(LINE);
        }
        offset
    }

    fn stride(&self) -> u64 {
        self.end.next_multiple_of(self.alignment.max(1)).max(1)
    }
}

/// Suffix of the name of an array.
const ELEMENTS: &str = "[]";

impl LayoutChange {
    /// Name of the type as in debug information.
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Name of the variable that the change may mean: that of an array, or a name without members.
    pub fn variable_name(&self) -> Option<&str> {
        let is_whole = (self.kind, &self.members) == (LayoutKind::Pad, &NamedMembers::None);
        let name = self.type_name.strip_suffix(ELEMENTS);
        is_whole.then(|| name.unwrap_or(&self.type_name))
    }

    /// True if it names the elements of an array instead of a type.
    pub fn is_of_elements(&self) -> bool {
        self.type_name.ends_with(ELEMENTS)
    }

    /// The change for the elements of an array of this name.
    pub fn of_elements(name: &str) -> LayoutChange {
        LayoutChange {
            kind: LayoutKind::Pad,
            type_name: format!("{name}{ELEMENTS}"),
            members: NamedMembers::None,
        }
    }

    /// Applies the change to a type of that name.
    ///
    /// # Errors
    /// The type has not all of the named members.
    pub fn apply(&self, of: &DataType) -> Result<ObjectLayout, LayoutError> {
        let blocks = blocks(of);
        if blocks.is_empty() && (self.kind, &self.members) != (LayoutKind::Pad, &NamedMembers::None)
        {
            return Err(LayoutError::NoMembers(of.name.clone()));
        }
        let named = self.named(of, &blocks)?;
        let mut layout = ObjectLayout {
            bytes: of.bytes,
            parts: Vec::new(),
            strides: Vec::new(),
            is_in_place: false,
        };
        match self.kind {
            LayoutKind::Pad if named.is_empty() => {
                layout.move_part(0..of.bytes, 0, 0);
                layout.strides.push(of.bytes.next_multiple_of(LINE));
            }
            LayoutKind::Pad => {
                let mut element = Element::default();
                for (number, block) in blocks.iter().enumerate() {
                    let offset = element.push(&block.range, named.contains(&number));
                    layout.move_part(block.range.clone(), 0, offset);
                }
                layout.strides.push(element.stride().next_multiple_of(LINE));
            }
            LayoutKind::Split => {
                let mut elements = [Element::default(), Element::default()];
                for (number, block) in blocks.iter().enumerate() {
                    let array = usize::from(named.contains(&number));
                    let offset = elements[array].push(&block.range, false);
                    layout.move_part(block.range.clone(), array, offset);
                }
                layout
                    .strides
                    .extend(elements.map(|element| element.stride()));
            }
            LayoutKind::Reorder => {
                let mut element = Element::default();
                let mut rest: Vec<usize> =
                    (0..blocks.len()).filter(|n| !named.contains(n)).collect();
                rest.sort_by_key(|&n| std::cmp::Reverse(alignment(&blocks[n].range)));
                for number in named.into_iter().chain(rest) {
                    let range = blocks[number].range.clone();
                    let offset = element.push(&range, false);
                    layout.move_part(range, 0, offset);
                }
                layout.strides.push(element.stride());
                layout.is_in_place = element.stride() == of.bytes;
            }
        }
        layout.parts.sort_by_key(|part| part.from.start);
        Ok(layout)
    }

    /// Indices of the named blocks, in the order in which they were named.
    fn named(&self, of: &DataType, blocks: &[OuterMember<'_>]) -> Result<Vec<usize>, LayoutError> {
        let names = match &self.members {
            NamedMembers::None => return Ok(Vec::new()),
            NamedMembers::All => return Ok((0..blocks.len()).collect()),
            NamedMembers::These(names) => names,
        };
        let find = |name: &String| {
            let found = blocks.iter().position(|block| block.name == *name);
            found.ok_or_else(|| LayoutError::NoMember {
                of: of.name.clone(),
                name: name.clone(),
                known: blocks
                    .iter()
                    .map(|block| block.name)
                    .collect::<Vec<_>>()
                    .join(", "),
            })
        };
        names.iter().map(find).collect()
    }
}

impl ObjectLayout {
    fn move_part(&mut self, from: Range<u64>, array: usize, offset: u64) {
        self.parts.push(MovedPart {
            from,
            array,
            offset,
        });
    }

    /// Size of an object today.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Size of an object with this layout, in all its arrays together.
    pub fn new_bytes(&self) -> u64 {
        self.strides.iter().sum()
    }

    /// Offsets of the member of the outermost level that contains an offset. All of the object's if it
    /// moves as a whole.
    pub fn member_around(&self, offset: u64) -> Option<Range<u64>> {
        Some(self.part_at(offset)?.from.clone())
    }

    fn part_at(&self, offset: u64) -> Option<&MovedPart> {
        let after = self.parts.partition_point(|part| part.from.start <= offset);
        let part = self.parts.get(after.checked_sub(1)?)?;
        part.from.contains(&offset).then_some(part)
    }

    /// Returns the new position of the byte at an offset of an object. `None` for bytes that are in
    /// no member.
    pub fn place(&self, offset: u64) -> Option<MovedOffset> {
        let part = self.part_at(offset)?;
        Some(MovedOffset {
            array: (!self.is_in_place).then_some(part.array),
            stride: self.strides[part.array],
            offset: part.offset + (offset - part.from.start),
        })
    }
}

impl FromStr for LayoutChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let kind = LayoutKind::NAMED.iter().find(|named| named.0 == name);
        let kind = kind.map(|named| named.1).ok_or_else(|| {
            format!("there is no layout `{name}`: use pad=TYPE, split=TYPE.MEMBER or reorder=TYPE")
        })?;
        // In debug information, names have no keyword.
        let keywords = ["struct ", "class ", "union "];
        let value = keywords
            .iter()
            .find_map(|word| value.strip_prefix(word))
            .unwrap_or(value);
        let (type_name, members) = match value.rsplit_once('.') {
            None => (value, NamedMembers::None),
            Some((type_name, "*")) => (type_name, NamedMembers::All),
            Some((type_name, members)) => {
                let members = members.split('+').map(str::to_owned).collect();
                (type_name, NamedMembers::These(members))
            }
        };
        let is_empty = match &members {
            NamedMembers::These(names) => names.iter().any(String::is_empty),
            _ => false,
        };
        if type_name.is_empty() || is_empty {
            return Err(format!(
                "`{text}` names no type: use {name}=TYPE.MEMBER+MEMBER, such as {name}=node.next+key"
            ));
        }
        if type_name.ends_with(ELEMENTS)
            && (kind != LayoutKind::Pad || members != NamedMembers::None)
        {
            return Err(format!(
                "`{text}` changes the members of an array's elements: name their type; of an array, only \
                 pad=VARIABLE[] is possible"
            ));
        }
        if kind == LayoutKind::Split && !matches!(members, NamedMembers::These(_)) {
            return Err(format!(
                "`{text}` does not say which members to split off: use split={type_name}.MEMBER+MEMBER"
            ));
        }
        if kind == LayoutKind::Reorder && members == NamedMembers::All {
            return Err(format!(
                "`{text}` has no order: name the members, the first ones first"
            ));
        }
        Ok(LayoutChange {
            kind,
            type_name: type_name.to_owned(),
            members,
        })
    }
}

impl fmt::Display for LayoutChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = LayoutKind::NAMED.iter().find(|named| named.1 == self.kind);
        write!(
            f,
            "{}={}",
            named.map_or("", |named| named.0),
            self.type_name
        )?;
        match &self.members {
            NamedMembers::None => Ok(()),
            NamedMembers::All => f.write_str(".*"),
            NamedMembers::These(names) => write!(f, ".{}", names.join("+")),
        }
    }
}

impl LayoutChange {
    /// The change in words: `node: next and key in an array of their own`.
    pub fn in_words(&self) -> String {
        let names = match &self.members {
            NamedMembers::None => String::new(),
            NamedMembers::All => "each member".to_owned(),
            NamedMembers::These(names) => names.join(", "),
        };
        let of = &self.type_name;
        match self.kind {
            LayoutKind::Pad if names.is_empty() => match of.strip_suffix(ELEMENTS) {
                Some(array) => format!("each element of {array} on lines of its own"),
                None => format!("each {of} on lines of its own"),
            },
            LayoutKind::Pad => format!("{names} of {of} on lines of their own"),
            LayoutKind::Split => format!("{names} of {of} in an array of their own"),
            LayoutKind::Reorder if names.is_empty() => format!("{of} by falling alignment"),
            LayoutKind::Reorder => format!("{names} first in {of}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::data_type::TypeMember;

    fn member(name: &str, offset: u64, bytes: u64, count: u64) -> TypeMember {
        TypeMember {
            name: name.to_owned(),
            offset,
            bytes,
            count,
            ..TypeMember::default()
        }
    }

    /// `char flag; long key; int inner.x, inner.y; struct {int a, b} way[3]; node *next;`
    fn node() -> DataType {
        DataType {
            name: "node".to_owned(),
            bytes: 56,
            members: vec![
                member("flag", 0, 1, 1),
                member("key", 8, 8, 1),
                member("inner.x", 16, 4, 1),
                member("inner.y", 20, 4, 1),
                member("way[].a", 24, 4, 3),
                member("way[].b", 28, 4, 3),
                member("next", 48, 8, 1),
            ],
            holes: Vec::new(),
        }
    }

    fn layout(text: &str) -> ObjectLayout {
        let change: LayoutChange = text.parse().unwrap();
        assert_eq!(change.to_string(), text);
        change.apply(&node()).unwrap()
    }

    #[track_caller]
    fn check(
        layout: &ObjectLayout,
        from: u64,
        array: impl Into<Option<usize>>,
        stride: u64,
        offset: u64,
    ) {
        let expected = MovedOffset {
            array: array.into(),
            stride,
            offset,
        };
        assert_eq!(layout.place(from), Some(expected), "offset {from}");
    }

    #[test]
    fn members_of_the_outermost_level_move_as_a_whole() {
        let node = node();
        let blocks: Vec<_> = blocks(&node)
            .into_iter()
            .map(|block| (block.name, block.range))
            .collect();
        let expected = [
            ("flag", 0..1),
            ("key", 8..16),
            ("inner", 16..24),
            ("way", 24..48),
            ("next", 48..56),
        ];
        assert_eq!(blocks, expected);
    }

    #[test]
    fn a_padded_object_begins_on_a_line() {
        let padded = layout("pad=node");
        check(&padded, 0, 0, 64, 0);
        check(&padded, 50, 0, 64, 50);
    }

    #[test]
    fn padded_members_are_on_lines_of_their_own() {
        let padded = layout("pad=node.key+next");
        check(&padded, 0, 0, 256, 0);
        check(&padded, 8, 0, 256, 64);
        check(&padded, 20, 0, 256, 132);
        check(&padded, 48, 0, 256, 192);
        assert_eq!(padded.place(3), None, "padding has no place");
        let all = layout("pad=node.*");
        check(&all, 24, 0, 320, 192);
    }

    #[test]
    fn split_members_go_to_another_array() {
        let split = layout("split=node.key+next");
        check(&split, 8, 1, 16, 0);
        check(&split, 51, 1, 16, 11);
        check(&split, 0, 0, 40, 0);
        check(&split, 20, 0, 40, 12);
        check(&split, 47, 0, 40, 39);
    }

    #[test]
    fn reordered_members_have_no_holes() {
        let change: LayoutChange = "reorder=node".parse().unwrap();
        let of = DataType {
            bytes: 24,
            members: vec![
                member("a", 0, 1, 1),
                member("b", 8, 8, 1),
                member("c", 16, 4, 1),
            ],
            ..node()
        };
        let reordered = change.apply(&of).unwrap();
        check(&reordered, 8, 0, 16, 0);
        check(&reordered, 16, 0, 16, 8);
        check(&reordered, 0, 0, 16, 12);
    }

    #[test]
    fn objects_of_the_same_size_stay_where_they_are() {
        let reordered = layout("reorder=node.next");
        check(&reordered, 48, None, 56, 0);
        check(&reordered, 8, None, 56, 8);
        check(&reordered, 0, None, 56, 48);
    }

    #[test]
    fn what_a_type_does_not_have_is_named() {
        let change: LayoutChange = "split=node.kye".parse().unwrap();
        let error = change.apply(&node()).unwrap_err().to_string();
        assert!(
            error.contains("`kye`") && error.contains("flag, key, inner"),
            "{error}"
        );
        for text in [
            "pad",
            "pad=",
            "split=node",
            "split=node.*",
            "split=node.a+",
            "swap=node",
        ] {
            assert!(text.parse::<LayoutChange>().is_err(), "{text}");
        }
        let change: LayoutChange = "pad=shapes::Circle<int>.radius".parse().unwrap();
        assert_eq!(change.type_name(), "shapes::Circle<int>");
        let change: LayoutChange = "pad=struct node".parse().unwrap();
        assert_eq!(change.to_string(), "pad=node");
    }
}
