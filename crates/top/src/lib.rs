//! `memgauge top`: live view of processes, their code and their data.
//!
//! Samples come from `memgauge-online`, the sampler that other programs use. Process counters come
//! from `/proc`, and bytes of I/O from the accounting of `memgauge io`. Sampling CPUs instead of
//! threads was rejected. It needs fewer descriptors, but single threads could neither be stopped
//! nor get a period of their own, and it would be a second sampler.

mod figures;
pub mod io;
mod keys;
mod mappings;
mod model;
pub mod numa;
mod places;
mod sampler;
mod screen;
mod started;
mod tasks;
mod watch;

use std::io::Write;
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::event::{Event, poll, read};
use crossterm::{cursor, execute, terminal as screen_of};
use memgauge_console::Source;
use memgauge_console::outcome::{Exit, usage};
use memgauge_console::quantities::{Duration as Interval, Percent, nanoseconds, overhead};
use memgauge_console::terminal;
use memgauge_host::sys::signals::interrupts;
use memgauge_report::Style;

use crate::sampler::{SamplingRequest, is_clock};
use figures::spoken_period;
use keys::{Choice, KeyRequest};
use model::{Snapshot, TopOrder};
use screen::{DetailLayout, ScreenSize, draw, heat_columns};
use started::ProgramOutput;
use watch::{DetailRequest, Plan, Watch};

/// Time between two checks of keys and buffers. A buffer of 4096 samples is far from full by then.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Length of the first interval of a screen. Shorter ones give no useful rates, since the kernel
/// counts CPU time of processes in ticks of 10 ms.
const FIRST_INTERVAL: Duration = Duration::from_millis(500);
/// Number of rows that a process's details are laid out for in text output.
const TEXT_ROWS: usize = 48;

/// Watch processes and threads by samples, faults, CPU time and I/O bytes; Enter opens one
#[derive(Debug, Args)]
pub struct Top {
    /// Watch these processes and those that they start [default: all that run]
    #[arg(short, long, value_name = "PIDS", value_delimiter = ',')]
    pid: Vec<u32>,
    /// Sample this event, as with `memgauge record -e` [default: IBS or PEBS if available, else a
    /// timer; with --source emulate llc.miss]
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
    /// Source of samples. emulate starts the program on the modelled machine
    #[arg(long, value_enum, default_value_t)]
    source: Source,
    /// Number of events between two samples, or nanoseconds for a timer
    #[arg(short = 'c', long = "count", value_name = "PERIOD", conflicts_with = "overhead",
          value_parser = clap::value_parser!(u64).range(1..))]
    period: Option<u64>,
    /// Limit the share of each thread's CPU time that sampling takes: 0.01% to 50%
    #[arg(long, value_name = "PERCENT", value_parser = overhead)]
    overhead: Option<Percent>,
    /// Length of an interval, 100ms or more (a bare number is seconds, as for top)
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = seconds)]
    delay: Interval,
    /// Print text for scripts instead of a screen. Default if the output is not a terminal
    #[arg(short, long)]
    batch: bool,
    /// End after this many intervals
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    looks: Option<u64>,
    /// Print one interval and end: as --batch -n 1
    #[arg(long, conflicts_with_all = ["looks"])]
    once: bool,
    /// Sort order of lines
    #[arg(long, value_enum, default_value_t)]
    sort: TopOrder,
    /// Show a line for each thread
    #[arg(short = 'H', long)]
    threads: bool,
    /// Maximum number of lines in text output
    #[arg(long, value_name = "N", default_value_t = 30)]
    rows: usize,
    /// Show the memory that processes used in the last interval and their resident memory. Clears
    /// their accessed bits, which the kernel also uses to choose what to page out (docs/top.md)
    #[arg(long)]
    working_sets: bool,
    /// Do not account I/O
    #[arg(long)]
    no_io: bool,
    /// Start this program and watch it, with its regions of interest. Its output goes to standard
    /// error, or is discarded while a screen is shown. It keeps running when top ends
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "pid")]
    command: Vec<String>,
}

fn seconds(text: &str) -> Result<Interval, String> {
    let bare = text.parse::<f64>().is_ok();
    let unit = if bare { "s" } else { "" };
    // Intervals that are too short are refused below, with a message of their own.
    nanoseconds(&format!("{text}{unit}")).map(|ns| Interval { ns })
}

/// Runs until the user ends it.
pub fn top(args: &Top) -> anyhow::Result<Exit> {
    const SHORTEST: Duration = Duration::from_millis(100);
    let every = Duration::from_nanos(args.delay.ns);
    if every < SHORTEST {
        return Err(usage(
            "failed to set the interval: --delay must be 100ms or more",
        ));
    }
    let modelled = args.source == Source::Emulate && !args.command.is_empty();
    let clock = match &args.event {
        Some(event) if args.source == Source::Clock => {
            let why = format!("--source clock samples no {event}: leave one of the two out");
            return Err(usage(why));
        }
        Some(_) if args.source == Source::Pmu => false,
        _ => !modelled && is_clock(args.source)?,
    };
    let working_sets = args.working_sets || args.sort == TopOrder::WorkingSet;
    if working_sets && modelled {
        return Err(usage(
            "failed to show working sets: they are of the machine, not of the modelled one: leave out \
             --working-sets or --source emulate",
        ));
    }
    terminal::catch_interrupts()?;
    let text = args.batch || args.once || !terminal::stdout_is_terminal();
    let mut watch = Watch::start(&Plan {
        named: args.pid.clone(),
        command: args.command.clone(),
        output: match text {
            true => ProgramOutput::StandardError,
            false => ProgramOutput::Nowhere,
        },
        request: SamplingRequest {
            event: args.event.clone(),
            clock,
            period: args.period,
            overhead: args.overhead.map(|percent| percent.0 / 100.0),
            regions: !args.command.is_empty(),
        },
        modelled,
        io: !args.no_io,
        working_sets,
    })?;
    let choice = Choice {
        order: args.sort,
        threads: args.threads,
        with_working_sets: working_sets,
        ..Choice::default()
    };
    let looks = if args.once { Some(1) } else { args.looks };
    match text {
        true => print_intervals(&mut watch, args, every, looks, choice),
        false => LiveTop::start(choice)?.run(&mut watch, every, looks),
    }
}

/// Waits and reads samples in the meantime. Returns true if the user interrupted.
fn pause(watch: &mut Watch, until: Instant) -> bool {
    while interrupts() == 0 {
        watch.read();
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(left.min(POLL_INTERVAL));
    }
    true
}

/// Prints text for scripts: a block with a heading for each interval. A single selected process is
/// shown in detail.
fn print_intervals(
    watch: &mut Watch,
    args: &Top,
    every: Duration,
    looks: Option<u64>,
    choice: Choice,
) -> anyhow::Result<Exit> {
    let style = terminal::style(false);
    let open = watch.only();
    let columns = style.line.min(140);
    let cells = (DetailLayout::of(TEXT_ROWS).heat, heat_columns(columns));
    let mut next = Instant::now();
    let mut done = 0;
    while looks.is_none_or(|looks| done < looks) {
        next += every;
        if pause(watch, next) {
            break;
        }
        let mut shown = watch.end_interval(open.map(|pid| DetailRequest {
            pid,
            heat_of: 0,
            cells,
        }));
        let detail = shown.detail.take();
        let head = screen::head_rows(&shown, &choice);
        let room = |rows: usize| ScreenSize {
            rows,
            columns,
            keys: false,
        };
        let mut rows = draw(&shown, &choice, &style, room(head + 1 + args.rows));
        if detail.is_some() {
            shown.detail = detail;
            let inner = draw(&shown, &choice, &style, room(head + TEXT_ROWS));
            rows.extend(inner.into_iter().skip(head + 2));
        }
        let lines = rows.iter().map(|row| row.painted(&style) + "\n");
        let between = if done > 0 { "\n" } else { "" };
        let text = format!("{between}{}", lines.collect::<String>());
        if !terminal::print_while_read(&text)? {
            break;
        }
        done += 1;
    }
    Ok(Exit::Success)
}

/// The terminal while it shows the screen.
struct LiveTop {
    choice: Choice,
    shown: Snapshot,
    /// False until the first interval has ended.
    has_looked: bool,
}

impl LiveTop {
    fn start(choice: Choice) -> anyhow::Result<LiveTop> {
        screen_of::enable_raw_mode()?;
        execute!(
            std::io::stdout(),
            screen_of::EnterAlternateScreen,
            screen_of::DisableLineWrap,
            cursor::Hide
        )?;
        Ok(LiveTop {
            choice,
            shown: Snapshot::default(),
            has_looked: false,
        })
    }

    fn run(
        mut self,
        watch: &mut Watch,
        every: Duration,
        looks: Option<u64>,
    ) -> anyhow::Result<Exit> {
        let mut next = Instant::now() + every.min(FIRST_INTERVAL);
        let mut done = 0;
        self.draw()?;
        let on = || interrupts() == 0 && terminal::stdout_has_screen();
        while on() && looks.is_none_or(|looks| done < looks) {
            let now = Instant::now();
            if now >= next {
                next = (next + every).max(now);
                self.show_interval(watch)?;
                done += 1;
            }
            watch.read();
            std::thread::sleep(
                next.saturating_duration_since(Instant::now())
                    .min(POLL_INTERVAL),
            );
            // crossterm does not return if the terminal is gone.
            while on() && poll(Duration::ZERO)? {
                if !self.answer(read()?, watch)? {
                    return Ok(Exit::Success);
                }
            }
        }
        Ok(Exit::Success)
    }

    fn show_interval(&mut self, watch: &mut Watch) -> anyhow::Result<()> {
        let shown = watch.end_interval(self.opened());
        if self.choice.frozen {
            return Ok(());
        }
        self.choice.deselect_ended(&self.shown, &shown);
        self.shown = shown;
        self.has_looked = true;
        self.draw()
    }

    /// The process that is shown in detail.
    fn opened(&self) -> Option<DetailRequest> {
        let (columns, rows) = screen_size();
        let cells = (DetailLayout::of(rows).heat, heat_columns(columns));
        self.choice.open.map(|pid| DetailRequest {
            pid,
            heat_of: self.choice.heat_of,
            cells,
        })
    }

    /// Handles an event. Returns false to end.
    fn answer(&mut self, event: Event, watch: &mut Watch) -> anyhow::Result<bool> {
        let key = match event {
            Event::Key(key) => key,
            Event::Resize(..) => {
                self.draw()?;
                return Ok(true);
            }
            _ => return Ok(true),
        };
        let lines = self.choice.lines(&self.shown);
        match self.choice.key(key, &lines) {
            KeyRequest::Quit => return Ok(false),
            KeyRequest::Nothing => return Ok(true),
            KeyRequest::Look => self.shown.detail = self.opened().map(|into| watch.detail_of(into)),
            KeyRequest::Redraw => {}
            KeyRequest::TurnAll => {
                watch.turn_all();
                self.shown.on = !self.shown.on;
            }
            KeyRequest::TurnProcess(pid) => {
                self.choice.reply = match watch.turn_process(pid) {
                    Ok(true) => format!("process {pid} is sampled from now on"),
                    Ok(false) => format!("process {pid} is not sampled from now on"),
                    Err(why) => why,
                };
            }
            KeyRequest::Period(pid, factor) => {
                self.choice.reply = match watch.change_period(pid, factor) {
                    Ok(period) => {
                        let period = spoken_period(period, self.shown.timer);
                        format!("process {pid}: period {period}")
                    }
                    Err(why) => why,
                }
            }
        }
        if self.choice.open.is_none() {
            self.shown.detail = None;
        }
        self.draw()?;
        Ok(true)
    }

    fn draw(&mut self) -> anyhow::Result<()> {
        let (columns, rows) = screen_size();
        let style = Style {
            width: columns,
            line: columns,
            ..terminal::style(true)
        };
        let room = ScreenSize {
            rows,
            columns,
            keys: true,
        };
        let lines: Vec<String> = match self.has_looked {
            true => {
                let rows = draw(&self.shown, &self.choice, &style, room);
                rows.iter().map(|row| row.painted(&style)).collect()
            }
            false => vec!["memgauge top  measuring the first rates".to_owned()],
        };
        // Clear rows before writing them: after a row that fills the screen, the cursor is on its
        // last character.
        let frame = format!("\x1b[K{}", lines.join("\r\n\x1b[K"));
        let mut out = std::io::stdout().lock();
        execute!(out, cursor::MoveTo(0, 0))?;
        out.write_all(frame.as_bytes())?;
        execute!(out, screen_of::Clear(screen_of::ClearType::FromCursorDown))?;
        Ok(())
    }
}

/// Number of columns and rows.
fn screen_size() -> (usize, usize) {
    let (columns, rows) = screen_of::size().unwrap_or((80, 24));
    (usize::from(columns), usize::from(rows))
}

impl Drop for LiveTop {
    fn drop(&mut self) {
        let _ = execute!(
            std::io::stdout(),
            cursor::Show,
            screen_of::EnableLineWrap,
            screen_of::LeaveAlternateScreen
        );
        let _ = screen_of::disable_raw_mode();
    }
}
