//! Small programs whose memory behaviour is known in closed form.
//!
//! Each subcommand prepares its memory, runs one measured loop and prints a checksum of
//! fixed width. [`closed_form::AccessCounts`] and the subcommand's help give the loop's
//! loads and stores. Start, parsing, set-up and printing make the same accesses whether
//! the loop runs or not, as long as the command lines are equally long. So a tool that
//! counts accesses is checked by a difference:
//!
//! ```text
//! count(linear --bytes 0065536) − count(linear --bytes 0000000) = 65536 / 8 loads
//! ```
//!
//! The loops are assembly (see [`kernels`]). A compiler is free to vectorise, merge or
//! spill a loop written in Rust, and does so differently in debug and release builds.

#![deny(unsafe_code)]

mod closed_form;
mod command;
#[expect(unsafe_code, reason = "assembly loops and the mapping they run in")]
mod kernels;
mod run;
mod units;

use anyhow::{Context, Result};
use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

use command::Cli;
use run::Stopwatch;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = if cli.expect {
        print_expectation(&cli)
    } else {
        run_and_print(&cli)
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memgauge-workloads: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_and_print(cli: &Cli) -> Result<()> {
    let mut stopwatch = Stopwatch::new(cli.time);
    let checksum = run::run(&cli.command, &mut stopwatch)?;
    print_line(b"checksum ", checksum)?;
    if let Some(elapsed) = stopwatch.elapsed() {
        let seconds = elapsed.as_secs_f64();
        let gigabytes = cli.command.accesses().bytes() as f64 / 1e9;
        eprintln!("seconds {seconds:.6}  GB/s {:.3}", gigabytes / seconds);
    }
    Ok(())
}

fn print_expectation(cli: &Cli) -> Result<()> {
    let accesses = cli.command.accesses();
    let mut output = std::io::stdout().lock();
    writeln!(output, "loads {}", accesses.loads)?;
    writeln!(output, "stores {}", accesses.stores)?;
    writeln!(output, "splits {}", accesses.splits)?;
    Ok(())
}

/// Prints `label` and `value` without an access that depends on `value`, which
/// the standard formatter makes (one per digit that is not padding).
fn print_line(label: &[u8], value: u64) -> Result<()> {
    let mut line = label.to_vec();
    line.extend_from_slice(&hex_digits(value));
    line.push(b'\n');
    std::io::stdout()
        .write_all(&line)
        .context("failed to write the checksum")
}

/// The sixteen hexadecimal digits of `value`.
fn hex_digits(value: u64) -> [u8; 16] {
    std::array::from_fn(|at| {
        let nibble = (value >> (60 - 4 * at)) as u8 & 15;
        nibble + b'0' + u8::from(nibble > 9) * (b'a' - b'0' - 10)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_digits_are_padded_and_lower_case() {
        assert_eq!(&hex_digits(0), b"0000000000000000");
        assert_eq!(&hex_digits(0x0123_4567_89ab_cdef), b"0123456789abcdef");
    }
}
