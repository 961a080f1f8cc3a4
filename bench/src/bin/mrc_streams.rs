//! Writes the references of programs as raw lists of addresses, for what compares curves
//! of them: `mrc_coverage` takes such files, as does `memgauge mrc`.
//!
//! `make bench-mrc`, or `cargo run --release --manifest-path bench/Cargo.toml --bin mrc_streams -- FOLDER
//! [REFERENCES [PROGRAM…]]`: each program runs under the emulator, and the first
//! REFERENCES of it (20 million unless told) go to `FOLDER/PROGRAM.raw`, eight bytes
//! each, little endian. A program that does not run is left out and named.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use memgauge_emulate::{StreamOptions, stream};

const LINE: u64 = 64;
const INPUT_BYTES: usize = 6_000_000;
const AWK: &str = "{ s[$1] += $2 } END { for (k in s) t += s[k]; print t }";
const PYTHON: &str = "d={i*7919%200003:str(i) for i in range(60000)};print(len(sorted(d)))";
const PERL: &str = "$n{$_ % 50021} .= $_; END { print scalar keys %n }";
const SQL: &str = "select count(*), sum(b) from t where a in (select a from t where b < 90);";

/// Programs to run, by name; `piece` is a sixth of `input`.
fn programs(input: &str, piece: &str) -> [(&'static str, Vec<String>); 9] {
    let import = format!(".import {input} t");
    [
        ("xz", vec!["-T1", "-1", "-k", "-c", piece]),
        ("gzip", vec!["-k", "-c", piece]),
        ("bzip2", vec!["-k", "-c", piece]),
        ("zstd", vec!["-q", "-6", "-c", input]),
        ("sort", vec!["--parallel=1", "-n", input]),
        ("mawk", vec![AWK, input]),
        ("python3", vec!["-c", PYTHON]),
        ("perl", vec!["-ne", PERL, input]),
        (
            "sqlite3",
            vec![
                "-separator",
                " ",
                ":memory:",
                "create table t(a integer, b integer);",
                &import,
                SQL,
            ],
        ),
    ]
    .map(|(name, arguments)| {
        let words = std::iter::once(name).chain(arguments);
        (name, words.map(str::to_owned).collect())
    })
}

/// Writes the first `most` references, or all that there are; how many.
fn write_stream(command: &[String], path: &Path, most: usize) -> Result<usize> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut left = most;
    let wanted = StreamOptions {
        granule: LINE,
        parts: None,
        ips: false,
        functions: Vec::new(),
        seed: None,
    };
    stream(command, wanted, &mut |batch| -> Result<()> {
        for address in batch.addresses.iter().take(left) {
            out.write_all(&address.to_le_bytes())?;
        }
        left -= batch.addresses.len().min(left);
        Ok(())
    })?;
    out.flush()?;
    Ok(most - left)
}

/// Lines of two numbers that look random, and a sixth of them.
fn write_input(input: &Path, piece: &Path) -> Result<()> {
    let (mut state, mut text) = (1u64, String::new());
    while text.len() < INPUT_BYTES {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let _ = writeln!(text, "{} {}", state >> 40, state >> 50);
    }
    std::fs::write(piece, &text[..INPUT_BYTES / 6])?;
    Ok(std::fs::write(input, text)?)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().context("no folder")?);
    let most = arguments.next().map_or(Ok(20_000_000), |n| {
        n.parse()
            .with_context(|| format!("failed to read the number of references `{n}`"))
    })?;
    let chosen: Vec<String> = arguments.collect();
    std::fs::create_dir_all(&folder)?;
    let (input, piece) = (folder.join("input"), folder.join("piece"));
    write_input(&input, &piece)?;
    let text = |path: &Path| path.display().to_string();
    for (name, command) in programs(&text(&input), &text(&piece)) {
        if !chosen.is_empty() && !chosen.iter().any(|c| c == name) {
            continue;
        }
        let path = folder.join(name).with_extension("raw");
        match write_stream(&command, &path, most) {
            Ok(count) => eprintln!("{name}: {count} references"),
            Err(error) => {
                eprintln!("{name}: {error:#}");
                let _ = std::fs::remove_file(path);
            }
        }
    }
    Ok(())
}
