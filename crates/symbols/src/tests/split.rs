//! Split units and supplementary files give the names, lines and types that the same program has
//! with all of its debug information in one file.

use std::collections::BTreeMap;

use memgauge_testing::{Need, Random, skipped};

use super::*;

/// `FIELDS` differs between runs.
const HEADER: &str = r#"#include <vector>
struct Node { long key; Node *next; long rest[FIELDS]; int hits; };
struct Table { std::vector<Node> nodes; long count; };
extern Table shared;
extern struct Totals { long bytes, pad[FIELDS], calls; } totals;
static inline long key_of(const Node *node) { totals.calls++; return node->key; }
long walk(const Node *node);
"#;
const WALK: &str = r#"#include "header.h"
Totals totals;
__attribute__((noinline)) long walk(const Node *node) {
    long sum = 0;
    for (; node; node = node->next)
        sum += key_of(node) + node->hits;
    return sum;
}
"#;
const MAIN: &str = r#"#include <cstdio>
#include "header.h"
Table shared;
__attribute__((noinline)) long fill(long count) {
    shared.nodes.resize(count);
    for (long i = 0; i + 1 < count; i++) {
        shared.nodes[i].next = &shared.nodes[i + 1];
        shared.nodes[i].hits = i;
        totals.bytes += sizeof(Node);
    }
    shared.count += count;
    return walk(&shared.nodes[0]);
}
int main(int argc, char **) { std::printf("%ld\n", fill(argc * OTHER)); }
"#;
const FUNCTIONS: [&str; 2] = ["_Z4walkPK4Node", "_Z4filll"];

/// Compiles each file to an object of its own and links them.
fn build_units(compiler: &str, fields: u64, options: &[&str]) -> Built {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let header = HEADER.replace("FIELDS", &fields.to_string());
    for (name, text) in [
        ("header.h", header.as_str()),
        ("walk.cc", WALK),
        ("main.cc", MAIN),
    ] {
        fs::write(at(name), text).unwrap();
    }
    // Paths in the file would make the debug information of two builds differ.
    let common = ["-O2", "-DOTHER=100", "-Wl,--build-id"];
    for unit in ["walk", "main"] {
        let (source, object) = (at(&format!("{unit}.cc")), at(&format!("{unit}.o")));
        run(
            compiler,
            &[&common[..2], options, &["-c", &source, "-o", &object]].concat(),
        );
    }
    let path = folder.path().join("p");
    let objects = [at("walk.o"), at("main.o"), "-o".to_owned(), at("p")];
    let objects: Vec<&str> = objects.iter().map(String::as_str).collect();
    run(compiler, &[&common[2..], &objects].concat());
    Built { folder, path }
}

/// Returns all names that are known in the code of a program: the functions and lines at each byte, without
/// folders, and the data that instructions access.
fn known(built: &Built) -> (BTreeMap<String, Vec<String>>, Vec<String>) {
    let (file, mut symbols) = (built.file(), built.symbols());
    let mut all = BTreeMap::new();
    for name in FUNCTIONS {
        let (_, bytes, offset) = place(&built.path, name);
        let mut of_function = Vec::new();
        for at in 0..bytes {
            let symbol = symbols.resolve(&file, offset + at).expect("a name");
            let callers = symbol.inlined_into.iter().map(|caller| &caller.function);
            let functions: Vec<&String> = [&symbol.name].into_iter().chain(callers).collect();
            let access = symbols.accessed_data(&file, offset + at);
            of_function.push(format!(
                "{at:#x} {:?} {functions:?} {access:?}",
                chain(&symbol)
            ));
        }
        all.insert(name.to_owned(), of_function);
    }
    (all, symbols.problems())
}

/// Fails at the first byte of the code for which something else is known.
fn assert_same(what: &str, found: &Built, expected: &Built) {
    let ((found, problems), (expected, _)) = (known(found), known(expected));
    assert_eq!(problems, Vec::<String>::new(), "{what}");
    for (name, expected) in &expected {
        for (found, expected) in found[name].iter().zip(expected) {
            assert_eq!(found, expected, "{what}: {name}");
        }
        assert_eq!(found[name].len(), expected.len(), "{what}: {name}");
        let text = expected.concat();
        assert!(
            text.contains("\"Node\""),
            "{what}: {name} has no types: {text}"
        );
    }
    let walk = found[FUNCTIONS[0]].concat();
    // GCC gives a static function no mangled name, which would have its parameters.
    let inlined = ["key_of", "key_of(Node const*)"];
    let mut chains = inlined
        .map(|name| format!("[{name:?}, \"walk(Node const*)\"]"))
        .into_iter();
    assert!(chains.any(|chain| walk.contains(&chain)), "{what}: {walk}");
    assert!(walk.contains("\"Totals\""), "{what}: {walk}");
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skipped(Need::Tool, format!("needs {program}"));
    }
    found
}

/// A number of fields, compilers and versions of DWARF.
fn variants() -> (u64, Vec<[&'static str; 2]>) {
    let fields = 1 + Random::of_test("fields").below(40);
    println!("fields: {fields}");
    let compilers = ["g++", "clang++"]
        .into_iter()
        .filter(|compiler| has(compiler));
    let versions = |compiler| ["-gdwarf-4", "-gdwarf-5"].map(|version| [compiler, version]);
    (fields, compilers.flat_map(versions).collect())
}

#[test]
fn split_units_have_the_names_lines_and_types_of_whole_ones() {
    let (fields, variants) = variants();
    for [compiler, version] in variants {
        let whole = build_units(compiler, fields, &["-g", version]);
        let split = build_units(compiler, fields, &["-g", version, "-gsplit-dwarf"]);
        assert!(split.folder.path().join("walk.dwo").exists());
        let what = format!("{compiler} {version}");
        assert_same(&what, &split, &whole);
    }
}

#[test]
fn packages_of_split_units_are_read_also_beside_a_program_without_debug_information() {
    let (fields, variants) = variants();
    for [compiler, version] in variants {
        // binutils' dwp reads DWARF 4 only, and llvm-dwp 14 does not end with DWARF 5 of GCC.
        let packager = match [compiler, version] {
            [_, "-gdwarf-4"] => "dwp",
            ["clang++", _] => "llvm-dwp",
            _ => continue,
        };
        if !has(packager) {
            continue;
        }
        let whole = build_units(compiler, fields, &["-g", version]);
        let split = build_units(compiler, fields, &["-g", version, "-gsplit-dwarf"]);
        let path = split.path.to_str().unwrap();
        run(packager, &["-e", path, "-o", &format!("{path}.dwp")]);
        for unit in ["walk", "main"] {
            fs::remove_file(split.folder.path().join(format!("{unit}.dwo"))).unwrap();
        }
        let what = format!("{packager} {compiler} {version}");
        assert_same(&what, &split, &whole);
        let debug = format!("{path}.debug");
        run("objcopy", &["--only-keep-debug", path, &debug]);
        run("strip", &["--strip-debug", path]);
        run("objcopy", &[&format!("--add-gnu-debuglink={debug}"), path]);
        let (known, _) = known(&split);
        let text = known.into_values().flatten().collect::<String>();
        assert!(text.contains("walk.cc:6"), "{what}: {text}");
    }
}

#[test]
fn missing_split_units_leave_lines_and_are_told_once() {
    let (fields, variants) = variants();
    for [compiler, version] in variants {
        let split = build_units(compiler, fields, &["-g", version, "-gsplit-dwarf"]);
        let missing = split.folder.path().join("walk.dwo");
        // That of another build is none.
        let other = build_units(compiler, fields + 1, &["-g", version, "-gsplit-dwarf"]);
        fs::copy(other.folder.path().join("walk.dwo"), &missing).unwrap();
        let (known, problems) = known(&split);
        let [walk, fill] = FUNCTIONS.map(|name| known[name].concat());
        assert!(
            walk.contains("walk.cc:6\"] [\"walk(Node const*)\"] Err(SplitDebugInfo)"),
            "{walk}"
        );
        assert!(
            !walk.contains("\"Node\"") && fill.contains("\"Node\""),
            "{walk} {fill}"
        );
        assert_eq!(problems.len(), 1, "{problems:?}");
        let (problem, missing) = (&problems[0], missing.to_str().unwrap());
        assert!(
            problem.contains(missing) && problem.contains("dwp -e"),
            "{problem}"
        );
    }
}

#[test]
fn debug_information_moved_by_dwz_is_read() {
    if !has("dwz") {
        return;
    }
    let (fields, variants) = variants();
    for [compiler, version] in variants {
        // dwz 0.15 reads no addresses that are apart (.debug_addr).
        if [compiler, version] == ["clang++", "-gdwarf-5"] {
            continue;
        }
        let whole = build_units(compiler, fields, &["-g", version]);
        let moved = build_units(compiler, fields, &["-g", version]);
        let other = moved.folder.path().join("other");
        fs::copy(&moved.path, &other).unwrap();
        let at = |name: &str| moved.folder.path().join(name).to_str().unwrap().to_owned();
        run("dwz", &["-m", &at("common"), &at("p"), &at("other")]);
        assert!(fs::metadata(at("common")).unwrap().len() > 0);
        assert_same(&format!("{compiler} {version}"), &moved, &whole);
        // Within one file, entries move to partial units.
        let alone = build_units(compiler, fields, &["-g", version]);
        run("dwz", &[alone.path.to_str().unwrap()]);
        assert_same(&format!("alone, {compiler} {version}"), &alone, &whole);
    }
}
