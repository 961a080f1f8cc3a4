//! Files that `make install` and the packages install.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::{Path, PathBuf};
use std::process::Command;

use memgauge_testing::{Need, skipped};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The library that cargo builds with the whole workspace's tests.
fn library() -> Option<PathBuf> {
    let own = std::env::current_exe().expect("this test is a file");
    let library = own.with_file_name("libmemgauge.so");
    library.exists().then_some(library)
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

#[test]
fn an_installation_has_the_library_its_headers_and_all_documents_that_links_name() {
    if !harness::needs(&["cc", "pkg-config"]) {
        return;
    }
    let Some(library) = library() else {
        skipped(
            Need::Tool,
            "libmemgauge.so is not built: test the whole workspace".to_owned(),
        );
        return;
    };
    let folder = tempfile::tempdir().expect("room");
    let place = folder.path().join("usr");
    run(Command::new(top().join("dist/stage"))
        .arg(env!("CARGO_BIN_EXE_memgauge"))
        .arg(library)
        .args([&place, Path::new("/usr")]));
    run(Command::new(top().join("dist/check-links")).arg(place.join("share/doc/memgauge")));
    for file in [
        "bin/memgauge",
        "lib/memgauge/memgauge-engine",
        "share/man/man3/memgauge.3",
    ] {
        assert!(place.join(file).is_file(), "{file}");
    }

    // As a user of the library builds a program, from wherever it was unpacked.
    let flags = run(Command::new("pkg-config")
        .args(["--cflags", "--libs", "memgauge"])
        .env("PKG_CONFIG_PATH", place.join("lib/pkgconfig")));
    let source = folder.path().join("prog.c");
    std::fs::write(
        &source,
        "#include <memgauge.h>\n\
         int main(void) { memgauge_region_begin(\"a\"); return memgauge_error() == 0; }\n",
    )
    .expect("the source");
    let program = folder.path().join("prog");
    run(Command::new("cc")
        .arg(&source)
        .args(flags.split_whitespace())
        .arg("-o")
        .arg(&program));
    run(Command::new(&program).env("LD_LIBRARY_PATH", place.join("lib")));
}
