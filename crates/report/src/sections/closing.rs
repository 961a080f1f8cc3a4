//! Losses, overhead and findings.

use memgauge_analyze::{Finding, LossRow, Summary};
use memgauge_trace::OwnCost;

use super::clock;
use super::headline::{is_of_disk, recorded_inside};
use super::levels::title;
use crate::causes::{FINDINGS, Statement, of_cause};
use crate::style::{Role, Style};
use crate::{grid, sampled, units};

/// Maximum number of losses listed one by one.
const LOSSES: usize = 12;

pub(super) fn losses(summary: &Summary, style: &Style) -> String {
    let unknown = unfinished(summary);
    let unread = summary.import.iter().flat_map(|import| &import.problems);
    let unread: Vec<&String> = unread.collect();
    let told = summary.losses.len() + summary.problems.len() + unread.len();
    let lacks = lacks(summary, style);
    if told == 0 && unknown.is_none() {
        return style.paint(Role::Heading, "Losses: none") + "\n" + &lacks;
    }
    let mut text = style.heading("Losses", "");
    if let Some(sentence) = unknown {
        text += &warning(sentence, style);
    }
    for problem in unread {
        let sentence = format!("{problem}; the records before it are imported");
        text += &warning(&style.name(&sentence), style);
    }
    for loss in summary.losses.iter().take(LOSSES) {
        text += &warning(&loss_sentence(loss, style), style);
    }
    for problem in summary.problems.iter().take(LOSSES) {
        text += &warning(&style.name(problem), style);
    }
    let told = |all: usize| all.saturating_sub(LOSSES);
    let untold = told(summary.losses.len()) + told(summary.problems.len());
    if untold > 0 {
        text += &warning(&format!("{untold} more kinds, all in the JSON form"), style);
    }
    text + &lacks
}

/// Facts that the tool behind an imported file does not record.
fn lacks(summary: &Summary, style: &Style) -> String {
    let lacks: Vec<&str> = (summary.import.iter())
        .flat_map(|import| import.lacks.iter().map(String::as_str))
        .collect();
    match lacks.is_empty() {
        true => String::new(),
        false => style.wrap(&format!("Not in such files: {}.", lacks.join(", ")), 2),
    }
}

/// A killed recorder could not write its losses.
fn unfinished(summary: &Summary) -> Option<&'static str> {
    let killed = !summary.recording.complete && !summary.losses.iter().any(is_of_disk);
    killed.then_some(
        "the losses are not known, because the recorder did not end cleanly: at least the rows \
        not yet written (up to two seconds)",
    )
}

fn loss_sentence(loss: &LossRow, style: &Style) -> String {
    let count = units::count(loss.count);
    let detail = style.name(&loss.detail);
    match detail.as_str() {
        "" => format!("{count:>6}  {}", loss.meaning),
        // Part of the stack is missing, but the samples are not lost. The detail is sufficient.
        detail if loss.kind == "not_kept" && detail.starts_with("samples whose") => {
            format!("{count:>6}  {detail}")
        }
        detail if loss.kind == "not_kept" => format!("{count:>6}  not kept: {detail}"),
        detail => format!("{count:>6}  {}: {detail}", loss.meaning),
    }
}

/// A sentence in the warning colour, wrapped. Keeps leading spaces.
fn warning(sentence: &str, style: &Style) -> String {
    let words = sentence.trim_start();
    let indent = 2 + sentence.len() - words.len();
    style.paint_lines(Role::Warning, &style.wrap(words, indent))
}

pub(super) fn cost(summary: &Summary, style: &Style) -> String {
    let cost = &summary.own_cost;
    if *cost == OwnCost::default() {
        return style.heading("Cost of recording", "not recorded");
    }
    let seconds = |s| units::seconds(s, style);
    let in_kernel = summary.counting.as_ref().and_then(|c| c.own_system_s);
    let recorder = match in_kernel {
        Some(s) => format!("{}, {} in the kernel", seconds(cost.cpu_s), seconds(s)),
        None => seconds(cost.cpu_s),
    };
    let recorded = cost.cpu_s > 0.0 || cost.wall_s > 0.0;
    let mut pairs = Vec::new();
    if recorded {
        pairs.push(("wall time", seconds(cost.wall_s)));
        pairs.push(("program CPU", seconds(cost.program_cpu_s)));
        pairs.push(("recorder CPU", recorder));
        pairs.push(("recorder memory", units::bytes(cost.peak_memory_bytes)));
    }
    if cost.recording_bytes > 0 {
        pairs.push(("recording", units::bytes(cost.recording_bytes)));
    }
    style.heading("Cost of recording", "measured") + &grid::draw(&pairs, style)
}

/// The findings as sentences.
pub(crate) fn findings(summary: &Summary, style: &Style) -> Vec<String> {
    let findings = summary.findings.iter();
    findings.map(|f| sentence(f, summary, style)).collect()
}

/// Explains why a recording of some regions only has no statement on its limits.
pub(crate) fn of_regions(names: &str, style: &Style) -> String {
    let inside = recorded_inside(names, style);
    format!(
        "It was {inside}, times are of the whole run: mean rates and what limits the run are left \
         out."
    )
}

/// The main finding without its advice, for readers of the first lines only.
pub(super) fn main_finding(summary: &Summary, style: &Style) -> String {
    let first = summary.causes.first().map(|cause| of_cause(cause, summary));
    let Some(Statement { text, .. }) = first.or_else(|| sampled::main_finding(summary)) else {
        return String::new();
    };
    style.heading("Main finding", "what to do about it: see the last lines")
        + &cause_sentence(text, style)
}

/// The sentence may contain a function name of the program.
fn cause_sentence(text: String, style: &Style) -> String {
    let sentence = match style.unicode {
        true => text,
        false => text.replace('µ', "u"),
    };
    style.wrap(&style.name(&sentence), 2)
}

pub(super) fn in_short(summary: &Summary, style: &Style) -> String {
    let regions = summary.recording.source.only_regions();
    let causes = summary.causes.iter().take(FINDINGS);
    let mut causes: Vec<Statement> = causes.map(|cause| of_cause(cause, summary)).collect();
    if causes.is_empty() {
        causes.extend(sampled::main_finding(summary));
    }
    if summary.findings.is_empty() && causes.is_empty() && regions.is_none() {
        return String::new();
    }
    let mut text = style.heading("In short", "");
    if let Some(names) = regions {
        text += &style.wrap(&of_regions(names, style), 2);
    }
    for cause in causes {
        text += &cause_sentence(cause.text, style);
        text += &style.wrap(&cause.next, 4);
    }
    for finding in findings(summary, style) {
        text += &style.wrap(&finding, 2);
    }
    text
}

fn sentence(finding: &Finding, summary: &Summary, style: &Style) -> String {
    match finding {
        Finding::ServedBy {
            level,
            share,
            l1d_hit_ratio,
        } => {
            let server = level.map_or("memory", title);
            let part = if *share > 0.5 {
                "most"
            } else {
                "the largest part"
            };
            let hits = units::percent(*l1d_hit_ratio);
            let share = units::share(*share);
            format!(
                "L1D answers {hits} of its look-ups; {server} serves {part} of its misses ({share})."
            )
        }
        Finding::DramUse {
            mean_share,
            peak_share,
            peak_length_ns,
            limit_bytes_per_s,
        } => {
            let limit = units::few_gigabytes(*limit_bytes_per_s as f64);
            let mean = units::share(*mean_share);
            let clock = clock(summary);
            let busiest = |(share, length)| {
                let (share, length) = (units::share(share), units::nanoseconds(length, style));
                format!(", {share} in its busiest {length} of {clock}")
            };
            let busiest = (*peak_share)
                .zip(*peak_length_ns)
                .map_or_else(String::new, busiest);
            format!("DRAM carries {mean} of the modelled {limit} GB/s on average{busiest}.")
        }
    }
}
