//! Recognises functions of standard libraries by their names.
//!
//! Programs without debug information have no source files that tell library code from the user's
//! code, but instances of templates and generic functions keep the name of their library.

use crate::resolve::file_name;

/// Modules and crates of the standard libraries of C++ and Rust.
const NAMESPACES: [&str; 7] = [
    "std::",
    "__gnu_cxx::",
    "__cxxabiv1::",
    "core::",
    "alloc::",
    "hashbrown::",
    "compiler_builtins::",
];

/// Packages of Go's standard library, without those of which users see results only (`testing`).
/// `internal/` is a prefix of paths.
const GO_PACKAGES: [&str; 35] = [
    "aeshashbody",
    "bufio",
    "bytes",
    "cmp",
    "compress/",
    "container/",
    "context",
    "crypto/",
    "encoding/",
    "errors",
    "fmt",
    "hash/",
    "internal/",
    "io",
    "iter",
    "maps",
    "math",
    "memeqbody",
    "net",
    "os",
    "path",
    "path/",
    "reflect",
    "regexp",
    "regexp/",
    "runtime",
    "runtime/",
    "slices",
    "sort",
    "strconv",
    "strings",
    "sync",
    "sync/",
    "time",
    "unicode/",
];

/// Endings that GCC and LLVM append to the names of a function's copies.
const COPIES: [&str; 7] = [
    "cold",
    "constprop",
    "isra",
    "llvm",
    "localalias",
    "lto_priv",
    "part",
];

/// Beginnings of the paths of installed shared libraries.
const LIBRARY_FOLDERS: [&str; 7] = [
    "/gnu/", "/lib/", "/lib32/", "/lib64/", "/nix/", "/opt/", "/usr/",
];
/// Folders of installed packages and interpreters, wherever they are.
const PACKAGE_FOLDERS: [&str; 4] = [
    "/dist-packages/",
    "/lib/python",
    "/node_modules/",
    "/site-packages/",
];
/// Shared libraries of interpreters, which are often installed in a user's home.
const INTERPRETERS: [&str; 4] = ["libjvm.", "libnode.", "libperl.", "libpython"];

/// True for code that users do not change themselves: installed shared libraries, and functions of
/// standard libraries that were compiled into a program.
pub fn is_library_code(module: &str, function: &str) -> bool {
    is_installed_library(module) || is_standard_function(function)
}

/// True for an installed shared library. One in another folder is likely the user's own.
fn is_installed_library(module: &str) -> bool {
    let file = file_name(module);
    let is_library = (file.ends_with(".so") || file.contains(".so.")) && !file.starts_with('[');
    is_library
        && (!module.contains('/')
            || LIBRARY_FOLDERS
                .iter()
                .any(|folder| module.starts_with(folder))
            || PACKAGE_FOLDERS.iter().any(|folder| module.contains(folder))
            || INTERPRETERS.iter().any(|name| file.starts_with(name)))
}

/// True for functions of the standard libraries of C, C++, Rust and Go that were compiled into a
/// program.
fn is_standard_function(function: &str) -> bool {
    is_standard_library(without_return_type(function))
        || function.starts_with("operator new")
        || function.starts_with("operator delete")
        || is_go_library(function)
        || is_static_libc(function)
}

/// True for names in a namespace or crate of the standard libraries of C++ and Rust. `name` has no
/// type of a result.
pub(crate) fn is_standard_library(name: &str) -> bool {
    let of = implementor(name);
    NAMESPACES.iter().any(|library| of.starts_with(library))
}

/// True for `runtime.mapaccess1_fast64` and `slices.pdqsortCmpFunc[go.shape.int]`.
fn is_go_library(function: &str) -> bool {
    let path = function.split(['[', '(', ':']).next().unwrap_or(function);
    let last = path.rfind('/').map_or(0, |at| at + 1);
    let Some((package, name)) = path[last..].split_once('.') else {
        return matches!(function, "memeqbody" | "aeshashbody");
    };
    let ending = name.split('.').next().unwrap_or(name);
    if COPIES.contains(&ending) {
        return false;
    }
    let package = &path[..last + package.len()];
    GO_PACKAGES.iter().any(|known| match known.ends_with('/') {
        true => package.starts_with(known),
        false => package == *known,
    })
}

/// True for internal functions of a C library in a static program.
fn is_static_libc(function: &str) -> bool {
    ["__mem", "__str", "__wmem", "_int_malloc", "_int_free"]
        .iter()
        .any(|start| function.starts_with(start))
}

/// A name by which a call of a C library's function and its implementation can be compared:
/// `memcpy` for `memcpy@plt`, `__memmove_avx_unaligned_erms` and `mempcpy`.
pub(crate) fn plain_name(function: &str) -> &str {
    let name = function.strip_suffix("@plt").unwrap_or(function);
    let name = name.trim_start_matches("__GI_").trim_start_matches('_');
    let name = name.trim_start_matches("libc_").trim_start_matches("int_");
    let variants = ["_avx", "_evex", "_sse", "_ssse", "_erms", "_generic"];
    let end = variants.iter().filter_map(|variant| name.find(variant));
    let name = &name[..end.min().unwrap_or(name.len())];
    // Implementations that share code, of which the symbol table names any.
    match name {
        "memmove" | "mempcpy" => "memcpy",
        "bcmp" => "memcmp",
        "bzero" => "memset",
        "cfree" => "free",
        name => name,
    }
}

/// The type that a method of Rust belongs to: `<&alloc::vec::Vec<u8> as Trait>::method`. That of a
/// generic or primitive type belongs to the library that has the trait: `<T as alloc::Trait>::method`.
fn implementor(name: &str) -> &str {
    let plain = name.trim_start_matches(['<', '&']);
    let plain = plain.strip_prefix("mut ").unwrap_or(plain);
    let plain = plain.strip_prefix("dyn ").unwrap_or(plain);
    match plain.split_once(" as ") {
        Some((of, trait_and_rest)) if of.len() == 1 || is_primitive(of) => trait_and_rest,
        _ => plain,
    }
}

fn is_primitive(name: &str) -> bool {
    !name.contains("::") && name.starts_with(|c: char| c.is_ascii_lowercase())
}

/// A function's name without the type of its result, which the names of templates begin with.
pub(crate) fn without_return_type(function: &str) -> &str {
    let (mut depth, mut start) = (0, 0);
    for (at, c) in function.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            '(' if depth == 0 => break,
            ' ' if depth == 0 && !function[start..at].ends_with("operator") => start = at + 1,
            _ => {}
        }
    }
    &function[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_standard_libraries_are_library_code() {
        for function in [
            "std::_Hashtable<unsigned long, int>::find(unsigned long const&) const",
            "void std::__introsort_loop<int*, long>(int*, int*, long) [clone .isra.0]",
            "std::pair<std::_Rb_tree_iterator<int>, bool> std::_Rb_tree<int>::_M_insert_unique<int>(int&&)",
            "__gnu_cxx::new_allocator<int>::allocate(unsigned long)",
            "core::slice::sort::stable::quicksort::quicksort",
            "hashbrown::raw::RawTable<T,A>::reserve_rehash",
            "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            "runtime.mapaccess1_fast64",
            "runtime.(*mspan).nextFreeIndex",
            "internal/runtime/maps.(*Iter).Next",
            "sort.insertionSort",
            "slices.pdqsortCmpFunc[go.shape.uint64]",
            "memeqbody",
            "_int_free",
            "operator new(unsigned long)",
        ] {
            assert!(is_library_code("/bin/p", function), "{function}");
        }
        for function in [
            "main",
            "lookups(std::unordered_map<int, int> const&)",
            "std::vector<int> build<int>(unsigned long)",
            "sort.part.0",
            "time.constprop.0",
            "main.(*byKey).Less",
            "example.com/runtime.run",
            "hash::lookups",
            "<my::Tree as core::clone::Clone>::clone",
            "memory_pool",
        ] {
            assert!(!is_library_code("/bin/p", function), "{function}");
        }
        assert!(is_library_code(
            "/lib/x86_64-linux-gnu/libc.so.6",
            "qsort_r"
        ));
    }

    #[test]
    fn implementations_of_the_c_library_have_the_name_that_programs_call() {
        for (function, plain) in [
            ("memcpy@plt", "memcpy"),
            ("__memmove_avx_unaligned_erms", "memcpy"),
            ("__memset_avx2_unaligned_erms", "memset"),
            ("__memcmp_evex_movbe", "memcmp"),
            ("__GI___qsort_r", "qsort_r"),
            ("__libc_free", "free"),
            ("_int_malloc", "malloc"),
            ("strlen", "strlen"),
        ] {
            assert_eq!(plain_name(function), plain);
        }
    }
    #[test]
    fn shared_libraries_outside_of_system_folders_are_the_users() {
        for (module, expected) in [
            ("/usr/lib/x86_64-linux-gnu/libz.so.1", true),
            (
                "/home/u/.pyenv/versions/3.11.7/lib/libpython3.11.so.1.0",
                true,
            ),
            (
                "/home/u/venv/lib/python3.11/site-packages/numpy/core.so",
                true,
            ),
            ("libc.so.6", true),
            ("/home/u/build/libown.so", false),
            ("/tmp/plugin.so.2", false),
            ("/home/u/program", false),
        ] {
            assert_eq!(is_library_code(module, "f"), expected, "{module}");
        }
    }
}
