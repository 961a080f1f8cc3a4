//! Imports text files of other tools.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Seek;
use std::path::Path;

use memgauge_recording::Writer;
use memgauge_trace::{
    EventDef, ImportFacts, Loss, LossKind, Manifest, Provenance, SampledFacts, SamplingFacts,
    SourceFacts, SourceKind, Thread, Tid, catalogue,
};

use super::access_trace::AccessTrace;
use super::compression::decompress;
use super::cost_profile::CostProfile;
use super::input::decompressed;
use super::text_format::{LineReader, TextFormat};
use crate::{Error, ErrorKind, Result};

/// A text file of callgrind, cachegrind, lackey or drcachesim.
#[derive(Debug)]
pub struct TextInput {
    lines: LineReader,
    format: TextFormat,
    /// The content of a profile, which is read before the recording is created.
    costs: Option<CostProfile>,
}

impl TextInput {
    /// Opens a file, which can be compressed. Returns `None` if it has another format. Decompressed
    /// content is kept in `folder` until it is imported.
    ///
    /// # Errors
    /// The file cannot be read, or is a profile without costs.
    pub fn open(path: &Path, folder: &Path) -> Result<Option<TextInput>> {
        if !path.is_file() {
            return Ok(None);
        }
        let opened = File::open(path);
        let failed = |e| Error::system(format!("failed to open `{}`", path.display()), e);
        let mut file = opened.map_err(failed)?;
        let Some(format) = TextFormat::detect(decompress(&file)?.content)? else {
            return Ok(None);
        };
        file.rewind().map_err(failed)?;
        let mut lines = LineReader::new(decompressed(file, folder)?);
        let costs = match format {
            TextFormat::CostProfile => Some(check_costs(CostProfile::read(&mut lines)?)?),
            TextFormat::Lackey | TextFormat::Drcachesim => None,
        };
        Ok(Some(TextInput {
            lines,
            format,
            costs,
        }))
    }

    /// Imports the file into a recording at `output`.
    ///
    /// # Errors
    /// The file cannot be read, or the recording cannot be written.
    pub fn import(mut self, output: &Path) -> Result<()> {
        let manifest = Manifest {
            // None of these formats has clock times.
            clock: "virtual".to_owned(),
            ..Manifest::default()
        };
        let mut writer = Writer::create(output, manifest)?;
        match self.costs {
            Some(costs) => import_costs(writer, &costs),
            None => {
                let trace = AccessTrace::read(&mut self.lines, self.format, &mut writer)?;
                import_trace(writer, &trace, self.format)
            }
        }
    }
}

fn check_costs(costs: CostProfile) -> Result<CostProfile> {
    match costs.is_empty() {
        false => Ok(costs),
        true => Err(Error::new(
            ErrorKind::BadInput,
            "it has no costs; use a file that callgrind or cachegrind has finished writing",
        )),
    }
}

fn import_costs(mut writer: Writer, costs: &CostProfile) -> Result<()> {
    let (sites, code) = costs.rows();
    let mut totals = BTreeMap::new();
    let events: Vec<EventDef> = costs
        .events()
        .into_iter()
        .map(|event| event.definition)
        .collect();
    for def in &events {
        let counts = sites.iter().filter(|site| site.event == def.id);
        let total = counts.fold(0u64, |sum, site| sum.saturating_add(site.count));
        totals.insert(def.name.clone(), total);
    }
    writer.extend(sites)?;
    writer.extend(code)?;
    writer.push(Thread {
        pid: costs.pid,
        tid: Tid(costs.pid.0),
        program: first_word(&costs.command),
        ..Thread::default()
    })?;
    let what = "calls and their inclusive costs";
    writer.extend(loss(LossKind::NotKept, costs.calls, what))?;
    writer.extend(loss(
        LossKind::Unreadable,
        costs.unreadable,
        "lines of the file",
    ))?;
    let mut problems = invalid_lines(costs.unreadable, costs.first_unreadable);
    problems.extend(
        match costs.sums_match() {
            Some(true) => None,
            Some(false) => Some("the sums of its lines differ from the totals in the file"),
            None => Some("it has no totals at its end; it may be truncated"),
        }
        .map(str::to_owned),
    );
    let creator = match costs.creator.as_str() {
        "" => "cachegrind".to_owned(),
        creator => creator.to_owned(),
    };
    let mut settings = BTreeMap::from([("format".to_owned(), "callgrind".to_owned())]);
    for cache in &costs.caches {
        let description = format!(
            "{} bytes, lines of {} bytes, {} ways",
            cache.bytes, cache.line_bytes, cache.ways
        );
        settings.insert(format!("cache.{}", cache.name), description);
    }
    let mut lacks = vec![
        "times",
        "threads",
        "addresses of data",
        "callers",
        "second-level cache and TLBs",
    ];
    if !costs.has_object_names() {
        lacks.push("names of modules");
    }
    finish(writer, &creator, &costs.command, |manifest| {
        manifest.events = events;
        manifest.totals = totals;
        manifest.source.settings = settings.into();
        manifest.import = Some(facts(problems, &lacks));
    })
}

fn import_trace(mut writer: Writer, trace: &AccessTrace, format: TextFormat) -> Result<()> {
    let program = first_word(&trace.command);
    writer.extend(trace.threads().map(|(tid, instructions)| Thread {
        pid: memgauge_trace::Pid(1),
        tid: Tid(tid),
        program: program.clone(),
        end_ns: Some(instructions),
        ..Thread::default()
    }))?;
    let sites = trace.sites();
    let mut totals: BTreeMap<String, u64> = BTreeMap::new();
    for site in &sites {
        let name = catalogue::name(site.event).unwrap_or_default().to_owned();
        *totals.entry(name).or_default() += site.count;
    }
    writer.extend(sites)?;
    writer.extend(loss(
        LossKind::Unreadable,
        trace.unreadable,
        "lines of the file",
    ))?;
    let mut problems = invalid_lines(trace.unreadable, trace.first_unreadable);
    let mut lacks = vec![
        "times",
        "mappings and names of code",
        "caches: which accesses missed",
    ];
    match format {
        // A part of the view, or only its records, is a valid input.
        TextFormat::Drcachesim if trace.is_cut() => lacks.push("the view's own sums"),
        _ if trace.is_cut() => problems.push(
            "it does not end with lackey's exit code; it may be truncated, or `--basic-counts=no` \
             was used"
                .to_owned(),
        ),
        _ => {}
    }
    let sampled = |(&event, &samples): (_, &u64)| SampledFacts {
        event,
        samples,
        with_address: samples,
        stood_for: samples,
        last_period: Some(1),
        ..SampledFacts::default()
    };
    let sampling = SamplingFacts {
        events: trace.samples.iter().map(sampled).collect(),
        notes: vec!["every access is a sample; an instruction counts as one nanosecond".to_owned()],
        ..SamplingFacts::default()
    };
    let creator = format.tool();
    let settings = BTreeMap::from([("format".to_owned(), creator.to_owned())]);
    finish(writer, creator, &trace.command, |manifest| {
        manifest.events = catalogue::definitions(Provenance::Counted);
        manifest.events.retain(|def| totals.contains_key(&def.name));
        manifest.totals = totals;
        manifest.sampling = Some(sampling);
        manifest.source.settings = settings.into();
        manifest.import = Some(facts(problems, &lacks));
    })
}

fn finish(
    mut writer: Writer,
    creator: &str,
    command: &str,
    complete: impl FnOnce(&mut Manifest),
) -> Result<()> {
    writer.flush_so_far()?;
    let recording_bytes = writer.bytes_written();
    writer.finish(|manifest| {
        let own = concat!("memgauge ", env!("CARGO_PKG_VERSION"));
        manifest.recorder = format!("{own}, from {creator}");
        manifest.command = command.split_whitespace().map(str::to_owned).collect();
        manifest.source = SourceFacts {
            kind: SourceKind::Import,
            ..SourceFacts::default()
        };
        manifest.own_cost.recording_bytes = recording_bytes;
        complete(manifest);
    })?;
    Ok(())
}

fn facts(problems: Vec<String>, lacks: &[&str]) -> ImportFacts {
    ImportFacts {
        problems,
        lacks: lacks.iter().map(|&what| what.to_owned()).collect(),
        ..ImportFacts::default()
    }
}

fn first_word(command: &str) -> String {
    command
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn loss(kind: LossKind, count: u64, detail: &str) -> Option<Loss> {
    (count > 0).then(|| Loss {
        kind,
        count,
        detail: detail.to_owned(),
        ..Loss::default()
    })
}

fn invalid_lines(count: u64, first: Option<u64>) -> Vec<String> {
    let message = first.filter(|_| count > 0);
    let message =
        message.map(|line| format!("{count} lines are invalid; the first is line {line}"));
    message.into_iter().collect()
}
