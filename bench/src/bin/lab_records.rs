//! Compares samples taken in the lab with the emulator's own log, record by record.
//!
//! ```text
//! cargo run --manifest-path bench/Cargo.toml --bin lab_records -- pmu.log SAMPLES...
//! ```
//!
//! With `--processors` before the log the samples of each processor are compared, of all
//! processes together, where whole processors were recorded. With `--behind` samples name the
//! instruction behind their own, as PEBS' records do before format 2. With `--rebuilt` addresses are those that memgauge rebuilt from registers
//! and code, and the share of right ones is printed; of a wrong one it fails.
//!
//! SAMPLES is a recording, whose processes are compared one by one, or a text file with a line for each sample in the log's words, as
//! the example `command` of `memgauge-online` prints them. Every sample of user code has to
//! be one of the log's, in its order and with none left out between the first and the last:
//! instruction, address, source and latency, of IBS also physical address, kind and width.
//! The log's ops and fetches are told apart by address space; a process has a new one from
//! its exec on, so the samples may be of several, one after the other.

use std::collections::BTreeMap;

use memgauge_recording::{Recording, Selection};
use memgauge_trace::{AccessKind, DataSource, PhysAddr, Sample};

#[derive(Clone, Debug, Default, PartialEq)]
struct Line {
    processor: u32,
    ip: u64,
    address: u64,
    /// Nothing where the event's records have neither.
    source_and_latency: Option<(DataSource, u32)>,
    /// Access, for operations of IBS.
    access: Option<(u64, AccessKind, u16)>,
}

/// How samples and log are compared.
#[derive(Clone, Copy, Default)]
struct Compared {
    /// Samples name the instruction behind their own.
    behind: bool,
    /// Samples of a processor are one stream, not those of a process.
    by_processor: bool,
}

type Failure = Box<dyn std::error::Error>;

/// Records of the log by kind: PEBS' records, or a space's ops or fetches.
type Streams = BTreeMap<String, Vec<Line>>;

fn main() -> Result<(), Failure> {
    let usage = "usage: lab_records [--rebuilt] [--behind] [--processors] PMU.LOG SAMPLES...";
    let (options, mut arguments): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|word| word.starts_with("--"));
    let is_set = |name: &str| options.iter().any(|option| option == name);
    if arguments.is_empty() {
        return Err(usage.into());
    }
    let log = arguments.remove(0);
    if is_set("--rebuilt") {
        return rebuilt(&log, &arguments);
    }
    let compared = Compared {
        behind: is_set("--behind"),
        by_processor: is_set("--processors"),
    };
    let streams = truth(&std::fs::read_to_string(&log)?, compared)?;
    for path in arguments {
        let processes = match path.ends_with(".txt") {
            true => BTreeMap::from([(0, printed(&path)?)]),
            false => recorded(&path, compared.by_processor)?,
        };
        if processes.is_empty() {
            return Err(format!("{path}: no samples of user code").into());
        }
        for samples in processes.into_values() {
            let of = parts(&samples, &streams).map_err(|why| format!("{path}, {log}: {why}"))?;
            let mut on: Vec<u32> = samples.iter().map(|line| line.processor).collect();
            on.sort_unstable();
            on.dedup();
            println!(
                "{path}: {} samples of user code on processors {on:?}, each as the emulator wrote it ({of})",
                samples.len()
            );
        }
    }
    Ok(())
}

/// Prints how many addresses were rebuilt, and rightly. Such samples are of the
/// instruction before the one that they name.
fn rebuilt(log: &str, arguments: &[String]) -> Result<(), Failure> {
    let text = std::fs::read_to_string(log)?;
    let words = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let truth: Vec<(u64, u64)> = words
        .filter(|words| words[0] == "record")
        .map(|words| Ok((field(&words, "next")?, field(&words, "address")?)))
        .collect::<Result<_, Failure>>()?;
    for path in arguments {
        let samples: Vec<Line> = recorded(path, false)?.into_values().flatten().collect();
        let same_code = |part: &&[(u64, u64)]| {
            let pairs = part.iter().zip(&samples);
            pairs
                .into_iter()
                .all(|(record, sample)| record.0 == sample.ip)
        };
        let right = |part: &[(u64, u64)]| {
            let pairs = part.iter().zip(&samples);
            pairs
                .filter(|(record, sample)| record.1 == sample.address)
                .count()
        };
        let runs = truth.windows(samples.len().max(1)).filter(same_code);
        let right = runs.map(right).max();
        let right = right.ok_or_else(|| format!("{path}: not a run of the log's records"))?;
        let found = samples.iter().filter(|sample| sample.address != 0).count();
        println!(
            "{path}: {} samples, {found} addresses rebuilt, {right} of them right",
            samples.len()
        );
        if right < found || found == 0 {
            return Err(format!("{path}: {} rebuilt addresses are wrong", found - right).into());
        }
    }
    Ok(())
}

/// The streams that the samples are runs of, in words.
fn parts(samples: &[Line], streams: &Streams) -> Result<String, String> {
    let mut left: Vec<&String> = streams.keys().collect();
    let (mut at, mut words) = (0, Vec::new());
    while at < samples.len() || words.is_empty() {
        let runs = left.iter().enumerate().map(|(place, name)| {
            let (count, start) = longest(&samples[at..], &streams[*name]);
            (count, place, start)
        });
        let (count, place, start) = runs.max_by_key(|run| run.0).unwrap_or_default();
        if count == 0 {
            return Err(format!(
                "after {} and {at} of {} samples, none is {:?}",
                words.join(", "),
                samples.len(),
                samples.get(at)
            ));
        }
        let name = left.remove(place);
        let all = streams[name].len();
        words.push(format!(
            "{name}: {} to {} of {all}",
            start + 1,
            start + count
        ));
        at += count;
    }
    Ok(words.join(", "))
}

/// The longest run of the lines that the samples begin with: its length and place.
fn longest(samples: &[Line], lines: &[Line]) -> (usize, usize) {
    let starts = (0..lines.len()).map(|start| {
        let pairs = lines[start..].iter().zip(samples);
        (
            pairs.take_while(|(line, sample)| line == sample).count(),
            start,
        )
    });
    starts.max_by_key(|run| run.0).unwrap_or_default()
}

/// Kernel addresses are the upper half.
fn is_user(ip: u64) -> bool {
    ip >> 63 == 0
}

/// The samples of each process, or of each processor.
fn recorded(path: &str, by_processor: bool) -> Result<BTreeMap<u32, Vec<Line>>, Failure> {
    let recording = Recording::open(std::path::Path::new(path))?;
    let (mut all, mut problems) = (BTreeMap::<u32, Vec<Line>>::new(), Vec::new());
    recording.for_each_intact_batch(&Selection::all(), &mut problems, |rows: &[Sample]| {
        for row in rows.iter().filter(|row| is_user(row.ip.0)) {
            let line = line(row);
            let whose = if by_processor {
                line.processor
            } else {
                row.pid.0
            };
            all.entry(whose).or_default().push(line);
        }
    })?;
    match problems.is_empty() {
        true => Ok(all),
        false => Err(problems.join("; ").into()),
    }
}

fn line(row: &Sample) -> Line {
    // With PEBS the latency shows whether there is a source. Only IBS has the width.
    let is_op = row.size_bytes > 0;
    Line {
        processor: row.cpu.map_or(0, |cpu| cpu.0),
        ip: row.ip.0,
        address: row.addr.map_or(0, |addr| addr.0),
        source_and_latency: (is_op || row.latency_cycles > 0)
            .then_some((row.source, row.latency_cycles)),
        access: is_op.then(|| {
            let physical = row.phys.unwrap_or(PhysAddr(0)).0;
            (physical, row.kind, row.size_bytes)
        }),
    }
}

fn printed(path: &str) -> Result<Vec<Line>, Failure> {
    let text = std::fs::read_to_string(path)?;
    let words = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    words.map(|words| op(&words)).collect()
}

fn truth(log: &str, compared: Compared) -> Result<Streams, Failure> {
    let mut streams = Streams::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let space = || Ok::<_, Failure>(format!("space {:#x}", field(&words, "space")?));
        let (name, line) = match words[0] {
            "record" => {
                let mut line = record(&words)?;
                if compared.behind {
                    line.ip = field(&words, "next")?;
                }
                let name = match compared.by_processor {
                    true => format!("PEBS' records of processor {}", line.processor),
                    false => "PEBS' records".to_owned(),
                };
                (name, line)
            }
            "op" => (format!("the ops of {}", space()?), op(&words)?),
            "fetch" => (format!("the fetches of {}", space()?), fetch(&words)?),
            _ => continue,
        };
        if is_user(line.ip) {
            streams.entry(name).or_default().push(line);
        }
    }
    Ok(streams)
}

/// The number behind a word.
fn field(words: &[&str], name: &str) -> Result<u64, Failure> {
    let at = words.iter().position(|word| *word == name);
    let text = at.and_then(|at| words.get(at + 1));
    let text = text.ok_or_else(|| format!("a line of the log lacks `{name}`"))?;
    Ok(match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16)?,
        None => text.parse()?,
    })
}

fn processor(words: &[&str]) -> Result<u32, Failure> {
    Ok(u32::try_from(field(words, "processor")?)?)
}

/// `record processor N counter N ip X address X source X latency N …`
fn record(words: &[&str]) -> Result<Line, Failure> {
    let latency = u32::try_from(field(words, "latency")?)?;
    // The manual's codes for load latency, without the bits for TLBs and locks.
    let source = match field(words, "source")? & 0xf {
        1 => DataSource::L1d,
        3 => DataSource::L2,
        4 => DataSource::Llc,
        0xa => DataSource::Dram,
        _ => DataSource::Unknown,
    };
    Ok(Line {
        processor: processor(words)?,
        ip: field(words, "ip")?,
        address: field(words, "address")?,
        source_and_latency: (latency > 0).then_some((source, latency)),
        access: None,
    })
}

/// `op … ip X address X physical X level N latency N size N load N store N …`. IBS does not
/// tell where a store's line came from if not from the first two levels.
fn op(words: &[&str]) -> Result<Line, Failure> {
    let kind = match (field(words, "load")?, field(words, "store")?) {
        (0, 0) => AccessKind::Unknown,
        (0, _) => AccessKind::Store,
        (_, 0) => AccessKind::Load,
        _ => AccessKind::Modify,
    };
    let source = match field(words, "level")? {
        1 => DataSource::L1d,
        2 => DataSource::L2,
        3 if kind != AccessKind::Store => DataSource::Llc,
        4 if kind != AccessKind::Store => DataSource::Dram,
        _ => DataSource::Unknown,
    };
    let latency = u32::try_from(field(words, "latency")?)?;
    let size = u16::try_from(field(words, "size")?)?;
    let has_data = kind != AccessKind::Unknown && size > 0;
    Ok(Line {
        processor: processor(words)?,
        ip: field(words, "ip")?,
        address: field(words, "address")?,
        source_and_latency: has_data.then_some((source, latency)),
        access: has_data.then_some((field(words, "physical")?, kind, size)),
    })
}

fn fetch(words: &[&str]) -> Result<Line, Failure> {
    Ok(Line {
        processor: processor(words)?,
        ip: field(words, "ip")?,
        ..Line::default()
    })
}
