//! `memgauge mrc` and `memgauge partition`.

#[macro_use]
extern crate memgauge_console;

mod args;
mod engine;
mod feed;
mod input_curves;
mod live_partition;
mod memory;
mod partition;
mod parts;
mod phases;
mod relay;
mod running;
mod trace;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use memgauge_console::outcome::Exit;
use memgauge_console::whole_file::WholeFile;
use memgauge_console::{emulated, page, terminal};
use memgauge_emulate::geometry;
use memgauge_report::Page;
use memgauge_report::mrc::{CollectionCost, CurveUnit, CurveView, MeasuredCurve, PolicyView};

pub use args::{Mrc, Partition};
pub use partition::partition;

use args::{Axis, PartKind};
use input_curves::InputCurves;

/// Refuses `--sets`, because a curve needs every access, and names the option that takes a part of
/// the blocks.
fn refuse_sets(sets: Option<&String>) -> anyhow::Result<()> {
    match sets {
        None => Ok(()),
        Some(part) => Err(usage(format!(
            "failed to make curves with --sets {part}: a stack distance spans all sets: use \
             --sample 0.01, which makes curves from a part of the blocks"
        ))),
    }
}

/// Refuses `-o FILE` as `record` has it, because curves are printed, and names the option for
/// files.
fn refuse_output(output: Option<&PathBuf>) -> anyhow::Result<()> {
    let Some(file) = output.map(|file| file.display()) else {
        return Ok(());
    };
    Err(usage(format!(
        "failed to make curves with -o {file}: they are printed, not recorded: name the file by its \
         form, as in --json={file}, --csv={file} or --html={file}"
    )))
}

/// Shows miss-rate curves.
pub fn mrc(args: &Mrc) -> anyhow::Result<Exit> {
    refuse_sets(args.sets.as_ref())?;
    refuse_output(args.output.as_ref())?;
    if args.target.are_any() {
        running::check(args)?;
        return running::of_running(args, ReportOutputs::open(args)?);
    }
    let args = &Mrc {
        making: args.making.with_default_block(trace::default_block(args)?),
        ..args.clone()
    };
    let is_simulated = trace::is_simulated(args)?;
    if !is_simulated {
        check(args)?;
    }
    args.html.as_ref().map(|_| page::check()).transpose()?;
    let out = ReportOutputs::open(args)?;
    if is_simulated {
        if !args.command.is_empty() {
            emulated::warn_about_rights(&args.command);
        }
        let simulated = trace::views(args)?;
        out.write_policies(&simulated.views)?;
        return Ok(match &simulated.run {
            Some(run) => Exit::of(&run.end),
            None => Exit::after_reading(simulated.is_damaged),
        });
    }
    match (&args.inputs[..], args.phases) {
        ([], Some(_)) => phases_of_command(args, out),
        ([], None) => of_command(args, out),
        ([input], Some(_)) => phases_of_input(args, input, out),
        (inputs, _) => of_inputs(args, inputs, out),
    }
}

/// Checks conflicts between several options.
fn check(args: &Mrc) -> anyhow::Result<()> {
    let list = args.command.is_empty();
    if args.y == Axis::Mpki && args.instructions.is_none() && list {
        return Err(usage(
            "failed to show MPKI: the number of instructions is not known: give it with \
            --instructions",
        ));
    }
    if (args.per_thread || args.by.is_some()) && list {
        return Err(usage(
            "failed to separate threads or parts: lists and recordings give one curve each: name a \
            command after `--`",
        ));
    }
    let making = &args.making;
    if making.sample_only && making.sample.is_none() && making.sample_size.is_none() {
        return Err(usage(
            "failed to use only a sample: its size is not given: add --sample or --sample-size",
        ));
    }
    if args.phases.is_some() {
        phases::check(args)?;
    }
    Ok(())
}

/// A failure with the exit code for an invalid command line.
fn usage(message: impl Into<String>) -> anyhow::Error {
    memgauge_host::Error::usage(message).into()
}

/// Format of the report.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReportFormat {
    Text,
    Json,
    Csv,
    Page,
}

/// Destination of the report.
enum ReportDestination {
    Output,
    /// Standard output belongs to the program.
    ErrorOutput,
    File(WholeFile, PathBuf),
}

impl ReportDestination {
    /// Opens the file that an option names.
    fn open(path: &Path, list: bool) -> anyhow::Result<ReportDestination> {
        if path != Path::new("-") {
            let failed = || format!("failed to write `{}`", path.display());
            let file = WholeFile::create(path).with_context(failed)?;
            return Ok(ReportDestination::File(file, path.to_owned()));
        }
        if !list {
            return Err(usage(
                "failed to print JSON or CSV: the program itself writes to standard \
                 output: name a file, as in --json=curve.json",
            ));
        }
        Ok(ReportDestination::Output)
    }

    fn style(&self) -> memgauge_report::Style {
        terminal::style(match self {
            ReportDestination::Output => terminal::stdout_is_terminal(),
            ReportDestination::ErrorOutput => terminal::stderr_is_terminal(),
            ReportDestination::File(..) => false,
        })
    }

    fn write(self, text: &str) -> anyhow::Result<()> {
        match self {
            ReportDestination::Output => terminal::print(text)?,
            ReportDestination::ErrorOutput => eprint!("{text}"),
            ReportDestination::File(mut file, path) => file
                .file()
                .write_all(text.as_bytes())
                .and_then(|()| file.finish())
                .with_context(|| format!("failed to write `{}`", path.display()))?,
        }
        Ok(())
    }
}

/// The outputs: JSON, CSV, both, or text.
struct ReportOutputs(Vec<(ReportFormat, ReportDestination)>);

impl ReportOutputs {
    /// Opens the files before the program runs, so that it does not run in vain.
    fn open(args: &Mrc) -> anyhow::Result<ReportOutputs> {
        let list = args.command.is_empty();
        let printed = Path::new("-");
        let asked = [
            (ReportFormat::Json, &args.json),
            (ReportFormat::Csv, &args.csv),
            (ReportFormat::Page, &args.html),
        ];
        let to_output =
            |(_, path): &&(ReportFormat, &Option<PathBuf>)| path.as_deref() == Some(printed);
        if asked.iter().filter(to_output).count() > 1 {
            return Err(usage(
                "failed to print JSON and CSV: both go to standard output: name a file for one, \
                 as in --json=curve.json --csv",
            ));
        }
        let asked = asked.into_iter();
        let named = asked.filter_map(|(form, path)| Some((form, path.as_ref()?)));
        let opened = named.map(|(form, path)| Ok((form, ReportDestination::open(path, list)?)));
        let mut all = opened.collect::<anyhow::Result<Vec<_>>>()?;
        if all.is_empty() {
            let out = match list {
                true => ReportDestination::Output,
                false => ReportDestination::ErrorOutput,
            };
            all.push((ReportFormat::Text, out));
        }
        Ok(ReportOutputs(all))
    }

    fn write(self, views: &[CurveView], collection: Option<&CollectionCost>) -> anyhow::Result<()> {
        let mut all = self.0.into_iter();
        all.try_for_each(|(form, out)| {
            let text = rendered(form, views, collection, out.style());
            out.write(&text)
        })
    }

    fn write_policies(self, views: &[PolicyView]) -> anyhow::Result<()> {
        let mut all = self.0.into_iter();
        all.try_for_each(|(form, out)| {
            let text = rendered_policies(form, views, out.style());
            out.write(&text)
        })
    }
}

fn phases_of_input(args: &Mrc, input: &Path, outputs: ReportOutputs) -> anyhow::Result<Exit> {
    let ran = phases::of_input(args, input)?;
    let is_damaged = ran.is_damaged;
    write_phases(args, &name(input), ran, outputs)?;
    Ok(Exit::after_reading(is_damaged))
}

fn phases_of_command(args: &Mrc, outputs: ReportOutputs) -> anyhow::Result<Exit> {
    emulated::warn_about_rights(&args.command);
    let (ran, run) = phases::of_command(args)?;
    write_phases(args, &args.command.join(" "), ran, outputs)?;
    Ok(Exit::of(&run.end))
}

fn write_phases(
    args: &Mrc,
    title: &str,
    ran: phases::PhaseRun,
    outputs: ReportOutputs,
) -> anyhow::Result<()> {
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
                weight: ran.weight,
                ..view
            }
        })
        .collect();
    outputs.write(&views, Some(&ran.collection))
}

fn of_command(args: &Mrc, outputs: ReportOutputs) -> anyhow::Result<Exit> {
    emulated::warn_about_rights(&args.command);
    let ran = feed::curves_of_command(args, feed::CurveScope::of(args)?)?;
    for note in emulated::missing_names(&ran.run.missing, &args.command) {
        eprintln!("memgauge: {note}");
    }
    if args.by == Some(PartKind::Interest) && args.functions.is_empty() && ran.made.len() == 1 {
        eprintln!(
            "memgauge: the program was in no region of interest: --function NAME makes one of a \
             function, and docs/regions.md says how a program marks them"
        );
    }
    let mut all = Vec::new();
    for (of, made) in ran.made {
        let title = args.command.join(" ") + &of;
        all.extend(views(args, title, made, against(args)?));
    }
    outputs.write(&all, None)?;
    Ok(Exit::of(&ran.run.end))
}

fn of_inputs(args: &Mrc, inputs: &[PathBuf], outputs: ReportOutputs) -> anyhow::Result<Exit> {
    let made = feed::curves_together(inputs, &args.making)?;
    let against = against(args)?;
    let is_damaged = made.is_damaged || against.as_ref().is_some_and(|other| other.is_damaged);
    let names: Vec<String> = inputs.iter().map(|input| name(input)).collect();
    let views = views(args, names.join(" + "), made, against);
    outputs.write(&views, None)?;
    Ok(Exit::after_reading(is_damaged))
}

/// Curves to compare with, if requested.
fn against(args: &Mrc) -> anyhow::Result<Option<InputCurves>> {
    let other = args.against.as_deref();
    other
        .map(|other| feed::curves(other, &args.making))
        .transpose()
}

fn views(
    args: &Mrc,
    title: String,
    made: InputCurves,
    against: Option<InputCurves>,
) -> Vec<CurveView> {
    let mut others = against.into_iter().flat_map(|other| other.curves);
    let views = made.curves.into_iter().map(|measured| {
        let other = args.against.as_deref().zip(others.next());
        let other = other.map(|(path, measured)| (name(path), measured));
        let view = view(
            args,
            title.clone(),
            made.note.clone(),
            measured,
            made.instructions.or(args.instructions),
            other,
        );
        CurveView {
            weight: made.weight,
            ..view
        }
    });
    views.collect()
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
    measured: MeasuredCurve,
    instructions: Option<u64>,
    against: Option<(String, MeasuredCurve)>,
) -> CurveView {
    CurveView {
        title,
        note,
        marks: marks(measured.curve().block_bytes),
        measured,
        unit: match (args.y, instructions) {
            (Axis::Mpki, Some(n)) => CurveUnit::Mpki(n as f64),
            (Axis::Misses, _) => CurveUnit::Misses,
            _ => CurveUnit::Ratio,
        },
        compulsory: !args.no_compulsory,
        sizes: args.sizes.clone(),
        against,
        span: None,
        weight: 1.0,
        full: args.full,
    }
}

/// Returns this machine's caches for curves of lines, or its memory for curves of pages.
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

/// Renders a page that has only the curves.
fn page_of(title: Option<&String>, curves: Vec<serde_json::Value>) -> String {
    let page = Page {
        title: title.cloned().unwrap_or_default(),
        curves,
        ..Page::default()
    };
    page.html()
        .expect("SANITY: the front end was looked for before")
}

fn rendered_policies(
    form: ReportFormat,
    views: &[PolicyView],
    style: memgauge_report::Style,
) -> String {
    let curves: Vec<_> = views.iter().map(PolicyView::json).collect();
    if matches!(form, ReportFormat::Csv | ReportFormat::Page) {
        for note in views.first().map_or(&[][..], |view| &view.notes) {
            eprintln!("memgauge: {note}");
        }
    }
    match form {
        ReportFormat::Json => {
            let all = serde_json::json!({
                "schema_version": 1, "curves": curves, "collection": null,
            });
            format!("{all:#}\n")
        }
        ReportFormat::Csv => {
            let rows = views.iter().map(PolicyView::csv_rows);
            PolicyView::CSV_HEADING.to_owned() + &rows.collect::<String>()
        }
        ReportFormat::Page => page_of(views.first().map(|view| &view.title), curves),
        ReportFormat::Text => {
            let texts: Vec<String> = views.iter().map(|view| view.text(&style)).collect();
            texts.join("\n")
        }
    }
}

/// Prints notes that do not fit into a table to standard error, each once.
fn print_notes(views: &[CurveView]) {
    let mut said = Vec::new();
    for view in views {
        if let Some(note) = view.note.as_ref().filter(|note| !said.contains(note)) {
            eprintln!("memgauge: {}: {note}", view.title);
            said.push(note);
        }
    }
}

fn rendered(
    form: ReportFormat,
    views: &[CurveView],
    collection: Option<&CollectionCost>,
    style: memgauge_report::Style,
) -> String {
    match form {
        ReportFormat::Json => {
            let curves: Vec<_> = views.iter().map(CurveView::json).collect();
            let collection = collection.map(|c| c.json());
            let all = serde_json::json!({ "schema_version": 1, "curves": curves, "collection": collection });
            format!("{all:#}\n")
        }
        ReportFormat::Csv => {
            print_notes(views);
            let rows = views.iter().map(CurveView::csv_rows);
            CurveView::CSV_HEADING.to_owned() + &rows.collect::<String>()
        }
        ReportFormat::Page => {
            print_notes(views);
            let curves = views.iter().map(CurveView::json).collect();
            page_of(views.first().map(|view| &view.title), curves)
        }
        ReportFormat::Text => {
            let texts: Vec<String> = views.iter().map(|view| view.text(&style)).collect();
            let cost = collection.map_or(String::new(), |c| format!("\n{}", c.text()));
            texts.join("\n") + &cost
        }
    }
}
