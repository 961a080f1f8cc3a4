//! Compares names with those of binutils' addr2line, for programs that are compiled here.

use std::fs;
use std::process::Command;

use memgauge_host::program::{COPIES, identity};
use memgauge_recording::{Writer, add_table};
use memgauge_trace::{Manifest, SymbolRow};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol};
use tempfile::TempDir;

use super::*;

mod split;

/// A load in a function that is inlined into another, which is inlined into a third.
const SOURCE: &str = r#"#include <cstdio>
#include <vector>
namespace tables { long counts[4096]; }
static inline long pick(const std::vector<long> &all, long i) {
    return all[(i * 40503) % all.size()];
}
static inline long sum(const std::vector<long> &all, long n) {
    long s = 0;
    for (long i = 0; i < n; i++)
        s += pick(all, i) + tables::counts[i & 4095]++;
    return s;
}
__attribute__((noinline)) long work(long n) {
    std::vector<long> all(1000, n);
    return sum(all, n);
}
int main(int argc, char **) {
    std::printf("%ld\n", work(argc * 100));
}
"#;

struct Built {
    folder: TempDir,
    path: PathBuf,
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("failed to run `{program}`: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn compile(folder: &Path, source: &str, options: &[&str]) -> PathBuf {
    let (text, path) = (folder.join("p.cc"), folder.join("p"));
    fs::write(&text, source).unwrap();
    let files = [text.to_str().unwrap(), "-o", path.to_str().unwrap()];
    run("g++", &[&["-O2", "-g"], options, &files].concat());
    path
}

fn build(options: &[&str]) -> Built {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), SOURCE, options);
    Built { folder, path }
}

impl Built {
    fn file(&self) -> ModuleFile {
        let identity = identity(&self.path).unwrap();
        ModuleFile {
            path: self.path.to_str().unwrap().to_owned(),
            build_id: identity.build_id,
            bytes: Some(identity.bytes),
            modified_ns: Some(identity.modified_ns),
        }
    }

    fn symbols(&self) -> Symbols {
        Symbols::of(&self.folder.path().join("r.mg"))
    }
}

/// Address and size of a symbol, and the file offset that belongs to the address.
fn place(path: &Path, name: &str) -> (u64, u64, u64) {
    let bytes = fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let symbol = file.symbols().find(|s| s.name() == Ok(name)).expect(name);
    let address = symbol.address();
    let mut segments = file.segments();
    let holds = |s: &object::Segment| s.address() <= address && address < s.address() + s.size();
    let segment = segments.find(holds).unwrap();
    let offset = segment.file_range().0 + (address - segment.address());
    (address, symbol.size(), offset)
}

/// `FILE:LINE` of an address and of the calls it was inlined at, innermost first.
fn by_addr2line(path: &Path, address: u64) -> Vec<String> {
    let address = format!("{address:#x}");
    let text = run("addr2line", &["-i", "-e", path.to_str().unwrap(), &address]);
    let line = |line: &str| {
        let place = line.split(" (").next().unwrap_or(line);
        place.rsplit('/').next().unwrap_or(place).to_owned()
    };
    text.lines().map(line).collect()
}

fn chain(symbol: &Symbol) -> Vec<String> {
    let place = |file: &Option<String>, line: Option<u32>| {
        let name = file.as_deref().and_then(|f| f.rsplit('/').next());
        let line = line.map_or_else(|| "?".to_owned(), |n| n.to_string());
        format!("{}:{line}", name.unwrap_or("??"))
    };
    let callers = symbol.inlined_into.iter().map(|c| place(&c.file, c.line));
    std::iter::once(place(&symbol.file, symbol.line))
        .chain(callers)
        .collect()
}

const WORK: &str = "_Z4workl";

/// Compares every fourth byte of the function. Returns the length of the longest chain.
fn compare(built: &Built) -> usize {
    let (address, bytes, offset) = place(&built.path, WORK);
    let (file, mut symbols) = (built.file(), built.symbols());
    let mut longest = 0;
    for at in (0..bytes).step_by(4) {
        let symbol = symbols.resolve(&file, offset + at).expect("a name");
        let expected = by_addr2line(&built.path, address + at);
        // Neither knows the line of code that the compiler made up.
        if expected.iter().all(|place| !place.contains('?')) {
            assert_eq!(chain(&symbol), expected, "at {at:#x}: {symbol:?}");
        }
        longest = longest.max(expected.len());
    }
    assert_eq!(symbols.problems(), Vec::<String>::new());
    longest
}

#[test]
fn inlined_code_has_the_line_of_the_innermost_function_and_the_outer_ones() {
    let built = build(&[]);
    assert!(compare(&built) >= 3, "nothing was inlined");
    let (_, bytes, offset) = place(&built.path, WORK);
    let (file, mut symbols) = (built.file(), built.symbols());
    let all = (0..bytes).filter_map(|at| symbols.resolve(&file, offset + at));
    let picked = all.filter(|s| s.line == Some(5) && s.name.starts_with("pick"));
    let picked: Vec<Symbol> = picked.collect();
    assert!(!picked.is_empty());
    let callers = picked[0].inlined_into.iter();
    let callers: Vec<&str> = callers
        .map(|c| c.function.split('(').next().unwrap())
        .collect();
    assert_eq!(callers, ["sum", "work"]);
}

#[test]
fn compressed_debug_information_is_read() {
    for kind in ["-gz=zlib", "-gz=zstd"] {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("try.cc");
        fs::write(&text, "int main() {}").unwrap();
        let out = folder.path().join("try");
        let tried = Command::new("g++")
            .args(["-g", kind])
            .args([&text])
            .arg("-o")
            .arg(&out)
            .output();
        if !tried.unwrap().status.success() {
            memgauge_testing::skipped(
                memgauge_testing::Need::Tool,
                format!("this g++ has no {kind}"),
            );
            continue;
        }
        assert!(compare(&build(&[kind])) >= 3, "{kind}");
    }
}

/// As on Fedora and its relatives: the names of functions in a program within the program.
#[test]
fn names_in_a_section_of_their_own_are_read() {
    let built = build(&["-g0"]);
    let path = built.path.to_str().unwrap();
    let (_, _, offset) = place(&built.path, WORK);
    let names = built.folder.path().join("names");
    let names = names.to_str().unwrap();
    run("objcopy", &["--only-keep-debug", path, names]);
    run("xz", &[names]);
    run("strip", &["--strip-all", path]);
    let name_of = |built: &Built| built.symbols().resolve(&built.file(), offset + 8);
    assert_ne!(
        name_of(&built).map(|s| s.name).as_deref(),
        Some("work(long)")
    );
    let section = format!("--add-section=.gnu_debugdata={names}.xz");
    run("objcopy", &[&section, path]);
    assert_eq!(name_of(&built).expect("a name").name, "work(long)");
}

#[test]
fn debug_information_that_cannot_be_read_leaves_the_symbol_table_and_is_told() {
    let built = build(&["-gz=zlib"]);
    let mut bytes = fs::read(&built.path).unwrap();
    let range = {
        let file = object::File::parse(&*bytes).unwrap();
        file.section_by_name(".debug_info")
            .unwrap()
            .file_range()
            .unwrap()
    };
    // The compressed data follows a header of 24 bytes.
    bytes[range.0 as usize + 24..(range.0 + range.1) as usize].fill(0xff);
    fs::write(&built.path, bytes).unwrap();
    let (_, _, offset) = place(&built.path, WORK);
    let mut symbols = built.symbols();
    let symbol = symbols.resolve(&built.file(), offset + 8).expect("a name");
    assert_eq!((symbol.name.as_str(), symbol.line), ("work(long)", None));
    symbols.resolve(&built.file(), offset + 12).expect("a name");
    let problems = symbols.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains(built.path.to_str().unwrap()));
}

#[test]
fn debug_information_in_a_file_of_its_own_is_read() {
    let built = build(&[]);
    let path = built.path.to_str().unwrap();
    let (address, _, offset) = place(&built.path, WORK);
    let expected = by_addr2line(&built.path, address + 40);
    let debug = format!("{path}.debug");
    run(
        "objcopy",
        &[
            "--only-keep-debug",
            "--compress-debug-sections=zlib",
            path,
            &debug,
        ],
    );
    run("strip", &["--strip-all", path]);
    run("objcopy", &[&format!("--add-gnu-debuglink={debug}"), path]);
    let symbol = built
        .symbols()
        .resolve(&built.file(), offset + 40)
        .expect("a name");
    assert_eq!(chain(&symbol), expected);
}

/// The program is rebuilt from other source text. Its names are not those of the recording, unless
/// the recording has a copy of the program.
#[test]
fn a_rebuilt_program_gives_no_names_and_is_told() {
    for options in [&["-Wl,--build-id"][..], &["-Wl,--build-id=none"]] {
        let built = build(options);
        let file = built.file();
        assert_eq!(file.build_id.is_empty(), options[0].ends_with("none"));
        let (_, _, offset) = place(&built.path, WORK);
        let before = built.symbols().resolve(&file, offset).expect("a name");
        let old = fs::read(&built.path).unwrap();
        compile(
            built.folder.path(),
            &SOURCE.replace("work", "other_work"),
            options,
        );
        let mut symbols = built.symbols();
        assert_eq!(symbols.resolve(&file, offset), None);
        assert_eq!(symbols.resolve_data(&file, offset), None);
        let problems = symbols.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains(&file.path) && problems[0].contains(&file.build_id));
        if !file.build_id.is_empty() {
            let copies = built.folder.path().join("r.mg").join(COPIES);
            fs::create_dir_all(&copies).unwrap();
            let copy = copies.join(&file.build_id);
            fs::write(&copy, &old).unwrap();
            assert_eq!(built.symbols().resolve(&file, offset), Some(before));
            fs::write(&copy, &old[..old.len() / 2]).unwrap();
            let mut symbols = built.symbols();
            assert_eq!(symbols.resolve(&file, offset), None);
            let problems = symbols.problems();
            let copy = copy.display().to_string();
            assert!(
                problems[0].contains(&copy) && problems[0].contains("damaged"),
                "{problems:?}"
            );
        }
    }
}

#[test]
fn variables_have_the_names_that_people_wrote() {
    let built = build(&[]);
    let (_, bytes, offset) = place(&built.path, "_ZN6tables6countsE");
    let (file, mut symbols) = (built.file(), built.symbols());
    let name = symbols.resolve_data(&file, offset + bytes / 2);
    assert_eq!(name.as_deref(), Some("tables::counts"));
    assert_eq!(symbols.data_bytes(&file, offset + bytes / 2), Some(bytes));
    assert_eq!(symbols.reaches(&file, offset + bytes / 2), Some(true));
    assert_eq!(symbols.reaches(&file, offset + (1 << 30)), Some(false));
}

/// Twin: the names that objdump gives the entries of the procedure linkage tables.
#[test]
fn stubs_are_named_after_the_function_that_they_call() {
    for options in [
        &["-Wl,-z,lazy"][..],
        &["-Wl,-z,now"],
        &["-fcf-protection=full"],
    ] {
        let built = build(options);
        let text = run("objdump", &["-d", built.path.to_str().unwrap()]);
        let stub = |line: &str| {
            let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
            let name = name.strip_suffix("@plt")?;
            Some((u64::from_str_radix(address, 16).ok()?, name.to_owned()))
        };
        let expected: Vec<(u64, String)> = text.lines().filter_map(stub).collect();
        assert!(expected.iter().any(|(_, name)| name == "printf"), "{text}");
        let image = image::Image::read(&built.path, "", &mut None).unwrap();
        for (address, name) in expected {
            // Versions (`printf@GLIBC_2.2.5`) are not a part of the name.
            let name = image::demangle(name.split('@').next().unwrap());
            let found = image.plt_function(address);
            assert_eq!(found, Some(format!("{name}@plt").as_str()), "{options:?}");
            assert_eq!(image.plt_function(address + 15), found);
        }
    }
}

/// Names of C that could be mangled types of C++: `t` is `unsigned short` there.
#[test]
fn names_of_c_are_not_taken_for_types() {
    let source = "
        #define F(name) extern \"C\" __attribute__((noinline, used)) long name(long n) { return n * n + sizeof #name; }
        F(t) F(i) F(d) F(x) F(Pc) F(f) F(St) F(v)
        int main(int argc, char **) { return t(argc) + i(argc) + St(argc); }
    ";
    for options in [&["-g"][..], &["-g0"]] {
        let folder = tempfile::tempdir().unwrap();
        let path = compile(folder.path(), source, options);
        let built = Built { folder, path };
        let (file, mut symbols) = (built.file(), built.symbols());
        for name in ["t", "i", "d", "x", "Pc", "f", "St", "v"] {
            let (_, _, offset) = place(&built.path, name);
            assert_eq!(symbols.resolve(&file, offset).unwrap().name, name);
        }
    }
}

/// All names of a program with constraints as in the C++ library must be as binutils reads them, or
/// at least equal without parameters and return type.
#[test]
fn constrained_templates_have_names() {
    let source = "
        #include <algorithm>
        #include <map>
        #include <memory>
        #include <string>
        #include <vector>
        int main(int argc, char **argv) {
            unsigned a = argc, b = 7;
            std::swap(a, b);
            std::vector<int> all(argc, 3);
            std::fill(all.begin(), all.end(), argc);
            std::map<std::string, std::vector<int>> map;
            map.emplace(argv[0], all);
            std::sort(all.begin(), all.end(), [](int x, int y) { return x > y; });
            auto owner = std::make_unique<std::string>(argv[0]);
            return a + b + all[0] + map.size() + owner->size();
        }
    ";
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), source, &["-O0", "-std=c++17"]);
    let path = path.to_str().unwrap();
    let list = |options: &[&str]| run("nm", &[&["-p", "--defined-only", path], options].concat());
    let name = |line: &str| line.splitn(3, ' ').nth(2).unwrap_or_default().to_owned();
    let mangled = list(&[]);
    let named = list(&["-C"]);
    let mut found = 0;
    for (mangled, expected) in mangled.lines().map(name).zip(named.lines().map(name)) {
        if !mangled.starts_with("_Z") {
            continue;
        }
        let own = image::demangle(&mangled);
        assert!(!own.starts_with("_Z"), "{mangled}: {expected}");
        if image::is_name_alone(&mangled) {
            let without_spaces = |text: &str| text.replace(' ', "");
            let (own, whole) = (without_spaces(&own), without_spaces(&expected));
            assert!(whole.contains(&own), "{mangled}: {own} is not in {whole}");
            assert!(own.starts_with("std::"), "{own}");
            found += 1;
        }
    }
    assert!(found > 2, "the C++ library has no such names: {found}");
}

/// The mangled name of the same program with other identifiers of equal length is the witness: its
/// demangled form differs in these identifiers alone.
#[test]
fn identifiers_beyond_ascii_are_demangled() {
    let source = "
        #include <array>
        #include <map>
        #include <string>
        #include <vector>
        namespace Maße { struct Größe { int ü; Größe(int n) : ü(n) {} ~Größe() { ü = 0; } }; }
        template <class T, unsigned n> struct Feld { std::array<T, n> é; T summe() { return é[n - 1]; } };
        template <class T> struct Lager { std::map<int, T> 価格; void setze(int k, T t) { 価格.emplace(k, t); } };
        static int größer(Maße::Größe a, Maße::Größe b) { return a.ü > b.ü; }
        int main(int argc, char **) {
            Lager<Maße::Größe> lager;
            lager.setze(argc, Maße::Größe(argc));
            Feld<int, 16> feld{};
            auto läuft = [&](Maße::Größe g) { return größer(g, Maße::Größe(2)); };
            return läuft(Maße::Größe(argc)) + feld.summe();
        }
    ";
    // Of equal length in UTF-8.
    let pairs = [
        ("größer", "gr_oe_er"),
        ("Größe", "Gr_o_se"),
        ("Maße", "Ma_se"),
        ("läuft", "l_auft"),
        ("é", "_e"),
        ("ü", "_u"),
        ("価格", "_price"),
    ];
    let ascii = |text: &str| {
        let all = pairs.iter();
        all.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    };
    let names_of = |source: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = compile(folder.path(), source, &["-O0", "-std=c++17"]);
        let path = path.to_str().unwrap();
        let list = run("nm", &["-p", "--defined-only", path]);
        let name = |line: &str| line.splitn(3, ' ').nth(2).unwrap_or_default().to_owned();
        list.lines().map(name).collect::<Vec<_>>()
    };
    let mut found = 0;
    let (names, witnesses) = (names_of(source), names_of(&ascii(source)));
    assert_eq!(names.len(), witnesses.len());
    for mangled in &names {
        let witness = ascii(mangled);
        assert!(witnesses.contains(&witness), "{witness}");
        let (own, expected) = (image::demangle(mangled), image::demangle(&witness));
        assert_eq!(ascii(&own), expected, "{mangled}");
        if !mangled.is_ascii() && mangled.starts_with("_Z") {
            assert!(!own.starts_with("_Z"), "{mangled}");
            found += 1;
        }
    }
    assert!(found > 20, "few such names: {found}");
}

#[test]
fn code_of_a_file_that_is_gone_has_the_names_that_were_recorded() {
    let built = build(&[]);
    let recording = built.folder.path().join("r.mg");
    let file = built.file();
    let row = |offset, function: &str, line| SymbolRow {
        module: file.path.clone(),
        build_id: file.build_id.clone(),
        offset: Some(offset),
        function: function.to_owned(),
        file: "p.cc".to_owned(),
        line,
        inlined_into: r#"[{"function":"outer","file":null,"line":3}]"#.to_owned(),
        ..SymbolRow::default()
    };
    let writer = Writer::create(&recording, Manifest::default()).unwrap();
    writer.finish(|_| {}).unwrap();
    add_table(&recording, &[row(1, "f", Some(7)), row(2, "g", None)]).unwrap();
    fs::remove_file(&built.path).unwrap();
    let mut symbols = built.symbols();
    let found = symbols.resolve(&file, 1).unwrap();
    assert_eq!((found.name.as_str(), found.line), ("f", Some(7)));
    assert_eq!(found.inlined_into[0].function, "outer");
    assert_eq!(symbols.resolve(&file, 2).unwrap().name, "g");
    assert_eq!(symbols.resolve(&file, 3), None);
    // No names are missing yet, because only variables have none.
    assert_eq!(symbols.problems(), Vec::<String>::new());
    assert_eq!(symbols.resolve_data(&file, 1), None);
    let problems = symbols.problems();
    assert!(
        problems.len() == 1 && problems[0].starts_with("failed to name data of"),
        "{problems:?}"
    );
    // Another build of the file has other code.
    let other = ModuleFile {
        build_id: "abcd".to_owned(),
        ..file
    };
    assert_eq!(symbols.resolve(&other, 1), None);
}
