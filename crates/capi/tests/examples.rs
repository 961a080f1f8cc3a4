//! Builds the examples in C, C++ and Python against the shared library and runs them. Checks that
//! header, library and manual page name the same functions.

mod engine;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use memgauge_testing::{Need, skipped};

/// Folder of the library that cargo builds for this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("this test is a file");
    let deps = own.parent().expect("in a folder");
    let library = deps.join("libmemgauge.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn output(command: &mut Command) -> Option<Output> {
    match command.output() {
        Ok(output) => Some(output),
        Err(_) => {
            skipped(
                Need::Tool,
                format!("{:?} is not installed", command.get_program()),
            );
            None
        }
    }
}

fn succeeded(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    text
}

/// Builds and runs an example; returns its output.
fn built(compiler: &str, source: &str, flags: &[&str]) -> Option<String> {
    let ran = built_and_run((compiler, source, flags), &[])?;
    Some(succeeded(&ran))
}

/// Builds and runs an example with arguments.
fn built_and_run(example: (&str, &str, &[&str]), arguments: &[&std::path::Path]) -> Option<Output> {
    let folder = tempfile::tempdir().expect("room");
    let mut command = built_in(folder.path(), example, &library())?;
    command.env("MEMGAUGE_QEMU", engine::engine());
    output(command.args(arguments))
}

/// Builds an example in a folder; returns the command that runs it with the library.
fn built_in(
    folder: &Path,
    (compiler, source, flags): (&str, &str, &[&str]),
    library: &Path,
) -> Option<Command> {
    let program = folder.join("example");
    let built = output(
        Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Werror", "-O1"])
            .args(flags)
            .arg(here(source))
            .arg("-I")
            .arg(here("include"))
            .arg(library)
            .arg("-o")
            .arg(&program),
    )?;
    succeeded(&built);
    // Linking with the interface's name must work.
    let named = folder.join("libmemgauge.so.0");
    std::os::unix::fs::symlink(library, named).expect("room");
    let mut command = Command::new(&program);
    command.env("LD_LIBRARY_PATH", folder);
    Some(command)
}

fn number_after(text: &str, word: &str) -> u64 {
    let mut words = text.split_whitespace().skip_while(|w| *w != word);
    let number = words.nth(1).and_then(|n| n.parse().ok());
    number.unwrap_or_else(|| panic!("no {word} in {text}"))
}

#[test]
fn c_sees_every_fault_of_its_memory() {
    let Some(text) = built("cc", "examples/faults.c", &["-std=c99"]) else {
        return;
    };
    assert_eq!(
        number_after(&text, "inside") + number_after(&text, "lost"),
        1000,
        "{text}"
    );
}

#[test]
fn c_runs_a_program_on_the_modelled_machine_and_sees_its_regions() {
    let folder = tempfile::tempdir().expect("room");
    let Some(lines) = engine::compiled(folder.path(), "lines", engine::LINES) else {
        return;
    };
    let told = folder.path().join("told");
    let example = ("cc", "examples/modelled.c", &["-std=gnu11"][..]);
    let Some(ran) = built_and_run(example, &[&lines, &told]) else {
        return;
    };
    let text = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(ran.status.code(), Some(5), "{text}");
    let of = |region: &str| {
        let line = text.lines().find(|l| l.ends_with(&format!(" in {region}")));
        let line = line.unwrap_or_else(|| panic!("no {region} in {text}"));
        line.split(' ').next().and_then(|n| n.parse::<u64>().ok())
    };
    // 4000 and 3000 lines, each loaded once; a sample stands for 100 misses.
    assert!(
        of("load").is_some_and(|n| n.abs_diff(4000) <= 100),
        "{text}"
    );
    let parse = of("load/parse");
    assert!(parse.is_some_and(|n| n.abs_diff(3000) <= 100), "{text}");
    // Its only thread had the misses of all regions.
    let sum = |within: &str| -> u64 {
        let lines = text.lines().filter_map(|line| line.split_once(within));
        lines.map(|(n, _)| n.parse::<u64>().expect("a count")).sum()
    };
    assert_eq!(text.matches(" of thread ").count(), 1, "{text}");
    assert_eq!(sum(" of thread "), sum(" in "), "{text}");
}

#[test]
fn the_library_finds_the_engine_that_is_installed_with_it() {
    let folder = tempfile::tempdir().expect("room");
    let Some(lines) = engine::compiled(folder.path(), "lines", engine::LINES) else {
        return;
    };
    let lib = folder.path().join("installed/lib");
    std::fs::create_dir_all(lib.join("memgauge")).expect("room");
    let installed = lib.join("libmemgauge.so");
    std::fs::copy(library(), &installed).expect("room");
    let own = lib.join("memgauge/memgauge-engine");
    std::os::unix::fs::symlink(engine::engine(), own).expect("room");
    let example = ("cc", "examples/modelled.c", &["-std=gnu11"][..]);
    let Some(mut command) = built_in(folder.path(), example, &installed) else {
        return;
    };
    command.env_remove("MEMGAUGE_QEMU");
    let ran = output(command.arg(lines).arg(folder.path().join("told")));
    let ran = ran.expect("it runs");
    let text = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(5), "{text}");
}

#[test]
fn c_sees_its_own_regions() {
    let flags = ["-std=gnu11"];
    let Some(text) = built("cc", "examples/regions.c", &flags) else {
        return;
    };
    // A mark may itself touch a new page.
    assert!((300..=303).contains(&number_after(&text, "load")), "{text}");
    assert!(
        (200..=203).contains(&number_after(&text, "parse")),
        "{text}"
    );
}

#[test]
fn a_forked_child_is_refused_and_harms_nothing() {
    if let Some(text) = built("cc", "tests/fork.c", &[]) {
        assert!(text.contains("was forked later"), "{text}");
    }
}

#[test]
fn cpp_gets_addresses_of_a_thread_that_computes() {
    if !cfg!(target_arch = "x86_64") {
        return skipped(Need::Kernel, "source clock decodes x86-64 only");
    }
    let flags = ["-std=c++17", "-pthread"];
    let Some(text) = built("c++", "examples/clock.cpp", &flags) else {
        return;
    };
    assert!(number_after(&text, "addressed") > 0, "{text}");
}

#[test]
fn python_follows_a_program_and_what_it_starts() {
    let mut command = Command::new("python3");
    command.arg(here("examples/follow.py")).arg(library());
    // The child is attached a moment after it began, so it waits before its faults.
    let child = r"sleep 0.3; bytes=$(head -c 3000000 /dev/zero | tr '\0' x); :";
    let parent = format!(r#"sh -c "{}"; :"#, child.replace('$', r"\$"));
    let Some(ran) = output(command.args(["sh", "-c", &parent])) else {
        return;
    };
    let text = succeeded(&ran);
    assert!(
        text.lines().count() >= 2,
        "two processes have faults: {text}"
    );
}

#[test]
fn python_is_told_why() {
    let script = r#"
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.memgauge_error.restype = ctypes.c_char_p
lib.memgauge_add_thread.restype = ctypes.c_int64
print(lib.memgauge_add_thread(None, 1), lib.memgauge_error().decode())
print(lib.memgauge_profiler_new(None, None), lib.memgauge_error().decode())
"#;
    let mut command = Command::new("python3");
    let Some(ran) = output(command.args(["-c", script]).arg(library())) else {
        return;
    };
    let expected = "-1 failed to call memgauge: profiler is NULL\n";
    assert_eq!(succeeded(&ran), expected.repeat(2));
}

#[test]
fn another_users_process_is_refused_with_the_reason() {
    let script = r#"
import ctypes, os, sys
lib = ctypes.CDLL(sys.argv[1])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
lib.memgauge_error.restype = ctypes.c_char_p
lib.memgauge_add_process.restype = ctypes.c_int64
settings, profiler = (ctypes.c_uint64 * 7)(), ctypes.c_void_p()
lib.memgauge_settings_init(settings)
assert lib.memgauge_profiler_new(settings, ctypes.byref(profiler)) == 0, lib.memgauge_error()
before = len(os.listdir("/proc/self/fd"))
print(lib.memgauge_add_process(profiler, 1), lib.memgauge_error().decode())
assert len(os.listdir("/proc/self/fd")) == before
"#;
    let own = std::fs::metadata("/proc/self").expect("procfs");
    if std::os::unix::fs::MetadataExt::uid(&own) != 0 {
        return skipped(Need::Root, "only root can become another user");
    }
    let mut command = Command::new("python3");
    let Some(ran) = output(command.args(["-c", script]).arg(library())) else {
        return;
    };
    let text = succeeded(&ran);
    assert!(
        text.starts_with("-3 failed to sample `cpu-clock`"),
        "{text}"
    );
    assert!(text.contains("not allowed to this user"), "{text}");
}

/// Returns the names of functions in a text.
fn functions(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '(');
    let calls = words.filter_map(|w| w.strip_suffix('(').or(w.split_once('(').map(|w| w.0)));
    let ours = calls.filter(|w| w.starts_with("memgauge_"));
    ours.map(str::to_owned).collect()
}

#[test]
fn header_library_and_manual_name_the_same_functions() {
    let read = |path: &str| std::fs::read_to_string(here(path)).expect("it is there");
    let header = functions(&read("include/memgauge.h"));
    let manual = functions(&read("man/memgauge.3").replace("\\-", "-"));
    assert_eq!(header, manual);
    let mut nm = Command::new("nm");
    let Some(symbols) = output(nm.args(["-D", "--defined-only"]).arg(library())) else {
        return;
    };
    let symbols = succeeded(&symbols);
    let names = symbols.lines().filter_map(|l| l.rsplit(' ').next());
    let exported = names.filter(|n| n.starts_with("memgauge_"));
    assert_eq!(header, exported.map(str::to_owned).collect());
}

#[test]
fn pkg_config_tells_how_to_build() {
    let folder = tempfile::tempdir().expect("room");
    let given = std::fs::read_to_string(here("memgauge.pc.in")).expect("it is there");
    let given = given.replace("@VERSION@", "1.2.3");
    let place = folder.path().join("lib/pkgconfig");
    std::fs::create_dir_all(&place).expect("room");
    std::fs::write(place.join("memgauge.pc"), given).expect("room");
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", &place);
    let Some(told) = output(command.args(["--cflags", "--libs", "memgauge"])) else {
        return;
    };
    let flags = succeeded(&told);
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let prefix = format!("{}/../..", place.display());
    let expected = [
        format!("-I{prefix}/include"),
        format!("-L{prefix}/lib"),
        "-lmemgauge".to_owned(),
    ];
    assert_eq!(flags, expected);
}

#[test]
fn the_header_has_the_layout_of_the_library() {
    let folder = tempfile::tempdir().expect("room");
    let source = folder.path().join("sizes.c");
    let text = "#include <memgauge.h>\n\
        _Static_assert(sizeof(struct memgauge_settings) == 64, \"settings\");\n\
        _Static_assert(sizeof(struct memgauge_sample) == 88, \"sample\");\n\
        _Static_assert(offsetof(struct memgauge_sample, in_kernel) == 79, \"in_kernel\");\n\
        _Static_assert(sizeof(struct memgauge_statistics) == 152, \"statistics\");\n";
    std::fs::write(&source, text).expect("room");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-fsyntax-only", "-I"]);
    if let Some(checked) = output(command.arg(here("include")).arg(&source)) {
        succeeded(&checked);
    }
}
