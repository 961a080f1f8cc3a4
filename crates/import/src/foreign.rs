//! Recordings of the text files of other tools.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Seek;
use std::path::Path;

use memgauge_recording::Writer;
use memgauge_trace::{
    EventDef, ImportFacts, Loss, LossKind, Manifest, Provenance, SampledFacts, SamplingFacts,
    SourceFacts, Thread, Tid, catalogue,
};

use super::accesses::Trace;
use super::compression::unpacked;
use super::costs::Costs;
use super::input::plain;
use super::text::{Lines, Text};
use crate::{Error, ErrorKind, Result};

/// A text file of callgrind, cachegrind, lackey or drcachesim.
#[derive(Debug)]
pub struct TextInput {
    lines: Lines,
    text: Text,
    /// What was read before room is made for a recording: all of a profile.
    costs: Option<Costs>,
}

impl TextInput {
    /// Opens a file, which may be compressed; `None` where it is of another kind. What is
    /// unpacked lies in `folder` until it has been imported.
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
        let Some(text) = Text::of(unpacked(&file)?.content)? else {
            return Ok(None);
        };
        file.rewind().map_err(failed)?;
        let mut lines = Lines::of(plain(file, folder)?);
        let costs = match text {
            Text::Costs => Some(with_costs(Costs::read(&mut lines)?)?),
            Text::Lackey | Text::Drcachesim => None,
        };
        Ok(Some(TextInput { lines, text, costs }))
    }

    /// Imports it into a recording at `output`.
    ///
    /// # Errors
    /// The file cannot be read, or the recording cannot be written.
    pub fn import(mut self, output: &Path) -> Result<()> {
        let manifest = Manifest {
            // Neither of them has times of a clock.
            clock: "virtual".to_owned(),
            ..Manifest::default()
        };
        let mut writer = Writer::create(output, manifest)?;
        match self.costs {
            Some(costs) => of_costs(writer, &costs),
            None => {
                let trace = Trace::read(&mut self.lines, self.text, &mut writer)?;
                of_trace(writer, &trace, self.text)
            }
        }
    }
}

fn with_costs(costs: Costs) -> Result<Costs> {
    match costs.is_empty() {
        false => Ok(costs),
        true => Err(Error::new(
            ErrorKind::BadInput,
            "it has no costs: name a file that callgrind or cachegrind wrote at its end",
        )),
    }
}

fn of_costs(mut writer: Writer, costs: &Costs) -> Result<()> {
    let (sites, code) = costs.rows();
    let mut totals = BTreeMap::new();
    let events: Vec<EventDef> = costs.events().into_iter().map(|event| event.0).collect();
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
    let what = "calls, and what called functions cost altogether";
    writer.extend(loss(LossKind::NotKept, costs.calls, what))?;
    writer.extend(loss(
        LossKind::Unreadable,
        costs.unreadable,
        "lines of the file",
    ))?;
    let mut problems = unreadable(costs.unreadable, costs.first_unreadable);
    problems.extend(
        match costs.adds_up() {
            Some(true) => None,
            Some(false) => Some("its lines add up to other sums than the file's own"),
            None => Some("it does not end with its sums: it may be cut off"),
        }
        .map(str::to_owned),
    );
    let creator = match costs.creator.as_str() {
        "" => "cachegrind".to_owned(),
        creator => creator.to_owned(),
    };
    let mut settings = BTreeMap::from([("format".to_owned(), "callgrind".to_owned())]);
    for (name, [bytes, line, ways]) in &costs.caches {
        let words = format!("{bytes} bytes, lines of {line} bytes, {ways} ways");
        settings.insert(format!("cache.{name}"), words);
    }
    let mut lacks = vec![
        "times",
        "threads",
        "addresses of data",
        "callers",
        "second-level cache and TLBs",
    ];
    if !costs.names_objects() {
        lacks.push("names of modules");
    }
    finish(writer, &creator, &costs.command, |manifest| {
        manifest.events = events;
        manifest.totals = totals;
        manifest.source.settings = settings;
        manifest.import = Some(facts(problems, &lacks));
    })
}

fn of_trace(mut writer: Writer, trace: &Trace, text: Text) -> Result<()> {
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
    let mut problems = unreadable(trace.unreadable, trace.first_unreadable);
    let mut lacks = vec![
        "times",
        "mappings and names of code",
        "caches: which accesses missed",
    ];
    match text {
        // People keep a part of the view, or its records alone. They are complete lines.
        Text::Drcachesim if trace.is_cut() => lacks.push("the view's own sums"),
        _ if trace.is_cut() => problems.push(
            "it does not end with lackey's exit code: it may be cut off, or `--basic-counts=no` \
             was given"
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
        notes: vec![
            "every access is a sample; an instruction is taken to last a nanosecond".to_owned(),
        ],
        ..SamplingFacts::default()
    };
    let creator = match text {
        Text::Drcachesim => "drcachesim",
        _ => "lackey",
    };
    let settings = BTreeMap::from([("format".to_owned(), creator.to_owned())]);
    finish(writer, creator, &trace.command, |manifest| {
        manifest.events = catalogue::definitions(Provenance::Counted);
        manifest.events.retain(|def| totals.contains_key(&def.name));
        manifest.totals = totals;
        manifest.sampling = Some(sampling);
        manifest.source.settings = settings;
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
            name: "import".to_owned(),
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

fn unreadable(count: u64, first: Option<u64>) -> Vec<String> {
    let told = first.filter(|_| count > 0);
    let told = told.map(|line| format!("{count} lines make no sense, the first is line {line}"));
    told.into_iter().collect()
}
