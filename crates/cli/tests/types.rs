//! Misses by type and member, for known members.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use harness::{Recorded, needs, report_text};
use memgauge_testing::Random;
use serde_json::Value;

/// A list of nodes in random order, one hot and seven cold fields, and an array of counters.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#define APART __attribute__((noinline))
struct node { long key; struct node *next; char rest[112]; };
struct fields { long hot, cold1, cold2, cold3, cold4, cold5, cold6, cold7; };
struct counter { long hits, misses, more[6]; } counters[1 << 14];
APART long walk(struct node *n) { long s = 0; for (; n; n = n->next) s++; return s; }
APART long sum(struct fields *f, long n) {
    long s = 0;
    for (long round = 0; round < 20; round++)
        for (long i = 0; i < n; i++) s += f[i * 7919 % n].hot;
    return s;
}
APART void count(long n) {
    unsigned r = 1;
    for (long i = 0; i < n; i++) { r = r * 1664525 + 1013904223; counters[r >> 18].hits++; }
}
int main(int argc, char **argv) {
    long n = atol(argv[1]), at = 0;
    struct node *all = calloc(n, sizeof *all);
    for (long i = 1; i < n; i++) { long to = i * 7919 % n; all[at].next = &all[to]; at = to; }
    struct fields *f = calloc(n, sizeof *f);
    f->cold7 = 1;
    for (long i = 0; i < n; i++) f[i].hot = i;
    count(4 * n);
    printf("%ld %ld\n", walk(all), sum(f, n));
}
"#;

fn compiled(folder: &Path, source: &str, flags: &[&str]) -> String {
    memgauge_testing::compiled(folder, "program.c", source, &[&["-w"], flags].concat())
        .expect("gcc is installed")
}

fn type_row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["types"]["rows"].as_array().expect("rows");
    let found = rows.iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("no type {name} in {rows:#?}"))
}

fn member<'a>(row: &'a Value, name: &str) -> &'a Value {
    let members = row["members"].as_array().expect("members");
    let found = members.iter().find(|member| member["name"] == name);
    found.unwrap_or_else(|| panic!("no member {name} in {row:#}"))
}

fn misses(row: &Value) -> u64 {
    row["counts"]["l1d.miss"].as_u64().unwrap_or(0)
}

#[test]
fn misses_are_charged_to_the_member_that_was_accessed() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    for flags in [["-O2", "-g"], ["-O2", "-gdwarf-4"]] {
        let program = compiled(folder.path(), PROGRAM, &flags);
        let n = 20_000;
        let recorded = Recorded::new(&[], &[program, n.to_string()]);
        let report = recorded.report();
        let node = type_row(&report, "node");
        assert_eq!(node["bytes"], 128);
        let next = member(node, "next");
        assert_eq!((&next["offset"], &next["bytes"]), (&8.into(), &8.into()));
        assert!(
            misses(next) >= n && misses(next) == misses(node),
            "{node:#}"
        );
        let fields = type_row(&report, "fields");
        let (hot, all) = (misses(member(fields, "hot")), misses(fields));
        assert!(all >= 20 * n && hot * 10 >= all * 9, "{hot} of {all}");
        assert_eq!(misses(member(fields, "cold3")), 0);
        let counter = type_row(&report, "counter");
        let hits = member(counter, "hits");
        assert_eq!(hits["counts"]["loads"], 4 * n);
        assert_eq!(hits["counts"]["stores"], 4 * n);
        assert!(misses(hits) > n, "{counter:#}");
        let text = report_text(&recorded.path());
        assert!(text.contains("Types by stalled cycles"), "{text}");
        assert!(text.contains("  next at 8"), "{text}");
        assert!(text.contains("hardly accessed"), "{text}");
    }
}

/// The C library may have debug information in a separate file, the program has none.
#[test]
fn without_debug_information_the_reason_is_given_instead_of_types() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), PROGRAM, &["-O2"]);
    let recorded = Recorded::new(&[], &[program, "20000".to_owned()]);
    let report = recorded.report();
    let types = &report["types"];
    if let Some(rows) = types["rows"].as_array() {
        assert!(rows.iter().all(|row| row["name"] != "node"), "{types:#}");
        let untyped = types["untyped"].as_array().expect("reasons");
        assert_eq!(untyped[0]["reason"], "no_debug_info", "{untyped:#?}");
    }
    let text = report_text(&recorded.path());
    assert!(!text.contains("Types by stalled cycles"), "{text}");
}

/// Offsets and sizes are those that the compiled program prints (`offsetof`, `sizeof`).
#[test]
fn a_member_of_a_drawn_structure_is_named_and_its_layout_is_that_of_the_compiler() {
    if !needs(&["gcc"]) {
        return;
    }
    let mut drawn = Random::of_test("structures");
    let folder = tempfile::tempdir().expect("a temporary folder");
    for _ in 0..4 {
        let types = [
            "char",
            "short",
            "int",
            "long",
            "double",
            "void *",
            "struct inner",
        ];
        let number = 3 + drawn.below(20);
        let (mut members, mut names) = (String::new(), Vec::new());
        for n in 0..number {
            let of = types[drawn.below(7) as usize];
            let is_array = drawn.below(4) == 0;
            let length = if is_array {
                format!("[{}]", 1 + drawn.below(9))
            } else {
                String::new()
            };
            let _ = write!(members, "{of} m{n}{length};");
            let end = if is_array { "[]" } else { "" };
            match of {
                "struct inner" => names.extend(["c", "d"].map(|f| {
                    (
                        format!("m{n}{end}.{f}"),
                        format!("m{n}{}.{f}", if is_array { "[0]" } else { "" }),
                    )
                })),
                _ => names.push((format!("m{n}{end}"), format!("m{n}"))),
            }
        }
        let (asked, path) = names[drawn.below(names.len() as u64) as usize].clone();
        let element = if asked.ends_with("[]") { "[0]" } else { "" };
        let mut source = format!(
            "#include <stdio.h>\n#include <stdlib.h>\n#include <stddef.h>\n\
             struct inner {{ char c; double d; }};\nstruct drawn {{ {members} }};\n\
             __attribute__((noinline)) void touch(struct drawn *all, long n) {{\n\
             for (long i = 0; i < n; i++) *(volatile char *)&all[i].{path}{element}; }}\n\
             int main(void) {{ long n = 100000;\n\
             touch(calloc(n, sizeof(struct drawn)), n);\n\
             printf(\"%zu\\n\", sizeof(struct drawn));\n"
        );
        for (_, path) in &names {
            let _ = writeln!(
                source,
                "printf(\"%zu\\n\", offsetof(struct drawn, {path}));"
            );
        }
        source += "}\n";
        let program = compiled(folder.path(), &source, &["-O2", "-g"]);
        let output = Command::new(&program).output().expect("it runs");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let printed: Vec<u64> = printed
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect();
        let recorded = Recorded::new(&[], &[program]);
        let report = recorded.report();
        let row = type_row(&report, "drawn");
        assert_eq!(row["bytes"], printed[0], "{source}");
        let listed = row["members"].as_array().expect("members");
        let layout = |member: &Value| {
            let name = member["name"].as_str().unwrap_or_default().to_owned();
            (name, member["offset"].as_u64().unwrap_or(u64::MAX))
        };
        let listed: Vec<_> = listed.iter().map(layout).collect();
        let expected = names
            .iter()
            .zip(&printed[1..])
            .map(|((name, _), &at)| (name.clone(), at));
        assert_eq!(listed, expected.collect::<Vec<_>>(), "{source}");
        assert_eq!(misses(member(row, &asked)), misses(row), "{asked} {source}");
        assert_eq!(
            member(row, &asked)["counts"]["loads"],
            100_000,
            "{asked} {source}"
        );
    }
}
