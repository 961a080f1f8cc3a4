//! The binary `memgauge`: how programs use memory.
//!
//! Each verb is one file. The verbs share the way from a source through a recording and
//! its analysis to a report, and the exit codes of [`outcome::Exit`].
#![forbid(unsafe_code)]

// First: what it says to standard error with holds for all others.
#[macro_use]
mod terminal;

mod args;
mod bandwidth;
mod clock;
mod doctor;
mod import;
mod io;
mod io_live;
mod io_target;
mod list;
mod mrc;
mod outcome;
mod page;
mod progress;
mod record;
mod report;
mod sample;
mod stat;
mod symbols;
mod target;
mod units;
mod view;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Verb};
use outcome::Exit;

fn run(cli: Cli) -> anyhow::Result<Exit> {
    terminal::set_width(cli.width.map(usize::from));
    match cli.verb {
        Some(Verb::Record(args)) => record::record(&args),
        Some(Verb::Report(args)) => report::report(&args),
        Some(Verb::View(args)) => view::view(&args),
        Some(Verb::Io(args)) => io::io(&args),
        Some(Verb::Import(args)) => import::import(&args),
        Some(Verb::Stat(args)) => stat::stat(&args),
        Some(Verb::Bandwidth(args)) => bandwidth::bandwidth(&args),
        Some(Verb::Calibrate(args)) => bandwidth::calibrate(&args),
        Some(Verb::Mrc(args)) => mrc::mrc(&args),
        Some(Verb::Partition(args)) => mrc::partition(&args),
        Some(Verb::List(args)) => list::list(&args),
        Some(Verb::Doctor(args)) => doctor::doctor(&args),
        None => record::record_and_report(&cli.record),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(exit) => exit.code(),
        Err(error) => outcome::explain(&error),
    }
}
