//! The program, its end, the machine, and the amount of work.

use memgauge_analyze::{LossRow, Summary, TotalsFrom};
use memgauge_trace::{CommandEnd, MachineFacts};

use super::{clock, is_measured, or_none, provenance, sets};
use crate::style::{Role, Style};
use crate::unnamed::hints;
use crate::{grid, units};

pub(super) fn headline(summary: &Summary, style: &Style) -> String {
    let facts = &summary.recording;
    let command = style.name(&command_line(&facts.command));
    let command = style.paint(Role::Heading, &style.clip(&command, style.line));
    let mut text = format!("{command}\n");
    if let Some((role, end)) = ending(summary) {
        text += &format!("  {}\n", style.paint(role, &end));
    }
    if let Some(machine) = &facts.machine {
        text += &modelled(machine, style);
    } else if facts.host.cpu.starts_with(MachineFacts::MODELLED) {
        let of = style.name(&facts.host.cpu);
        text += &style.wrap(&format!("{of}: counts are modelled, and times virtual"), 2);
    } else if !facts.host.cpu.is_empty() {
        text += &style.wrap(&format!("measured on: {}", style.name(&facts.host.cpu)), 2);
    }
    text += &sets::estimated(summary, style);
    text += &seed(summary, style);
    text += &jit_names(summary, style);
    text += &regions(summary, style);
    text += &waited(summary, style);
    if summary.totals_from != TotalsFrom::Manifest && !facts.complete {
        let nothing = summary.totals.is_empty() && summary.run.duration_ns == 0;
        let note = match nothing {
            true => {
                "the recorder did not end cleanly: it had written no rows yet, so no number is known"
            }
            false => {
                "the recorder did not end cleanly: numbers are sums of the parts that it had \
                 written"
            }
        };
        text += &style.paint_lines(Role::Warning, &style.wrap(note, 2));
    }
    if summary.losses.iter().any(is_of_disk) {
        let note = "a part of the run is missing, because it could not be written (see Losses)";
        text += &style.paint_lines(Role::Warning, &style.wrap(note, 2));
    }
    text + &unnamed(summary, style)
}

/// Returns whether rows were lost because the disk was full or failed.
pub(super) fn is_of_disk(loss: &LossRow) -> bool {
    loss.kind == "part_not_written"
}

/// Seed of the program's random numbers, if they were fixed.
fn seed(summary: &Summary, style: &Style) -> String {
    let seed = summary.recording.source.settings.seed;
    seed.map_or(String::new(), |seed| {
        let line = format!("random numbers of the program: fixed by seed {seed}");
        style.wrap(&line, 2)
    })
}

/// The variables that made runtimes name their code, if they were set.
fn jit_names(summary: &Summary, style: &Style) -> String {
    let variables = summary.recording.source.settings.jit_names.as_ref();
    variables.map_or(String::new(), |variables| {
        let line = format!("environment of the program: {}", style.name(variables));
        style.paint_lines(Role::Quiet, &style.wrap(&line, 2))
    })
}

/// Code without names, and what would name it.
fn unnamed(summary: &Summary, style: &Style) -> String {
    let hints = hints(summary).into_iter();
    let lines = hints.map(|hint| {
        let finding = style.paint_lines(Role::Warning, &style.wrap(&style.name(&hint.text), 2));
        finding + &style.wrap(&hint.next, 4)
    });
    lines.collect()
}

/// The regions of interest that the recording is limited to, and the functions among them.
fn regions(summary: &Summary, style: &Style) -> String {
    let source = &summary.recording.source;
    let mut text = String::new();
    if let Some(names) = source.only_regions() {
        let line = format!(
            "{}; times are of the whole run",
            recorded_inside(names, style)
        );
        text += &style.paint_lines(Role::Warning, &style.wrap(&line, 2));
    }
    if let Some(names) = &source.settings.functions {
        let line = format!("functions as regions of interest: {}", style.name(names));
        text += &style.wrap(&line, 2);
    }
    text
}

/// Explains the scope of a recording that is limited to regions.
pub(crate) fn recorded_inside(names: &str, style: &Style) -> String {
    let names = style.name(names);
    format!("recorded inside regions alone ({names}): counts, samples and curves are theirs")
}

fn modelled(machine: &MachineFacts, style: &Style) -> String {
    let name = style.name(&machine.name);
    let modified = match machine.modified {
        true => ", modified: not the built-in machine of this name",
        false => "",
    };
    let line = format!("modelled machine: {name}{modified} (modelled, not measured)");
    let prefetchers = match machine.prefetchers.is_empty() {
        true => "off".to_owned(),
        false => style.name(&machine.prefetchers.join(", ")),
    };
    let frequency = machine.frequency_hz as f64 / 1e9;
    let memory = units::few_gigabytes(machine.dram_bytes_per_s as f64);
    let speeds = format!("{frequency:.2} GHz, memory {memory} GB/s, prefetchers {prefetchers}");
    style.wrap(&line, 2) + &style.paint_lines(Role::Quiet, &style.wrap(&speeds, 2))
}

/// Waiting time of the threads, if known and not zero.
fn waited(summary: &Summary, style: &Style) -> String {
    let threads = &summary.threads;
    let idle_ns: u64 = threads.iter().filter_map(|t| t.idle_ns).sum();
    let end_ns = threads.iter().filter_map(|t| t.end_ns).max().unwrap_or(0);
    if idle_ns == 0 {
        return String::new();
    }
    let [idle, end] = [idle_ns, end_ns].map(|ns| units::nanoseconds(ns, style));
    let whose = match threads.len() {
        1 => String::new(),
        n => format!(", {} threads together", units::things(n as u64)),
    };
    let clock = clock(summary);
    let cut = match summary.totals.get("cut_sleeps") {
        None | Some(0) => String::new(),
        Some(1) => "; 1 sleep is shown shorter than the program asked for".to_owned(),
        Some(&n) => {
            let n = units::count(n);
            format!("; {n} sleeps are shown shorter than the program asked for")
        }
    };
    let outside = match summary.totals.get("outside_wait_ns") {
        None | Some(0) => String::new(),
        Some(&ns) => {
            let ns = units::nanoseconds(ns, style);
            format!(", {ns} of it for programs outside of the recording")
        }
    };
    style.wrap(
        &format!("{clock}: {end}, idle (waiting): {idle}{outside}{whose}{cut}"),
        2,
    )
}

/// The command quoted for a shell.
fn command_line(command: &[String]) -> String {
    if let Some(words) = target(command) {
        return words.to_owned();
    }
    let line = units::as_typed(command.iter().map(String::as_str));
    if line.is_empty() {
        "(no command)".to_owned()
    } else {
        line
    }
}

/// The target of a run without a program: `all processors`, `process 7`.
fn target(command: &[String]) -> Option<&str> {
    match command {
        [words] if words.contains(' ') && !words.contains('/') => Some(words),
        _ => None,
    }
}

/// How the command ended. Empty if the recorder ended normally but saw no end, as for processes
/// that it attached to.
fn ending(summary: &Summary) -> Option<(Role, String)> {
    let facts = &summary.recording;
    if facts.end.is_none() && facts.complete && facts.machine.is_none() {
        return None;
    }
    // With `--pid`, a command only determines how long to record, so its end is not that of the
    // target.
    let has_exited = matches!(facts.end, Some(CommandEnd::Exited(_)));
    if has_exited && target(&facts.command).is_some() {
        return None;
    }
    Some(match &facts.end {
        Some(CommandEnd::Exited(0)) => (Role::Plain, "exited with status 0".to_owned()),
        Some(CommandEnd::Exited(n)) => (Role::Warning, format!("exited with status {n}")),
        Some(CommandEnd::Signalled(n)) => (Role::Warning, format!("killed by {}", signal(*n))),
        Some(CommandEnd::Interrupted) => (Role::Warning, "interrupted".to_owned()),
        None => (Role::Warning, "how it ended is not known".to_owned()),
    })
}

/// Names of the signals that kill programs by default, by their numbers on most Linux architectures
/// (signal(7)).
fn signal(number: i32) -> String {
    let name = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        31 => "SIGSYS",
        _ => return format!("signal {number}"),
    };
    format!("signal {number} ({name})")
}

pub(super) fn run(summary: &Summary, style: &Style) -> String {
    let run = &summary.run;
    let seconds = |s| units::seconds(s, style);
    let duration = units::nanoseconds(run.duration_ns, style);
    let pairs = [
        (clock(summary), (run.duration_ns > 0).then_some(duration)),
        ("wall time under memgauge", run.wall_s.map(seconds)),
        ("instructions", run.instructions.map(units::count)),
        ("split accesses", run.splits.map(units::count)),
        ("loads", run.loads.map(units::count)),
        ("stores", run.stores.map(units::count)),
    ];
    // Native sources have few of these. Marks for missing ones would add nothing.
    let kept = pairs
        .into_iter()
        .filter(|(_, value)| value.is_some() || !is_measured(summary));
    let pairs: Vec<(&str, String)> = kept
        .map(|(name, value)| (name, or_none(value, |v| v, style)))
        .collect();
    style.heading("Run", &provenance(summary)) + &grid::draw(&pairs, style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let words = ["sh", "-c", "echo 'x y'", ""].map(String::from);
        let line = command_line(&words);
        assert_eq!(line, r#"sh -c "echo 'x y'" ''"#);
        assert_eq!(shlex::split(&line), Some(words.to_vec()));
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal(11), "signal 11 (SIGSEGV)");
        assert_eq!(signal(34), "signal 34");
    }
}
