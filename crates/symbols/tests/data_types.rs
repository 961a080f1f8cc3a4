//! Members that code accesses by construction, on programs compiled here.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use memgauge_analyze::{DataAccess, DataType, ModuleFile, NoType, Resolve};
use memgauge_symbols::Symbols;
use object::{Object, ObjectSegment, ObjectSymbol, ReadCache};
use tempfile::TempDir;

struct Program {
    path: PathBuf,
    _folder: TempDir,
}

fn compiled(compiler: &str, ending: &str, source: &str, options: &[&str]) -> Program {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, path) = (
        folder.path().join(format!("p.{ending}")),
        folder.path().join("p"),
    );
    std::fs::write(&file, source).expect("the source can be written");
    let mut command = Command::new(compiler);
    command.args(options).arg("-o").args([&path, &file]);
    let output = command.output().expect("the compiler runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler}: {said}");
    Program {
        path,
        _folder: folder,
    }
}

fn c(source: &str) -> Program {
    compiled("gcc", "c", source, &["-O2", "-g"])
}

fn cpp(source: &str) -> Program {
    compiled("g++", "cc", source, &["-O2", "-g"])
}

impl Program {
    /// Every access of the functions whose symbol contains `function`.
    fn accesses(&self, function: &str) -> Vec<Result<DataAccess, NoType>> {
        let cache = ReadCache::new(File::open(&self.path).expect("it was compiled"));
        let file = object::File::parse(&cache).expect("it is a program");
        let module = ModuleFile {
            path: self
                .path
                .to_str()
                .expect("temporary paths are text")
                .to_owned(),
            ..ModuleFile::default()
        };
        let mut symbols = Symbols::of(Path::new("/nonexistent"));
        let mut all = Vec::new();
        let mut functions = 0;
        for symbol in file.symbols().filter(|s| s.size() > 0) {
            let is_asked =
                |name: &str| name == function || name.starts_with("_") && name.contains(function);
            if !symbol.name().is_ok_and(is_asked) {
                continue;
            }
            functions += 1;
            let code = symbol.address()..symbol.address() + symbol.size();
            let holds = |s: &object::Segment<'_, '_, _>| {
                (s.address()..s.address() + s.size()).contains(&code.start)
            };
            let segment = file.segments().find(holds).expect("code is in a segment");
            for address in code {
                let offset = address - segment.address() + segment.file_range().0;
                all.push(symbols.accessed_data(&module, offset));
            }
        }
        assert!(functions > 0, "no function {function}");
        // Bytes that are no instruction have no operand.
        all.retain(|access| *access != Err(NoType::NoOperand));
        all
    }

    /// `type.member` of every access outside of stacks, or the reason why it is unknown.
    fn members(&self, function: &str) -> BTreeSet<String> {
        let accesses = self.accesses(function).into_iter();
        let shown = accesses.filter(|access| *access != Err(NoType::Stack));
        shown
            .map(|access| access.map_or_else(|why| format!("{why:?}"), |a| name(&a)))
            .collect()
    }
}

fn name(access: &DataAccess) -> String {
    match access.member {
        Some(member) => format!("{}.{}", access.of.name, access.of.members[member].name),
        None => access.of.name.clone(),
    }
}

const COPIES: &str = r"
#define APART __attribute__((noinline))
struct counter { long hits, misses; };
static __thread struct counter own[64] = { { 1, 2 } };
__thread struct { int a, hot; } pair;
__thread struct counter *latest;
APART void hot_of_pair(void) { pair.hot++; }
APART void index_of_own(int i) { own[i].misses++; }
APART void each_of_own(int n) { for (int i = 0; i < n; i++) own[i].hits += i; }
APART long pointed_to_own(void) { return latest->misses; }
int main(int argc, char **argv) { hot_of_pair(); index_of_own(argc); each_of_own(argc); latest = own; return pointed_to_own(); }
";

#[test]
fn thread_local_variables_of_programs_have_types_and_those_of_libraries_a_reason() {
    for options in [
        &["-O2"][..],
        &["-O0"],
        &["-O2", "-no-pie"],
        &["-O2", "-static"],
        &["-O1", "-gdwarf-4"],
    ] {
        let program = compiled("gcc", "c", COPIES, &[&["-g"], options].concat());
        let typed = |function: &str| {
            let mut found = program.members(function);
            // The thread pointer itself is in the C library's block, and `i` may be on the stack.
            found.retain(|member| member != "ThreadLocal" && member != "int");
            found.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(typed("hot_of_pair"), ["(anonymous).hot"], "{options:?}");
        assert_eq!(typed("index_of_own"), ["counter.misses"], "{options:?}");
        assert_eq!(typed("each_of_own"), ["counter.hits"], "{options:?}");
        assert_eq!(
            typed("pointed_to_own"),
            ["counter *", "counter.misses"],
            "{options:?}"
        );
    }
    let library = compiled(
        "gcc",
        "c",
        COPIES,
        &["-g", "-O2", "-shared", "-fPIC", "-ftls-model=initial-exec"],
    );
    let found = library.members("hot_of_pair");
    assert!(!found.contains("(anonymous).hot"), "{found:?}");
}

#[track_caller]
fn check(program: &Program, function: &str, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(program.members(function), expected);
}

const NODES: &str = r"
#include <stdlib.h>
#define APART __attribute__((noinline))
struct point { int x, y; };
struct node { long value; struct node *next; struct point at; char text[24]; struct point way[4]; };
struct table { long used; struct node **slots; union { long number; void *pointer; } u; };
struct counter { long hits, misses; } counters[64];
static struct table whole;
long total;
APART long walk(struct node *n) { long s = 0; for (; n; n = n->next) s += n->value; return s; }
APART long nested(struct node *n, int i) { return n->at.y + n->way[i].x; }
APART void array(struct node *all, int n) { for (int i = 0; i < n; i++) all[i].at.x += i; }
APART void global(int i) { counters[i].hits++; total++; }
APART void each_global(int n) { for (int i = 0; i < n; i++) counters[i].misses += i; }
APART long through(struct table *t, int i) { return t->slots[i]->next->at.x + t->u.number; }
APART struct node *find(struct table *t, long v) {
    struct node *n = t->slots[v % 64];
    while (n && n->value != v) n = n->next;
    return n;
}
APART int used_later(long v) { return find(&whole, v)->at.y; }
APART void copy(struct node *to, const struct node *from) { to->value = from->value; to->next = from->next; }
APART long odd(void *p) { return *(long *)p; }
APART long stacked(int n) {
    volatile long array[16]; struct node local; volatile struct node *p = &local;
    for (int i = 0; i < n; i++) array[i & 15] += i;
    p->at.x = n;
    return array[n & 15] + p->at.x;
}
int main(int argc, char **argv) {
    struct node *n = calloc(8, sizeof *n);
    whole.slots = calloc(64, sizeof *whole.slots);
    for (int i = 0; i < 64; i++) whole.slots[i] = n;
    n->value = argc - 1;
    array(n, 8); global(argc); each_global(argc); copy(n + 1, n);
    return walk(n) + nested(n, argc) + through(&whole, argc) + used_later(0) + stacked(argc) + odd(n);
}
";

#[test]
fn members_of_structures_are_found_in_c() {
    for options in [
        &["-O2", "-g"][..],
        &["-O1", "-g"],
        &["-O2", "-gdwarf-4"],
        &["-O3", "-g", "-gz"],
    ] {
        let program = compiled("gcc", "c", NODES, options);
        check(&program, "walk", &["node.next", "node.value"]);
        check(&program, "nested", &["node.at.y", "node.way[].x"]);
        check(&program, "array", &["node.at.x"]);
        check(&program, "global", &["counter.hits", "long int"]);
        // Vector code has constants, too.
        let mut members = program.members("each_global");
        members.retain(|member| member != "UnknownVariable");
        assert_eq!(Vec::from_iter(members), ["counter.misses"], "{options:?}");
        let members = ["table.slots", "table.u", "node *", "node.next", "node.at.x"];
        check(&program, "through", &members);
        let members = ["table.slots", "node *", "node.value", "node.next"];
        check(&program, "find", &members);
        check(&program, "used_later", &["node.at.y"]);
        check(&program, "odd", &["VoidPointer"]);
        let on_stack: BTreeSet<String> = program.members("stacked").into_iter().collect();
        assert!(on_stack.contains("long int"), "{on_stack:?}");
        assert!(on_stack.contains("node.at.x"), "{on_stack:?}");
    }
}

#[test]
fn fresh_memory_has_the_type_of_the_variable_that_it_is_assigned_to() {
    let program = c(r"
        #include <stdlib.h>
        struct pair { long hot, cold; };
        __attribute__((noinline)) struct pair *made(long n) {
            struct pair *all = malloc(n * sizeof *all);
            for (long i = 0; i < n; i++) all[i].cold = i;
            return all;
        }
        __attribute__((noinline)) void each(struct pair **all, long n) {
            for (long i = 0; i < n; i++) { all[i] = malloc(sizeof(struct pair)); all[i]->hot = i; }
        }
        int main(int argc, char **argv) {
            struct pair *one[2];
            each(one, argc & 1);
            return made(argc)->cold;
        }
    ");
    check(&program, "made", &["pair.cold"]);
    check(&program, "each", &["pair *", "pair.hot"]);
}

#[test]
fn members_are_found_in_code_of_clang() {
    for options in [
        &["-O2", "-g"][..],
        &["-O2", "-g", "-gdwarf-4"],
        &["-O0", "-g"],
    ] {
        let program = compiled("clang", "c", NODES, options);
        let members = program.members("walk");
        for member in ["node.next", "node.value"] {
            assert!(members.contains(member), "{options:?}: {members:?}");
        }
        let members = program.members("global");
        assert!(members.contains("counter.hits"), "{options:?}: {members:?}");
    }
}

#[test]
fn members_are_found_in_cpp() {
    let program = cpp(r"
        #include <string>
        #include <unordered_map>
        #include <vector>
        #define APART __attribute__((noipa))
        namespace shapes {
        struct Base { virtual ~Base() {} long id; };
        struct Circle : Base { double radius; std::string name; APART long own() { return id + (long)radius; } };
        }
        template <class T> struct Box { T value; Box *next; };
        using Table = std::unordered_map<long, shapes::Circle *>;
        APART long area(shapes::Circle &c) { return c.id + (long)c.radius + c.name.size(); }
        APART long all_ids(const std::vector<shapes::Circle *> &v) { long s = 0; for (auto c : v) s += c->id; return s; }
        APART long boxes(Box<long> *b) { long s = 0; for (; b; b = b->next) s += b->value; return s; }
        APART long looked_up(Table &table, long key) { auto it = table.find(key); return it == table.end() ? 0 : it->second->id; }
        int main(int argc, char **argv) {
            shapes::Circle c; c.id = argc; c.radius = argc;
            std::vector<shapes::Circle *> v(3, &c); Box<long> b{argc, nullptr}; Table t; t[argc] = &c;
            return area(c) + all_ids(v) + boxes(&b) + looked_up(t, argc) + c.own();
        }
    ");
    let members =
        ["Circle.Base::id", "Circle.radius", "Circle.name"].map(|m| format!("shapes::{m}"));
    check(&program, "area", &members.each_ref().map(String::as_str));
    let members = ["shapes::Circle.Base::id", "shapes::Circle.radius"];
    check(&program, "own", &members);
    check(
        &program,
        "boxes",
        &["Box<long int>.value", "Box<long int>.next"],
    );
    let members = program.members("all_ids");
    assert!(
        members.contains("shapes::Circle.Base::id") || members.contains("shapes::Base.id"),
        "{members:?}"
    );
    assert!(members.contains("shapes::Circle *"), "{members:?}");
    let members = program.members("looked_up");
    println!("{members:?}");
    assert!(
        members.iter().any(|m| m.contains("_Hash_node")),
        "{members:?}"
    );
}

#[test]
fn members_are_found_in_rust() {
    let source = r#"
        pub struct Node { pub value: u64, pub pad: [u64; 14], pub next: Option<Box<Node>> }
        pub enum Shape { Circle { radius: u64 }, Square(u64, u64) }
        #[inline(never)] pub fn walk(first: &Node) -> u64 {
            let mut node = first; let mut sum = 0;
            loop { sum += node.value; match &node.next { Some(next) => node = next, None => return sum } }
        }
        #[inline(never)] pub fn summed(all: &[Node]) -> u64 { all.iter().map(|n| n.value).sum() }
        #[inline(never)] pub fn measured(s: &Shape) -> u64 { match s { Shape::Circle { radius } => *radius, Shape::Square(a, b) => a * b } }
        pub struct Pair { pub first: u64, pub second: u32 }
        #[inline(never)] pub fn pushed(all: &mut Vec<Pair>, n: u64) { for i in 0..n { all.push(Pair { first: i, second: 1 }); } }
        #[inline(never)] pub fn filled(n: u64) -> Vec<Pair> {
            let mut all = Vec::with_capacity(n as usize);
            for i in 0..n { all.push(Pair { first: i * 3 ^ n, second: 1 }); }
            all
        }
        #[no_mangle] #[inline(never)] pub fn indexed(all: &Vec<Box<Node>>, n: u64) -> u64 { all[n as usize % all.len()].value }
        fn main() {
            let n = std::env::args().count() as u64;
            let (mut pairs, boxes) = (Vec::new(), vec![Box::new(Node { value: n, pad: [0; 14], next: None })]);
            pushed(&mut pairs, n); println!("{}", filled(n).len()); println!("{}", pairs[0].first + indexed(&boxes, n));
            let all: Vec<Node> = (0..n).map(|value| Node { value, pad: [0; 14], next: None }).collect();
            let shape = if n > 1 { Shape::Circle { radius: n } } else { Shape::Square(n, n) };
            println!("{}", walk(&all[0]) + summed(&all) + measured(&shape));
        }
    "#;
    let program = compiled("rustc", "rs", source, &["-O", "-g", "--edition", "2021"]);
    check(&program, "walk", &["p::Node.value", "p::Node.next"]);
    check(&program, "summed", &["p::Node.value"]);
    for (function, expected) in [
        ("pushed", &["p::Pair.first", "p::Pair.second"][..]),
        ("filled", &["p::Pair.first", "p::Pair.second"]),
        ("indexed", &["p::Node *", "p::Node.value"]),
    ] {
        let members = program.members(function);
        let has = |name: &&str| members.contains(*name);
        assert!(expected.iter().all(has), "{function}: {members:?}");
    }
    let members = program.members("measured");
    assert!(
        members.iter().all(|member| member.starts_with("p::Shape")),
        "{members:?}"
    );
}

#[test]
fn layouts_have_offsets_sizes_and_holes() {
    let accesses = c("
        struct inner { char c; double d; };
        struct outer { int bits : 3, more : 5; struct inner pair[2]; char end; char rest[]; };
        __attribute__((noinline)) double get(struct outer *o, int i) { return o->pair[i].d; }
        int main(int argc, char **argv) { return get((void *)argv, argc); }
    ")
    .accesses("get");
    let of = accesses
        .iter()
        .find_map(|a| a.as_ref().ok())
        .map(|a| (*a.of).clone());
    let DataType {
        bytes,
        members,
        holes,
        ..
    } = of.unwrap();
    let rows: Vec<_> = members
        .iter()
        .map(|m| (&*m.name, m.offset, m.bytes, m.count))
        .collect();
    let expected = [
        ("bits…", 0, 1, 1),
        ("pair[].c", 8, 1, 2),
        ("pair[].d", 16, 8, 2),
        ("end", 40, 1, 1),
        ("rest[]", 41, 0, 1),
    ];
    assert_eq!(rows, expected);
    assert_eq!(bytes, 48);
    let holes: Vec<_> = holes.iter().map(|hole| (hole.offset, hole.bytes)).collect();
    assert_eq!(holes, [(1, 7), (9, 7), (25, 7), (41, 7)]);
}

#[test]
fn an_index_into_an_array_within_an_object_hides_the_offset() {
    let program = c(r"
struct node { long value; char text[24]; long after; };
__attribute__((noinline)) long text(struct node *n, long i) { return n->text[i]; }
__attribute__((noinline)) long first(struct node *n) { return n->text[3]; }
__attribute__((noinline)) long after(struct node *n, long i) { return n[i].after; }
int main(int count, char **arguments) { struct node n = { 0 }; return text(&n, count) + first(&n) + after(&n, 0); }
");
    let offset = |function| {
        let mut accesses = program.accesses(function);
        accesses.retain(|access| *access != Err(NoType::Stack));
        let [Ok(access)] = &accesses[..] else {
            panic!("{function}: {accesses:?}");
        };
        access.offset
    };
    assert_eq!(offset("text"), None);
    assert_eq!(offset("first"), Some(11));
    assert_eq!(offset("after"), Some(32));
}

/// Compilers add the offset of an array within an object to an index into it.
#[test]
fn a_constant_in_an_index_belongs_to_the_offset() {
    let program = c(r"
#define APART __attribute__((noinline))
struct cell { unsigned a : 3, b : 29; long value; struct { short x, y; } way[3]; } cells[1000];
APART void global(const int *at, int n) {
    for (int i = 0; i < n; i++) {
        struct cell *c = &cells[at[i]];
        c->b = i; c->value += i; c->way[i % 3].y = i;
    }
}
struct pair { long first, second; };
APART long second(struct pair *all, long n) { return all[n - 1].second; }
int main(int argc, char **argv) {
    struct pair pair = {argc, argc};
    global(&argc, argc & 1);
    return second(&pair, argc & 1);
}
");
    check(
        &program,
        "global",
        &["int", "cell.a…", "cell.value", "cell.way[].y"],
    );
    check(&program, "second", &["pair.second"]);
}
