//! Programs in C, and the engine that runs them on the modelled machine.

// Each test file uses some of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

/// The engine, which `make engine` puts into the target folder.
pub(crate) fn engine() -> PathBuf {
    if let Some(named) = std::env::var_os("MEMGAUGE_QEMU") {
        return named.into();
    }
    let own = std::env::current_exe().expect("this test is a file");
    let mut all = own.ancestors().map(|up| up.join("engine/memgauge-engine"));
    all.find(|path| path.is_file())
        .expect("the engine is built: make engine")
}

/// Compiles a program that includes memgauge's header. `None` without a compiler.
pub(crate) fn compiled(folder: &Path, name: &str, text: &str) -> Option<PathBuf> {
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let flags = ["-O1", "-pthread", "-Wall", "-Werror", "-I", include];
    memgauge_testing::compiled(folder, &format!("{name}.c"), text, &flags).map(PathBuf::from)
}

/// Loads from each line of fresh memory once: of 4000 lines in region `load`, 3000 in
/// `parse` within it, and 2000 in none. Writes the three addresses to a file first.
pub(crate) const LINES: &str = r#"
#include <memgauge_region.h>
#include <stdio.h>
#include <sys/mman.h>
static char *fresh(long lines)
{
    char *memory = mmap(0, lines * 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory;
}
static void load(volatile char *memory, long lines)
{
    for (long line = 0; line < lines; line++)
        memory[line * 64];
}
int main(int argc, char **argv)
{
    char *all[3] = {fresh(4000), fresh(3000), fresh(2000)};
    FILE *told = fopen(argv[1], "w");
    fprintf(told, "%p %p %p\n", (void *)all[0], (void *)all[1], (void *)all[2]);
    fclose(told);
    memgauge_region_begin("load");
    load(all[0], 4000);
    memgauge_region_begin("parse");
    load(all[1], 3000);
    memgauge_region_end("parse");
    memgauge_region_end("load");
    load(all[2], 2000);
    return argc == 2 ? 5 : 6;
}
"#;

/// The three addresses.
pub(crate) fn addresses(told: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(told).expect("the program told them");
    let numbers = text.split_whitespace();
    numbers
        .map(|n| u64::from_str_radix(n.trim_start_matches("0x"), 16).expect("an address"))
        .collect()
}
