//! The end of a run: totals, what follows from them, ticks, losses, cost.

use memgauge_analyze::{Analysis, Series, derived, sentence};
use memgauge_collect::pmu::stat::{Options, Outcome, Row, Ticks, Total};
use memgauge_collect::pmu::target::Target;
use memgauge_report::{CURVE_COLUMNS, Counted, CounterRow, Style, counted_text};
use memgauge_trace::{EventId, Pid, SeriesRow, Tid};
use serde_json::{Value, json};

use super::args::Stat;
use super::end_in_words;

/// Bins that curves are gathered in before they become columns.
const BINS: usize = 240;

/// Curves of the events over time.
pub(super) struct Curves {
    series: Series,
    columns: Vec<Vec<String>>,
    /// Rows on their way into `series`.
    batch: Vec<SeriesRow>,
}

impl Curves {
    pub(super) fn new() -> Curves {
        Curves {
            series: Series::growing(BINS),
            columns: Vec::new(),
            batch: Vec::new(),
        }
    }

    pub(super) fn columns(&mut self, columns: &[Vec<String>]) {
        self.columns = columns.to_vec();
    }

    pub(super) fn observe(&mut self, rows: &[Row]) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        for row in rows {
            for (at, &value) in row.values.iter().enumerate() {
                let Some(event) = self.number(row.group, at) else {
                    continue;
                };
                batch.push(SeriesRow {
                    time_ns: row.time_ns,
                    interval_ns: row.interval_ns,
                    pid: Pid(row.pid),
                    tid: Tid(row.tid),
                    cpu: None,
                    event,
                    value,
                });
            }
        }
        self.series.observe(&batch);
        self.batch = batch;
    }

    /// A number for a column; none for the timers of groups but the first, which
    /// count the same time again.
    fn number(&self, group: usize, at: usize) -> Option<EventId> {
        let before: usize = self.columns[..group].iter().map(Vec::len).sum();
        (group == 0 || at > 0).then(|| EventId((before + at) as u16))
    }

    fn rates(self) -> Vec<(String, Vec<f64>)> {
        let mut named = Vec::new();
        for (group, names) in self.columns.iter().enumerate() {
            for (at, name) in names.iter().enumerate() {
                named.extend(self.number(group, at).map(|id| (name.clone(), id)));
            }
        }
        let curves = self.series.finish();
        named
            .into_iter()
            .map(|(name, id)| (name, curves.event(id).rates(CURVE_COLUMNS)))
            .collect()
    }
}

/// The report.
pub(super) fn text(
    args: &Stat,
    options: Option<&Options>,
    outcome: &Outcome,
    curves: Curves,
    style: &Style,
) -> String {
    let rates = curves.rates();
    let curve = |name: &str| {
        rates
            .iter()
            .find(|r| r.0 == name)
            .map_or(Vec::new(), |r| r.1.clone())
    };
    let seconds = outcome.wall_ns as f64 / 1e9;
    let mut rows = Vec::new();
    rows.extend(outcome.ticks.as_ref().map(|ticks| CounterRow {
        name: "cpu-clock".to_owned(),
        value: ticks.running_ns,
        share_counted: 1.0,
        curve: curve("cpu-clock"),
        ..CounterRow::default()
    }));
    rows.extend(outcome.totals.iter().map(|total| CounterRow {
        curve: curve(&total.name),
        ..counter_row(total)
    }));
    let counted = Counted {
        title: options.map_or_else(|| args.command.join(" "), title)
            + &end_in_words(outcome.end.as_ref()),
        provenance: if options.is_some() {
            "counted"
        } else {
            "modelled"
        },
        rows,
        unsupported: unsupported(outcome),
        derived: derived(&totals(outcome), seconds),
        closing: closing(args, outcome),
        seconds,
    };
    counted_text(&counted, style)
}

fn counter_row(total: &Total) -> CounterRow {
    let scaled = || (total.value as f64 * total.scale, total.unit.clone());
    CounterRow {
        name: total.name.clone(),
        value: total.value,
        scaled: (!total.unit.is_empty()).then(scaled),
        share_counted: total.share_counted,
        machine_wide: total.machine_wide,
        curve: Vec::new(),
    }
}

fn totals(outcome: &Outcome) -> Vec<(String, f64)> {
    let clock = outcome
        .ticks
        .as_ref()
        .map(|t| ("cpu-clock".to_owned(), t.running_ns as f64));
    let counted = outcome
        .totals
        .iter()
        .map(|t| (t.name.clone(), t.value as f64));
    counted.chain(clock).collect()
}

fn title(options: &Options) -> String {
    let list = |numbers: &[u32]| {
        numbers
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    match &options.target {
        Target::Command(command) => command.join(" "),
        Target::Processes(pids) => format!("process {}", list(pids)),
        Target::Threads(tids) => format!("thread {}", list(tids)),
        Target::Everybody(None) => "all processors".to_owned(),
        Target::Everybody(Some(cpus)) => format!("processors {}", list(cpus)),
        Target::Cgroup(path) => format!("control group {}", path.display()),
    }
}

/// Events of one reason in one line: a machine without a PMU lacks them all.
fn unsupported(outcome: &Outcome) -> Vec<(String, String)> {
    let mut lines: Vec<(String, String)> = Vec::new();
    for event in &outcome.unsupported {
        match lines.iter_mut().find(|line| line.1 == event.why) {
            Some(line) => line.0 = format!("{}, {}", line.0, event.name),
            None => lines.push((event.name.clone(), event.why.clone())),
        }
    }
    lines
}

fn closing(args: &Stat, outcome: &Outcome) -> Vec<(&'static str, String)> {
    let mut closing = Vec::new();
    let mut notes = outcome.notes.clone();
    if !outcome.user_only.is_empty() {
        let names = outcome.user_only.join(", ");
        notes.push(format!(
            "in user space only, for want of rights: {names} (what only happens in the kernel, \
             such as context switches, then counts 0; sysctl kernel.perf_event_paranoid=1)"
        ));
    }
    if !notes.is_empty() {
        closing.push(("Notes", notes.join("\n")));
    }
    if let Some(ticks) = &outcome.ticks {
        closing.push(("Ticks", in_words(ticks, outcome)));
        closing.push(("Losses", losses(outcome)));
    }
    closing.push(("Cost of counting", cost(outcome)));
    if let Some(path) = &args.output {
        let size = outcome.cost.recording_bytes as f64 / 1024.0;
        closing.push(("Recording", format!("{} ({size:.0} KiB)", path.display())));
    }
    closing
}

fn in_words(ticks: &Ticks, outcome: &Outcome) -> String {
    let us =
        |ns: Option<u64>| ns.map_or("–".to_owned(), |ns| format!("{:.1} us", ns as f64 / 1e3));
    let expected = ticks.expected().max(1) as f64;
    format!(
        "{} seen of {} expected ({:.2} %) every {:.1} us of running time; {} lost in rings, {} late\n\
         gaps: median {}, 99 % up to {}; {} rows of {} threads",
        ticks.seen,
        ticks.expected(),
        100.0 * ticks.seen as f64 / expected,
        ticks.interval_ns() as f64 / 1e3,
        ticks.lost,
        ticks.late(),
        us(ticks.gap_ns(0.5)),
        us(ticks.gap_ns(0.99)),
        outcome.rows,
        outcome.threads,
    )
}

fn losses(outcome: &Outcome) -> String {
    if outcome.losses.is_empty() {
        return "none".to_owned();
    }
    let line = |loss: &memgauge_trace::Loss| {
        let (_, meaning) = sentence(loss.kind);
        format!("{} {meaning} ({})", loss.count, loss.detail)
    };
    outcome
        .losses
        .iter()
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

fn cost(outcome: &Outcome) -> String {
    let mut text = format!(
        "memgauge itself: {:.3} s user, {:.3} s kernel, {:.1} MiB of memory",
        outcome.own_user_s,
        outcome.own_system_s,
        outcome.cost.peak_memory_bytes as f64 / f64::from(1 << 20)
    );
    if let Some(slowdown) = outcome.slowdown {
        let times = match slowdown.times() {
            Some(times) => format!("{times:.2} times slower"),
            None => "more than 10 times slower".to_owned(),
        };
        text += &format!(
            "\nslowdown estimated: ticks took {:.1} % of the time on processors, so what was \
             observed ran {times} ({:.1} us a tick, measured before the start)",
            100.0 * slowdown.share,
            slowdown.tick_ns / 1e3
        );
    }
    if let (Some(ticks), Some(tick_ns)) = (&outcome.ticks, outcome.bare_tick_ns) {
        let share = 100.0 * tick_ns / ticks.interval_ns() as f64;
        text += &format!(
            "\nthe bare timer takes {:.2} us a tick here (measured: an event without output), \
             {share:.1} % of the program's time",
            tick_ns / 1e3
        );
    }
    text
}

/// Everything as JSON.
pub(super) fn as_json(outcome: &Outcome) -> Value {
    let seconds = outcome.wall_ns as f64 / 1e9;
    let totals_json: Vec<Value> = outcome
        .totals
        .iter()
        .map(|t| {
            json!({
                "name": t.name, "value": t.value, "counted": t.counted,
                "share_counted": t.share_counted, "scale": t.scale, "unit": t.unit,
                "machine_wide": t.machine_wide,
            })
        })
        .collect();
    let ticks = outcome.ticks.as_ref().map(|t| {
        json!({
            "interval_ns": t.interval_ns(), "seen": t.seen, "expected": t.expected(),
            "lost": t.lost, "late": t.late(), "throttled": t.throttled,
            "running_ns": t.running_ns, "median_gap_ns": t.gap_ns(0.5),
            "p99_gap_ns": t.gap_ns(0.99), "bare_tick_ns": outcome.bare_tick_ns,
            "tick_ns": outcome.slowdown.map(|s| s.tick_ns),
            "share_taken": outcome.slowdown.map(|s| s.share),
            "slowdown": outcome.slowdown.and_then(|s| s.times()),
        })
    });
    let unsupported: Vec<Value> = outcome
        .unsupported
        .iter()
        .map(|u| json!({"name": u.name, "why": u.why}))
        .collect();
    let losses: Vec<Value> = outcome
        .losses
        .iter()
        .map(|l| json!({"kind": sentence(l.kind).0, "count": l.count, "detail": l.detail}))
        .collect();
    json!({
        "totals": totals_json,
        "derived": derived(&totals(outcome), seconds),
        "unsupported": unsupported,
        "user_only": outcome.user_only,
        "ticks": ticks,
        "rows": outcome.rows,
        "threads": outcome.threads,
        "losses": losses,
        "notes": outcome.notes,
        "wall_ns": outcome.wall_ns,
        "end": outcome.end,
        "own_cost": outcome.cost,
        "own_user_s": outcome.own_user_s,
        "own_system_s": outcome.own_system_s,
    })
}
