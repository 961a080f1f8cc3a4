//! `memgauge top` as text for scripts and on a screen.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

mod tmux;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use memgauge_testing::{Need, Random, compiled, skipped};
use tempfile::TempDir;

use harness::PROGRAM;
use tmux::Terminal;

/// One function makes eight times as many accesses as the other. The arguments are the numbers of
/// threads that run and that sleep.
const HOT: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static long table[1 << 17];
__attribute__((noinline)) void hot_loop(volatile long *p) {
    for (long i = 0; i < 1 << 20; i += 8) p[i] += i;
}
__attribute__((noinline)) void cool_loop(volatile long *p) {
    for (long i = 0; i < 1 << 17; i += 8) p[i] += i;
}
static void *work(void *heap) {
    for (;;) { hot_loop(heap); cool_loop(table); }
}
static void *rest(void *none) {
    for (;;) pause();
}
int main(int argc, char **argv) {
    pthread_t thread;
    long *heap = malloc(8 << 20);
    for (int i = argc > 1 ? atoi(argv[1]) : 1; i > 1; i--)
        pthread_create(&thread, 0, work, heap);
    for (int i = argc > 2 ? atoi(argv[2]) : 0; i > 0; i--)
        pthread_create(&thread, 0, rest, 0);
    if (argc > 3) alarm(atoi(argv[3]));
    work(heap);
}
"#;

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Hot {
    folder: TempDir,
}

impl Hot {
    /// Returns `None` and prints why if nothing can be sampled or compiled here.
    fn built() -> Option<Hot> {
        let own = std::process::id().to_string();
        let trial = top(&[
            "--once", "-d", "100ms", "--no-io", "--source", "clock", "-p", &own,
        ]);
        if !trial.status.success() {
            skipped(Need::Kernel, String::from_utf8_lossy(&trial.stderr).trim());
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        compiled(folder.path(), "hot.c", HOT, &["-O1", "-pthread"])?;
        Some(Hot { folder })
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("hot")
    }

    fn run(&self, busy: u32, resting: u32) -> Running {
        let child = Command::new(self.program())
            .args([busy.to_string(), resting.to_string()])
            .spawn();
        Running(child.expect("the program runs"))
    }
}

fn top(arguments: &[&str]) -> Output {
    let output = Command::new(PROGRAM)
        .arg("top")
        .args(arguments)
        .env("LC_ALL", "C")
        .output();
    output.expect("memgauge runs")
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// The fields of the line of a process or thread.
fn line<'a>(text: &'a str, pid: &str) -> Option<Vec<&'a str>> {
    let mut lines = text
        .lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>());
    lines.find(|fields| fields.first() == Some(&pid))
}

/// The share of a function or region in a look into a process.
fn share(text: &str, name: &str) -> f64 {
    let line = text
        .lines()
        .find(|line| line.contains(name) && line.contains(" % "));
    let line = line.unwrap_or_else(|| panic!("no `{name}` in {text}"));
    let number = line.split_whitespace().next().expect("a number");
    number.parse().expect("a number")
}

#[test]
fn a_look_into_a_process_has_its_functions_and_data() {
    let Some(hot) = Hot::built() else { return };
    let running = hot.run(2, 0);
    let pid = running.pid();
    let output = top(&[
        "--once", "-d", "2s", "--no-io", "--source", "clock", "-p", &pid,
    ]);
    let (text, errors) = said(&output);
    assert!(output.status.success(), "{errors}");
    assert!(
        text.contains("timer") && text.contains("estimated"),
        "{text}"
    );
    // By construction 8 to 1.
    let (most, least) = (
        share(&text, "hot_loop  hot"),
        share(&text, "cool_loop  hot"),
    );
    assert!(most > 4.0 * least && least > 0.0, "{text}");
    assert!((most + least - 100.0).abs() < 3.0, "{text}");
    let (heap, table) = (share(&text, "anon 0x"), share(&text, "hot zero data"));
    assert!(heap > 4.0 * table && table > 0.0, "{text}");
    let fields = line(&text, &pid).unwrap_or_else(|| panic!("no line of {pid}: {text}"));
    let number = |at: usize| fields[at].parse::<f64>().expect("a number");
    assert!(
        number(2) > 0.0 && number(3) == 100.0,
        "samples and share: {text}"
    );
    assert!(number(5) > 50.0, "samples with an address: {text}");
    assert!(text.contains("Heat of anon 0x"), "{text}");
    // Both threads have lines of their own below the process.
    let commands = text
        .lines()
        .filter(|line| line.trim_end().ends_with("    hot"));
    assert_eq!(commands.count(), 3, "{text}");
}

/// Computes for twice as long in region `heavy` as in `light`, and says something.
const MARKED: &str = r#"
#include <memgauge_region.h>
#include <stdio.h>
#include <unistd.h>
static volatile long sum;
static void compute(long steps) { for (long i = 0; i < steps; i++) sum += i; }
int main(void)
{
    alarm(8); /* it runs on when top ends */
    puts("the program's own words");
    fflush(stdout);
    for (;;) {
        memgauge_region_begin("heavy");
        compute(4000000);
        memgauge_region_end("heavy");
        memgauge_region_begin("outer");
        memgauge_region_begin("light");
        compute(2000000);
        memgauge_region_end("light");
        memgauge_region_end("outer");
    }
}
"#;

/// Writes all of a mapping once, and then a part of it again and again.
const PARTLY_USED: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
int main(int count, char **values) {
    size_t all = strtoul(values[1], 0, 0), used = strtoul(values[2], 0, 0);
    char *p = mmap(0, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, all, MADV_NOHUGEPAGE);
    memset(p, 1, all);
    close(1);
    for (;;)
        for (size_t i = 0; i < used; i += 4096) p[i]++;
}
"#;

/// `28.6M` in MiB.
fn mebibytes(cell: &str) -> f64 {
    let (number, unit) = cell.split_at(cell.len() - 1);
    let scale = match unit {
        "K" => 1.0 / 1024.0,
        "M" => 1.0,
        "G" => 1024.0,
        _ => panic!("no size: {cell}"),
    };
    number.parse::<f64>().expect("a number") * scale
}

#[test]
fn working_sets_are_the_memory_used_in_the_interval() {
    let Some(hot) = Hot::built() else { return };
    let folder = hot.folder.path();
    let flags = ["-O1", "-include", "unistd.h"];
    let program = compiled(folder, "part.c", PARTLY_USED, &flags).expect("gcc is installed");
    let mut random = Random::of_test("working_sets_are_the_memory_used_in_the_interval");
    let (used, unused) = (8 + random.below(24), 8 + random.below(24));
    let bytes = |mebibytes: u64| (mebibytes << 20).to_string();
    let mut child = Command::new(program)
        .args([bytes(used + unused), bytes(used)])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    // Its output is closed once all memory is written.
    let mut nothing = String::new();
    let mut output = child.stdout.take().expect("a pipe");
    std::io::Read::read_to_string(&mut output, &mut nothing).expect("the pipe can be read");
    let running = Running(child);
    let arguments = [
        "--once",
        "-d",
        "2s",
        "--no-io",
        "--source",
        "clock",
        "--sort",
        "working-set",
        "-p",
    ];
    let (text, errors) = said(&top(&[&arguments[..], &[&running.pid()]].concat()));
    let cells = line(&text, &running.pid()).unwrap_or_else(|| panic!("{text}{errors}"));
    // WSET, RSS, and the command after them.
    let [.., found, resident, _] = cells[..] else {
        panic!("{text}");
    };
    // The rest is the C library and the stack.
    let (found, resident) = (mebibytes(found), mebibytes(resident));
    let (used, all) = (used as f64, (used + unused) as f64);
    assert!((used - 0.1..used + 2.0).contains(&found), "{used}: {text}");
    assert!((all - 0.1..all + 4.0).contains(&resident), "{all}: {text}");
}

/// Sleeps most of the time, so `top` does not find it at work when it starts.
const WAKES_UP: &str = r#"
#include <stdlib.h>
int main(int count, char **arguments) {
    size_t bytes = strtoul(arguments[1], 0, 10);
    volatile char *memory = malloc(bytes);
    for (int round = 0;; round++) {
        for (size_t at = 0; at < 20 * bytes; at += 64) memory[at % bytes]++;
        if (round == 0) close(1);
        usleep(1200000);
    }
}
"#;

#[test]
fn process_that_slept_at_the_start_has_a_working_set_in_the_first_interval() {
    let Some(hot) = Hot::built() else { return };
    let flags = ["-O1", "-include", "unistd.h"];
    let program = compiled(hot.folder.path(), "wakes.c", WAKES_UP, &flags);
    let used = 8 + Random::of_test("process_that_slept_at_the_start").below(24);
    let mut child = Command::new(program.expect("gcc is installed"))
        .arg((used << 20).to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    // Its output is closed once all memory is written.
    let mut nothing = String::new();
    let mut output = child.stdout.take().expect("a pipe");
    std::io::Read::read_to_string(&mut output, &mut nothing).expect("the pipe can be read");
    let running = Running(child);
    let options = ["--once", "--no-io", "--source", "clock", "--working-sets"];
    // Many other processes may run, and then their working sets take longer to read.
    let of_all = [&options[..], &["--rows", "100000", "-d"]].concat();
    let mut delays = ["4s", "16s", "64s"].iter();
    let (text, found) = loop {
        let delay = delays.next().expect("a working set within a minute");
        let (text, errors) = said(&top(&[&of_all[..], &[delay]].concat()));
        let cells = line(&text, &running.pid()).unwrap_or_else(|| panic!("{text}{errors}"));
        // WSET, RSS, perhaps the state, and the command.
        let sizes = cells.iter().filter(|cell| cell.ends_with('M'));
        match sizes.collect::<Vec<_>>()[..] {
            [found, _] => break (text.clone(), mebibytes(found)),
            _ => assert!(
                text.contains("a longer --delay gives them time"),
                "{text}{errors}"
            ),
        }
    };
    let used = used as f64;
    assert!((used - 0.1..used + 2.0).contains(&found), "{used}: {text}");
}

#[test]
fn a_program_that_it_starts_has_its_regions_of_interest() {
    let Some(hot) = Hot::built() else { return };
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../capi/include");
    let program = compiled(
        hot.folder.path(),
        "marked.c",
        MARKED,
        &["-O1", "-I", include],
    );
    let program = &program.expect("gcc is installed");
    let options = ["--once", "-d", "2s", "--no-io", "--source", "clock"];
    let output = top(&[&options[..], &["--", program]].concat());
    let (text, errors) = said(&output);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("the program's own words"), "{errors}");
    assert!(!text.contains("own words"), "{text}");
    assert!(text.contains("Regions of interest, last minute"), "{text}");
    let (heavy, light) = (share(&text, "  heavy"), share(&text, "  outer/light"));
    assert!((55.0..=78.0).contains(&heavy), "{text}");
    assert!((22.0..=45.0).contains(&light), "{text}");
    let missing = top(&["--once", "--no-io", "--", "/no/such/program"]);
    assert_eq!(missing.status.code(), Some(127));
}

/// One screen of the program on the modelled machine, by its misses of the first level.
fn on_the_modelled_machine(after: &str, options: &[&str], hot: &Hot, arguments: &[&str]) -> String {
    let output = Command::new(PROGRAM)
        .args([
            "top", "--once", "-d", after, "--no-io", "--source", "emulate",
        ])
        .args(["-e", "l1d.miss"])
        .args(options)
        .arg("--")
        .arg(hot.program())
        .args(arguments)
        .env("LC_ALL", "C")
        // The program has it still when top has ended.
        .stderr(Stdio::null())
        .output()
        .expect("memgauge runs");
    let (text, _) = said(&output);
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn a_program_on_the_modelled_machine_is_watched_live() {
    let Some(hot) = Hot::built() else { return };
    if !harness::needs(&[]) {
        return;
    }
    let text = on_the_modelled_machine("4s", &["-c", "997"], &hot, &[]);
    let mut lines = text.lines();
    let line = lines.find(|line| line.trim_end().ends_with("    hot"));
    let line = line.unwrap_or_else(|| panic!("no line of hot, by its own name: {text}"));
    let pid = line.split_whitespace().next().unwrap_or("none").to_owned();
    // The program continues after top has ended.
    let killed = Command::new("kill").args(["-9", &pid]).status();
    assert!(killed.is_ok_and(|status| status.success()), "{text}");
    assert!(is_sampled(&text, &pid), "{text}");
    let source = "source: event l1d.miss of the modelled machine, exact for it";
    assert!(text.contains(source), "{text}");
    // The ratio is 8 to 1 by construction, because each line of both parts is a miss.
    let (most, least) = (
        share(&text, "hot_loop  hot"),
        share(&text, "cool_loop  hot"),
    );
    assert!(most > 4.0 * least && least > 0.0, "{text}");
    let fields = line.split_whitespace().collect::<Vec<_>>();
    assert!(
        fields.contains(&"100"),
        "each sample is of a process: {text}"
    );
    assert!(text.contains("Heat of anon 0x"), "{text}");
}

/// The ratio is 8 to 1 by construction, whatever the period. Nothing is lost, and the kept part of
/// a busy minute has the same shares as the whole. Names remain after the program has ended.
#[test]
fn shares_of_the_modelled_machine_hold_at_its_usual_period() {
    let Some(hot) = Hot::built() else { return };
    if !harness::needs(&[]) {
        return;
    }
    let text = on_the_modelled_machine("6s", &[], &hot, &["1", "0", "4"]);
    assert!(text.contains("samples/s, 0 lost"), "{text}");
    let (most, least) = (
        share(&text, "hot_loop  hot"),
        share(&text, "cool_loop  hot"),
    );
    assert!((6.5..=9.5).contains(&(most / least)), "{text}");
    assert!(!text.contains("GiB  "), "{text}");
}

/// Reads blocks of a run of `top -b` until one is as awaited.
fn await_block(lines: &mut impl Iterator<Item = String>, is: impl Fn(&str) -> bool) -> String {
    let mut block = String::new();
    for line in lines {
        if line.starts_with("memgauge top") {
            block.clear();
        }
        block += &line;
        block.push('\n');
        if is(&block) {
            return block;
        }
    }
    panic!("the output ended: {block}");
}

fn blocks(arguments: &[&str]) -> (Running, impl Iterator<Item = String> + use<>) {
    blocks_of(Command::new(PROGRAM).arg("top").args(arguments))
}

fn blocks_of(command: &mut Command) -> (Running, impl Iterator<Item = String> + use<>) {
    let mut child = command
        .args(["-b", "-d", "200ms", "--no-io", "--source", "clock"])
        .env("LC_ALL", "C")
        .stdout(Stdio::piped())
        .spawn()
        .expect("memgauge runs");
    let out = BufReader::new(child.stdout.take().expect("a pipe"));
    (Running(child), out.lines().map_while(Result::ok))
}

#[test]
fn a_target_that_vanishes_ends_nothing() {
    let Some(hot) = Hot::built() else { return };
    let (running, stays) = (hot.run(1, 0), hot.run(1, 0));
    let (pid, other) = (running.pid(), stays.pid());
    let (mut watching, mut lines) = blocks(&["-p", &format!("{pid},{other}")]);
    await_block(&mut lines, |block| is_sampled(block, &pid));
    drop(running);
    await_block(&mut lines, |block| {
        line(block, &pid).is_some_and(|f| f.get(9) == Some(&"x")) && is_sampled(block, &other)
    });
    assert!(
        watching.0.try_wait().is_ok_and(|end| end.is_none()),
        "it goes on"
    );
}

#[test]
fn a_process_that_has_ended_shows_the_period_that_it_had() {
    let Some(hot) = Hot::built() else { return };
    let running = hot.run(1, 0);
    let pid = running.pid();
    let (_watching, mut lines) = blocks(&["-p", &pid, "-c", "2000000"]);
    await_block(&mut lines, |block| is_sampled(block, &pid));
    drop(running);
    await_block(&mut lines, |block| {
        let has_ended = line(block, &pid).is_some_and(|f| f.get(9) == Some(&"x"));
        has_ended && block.contains("; period 2.0 ms")
    });
}

/// Each process lives for some milliseconds and has ended before the next look.
#[test]
fn processes_that_begin_and_end_between_two_looks_have_their_rows() {
    if Hot::built().is_none() {
        return;
    }
    let line = "for i in 1 2 3 4 5 6 7 8; do sleep 0.05; done; sleep 4";
    let output = top(&[
        "-b",
        "-n",
        "2",
        "-d",
        "2s",
        "--no-io",
        "-e",
        "page-faults",
        "-c",
        "1",
        "--",
        "sh",
        "-c",
        line,
    ]);
    let (text, errors) = said(&output);
    let pid = |row: &str| row.split_whitespace().next().map(str::to_owned);
    let rows = text.lines().filter(|row| row.ends_with(" x sleep"));
    let sleeps: HashSet<Option<String>> = rows.map(pid).collect();
    // On a busy host some are attached to too late to be sampled.
    assert!(sleeps.len() >= 3, "{text}{errors}");
}

#[test]
fn a_process_that_appears_later_is_followed() {
    let Some(hot) = Hot::built() else { return };
    let script = format!(
        "read line; {} & echo $!; read line",
        hot.program().display()
    );
    let shell = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut shell = Running(shell.expect("sh runs"));
    let (_watching, mut lines) = blocks(&["-p", &shell.pid()]);
    await_block(&mut lines, |block| line(block, &shell.pid()).is_some());
    let input = shell.0.stdin.as_mut().expect("a pipe");
    input.write_all(b"go\n").expect("the shell reads");
    let mut told = String::new();
    let out = shell.0.stdout.take().expect("a pipe");
    BufReader::new(out)
        .read_line(&mut told)
        .expect("the shell writes");
    let child = told.trim().to_owned();
    await_block(&mut lines, |block| is_sampled(block, &child));
    let killed = Command::new("kill").arg(&child).status();
    assert!(killed.is_ok_and(|status| status.success()));
}

/// Whether a block has samples of a process.
fn is_sampled(block: &str, pid: &str) -> bool {
    line(block, pid).is_some_and(|f| f.len() > 9 && f[2] != "0")
}

#[test]
fn everybody_who_runs_is_sampled_and_sorted() {
    let Some(hot) = Hot::built() else { return };
    let running = [hot.run(1, 0), hot.run(1, 0)];
    let (_watching, mut lines) = blocks(&["--rows", "9999", "--sort", "pid"]);
    let both = |block: &str| running.iter().all(|one| is_sampled(block, &one.pid()));
    let block = await_block(&mut lines, both);
    let behind = block.lines().skip_while(|line| !line.contains(" PID "));
    let pids = behind.filter_map(|l| l.split_whitespace().next()?.parse::<u32>().ok());
    let pids: Vec<u32> = pids.collect();
    assert!(pids.len() >= 2 && pids.is_sorted(), "{block}");
}

#[test]
fn descriptors_that_are_used_up_are_said_and_the_rest_is_sampled() {
    let Some(hot) = Hot::built() else { return };
    let (many, one) = (hot.run(1, 150), hot.run(1, 0));
    let script = format!("ulimit -n 400; exec {PROGRAM} top --rows 9999 \"$@\"");
    let (_watching, mut lines) = blocks_of(Command::new("sh").args(["-c", &script, "sh"]));
    await_block(&mut lines, |block| {
        let no_room = line(block, &many.pid()).is_some_and(|f| f.get(9) == Some(&"-"));
        let said = block.contains("descriptors are used up (ulimit -n)");
        no_room && said && is_sampled(block, &one.pid())
    });
}

#[test]
fn bad_input_is_refused_with_one_line() {
    let nobody = (u32::MAX / 2).to_string();
    for (arguments, code, says) in [
        (
            &["--once", "-p", nobody.as_str()][..],
            125,
            "no such process",
        ),
        (&["-d", "1ms"], 2, "100ms or more"),
        (&["-d", "0"], 2, "100ms or more"),
        (&["--source", "emulate"], 2, "memgauge record"),
        (
            &["--source", "clock", "-e", "faults"],
            2,
            "samples no faults",
        ),
        (
            &["--source", "emulate", "--overhead", "1%", "--", "true"],
            2,
            "setting of an overhead does not apply",
        ),
        (&["--source", "pmu"], 2, "-e"),
        (&["--once", "-e", "no-such-event"], 2, "no-such-event"),
    ] {
        let output = top(&[&["--no-io"], arguments].concat());
        let (text, errors) = said(&output);
        assert!(text.is_empty(), "{arguments:?}: {text}");
        assert!(errors.contains(says), "{arguments:?}: {errors}");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_it() {
    if Hot::built().is_none() {
        return;
    }
    let (mut watching, lines) = blocks(&[]);
    drop(lines);
    let end = watching.0.wait().expect("it is a child");
    assert!(end.success(), "{end}");
}

/// Numbers that change from run to run become `#`; columns stay where they are.
fn masked(screen: &str) -> String {
    let mut out = String::new();
    let mut rest = screen;
    let number = |c: char| c.is_ascii_digit() || c == '.';
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, behind) = rest.split_at(at);
        let end = behind.find(|c| !number(c)).unwrap_or(behind.len());
        let spaces = before.len() - before.trim_end_matches(' ').len();
        out += before;
        if spaces > 1 {
            out += &" ".repeat(end - 1);
        }
        out.push('#');
        rest = &behind[end..];
    }
    // A machine that is busy with other things may lose samples. The remark may be cut.
    let without_loss = |line: &str| {
        let end = line.find("  (# los").unwrap_or(line.len());
        line[..end].trim_end().to_owned()
    };
    let out = out + rest;
    let lines = out
        .lines()
        .filter(|line| !line.contains("samples were lost"));
    let lines: Vec<String> = lines.map(without_loss).collect();
    lines.join("\n").trim_end().to_owned() + "\n"
}

#[test]
fn masks_keep_columns() {
    let check = |text: &str, expected: &str| assert_eq!(masked(text), format!("{expected}\n"));
    check("  12 s, 3.5 %", "   # s, # %");
    check("a1  100.0   7k", "a#      #   #k");
}

/// Compares with a stored screen. `MEMGAUGE_BLESS=1` stores this one.
fn compare(name: &str, screen: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/top");
    let path = path.join(format!("{name}.txt"));
    if std::env::var_os("MEMGAUGE_BLESS").is_some() {
        std::fs::write(&path, screen).expect("the fixture can be written");
    }
    let kept = std::fs::read_to_string(&path).expect("a kept screen");
    assert_eq!(screen, kept, "{}", path.display());
}

#[test]
fn a_terminal_that_goes_away_ends_it() {
    if !tmux::is_here() || Hot::built().is_none() {
        return;
    }
    // The terminal's signal is ignored, so the closed terminal itself must end the program.
    let command = format!("sh -c 'trap \"\" HUP; exec {PROGRAM} top --no-io'");
    let terminal = Terminal::start(&command, (80, 24));
    terminal.screen_with("memgauge top");
    let process = PathBuf::from("/proc").join(terminal.pid());
    assert!(process.exists(), "{}", process.display());
    drop(terminal);
    for _ in 0..600 {
        if !process.exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{} goes on without a terminal", process.display());
}

/// The first screen stays for a minute. Its numbers were measured before it appeared.
#[test]
fn the_first_screen_has_rates_that_processors_can_reach() {
    if !tmux::is_here() {
        skipped(Need::Tool, "needs tmux");
        return;
    }
    let Some(hot) = Hot::built() else { return };
    let running = hot.run(1, 0);
    for lines in ["", "-H"] {
        let options = format!("--no-io --source clock -d 60s {lines} -p {}", running.pid());
        // A busy host may not have let the program run before the first screen, which stays.
        let screen = std::iter::repeat_with(|| {
            let terminal = Terminal::start(&format!("{PROGRAM} top {options}"), (80, 24));
            terminal.screen_within(Duration::from_secs(20), |screen| {
                line(&screen.replace('>', " "), &running.pid()).is_some()
            })
        });
        let screen = screen.take(5).flatten().next().expect("its line");
        let screen = screen.replace('>', " ");
        let heads = screen.lines().find(|line| line.contains("CPU%"));
        let mut heads = heads.expect("a heading").split_whitespace();
        let column = heads.position(|head| head == "CPU%").expect("a column");
        let fields = line(&screen, &running.pid()).expect("its line");
        let percent: f64 = fields[column].parse().expect("a number");
        // One thread. The kernel counts in ticks of 10 ms, which are 2 % of half a second.
        assert!(percent < 110.0, "{screen}");
    }
}

/// The marked line of a screen, without its mark.
fn marked(screen: &str) -> Option<&str> {
    screen.lines().find_map(|line| line.strip_prefix('>'))
}

#[test]
fn the_mark_stays_on_the_first_line_when_the_process_there_ends() {
    if !tmux::is_here() {
        skipped(Need::Tool, "needs tmux");
        return;
    }
    let Some(hot) = Hot::built() else { return };
    let mut running = vec![hot.run(1, 0), hot.run(1, 0)];
    let pids: Vec<String> = running.iter().map(Running::pid).collect();
    let options = format!("--no-io --source clock -d 200ms -p {}", pids.join(","));
    let terminal = Terminal::start(&format!("{PROGRAM} top {options}"), (80, 24));
    let is_marked = |screen: &str, pid: &str| {
        let fields = marked(screen).map(|line| line.split_whitespace().collect::<Vec<_>>());
        fields.is_some_and(|fields| fields.first() == Some(&pid))
    };
    let has_mark = |screen: &str| pids.iter().any(|pid| is_marked(screen, pid));
    let screen = terminal.screen_that("a mark", has_mark);
    let busiest = running.iter().position(|r| is_marked(&screen, &r.pid()));
    drop(running.remove(busiest.expect("one of the two")));
    // The ended process has no samples any more, so the other one is first.
    terminal.screen_that("the mark on the one that runs", |screen| {
        let ended = screen
            .lines()
            .any(|line| line.contains(" x ") && !line.starts_with('>'));
        ended && is_marked(screen, &running[0].pid())
    });
}

#[test]
fn the_screen_answers_keys_and_resizing_and_gives_the_terminal_back() {
    if !tmux::is_here() {
        skipped(Need::Tool, "needs tmux");
        return;
    }
    let Some(hot) = Hot::built() else { return };
    let running = hot.run(1, 0);
    let pid = running.pid();
    let options = format!("--no-io --source clock -d 500ms -p {pid}");
    let command =
        format!("sh -c 'NO_COLOR=1 {PROGRAM} top {options}; echo ended with $?; sleep 20'");
    let terminal = Terminal::start(&command, (80, 24));
    // PID, samples per second and share are numbers if the process was sampled in the last
    // interval.
    let has_samples = |screen: &str| {
        let mut rows = screen
            .lines()
            .map(|line| line.trim_start_matches('>').trim());
        let row = rows.find(|row| row.starts_with(&pid.to_string()) && row.contains("hot"));
        let mut fields = row.unwrap_or_default().split_whitespace();
        fields
            .nth(2)
            .is_some_and(|share| share.parse::<f64>().is_ok())
            && !screen.contains(" 0 samples/s")
    };
    let screen = terminal.screen_that("samples", has_samples);
    assert!(
        screen.lines().all(|line| line.chars().count() <= 80),
        "{screen}"
    );
    compare("processes-80x24", &masked(&screen));
    terminal.keys("?");
    compare("help-80x24", &masked(&terminal.screen_with("ctrl-c")));
    terminal.keys("?");
    terminal.keys("Enter");
    let both = |screen: &str| {
        screen.contains("cool_loop") && screen.contains("now") && has_samples(screen)
    };
    let screen = terminal.screen_that("both functions", both);
    // Which addresses the program has is the kernel's choice.
    let code = screen
        .lines()
        .filter(|line| !line.contains("samples were lost"));
    let code: Vec<&str> = code.take(9).collect();
    compare("process-80x24", &masked(&code.join("\n")));
    assert_eq!(screen.lines().count(), 24, "{screen}");
    terminal.resize((120, 40));
    let larger = terminal.screen_with("USER");
    assert!(
        larger.lines().count() > 24 && larger.contains("Hot data"),
        "{larger}"
    );
    terminal.resize((80, 24));
    terminal.screen_that("a smaller screen", |screen| !screen.contains("USER"));
    terminal.keys("-");
    terminal.screen_with(&format!("process {pid}: period 2.0 ms"));
    terminal.keys("s");
    terminal.screen_with(&format!("process {pid} is not sampled"));
    terminal.keys("Escape");
    // A key too soon after Escape would be read as one with Alt.
    terminal.screen_that("the stopped process", |screen| {
        let is_back = !screen.contains("Hot code");
        is_back && line(&screen.replace('>', " "), &pid).is_some_and(|f| f.contains(&"s"))
    });
    drop(running);
    terminal.screen_that("the end of the process", |screen| {
        line(&screen.replace('>', " "), &pid).is_some_and(|f| f.contains(&"x"))
    });
    for key in ["s", "-"] {
        terminal.keys("o");
        terminal.screen_that("no answer", |screen| !screen.contains("has ended"));
        terminal.keys(key);
        terminal.screen_with(&format!("process {pid} has ended"));
    }
    terminal.keys("Space");
    terminal.screen_with("frozen");
    terminal.keys("/");
    terminal.keys("no-such-program");
    terminal.keys("Enter");
    terminal.screen_with("no process or thread to show");
    terminal.keys("q");
    let screen = terminal.screen_with("ended with 0");
    assert!(
        !screen.contains("memgauge top"),
        "the screen is gone: {screen}"
    );
}
