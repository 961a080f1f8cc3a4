//! `memgauge partition -p A,B`: divides memory between running programs.

use memgauge_console::outcome::Exit;
use memgauge_console::terminal;
use memgauge_host::sys::pages::page_bytes;
use memgauge_host::sys::signals::interrupts;
use memgauge_host::{Error, ErrorKind};
use memgauge_live::target::{cgroup, container};
use memgauge_mrc::{Epoch, Footprint, WindowUse, divide_by_faults};
use memgauge_pages::{Observation, Observed, ObservedProcess, observe, pids_of_cgroup};
use memgauge_report::capacity;
use memgauge_report::mrc::{DivisionView, SharingProgram, has_too_many_huge_pages};

use super::args::{Partition, Sharers};
use super::{running, usage};

/// Maximum number of programs, the same as for lists.
const MAX_PROGRAMS: usize = 16;

/// Observes the programs together and divides memory by their curves.
pub(super) fn between_running(args: &Partition) -> anyhow::Result<Exit> {
    running::check_windows(&args.running)?;
    terminal::catch_interrupts()?;
    let (programs, mut notes) = open(&args.sharers)?;
    // Memory that programs share is in the curve of each of them.
    let (mut source, source_note) = running::open_source(args.running.pages_source, false)?;
    let settings = running::settings(&args.running);
    let names = programs.iter().map(|program| program.name.clone());
    let names: Vec<String> = names.collect();
    let sizes: Vec<usize> = programs.iter().map(|p| p.targets.len()).collect();
    let targets = programs.into_iter().flat_map(|program| program.targets);
    let observation = observe(targets.collect(), &mut source, &settings, &|| {
        interrupts() > 0
    });

    let mut processes = &observation.processes[..];
    let mut sharing = Vec::new();
    let mut epochs = Vec::new();
    for (name, size) in names.into_iter().zip(sizes) {
        let (own, others) = processes.split_at(size);
        processes = others;
        let together = together(own.iter().map(|process| &process.epochs[..]));
        sharing.push(program(name, own, &together, &observation)?);
        epochs.push(together);
    }
    let epochs: Vec<&[Epoch]> = epochs.iter().map(Vec::as_slice).collect();
    let division = divide_by_faults(&epochs, page_bytes(), args.total).map_err(|too_little| {
        usage(format!(
            "failed to divide {}: the shortest windows already use {}; give at least that with \
             --total",
            capacity(args.total),
            capacity(too_little.needed_bytes as u64),
        ))
    })?;
    notes.extend(running::notes(&observation, false, false));
    notes.extend(source_note);
    let view = DivisionView {
        programs: sharing,
        division,
        total_bytes: args.total,
        source: source.name(),
        page_bytes: page_bytes(),
        cost: running::cost(&observation),
        notes,
    };
    terminal::print(&match args.json {
        true => format!("{:#}\n", view.json()),
        false => view.text(&terminal::style(terminal::stdout_is_terminal())),
    })?;
    Ok(Exit::Success)
}

/// A process or a group of processes that gets one share.
struct ProgramTargets {
    name: String,
    targets: Vec<ObservedProcess>,
}

/// Opens all programs. Returns also which of their processes were left out.
fn open(sharers: &Sharers) -> anyhow::Result<(Vec<ProgramTargets>, Vec<String>)> {
    let (mut programs, mut notes) = (Vec::new(), Vec::new());
    for &pid in &sharers.pid {
        refuse_twice(&programs, &[pid])?;
        let target = ObservedProcess::open(pid)?;
        let name = running::name_of(&target);
        let targets = vec![target];
        running::refuse_stopped(&targets)?;
        programs.push(ProgramTargets { name, targets });
    }
    let groups = sharers.cgroup.iter().map(|name| (name, cgroup(name)));
    let containers = sharers.container.iter().map(|name| (name, container(name)));
    for (name, path) in groups.chain(containers) {
        let pids = pids_of_cgroup(&path?)?;
        refuse_twice(&programs, &pids)?;
        let group = running::open_all(name, pids)?;
        programs.push(ProgramTargets {
            name: name.clone(),
            targets: group.targets,
        });
        notes.extend(group.note);
    }
    match programs.len() {
        2..=MAX_PROGRAMS => Ok((programs, notes)),
        1 => Err(usage(
            "failed to divide memory: there is only one program: name several with commas, or use \
             `memgauge mrc -p PID` for the memory that one needs",
        )),
        many => Err(usage(format!(
            "failed to divide memory: there are {many} programs, and {MAX_PROGRAMS} is the maximum"
        ))),
    }
}

/// Refuses processes that would get two shares.
fn refuse_twice(programs: &[ProgramTargets], pids: &[u32]) -> anyhow::Result<()> {
    let mut opened = programs.iter().flat_map(|program| &program.targets);
    match opened.find(|target| pids.contains(&target.pid)) {
        None => Ok(()),
        Some(twice) => Err(usage(format!(
            "failed to divide memory: process {} is named twice: name each process in one place",
            twice.pid
        ))),
    }
}

fn program(
    name: String,
    processes: &[Observed],
    epochs: &[Epoch],
    observation: &Observation,
) -> anyhow::Result<SharingProgram> {
    let Some(footprint) = Footprint::new(epochs, page_bytes()) else {
        return Err(running::no_reading(&name, observation, processes).into());
    };
    let sum = |of: &dyn Fn(&Observed) -> u64| processes.iter().map(of).sum::<u64>();
    let resident_bytes = sum(&|process| process.memory.resident_bytes);
    let huge_bytes = sum(&|process| process.memory.huge_bytes);
    if has_too_many_huge_pages(huge_bytes, resident_bytes) {
        let message = format!(
            "failed to divide memory: {} of the {} of {name} are in huge pages, which have one \
             accessed bit each; start it without them, as with `echo never > \
             /sys/kernel/mm/transparent_hugepage/enabled`",
            capacity(huge_bytes),
            capacity(resident_bytes),
        );
        return Err(Error::new(ErrorKind::Refused, message).into());
    }
    Ok(SharingProgram {
        name,
        pids: processes.iter().map(|process| process.target.pid).collect(),
        resident_bytes,
        limit_bytes: running::common_limit(processes),
        footprint,
    })
}

/// Epochs of processes that were read together.
fn together<'a>(processes: impl IntoIterator<Item = &'a [Epoch]>) -> Vec<Epoch> {
    let mut all: Vec<Epoch> = Vec::new();
    for epochs in processes {
        all.resize(all.len().max(epochs.len()), Epoch::default());
        for (sum, epoch) in all.iter_mut().zip(epochs) {
            for (n, reading) in epoch.readings.iter().enumerate() {
                match sum.readings.get_mut(n) {
                    None => sum.readings.push(*reading),
                    Some(sum) => add(sum, reading),
                }
            }
        }
    }
    all
}

fn add(sum: &mut WindowUse, reading: &WindowUse) {
    sum.used_bytes += reading.used_bytes;
    sum.resident_bytes += reading.resident_bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_of_the_processes_of_a_group_are_added_up() {
        let epoch = |bytes: &[f64]| Epoch {
            readings: bytes
                .iter()
                .zip(1..)
                .map(|(&bytes, age)| WindowUse {
                    age_s: f64::from(age),
                    used_bytes: bytes,
                    resident_bytes: 10.0 * bytes,
                })
                .collect(),
        };
        // The second process ended in the second epoch.
        let first = [epoch(&[1.0, 2.0]), epoch(&[3.0, 4.0]), epoch(&[5.0])];
        let second = [epoch(&[10.0, 20.0]), epoch(&[30.0])];
        let sums = [epoch(&[11.0, 22.0]), epoch(&[33.0, 4.0]), epoch(&[5.0])];
        assert_eq!(together([&first[..], &second[..]]), sums);
        assert_eq!(together([&second[..], &first[..]]), sums);
    }
}
