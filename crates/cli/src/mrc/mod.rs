//! `memgauge mrc` and `memgauge partition`.

mod addresses;
mod args;
mod engine;
mod feed;
mod memory;
mod partition;
mod parts;
mod phases;
mod relay;

use std::path::{Path, PathBuf};

use anyhow::bail;
use memgauge_emulate::geometry;
use memgauge_report::mrc::{Collection, CurveView, Measured, Unit};

use crate::outcome::Exit;
use crate::{record, terminal};
pub(crate) use args::{Mrc, Partition};
pub(crate) use partition::partition;

use args::Axis;

/// Shows miss-rate curves.
pub(crate) fn mrc(args: &Mrc) -> anyhow::Result<Exit> {
    if args.y == Axis::Mpki && args.instructions.is_none() && args.command.is_empty() {
        bail!("failed to show MPKI: say how many instructions there were with --instructions");
    }
    if (args.per_thread || args.by.is_some()) && args.command.is_empty() {
        bail!("failed to tell parts apart in a list: name a command behind `--`");
    }
    match (&args.inputs[..], args.phases) {
        ([], Some(_)) => phases_of_command(args),
        ([], None) => of_command(args),
        ([input], Some(_)) => phases_of_input(args, input),
        (_, Some(_)) => bail!("failed to tell phases apart in several inputs: name one"),
        (inputs, None) => of_inputs(args, inputs),
    }
}

fn phases_of_input(args: &Mrc, input: &Path) -> anyhow::Result<Exit> {
    let ran = phases::of_input(args, input)?;
    let style = terminal::style(terminal::stdout_is_terminal());
    let text = rendered_phases(args, &name(input), ran, style);
    terminal::print(&text)?;
    Ok(Exit::Success)
}

fn phases_of_command(args: &Mrc) -> anyhow::Result<Exit> {
    record::say_rights(&args.command);
    let (ran, run) = phases::of_command(args)?;
    let style = terminal::style(terminal::stderr_is_terminal());
    eprint!(
        "{}",
        rendered_phases(args, &args.command.join(" "), ran, style)
    );
    Ok(Exit::of(&run.end))
}

fn rendered_phases(
    args: &Mrc,
    title: &str,
    ran: phases::Ran,
    style: memgauge_report::Style,
) -> String {
    let views: Vec<CurveView> = ran
        .made
        .into_iter()
        .map(|made| {
            let instructions = made.instructions.or(args.instructions);
            let note = ran.note.clone();
            let view = view(
                args,
                title.to_owned(),
                note,
                made.measured,
                instructions,
                None,
            );
            CurveView {
                span: Some(made.span),
                ..view
            }
        })
        .collect();
    rendered(args, &views, Some(ran.collection), style)
}

/// The report goes to standard error: standard output is the program's.
fn of_command(args: &Mrc) -> anyhow::Result<Exit> {
    record::say_rights(&args.command);
    let ran = feed::curves_of_command(&args.command, &args.making, feed::Beside::of(args))?;
    let mut all = Vec::new();
    for (of, made) in ran.made {
        let title = args.command.join(" ") + &of;
        all.extend(views(args, title, made, args.against.as_deref())?);
    }
    let style = terminal::style(terminal::stderr_is_terminal());
    eprint!("{}", rendered(args, &all, None, style));
    Ok(Exit::of(&ran.run.end))
}

fn of_inputs(args: &Mrc, inputs: &[PathBuf]) -> anyhow::Result<Exit> {
    let made = feed::curves_together(inputs, &args.making)?;
    let names: Vec<String> = inputs.iter().map(|input| name(input)).collect();
    let other = args.against.as_deref();
    let views = views(args, names.join(" + "), made, other)?;
    let style = terminal::style(terminal::stdout_is_terminal());
    terminal::print(&rendered(args, &views, None, style))?;
    Ok(Exit::Success)
}

fn views(
    args: &Mrc,
    title: String,
    made: feed::Made,
    against: Option<&Path>,
) -> anyhow::Result<Vec<CurveView>> {
    let mut others = match against {
        Some(other) => feed::curves(other, &args.making)?.curves,
        None => Vec::new(),
    }
    .into_iter();
    let views = made.curves.into_iter().map(|measured| {
        let other = against.zip(others.next());
        let other = other.map(|(path, measured)| (name(path), measured));
        view(
            args,
            title.clone(),
            made.note.clone(),
            measured,
            made.instructions.or(args.instructions),
            other,
        )
    });
    Ok(views.collect())
}

fn name(path: &Path) -> String {
    if path == Path::new("-") {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    }
}

fn view(
    args: &Mrc,
    title: String,
    note: Option<String>,
    measured: Measured,
    instructions: Option<u64>,
    against: Option<(String, Measured)>,
) -> CurveView {
    CurveView {
        title,
        note,
        marks: marks(measured.curve().block_bytes),
        measured,
        unit: match (args.y, instructions) {
            (Axis::Mpki, Some(n)) => Unit::Mpki(n as f64),
            (Axis::Misses, _) => Unit::Misses,
            _ => Unit::Ratio,
        },
        compulsory: !args.no_compulsory,
        sizes: args.sizes.clone(),
        against,
        span: None,
    }
}

/// This machine's caches for lines, its memory for pages.
fn marks(block_bytes: u64) -> Vec<(String, u64)> {
    const PAGE: u64 = 4096;
    if block_bytes >= PAGE {
        let memory = memgauge_host::facts().memory_bytes;
        return vec![("memory".to_owned(), memory)];
    }
    let host = geometry::host();
    let levels = [
        ("L1D", host.l1d.size_bytes),
        ("L2", host.l2.size_bytes),
        ("LLC", host.llc.size_bytes),
    ];
    levels
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .to_vec()
}

fn rendered(
    args: &Mrc,
    views: &[CurveView],
    collection: Option<Collection>,
    style: memgauge_report::Style,
) -> String {
    if args.json {
        let curves: Vec<_> = views.iter().map(CurveView::json).collect();
        let collection = collection.map(|c| c.json());
        let all =
            serde_json::json!({ "schema_version": 1, "curves": curves, "collection": collection });
        return format!("{all:#}\n");
    }
    if args.csv {
        let rows = views.iter().map(CurveView::csv_rows);
        return CurveView::CSV_HEADING.to_owned() + &rows.collect::<String>();
    }
    let texts: Vec<String> = views.iter().map(|view| view.text(&style)).collect();
    let cost = collection.map_or(String::new(), |c| format!("\n{}", c.text()));
    texts.join("\n") + &cost
}
