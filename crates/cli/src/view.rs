//! `memgauge view`: the page of a recording, or the pages of a dataset of recordings, served to this
//! machine alone.

mod dataset;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use memgauge_analyze::summarise_part;
use memgauge_console::outcome::Exit;
use memgauge_console::terminal;
use memgauge_fleet::Dataset;
use memgauge_recording::Recording;
use memgauge_report::{InDataset, Page, Served};
use memgauge_serve::{PageContent, PageRequest, PageServer};
use memgauge_symbols::Symbols;

use crate::fetched::{LocalRecording, fetch, is_packed_url};
use crate::page;
use dataset::DatasetPages;

#[derive(Debug, Args)]
pub(crate) struct View {
    /// Recording to show, or dataset of `memgauge fleet`: a folder, or s3:// or gs://BUCKET/PREFIX. A packed recording
    /// in a bucket is s3:// or gs://BUCKET/NAME.mg.tar
    #[arg(value_name = "DIR", default_value = "memgauge.mg")]
    recording: PathBuf,
    /// Port of 127.0.0.1 to listen at [default: any free port]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

/// Serves until it is interrupted.
pub(crate) fn view(args: &View) -> anyhow::Result<Exit> {
    page::check()?;
    let name = args.recording.to_string_lossy();
    let is_url = memgauge_storage::is_url(&name) && !is_packed_url(&name);
    if is_url || is_dataset(&args.recording) {
        return serve(args.port, &DatasetPages::open(&name)?);
    }
    let content = RecordingPage {
        fetched: fetch(&args.recording)?,
    };
    Recording::open(content.fetched.path())?;
    serve(args.port, &content)
}

fn is_dataset(folder: &Path) -> bool {
    !folder.join("manifest.json").exists() && Dataset::is_at(folder)
}

fn serve(port: u16, content: &impl PageContent) -> anyhow::Result<Exit> {
    let server = PageServer::bind(port).with_context(|| {
        format!("failed to listen at port {port} of 127.0.0.1: choose another with --port")
    })?;
    terminal::print(&format!("{}\n", server.url()))?;
    eprintln!("memgauge: open this address in a browser on this machine; Ctrl-C ends");
    server.serve(content, |message| eprintln!("memgauge: {message}"));
    Ok(Exit::Success)
}

/// The page of a recording, which may still grow.
struct RecordingPage {
    fetched: LocalRecording,
}

impl PageContent for RecordingPage {
    type Error = anyhow::Error;

    fn page(&self, request: &PageRequest) -> anyhow::Result<String> {
        let recording = Recording::open(self.fetched.path())?;
        let symbols = Symbols::of(recording.path());
        recording_page(&recording, symbols, request.token(), None)
    }

    fn part(&self, _: &PageRequest, time_ns: Range<u64>) -> anyhow::Result<String> {
        let recording = Recording::open(self.fetched.path())?;
        part(&recording, Symbols::of(recording.path()), time_ns)
    }
}

fn recording_page(
    recording: &Recording,
    mut symbols: Symbols,
    token: &str,
    in_dataset: Option<InDataset>,
) -> anyhow::Result<String> {
    let summary = page::summary_with(recording, &mut symbols, None, None)?;
    let page = Page {
        served: Some(Served {
            token: token.to_owned(),
            is_growing: is_being_written(recording),
            in_dataset,
        }),
        ..page::page(&summary, recording)
    };
    page.html().context(memgauge_report::NO_FRONT_END)
}

fn part(
    recording: &Recording,
    mut symbols: Symbols,
    time_ns: Range<u64>,
) -> anyhow::Result<String> {
    let (timeline, _) = summarise_part(recording, &mut symbols, time_ns)?;
    serde_json::to_string(&timeline).context("failed to write JSON")
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
