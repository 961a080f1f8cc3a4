//! Functions that allocate and free memory.

use std::fmt::{self, Display, Formatter};

/// A function that allocates or frees, by the name of its symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocator {
    /// Name for people.
    pub name: String,
    /// Effect of a call.
    pub effect: AllocatorEffect,
    /// The argument with the arena that the memory comes from.
    pub arena: Option<u8>,
    /// Symbols and patterns of symbols, separated by spaces.
    symbols: String,
}

impl Allocator {
    /// A function that the user names by its symbol, by a pattern with `*`, or by its name in C++
    /// or Rust.
    pub fn named(name: &str, effect: AllocatorEffect) -> Allocator {
        Allocator {
            name: name.to_owned(),
            effect,
            arena: None,
            symbols: symbols_of(name),
        }
    }

    /// Allocates from the arena that this argument points to.
    pub fn in_arena(self, arena: u8) -> Allocator {
        Allocator {
            arena: Some(arena),
            ..self
        }
    }
}

/// Symbols that a function of this name may have. `eng::Pool<int>::get` is `_ZN3eng4PoolIiE3getEm`
/// in C++ and `_ZN3eng4Pool3get17h0123456789abcdefE` in Rust. Both consist of the parts of the name
/// with their lengths. Arguments of templates are not compared.
fn symbols_of(name: &str) -> String {
    let mut plain = String::new();
    let mut depth = 0;
    for c in name.chars() {
        depth -= u32::from(c == '>' && depth > 0);
        if depth == 0 && c != '>' && c != '<' {
            plain.push(c);
        }
        depth += u32::from(c == '<');
    }
    let parts: Vec<&str> = plain.split("::").collect();
    let is_part = |part: &&str| {
        let mut chars = part.chars();
        !part.is_empty() && chars.all(|c| c.is_alphanumeric() || c == '_')
    };
    if !parts.iter().all(is_part) {
        return name.to_owned();
    }
    let mangled: Vec<String> = parts.iter().map(|p| format!("{}{p}", p.len())).collect();
    let mangled = mangled.join("*");
    match parts.len() {
        1 => format!("{name} _Z{mangled}*"),
        _ => format!("_ZN{mangled}E* _ZN{mangled}I*E* _ZNK{mangled}E* _ZN{mangled}17h*E"),
    }
}

/// Effect of a function on memory. The numbers are indices of its arguments, starting with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocatorEffect {
    /// Returns memory of this size.
    Allocates {
        /// Size in bytes.
        bytes: u8,
    },
    /// Returns memory for an array.
    AllocatesArray {
        /// Number of elements.
        count: u8,
        /// Size of an element in bytes.
        bytes: u8,
    },
    /// Returns memory in place of earlier memory, which it frees.
    Reallocates {
        /// Address of the earlier memory.
        memory: u8,
        /// New size in bytes.
        bytes: u8,
    },
    /// The same for an array. The third argument is the size of an element in bytes.
    ReallocatesArray {
        /// Address of the earlier memory.
        memory: u8,
        /// Number of elements.
        count: u8,
    },
    /// Stores the address of new memory through a pointer and returns 0, as `posix_memalign` does.
    Stores {
        /// Pointer to the place for the address.
        place: u8,
        /// Size in bytes.
        bytes: u8,
    },
    /// Frees memory.
    Frees {
        /// Address of the memory.
        memory: u8,
    },
    /// Frees all memory that came from an arena.
    Resets {
        /// Address of the arena.
        arena: u8,
    },
}

impl Display for Allocator {
    /// A line of the session's file (`engine/src/heap.c`).
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        use AllocatorEffect::*;
        let (kind, first, second) = match self.effect {
            Allocates { bytes } => ('a', Some(bytes), None),
            AllocatesArray { count, bytes } => ('m', Some(count), Some(bytes)),
            Reallocates { memory, bytes } => ('r', Some(memory), Some(bytes)),
            ReallocatesArray { memory, count } => ('R', Some(memory), Some(count)),
            Stores { place, bytes } => ('s', Some(place), Some(bytes)),
            Frees { memory } => ('f', Some(memory), None),
            Resets { .. } => ('x', None, None),
        };
        let arena = match self.effect {
            Resets { arena } => Some(arena),
            _ => self.arena,
        };
        let argument = |number: Option<u8>| number.map_or("-".to_owned(), |n| n.to_string());
        let [first, second, arena] = [first, second, arena].map(argument);
        write!(f, "{kind} {first} {second} {arena} {}", self.symbols)
    }
}

/// The functions of C, C++ and Rust, and of allocators that replace them.
pub fn known_allocators() -> Vec<Allocator> {
    use AllocatorEffect::*;
    let plain = ["", "je_", "mi_", "tc_"];
    let mut all = Vec::new();
    let mut add = |name: String, effect| {
        all.push(Allocator {
            symbols: name.clone(),
            name,
            effect,
            arena: None,
        });
    };
    for prefix in plain {
        add(format!("{prefix}malloc"), Allocates { bytes: 0 });
        add(
            format!("{prefix}calloc"),
            AllocatesArray { count: 0, bytes: 1 },
        );
        add(
            format!("{prefix}realloc"),
            Reallocates {
                memory: 0,
                bytes: 1,
            },
        );
        add(format!("{prefix}free"), Frees { memory: 0 });
        add(format!("{prefix}aligned_alloc"), Allocates { bytes: 1 });
        add(format!("{prefix}memalign"), Allocates { bytes: 1 });
        add(format!("{prefix}valloc"), Allocates { bytes: 0 });
        add(format!("{prefix}pvalloc"), Allocates { bytes: 0 });
        add(
            format!("{prefix}posix_memalign"),
            Stores { place: 0, bytes: 2 },
        );
    }
    for name in ["free_sized", "free_aligned_sized", "cfree"] {
        add(name.to_owned(), Frees { memory: 0 });
    }
    add(
        "reallocarray".to_owned(),
        ReallocatesArray {
            memory: 0,
            count: 1,
        },
    );
    // jemalloc's own interface.
    add("mallocx".to_owned(), Allocates { bytes: 0 });
    add(
        "rallocx".to_owned(),
        Reallocates {
            memory: 0,
            bytes: 1,
        },
    );
    add("dallocx".to_owned(), Frees { memory: 0 });
    add("sdallocx".to_owned(), Frees { memory: 0 });
    // operator new and delete, with their alignments and std::nothrow.
    for what in ["_Znwm", "_Znam"] {
        for rest in [
            "",
            "RKSt9nothrow_t",
            "St11align_val_t",
            "St11align_val_tRKSt9nothrow_t",
        ] {
            add(format!("{what}{rest}"), Allocates { bytes: 0 });
        }
    }
    for what in ["_ZdlPv", "_ZdaPv"] {
        for rest in [
            "",
            "m",
            "RKSt9nothrow_t",
            "St11align_val_t",
            "mSt11align_val_t",
            "St11align_val_tRKSt9nothrow_t",
        ] {
            add(format!("{what}{rest}"), Frees { memory: 0 });
        }
    }
    // CPython's object allocator.
    for family in ["PyObject", "PyMem", "PyMem_Raw"] {
        let separator = if family == "PyMem_Raw" { "" } else { "_" };
        add(format!("{family}{separator}Malloc"), Allocates { bytes: 0 });
        add(
            format!("{family}{separator}Calloc"),
            AllocatesArray { count: 0, bytes: 1 },
        );
        add(
            format!("{family}{separator}Realloc"),
            Reallocates {
                memory: 0,
                bytes: 1,
            },
        );
        add(format!("{family}{separator}Free"), Frees { memory: 0 });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cpp_and_rust_become_patterns_of_symbols() {
        let of = |name: &str| symbols_of(name).replace(' ', "\n");
        assert_eq!(of("pool_get"), "pool_get\n_Z8pool_get*");
        assert_eq!(of("_ZN3eng4PoolIiE3getEm*"), "_ZN3eng4PoolIiE3getEm*");
        assert!(of("eng::Pool<std::pair<int, long> >::get").starts_with("_ZN3eng*4Pool*3getE*\n"));
        assert!(of("pool::get").ends_with("\n_ZN4pool*3get17h*E"));
    }
}
