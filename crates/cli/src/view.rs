//! `memgauge view`: the page of a recording, served to this machine alone.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use memgauge_analyze::summarise_part;
use memgauge_console::outcome::Exit;
use memgauge_console::terminal;
use memgauge_recording::Recording;
use memgauge_report::{Page, Served};
use memgauge_serve::{PageContent, PageServer};
use memgauge_symbols::Symbols;

use crate::page;

#[derive(Debug, Args)]
pub(crate) struct View {
    /// Recording to show
    #[arg(value_name = "DIR", default_value = "memgauge.mg")]
    recording: PathBuf,
    /// Port of 127.0.0.1 to listen at [default: any free port]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

/// Serves until it is interrupted.
pub(crate) fn view(args: &View) -> anyhow::Result<Exit> {
    page::check()?;
    Recording::open(&args.recording)?;
    let server = PageServer::bind(args.port).with_context(|| {
        format!(
            "failed to listen at port {} of 127.0.0.1: choose another with --port",
            args.port
        )
    })?;
    terminal::print(&format!("{}\n", server.url()))?;
    eprintln!("memgauge: open this address in a browser on this machine; Ctrl-C ends");
    let content = RecordingPage {
        path: args.recording.clone(),
    };
    server.serve(&content, |message| eprintln!("memgauge: {message}"));
    Ok(Exit::Success)
}

/// The page of the recording at `path`, which may still grow.
struct RecordingPage {
    path: PathBuf,
}

impl PageContent for RecordingPage {
    type Error = anyhow::Error;

    fn page(&self, token: &str) -> anyhow::Result<String> {
        let recording = Recording::open(&self.path)?;
        let summary = page::summary(&recording, None, None)?;
        let page = Page {
            served: Some(Served {
                token: token.to_owned(),
                is_growing: is_being_written(&recording),
            }),
            ..page::page(&summary, &recording)
        };
        page.html().context(memgauge_report::NO_FRONT_END)
    }

    fn part(&self, time_ns: Range<u64>) -> anyhow::Result<String> {
        let recording = Recording::open(&self.path)?;
        let mut symbols = Symbols::of(recording.path());
        let (timeline, _) = summarise_part(&recording, &mut symbols, time_ns)?;
        serde_json::to_string(&timeline).context("failed to write JSON")
    }
}

/// Whether the recording is incomplete and was written to in the last 15 seconds.
fn is_being_written(recording: &Recording) -> bool {
    const RECENT: Duration = Duration::from_secs(15);
    let changed = |e: std::io::Result<std::fs::DirEntry>| e.ok()?.metadata().ok()?.modified().ok();
    let parts = ["series", "samples", "io"].into_iter();
    let parts = parts.filter_map(|table| std::fs::read_dir(recording.path().join(table)).ok());
    let newest = parts.flatten().filter_map(changed).max();
    let age = newest.and_then(|time| time.elapsed().ok());
    !recording.manifest().complete && age.is_some_and(|age| age < RECENT)
}
