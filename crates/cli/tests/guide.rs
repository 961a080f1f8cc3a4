//! The commands of the guide's pages (docs/guide) run in order and print the output that the pages
//! show.
//!
//! In a page, a block `c file=NAME` is a file, a block `sh` is executed (`sh root`: if root runs the
//! tests), and each line of a block `text` must be in the output so far. Words with digits are not
//! compared, because numbers depend on the machine and its libraries.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::Path;
use std::process::Command;

use harness::needs;

const MEMGAUGE: &str = env!("CARGO_BIN_EXE_memgauge");

/// A fenced block: the text after the fence, and the lines inside.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.strip_prefix("```") {
            let inside: Vec<&str> = lines.by_ref().take_while(|l| *l != "```").collect();
            blocks.push((kind.to_owned(), inside.join("\n") + "\n"));
        }
    }
    blocks
}

/// A line without the words that hold digits.
fn shape(line: &str) -> String {
    let words = line.split_whitespace();
    let words: Vec<&str> = words
        .filter(|w| !w.contains(|c: char| c.is_ascii_digit()))
        .collect();
    words.join(" ")
}

fn run(script: &str, folder: &Path) -> String {
    let bin = Path::new(MEMGAUGE).parent().expect("a folder");
    let path = std::env::var("PATH").expect("a PATH");
    let output = Command::new("sh")
        .args(["-euc", &format!("exec 2>&1\n{script}")])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("COLUMNS", "80")
        .env("LC_ALL", "C.UTF-8")
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{script}\n{said}");
    said
}

fn follow(page: &str, tools: &[&str]) {
    if !needs(tools) {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/guide")
        .join(page);
    let text = std::fs::read_to_string(&source).expect("a page of the guide");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut said = String::new();
    let mut ran = 0;
    for (kind, inside) in blocks(&text) {
        match kind.split_once(" file=") {
            Some((_, name)) => std::fs::write(folder.path().join(name), inside).expect("a file"),
            None if kind == "sh" || kind == "sh root" && needs(&["root"]) => {
                said += &run(&inside, folder.path());
                ran += 1;
            }
            None if kind == "text" => {
                let printed: Vec<String> = said.lines().map(shape).collect();
                for line in inside.lines() {
                    let wanted = shape(line);
                    assert!(printed.contains(&wanted), "{page}: no `{line}` in\n{said}");
                }
            }
            None => {}
        }
    }
    assert!(ran > 0, "{page}: no commands");
}

#[test]
fn why_is_it_slow() {
    follow("slow.md", &["cc"]);
}

#[test]
fn how_much_cache() {
    follow("cache.md", &[]);
}

#[test]
fn how_much_memory() {
    follow("memory.md", &[]);
}

#[test]
fn which_process() {
    follow("bandwidth.md", &[]);
}

#[test]
fn did_it_help() {
    follow("change.md", &[]);
}

#[test]
fn what_to_trust() {
    follow("trust.md", &[]);
}
