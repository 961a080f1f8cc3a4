//! Layouts of types and variables for `--what-if`. Debug information shows which instructions
//! access a type, and where variables are.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use memgauge_analyze::{DataType, LayoutChange, LayoutError, ModuleFile, ObjectLayout, Resolve};
use memgauge_console::outcome::usage;
use memgauge_emulate::{MoveAccesses, MovedPart, MovedVariable, ObjectAccess, resolve};
use memgauge_symbols::{Symbols, Variable};

/// Another layout of a type of the recorded program.
pub(crate) struct TypeLayout {
    change: LayoutChange,
    symbols: Symbols,
    /// Whether the debug information of a file may describe the type, by path of the file.
    files: HashMap<String, bool>,
    /// The type with its layout, once it was found.
    found: Option<FoundType>,
}

struct FoundType {
    of: Rc<DataType>,
    layout: Result<ObjectLayout, LayoutError>,
}

impl TypeLayout {
    /// Looks for the type in the program of a command. It may also be in a library.
    ///
    /// # Errors
    /// The type has not the members that the change names.
    pub(crate) fn new(change: &LayoutChange, command: &[String]) -> anyhow::Result<TypeLayout> {
        let mut layout = TypeLayout {
            change: change.clone(),
            // Files of the running system, not those of a recording.
            symbols: Symbols::of(Path::new("")),
            files: HashMap::new(),
            found: None,
        };
        let (program, _) = resolve(command)?;
        let file = file_at(&program.to_string_lossy());
        if let Some(of) = layout.symbols.type_named(&file, change.type_name()) {
            change
                .apply(&of)
                .map_err(|e| usage(format!("failed to change the layout: {e}")))?;
        }
        Ok(layout)
    }

    fn layout(&self) -> Option<&ObjectLayout> {
        self.found.as_ref()?.layout.as_ref().ok()
    }

    /// Why nothing moved, for the user.
    pub(crate) fn problem(&self) -> Option<String> {
        let change = &self.change;
        match &self.found {
            Some(FoundType { layout: Err(e), .. }) => Some(format!("--what-if {change}: {e}")),
            Some(_) => None,
            None => Some(format!(
                "--what-if {change}: no executed instruction is known to access `{}`: was the \
                 program compiled with -g? `memgauge report` lists the types that it accesses",
                change.type_name()
            )),
        }
    }
}

fn file_at(path: &str) -> ModuleFile {
    ModuleFile {
        path: path.to_owned(),
        ..ModuleFile::default()
    }
}

impl MoveAccesses for TypeLayout {
    fn access(&mut self, path: &str, offset: u64) -> Option<ObjectAccess> {
        let (name, symbols) = (self.change.type_name(), &mut self.symbols);
        let file = file_at(path);
        let known = self.files.get(path).copied();
        let is_described = known.unwrap_or_else(|| symbols.mentions_type(&file, name));
        if known.is_none() {
            self.files.insert(path.to_owned(), is_described);
        }
        if !is_described {
            return None;
        }
        let access = symbols.accessed_data(&file, offset).ok()?;
        if access.of.name != name {
            return None;
        }
        let change = &self.change;
        let found = self.found.get_or_insert_with(|| FoundType {
            layout: change.apply(&access.of),
            of: Rc::clone(&access.of),
        });
        // Another type of the same name may be in another file.
        if access.of != found.of {
            return None;
        }
        let layout = found.layout.as_ref().ok();
        let member = access
            .member
            .and_then(|member| access.of.members.get(member));
        Some(match (access.offset, member.zip(layout)) {
            (Some(offset), _) => ObjectAccess::At(offset),
            (None, Some((member, layout))) => {
                ObjectAccess::Within(layout.member_around(member.offset)?)
            }
            (None, None) => return None,
        })
    }

    fn object_bytes(&self) -> u64 {
        self.layout().map_or(0, ObjectLayout::bytes)
    }

    fn place(&self, offset: u64) -> Option<MovedPart> {
        let place = self.layout()?.place(offset)?;
        Some(MovedPart {
            array: place.array.map(|array| array as u32),
            stride: place.stride,
            offset: place.offset,
        })
    }
}

/// The elements of a variable on lines of their own.
pub(crate) struct VariableLayout {
    name: String,
    symbols: Symbols,
    /// The variable by path of a file. `None` for files without it.
    files: HashMap<String, Option<FoundVariable>>,
}

#[derive(Clone, Copy)]
struct FoundVariable {
    of: Variable,
    element_bytes: u64,
}

impl VariableLayout {
    pub(crate) fn new(name: &str) -> VariableLayout {
        VariableLayout {
            name: name.to_owned(),
            symbols: Symbols::of(Path::new("")),
            files: HashMap::new(),
        }
    }

    /// Looks the variable of a change up in the program of a command. Returns the change as it is
    /// called in the recording, and its layout. `None` if the change is one of a type.
    ///
    /// # Errors
    /// The elements of the variable are unknown.
    pub(crate) fn of_program(
        change: &LayoutChange,
        command: &[String],
    ) -> anyhow::Result<Option<(LayoutChange, VariableLayout)>> {
        let Some(name) = change.variable_name() else {
            return Ok(None);
        };
        let mut layout = VariableLayout::new(name);
        let (program, _) = resolve(command)?;
        let file = file_at(&program.to_string_lossy());
        if !change.is_of_elements() && layout.symbols.type_named(&file, name).is_some() {
            return Ok(None);
        }
        let Some(of) = layout.symbols.variable_named(&file, name) else {
            return Ok(change.is_of_elements().then(|| (change.clone(), layout)));
        };
        match of.element_bytes {
            None => Err(usage(format!(
                "failed to change the layout of `{name}`: the program has no debug information about \
                 it: compile it with -g"
            ))),
            Some(bytes) if bytes < of.bytes => Ok(Some((LayoutChange::of_elements(name), layout))),
            Some(_) => Ok(Some((change.clone(), layout))),
        }
    }

    /// Why nothing moved, for the user.
    pub(crate) fn problem(&self) -> Option<String> {
        let is_found = self.files.values().any(Option::is_some);
        (!is_found).then(|| {
            let name = &self.name;
            format!(
                "--what-if pad={name}[]: no program or library that ran has a variable `{name}` with \
                 debug information: compile it with -g"
            )
        })
    }

    fn found_in(&mut self, path: &str) -> Option<FoundVariable> {
        if let Some(known) = self.files.get(path) {
            return *known;
        }
        let of = self.symbols.variable_named(&file_at(path), &self.name);
        let found = of.and_then(|of| {
            Some(FoundVariable {
                of,
                element_bytes: of.element_bytes?,
            })
        });
        self.files.insert(path.to_owned(), found);
        found
    }
}

impl MoveAccesses for VariableLayout {
    fn access(&mut self, _: &str, _: u64) -> Option<ObjectAccess> {
        None
    }

    fn object_bytes(&self) -> u64 {
        0
    }

    fn place(&self, _: u64) -> Option<MovedPart> {
        None
    }

    fn is_of_variable(&self) -> bool {
        true
    }

    fn variable(&mut self, path: &str, offset: u64, ip: u64) -> Option<MovedVariable> {
        let found = self.found_in(path)?;
        let linked = self.symbols.code_address(&file_at(path), offset)?;
        let start = ip.wrapping_sub(linked).wrapping_add(found.of.address);
        Some(MovedVariable {
            memory: start..start.checked_add(found.of.bytes)?,
            element_bytes: found.element_bytes,
        })
    }
}
