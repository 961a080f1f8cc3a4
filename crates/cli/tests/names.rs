//! Names in the report: of inlined code, deleted and rebuilt programs, generated code, and memory.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use memgauge_testing::{Need, skipped};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Recorded, memgauge, needs, said};
use serde_json::Value;

/// Reads 8 MiB a line at a time, in a function that is inlined into `main`.
const SWEEP: &str = "#include <stdio.h>
#include <stdlib.h>
static long sweep(const volatile char *all) {
    long sum = 0;
    for (long i = 0; i < 8 << 20; i += 64)
        sum += all[i];
    return sum;
}
int main(void) {
    char *all = calloc(8 << 20, 1);
    printf(\"%ld\\n\", sweep(all));
}
";

/// Reads 2 MiB in lines, then becomes the program in its arguments. Both begin at one address.
const BECOMES: &str = "#include <unistd.h>
static char all[2 << 20];
__attribute__((noinline)) static long before_exec(void) {
    long sum = 0;
    for (int pass = 0; pass < 8; pass++)
        for (long i = 0; i < 2 << 20; i += 64)
            sum += *(volatile char *)(all + i);
    return sum;
}
int main(int argc, char **argv) {
    before_exec();
    execv(argv[1], argv + 1);
    return argc;
}
";

/// Code belongs to the program that the process executed at that time, even if addresses are the
/// same.
#[test]
fn code_before_an_exec_keeps_its_name() {
    if !needs(&["gcc", "sort"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), BECOMES, &["-pie", "-fPIE"]);
    let path = program.to_str().expect("text");
    let recorded = Recorded::new(&[] as &[&str], &[path, "/usr/bin/sort", "/dev/null"]);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let report = recorded.report();
    let rows = report["hot"]["functions"]["rows"].as_array().expect("rows");
    let misses = |name: &str| {
        let row = rows.iter().find(|row| row["function"] == name);
        row.map(|row| row["counts"]["l1d.miss"].clone())
    };
    let lines = 8 * (2 << 20) / 64;
    let found = misses("before_exec").and_then(|n| n.as_u64());
    assert!(
        found.is_some_and(|n| (lines..lines + lines / 100).contains(&n)),
        "{rows:?}"
    );
}

/// A library that writes 1024 bytes, `PASSES` times.
const PLUG: &str = "static volatile char all[1024];
void NAME(void) {
    for (int pass = 0; pass < PASSES; pass++)
        for (int i = 0; i < 1024; i++)
            all[i] = 1;
}
";

/// Loads a library, calls its function and unloads it, then does the same with the next one.
const LOADS: &str = "#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        void *library = dlopen(argv[i], RTLD_NOW);
        void (*function)(void) = (void (*)(void))dlsym(library, argv[i + 1]);
        printf(\"%p\\n\", (void *)function);
        function();
        dlclose(library);
    }
}
";

/// Each of two libraries that are mapped at one address in turn has the counts of its code.
#[test]
fn code_of_a_library_keeps_its_name_when_another_takes_its_place() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let build = |name: &str, source: &str, options: &[&str]| {
        let own = folder.path().join(name);
        fs::create_dir(&own).expect("a folder");
        let path = compile(&own, source, options);
        path.to_str().expect("text").to_owned()
    };
    let library = |name: &str, passes: u64| {
        let options = [format!("-DNAME={name}"), format!("-DPASSES={passes}")];
        build(name, PLUG, &["-shared", "-fPIC", &options[0], &options[1]])
    };
    let program = build("loads", LOADS, &["-ldl"]);
    let libraries = [
        ("first", library("first", 3)),
        ("other", library("other", 2)),
    ];
    let mut command = vec![&*program];
    for (name, path) in libraries.iter().cycle().take(7) {
        command.extend([path.as_str(), *name]);
    }
    let recorded = Recorded::new(&[] as &[&str], &command);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let output = String::from_utf8_lossy(&recorded.output.stdout);
    let mut places: Vec<&str> = output.lines().collect();
    places.dedup();
    assert_eq!(places.len(), 1, "all at one address: {output}");
    let report = report_with(&recorded, ["--event", "stores"]);
    let rows = report["hot"]["functions"]["rows"].as_array().expect("rows");
    // Each call is over before the recorder looks, so that no time passes between two libraries.
    for (name, bytes) in [("first", 4 * 3 * 1024), ("other", 3 * 2 * 1024)] {
        let row = rows.iter().find(|row| row["function"] == name);
        let stores = row.and_then(|row| row["counts"]["stores"].as_u64());
        assert_eq!(stores, Some(bytes), "{name}: {rows:?}");
    }
    let of_parts = references_by("module", &command);
    for ((name, path), bytes) in libraries.iter().zip([4 * 3 * 1024, 3 * 2 * 1024]) {
        let of_part = of_parts.iter().find(|part| part.0.ends_with(path));
        // Code that runs as it is loaded and unloaded makes some references, too.
        assert!(
            of_part.is_some_and(|part| (bytes..bytes + 500).contains(&part.1)),
            "{name}: {of_parts:?}"
        );
    }
}

fn report_with(recorded: &Recorded, options: [&str; 2]) -> Value {
    let mut report = memgauge();
    report.args(["report", "--json"]).args(options);
    let output = report.arg(recorded.path()).output();
    serde_json::from_slice(&output.expect("memgauge runs").stdout).expect("JSON")
}

/// Rows of the memory regions, by misses of the first level.
fn regions(report: &Value) -> &[Value] {
    let tables = report["regions"].as_array().expect("tables");
    let table = tables.iter().find(|table| table["event"] == "l1d.miss");
    table.expect("a table")["rows"].as_array().expect("rows")
}

/// Names of the program's parts and their numbers of references, from the curves.
fn references_by(part: &str, command: &[&str]) -> Vec<(String, u64)> {
    let mut mrc = memgauge();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("curves.json");
    mrc.arg("mrc").arg(format!("--json={}", path.display()));
    mrc.args(["--by", part, "--"]).args(command);
    let output = mrc.output().expect("memgauge runs");
    assert!(output.status.success(), "{output:?}");
    let text = fs::read(&path).expect("a file");
    let json: Value = serde_json::from_slice(&text).expect("JSON");
    let of = |curve: &Value| {
        let title = curve["title"].as_str().expect("a title").to_owned();
        (
            title,
            curve["references"].as_f64().expect("a number") as u64,
        )
    };
    let curves = json["curves"].as_array().expect("curves");
    curves[1..].iter().map(of).collect()
}

/// Maps the first file, reads each of its lines three times and unmaps it. Then does the same with
/// the second file, which it reads once. Repeats this 30 times.
const TAKES_TURNS: &str = "#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
static void *last;
static int moved;
static void sweep(int file, int passes) {
    volatile char *all = mmap(0, 256 << 10, PROT_READ, MAP_PRIVATE, file, 0);
    moved += last && last != (void *)all;
    last = (void *)all;
    for (int pass = 0; pass < passes; pass++)
        for (int i = 0; i < 256 << 10; i += 64)
            all[i];
    munmap((void *)all, 256 << 10);
}
static int files[2];
static void *first(void *unused) { sweep(files[0], 3); return unused; }
static void *second(void *unused) { sweep(files[1], 1); return unused; }
static void run(void *(*function)(void *), int in_thread) {
    pthread_t thread;
    if (!in_thread) {
        function(0);
        return;
    }
    pthread_create(&thread, 0, function, 0);
    pthread_join(thread, 0);
}
int main(int argc, char **argv) {
    files[0] = open(argv[1], O_RDONLY);
    files[1] = open(argv[2], O_RDONLY);
    for (int turn = 0; turn < 30; turn++) {
        run(first, argc > 3);
        run(second, argc > 3);
    }
    printf(\"%d\\n\", moved);
}
";

/// This also holds if the files take turns faster than the recorder reads.
#[test]
fn files_that_take_turns_at_one_address_have_their_own_samples() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), TAKES_TURNS, &["-pthread"]);
    let [first, second] = ["first.dat", "second.dat"].map(|name| {
        let path = folder.path().join(name);
        fs::write(&path, vec![7; 256 << 10]).expect("room");
        path.to_str().expect("text").to_owned()
    });
    let program = program.to_str().expect("text");
    let command = [program, &first, &second];
    let recorded = Recorded::new(&["-e", "l1d.miss:97", "--machine", "i5-6600k"], &command);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    assert_eq!(recorded.output.stdout, b"0\n", "one address for all");
    let report = recorded.report();
    let rows = regions(&report);
    let events = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.and_then(|row| row["events"].as_u64()).expect(name)
    };
    // Lines read: each misses L1D, and each 97th miss is a sample.
    let lines = 30 * (256 << 10) / 64;
    for (name, passes) in [("first.dat [data]", 3), ("second.dat [data]", 1)] {
        let found = events(name);
        assert!(
            found.abs_diff(passes * lines) < lines / 50,
            "{name} {found}: {rows:?}"
        );
    }
    // Once by one thread, then each time by another.
    for command in [&command[..], &[program, &first, &second, "threads"]] {
        let of_parts = references_by("region", command);
        for (path, passes) in [(&first, 3), (&second, 1)] {
            let of_part = of_parts.iter().find(|part| part.0.ends_with(path.as_str()));
            let found = of_part.map(|part| part.1);
            assert_eq!(found, Some(passes * lines), "{command:?}: {of_parts:?}");
        }
    }
}

/// Reads each line of a file's mapping once, moves the mapping, and reads each line three times.
/// Then reads each line of memory shared by `shmat` twice.
const MOVES_AND_SHARES: &str = "#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>
enum { BYTES = 256 << 10 };
static long scan(const volatile char *at, int passes) {
    long sum = 0;
    for (; passes > 0; passes--)
        for (int i = 0; i < BYTES; i += 64)
            sum += at[i];
    return sum;
}
int main(int argc, char **argv) {
    char *at = mmap(0, BYTES, PROT_READ, MAP_PRIVATE, open(argv[1], O_RDONLY), 0);
    scan(at, 1);
    char *there = mmap(0, 2 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    at = mremap(at, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, there);
    scan(at, 3);
    int shared = shmget(IPC_PRIVATE, BYTES, 0600);
    char *all = shmat(shared, 0, 0);
    shmctl(shared, IPC_RMID, 0);
    scan(all, 2);
    return 0;
}
";

#[test]
fn memory_that_is_moved_or_shared_by_number_has_its_name() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), MOVES_AND_SHARES, &[]);
    let data = folder.path().join("moved.dat");
    fs::write(&data, vec![7; 256 << 10]).expect("room");
    let [program, data] = [&program, &data].map(|path| path.to_str().expect("text"));
    let lines = (256 << 10) / 64;
    let of_parts = references_by("region", &[program, data]);
    for (name, passes) in [(data, 4), ("/SYSV", 2)] {
        let name = format!("data in {name}");
        let of_part = of_parts.iter().filter(|part| part.0.contains(&name));
        let found: Vec<u64> = of_part.map(|part| part.1).collect();
        assert_eq!(found, [passes * lines], "{name}: {of_parts:?}");
    }
    let options = ["-e", "l1d.miss:97", "--machine", "i5-6600k"];
    let recorded = Recorded::new(&options, &[program, data]);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let report = recorded.report();
    for (name, passes) in [("moved.dat", 4), ("SYSV", 2)] {
        let mut rows = regions(&report).iter();
        let row = rows.find(|row| row["name"].as_str().is_some_and(|n| n.contains(name)));
        let found = row.and_then(|row| row["events"].as_u64()).expect(name);
        assert!(
            found.abs_diff(passes * lines) < lines / 50,
            "{name} {found}: {report:#}"
        );
    }
}

/// Starts so many threads that the C library does not keep their stacks after they end. Each of
/// them writes 32 KiB of its own ten times. Then forks a child.
const STACKS: &str = "#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
static void *fill(void *unused) {
    volatile char own[32 << 10];
    for (int pass = 0; pass < 10; pass++)
        for (int i = 0; i < 32 << 10; i += 64)
            own[i] = 1;
    return unused;
}
int main(void) {
    pthread_t threads[20];
    for (int i = 0; i < 20; i++)
        pthread_create(&threads[i], 0, fill, 0);
    for (int i = 0; i < 20; i++)
        pthread_join(threads[i], 0);
    if (!fork())
        _exit(0);
    wait(0);
}
";

#[test]
fn stacks_have_their_names_although_they_were_unmapped_and_a_child_has_its_parents() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), STACKS, &["-pthread"]);
    let program = program.to_str().expect("text");
    let options = ["-e", "l1d.miss:1", "--machine", "i5-6600k"];
    let recorded = Recorded::new(&options, &[program]);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let report = report_with(&recorded, ["--rows", "1000"]);
    let rows = regions(&report);
    let name = |row: &Value| row["name"].as_str().expect("a name").to_owned();
    let filled = |row: &&Value| row["events"].as_u64().is_some_and(|n| n >= 512);
    let large: Vec<String> = rows.iter().filter(filled).map(name).collect();
    let stacks = large.iter().filter(|name| name.starts_with("[stack "));
    assert_eq!(stacks.count(), 20, "{large:?}");
    let all = rows.iter().map(name);
    // The child continues in the stack of the first thread.
    assert_eq!(all.filter(|name| name.starts_with("[stack ")).count(), 20);
    let of_parts = references_by("region", &[program]);
    let stacks = of_parts
        .iter()
        .find(|part| part.0.ends_with("[stacks of threads]"));
    let written = 20 * 10 * 512;
    // Includes the code that starts and ends a thread.
    assert!(
        stacks.is_some_and(|part| (written..written + 20 * 500).contains(&part.1)),
        "{of_parts:?}"
    );
}

fn compile(folder: &Path, source: &str, options: &[&str]) -> PathBuf {
    let program = memgauge_testing::compiled(
        folder,
        "p.c",
        source,
        &[&["-O2", "-g", "-Wl,--build-id"], options].concat(),
    )
    .expect("gcc is installed");
    PathBuf::from(program)
}

/// The hottest row of a table of the report.
fn hottest<'a>(report: &'a Value, table: &str) -> &'a Value {
    &report["hot"][table]["rows"][0]
}

fn text(recorded: &Recorded) -> (String, String) {
    let output = memgauge().arg("report").arg(recorded.path()).output();
    let output = output.expect("memgauge runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn an_inlined_load_is_on_its_own_line_with_its_callers_beside() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), SWEEP, &[]);
    let recorded = Recorded::new(&[], &[program.to_str().expect("UTF-8")]);
    let report = recorded.report();
    let line = hottest(&report, "lines");
    assert_eq!(
        (&line["function"], &line["line"]),
        (&"sweep".into(), &6.into())
    );
    let caller = &line["inlined_into"][0];
    assert_eq!(
        (&caller["function"], &caller["line"]),
        (&"main".into(), &11.into())
    );
    assert_eq!(hottest(&report, "functions")["function"], "sweep");
    let (shown, said) = text(&recorded);
    assert!(shown.contains("main > sweep"), "{shown}");
    assert_eq!(said, "");
}

/// Loads on line 3, stores on line 6, in code without a jump between.
const TAKE_AND_PUT: &str = "static volatile int from[1 << 20], to[1 << 20];
static inline int take(long i) {
    return from[i];
}
static inline void put(long i, int n) {
    to[i] = n;
}
int main(void) {
    for (long i = 0; i < 1 << 20; i++)
        put(i, take(i) * 3 + 1);
    return 0;
}
";

#[test]
fn loads_and_stores_in_straight_code_are_on_their_own_lines() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), TAKE_AND_PUT, &[]);
    for options in [&[][..], &["--sets", "1/8"]] {
        let recorded = Recorded::new(options, &[program.to_str().expect("UTF-8")]);
        let report = report_with(&recorded, ["--rows", "10000"]);
        let count = |table: &str, function: &str, event: &str| {
            let rows = report["hot"][table]["rows"].as_array().expect("rows");
            let row = rows.iter().find(|row| row["function"] == function);
            let counts = &row.expect("a row")["counts"];
            counts[event].as_u64().unwrap_or(0)
        };
        for table in ["functions", "lines"] {
            for (function, counts) in [("take", [1 << 20, 0]), ("put", [0, 1 << 20])] {
                let found = ["loads", "stores"].map(|event| count(table, function, event));
                assert_eq!(found, counts, "{table}, {function}, {options:?}");
            }
        }
    }
}

#[test]
fn a_program_that_deletes_itself_keeps_its_names_and_lines() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let deletes = SWEEP.replace(
        "int main(void) {",
        "int main(int n, char **v) {\n    remove(v[0]);",
    );
    let program = compile(folder.path(), &deletes, &[]);
    let recorded = Recorded::new(&[], &[program.to_str().expect("UTF-8")]);
    assert!(!program.exists());
    let report = recorded.report();
    let line = hottest(&report, "lines");
    assert_eq!(
        (&line["function"], &line["line"]),
        (&"sweep".into(), &6.into())
    );
    assert_eq!(text(&recorded).1, "");
}

#[test]
fn a_program_whose_file_name_has_a_new_line_has_names() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("two\nlines");
    fs::rename(compile(folder.path(), SWEEP, &[]), &program).expect("it can be renamed");
    let recorded = Recorded::new(&[], &[program.to_str().expect("UTF-8")]);
    let report = recorded.report();
    assert_eq!(hottest(&report, "functions")["function"], "sweep");
    assert_eq!(text(&recorded).1, "");
}

#[test]
fn a_program_built_anew_keeps_its_names_and_the_new_one_is_not_asked() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), SWEEP, &[]);
    let recorded = Recorded::new(&[], &[program.to_str().expect("UTF-8")]);
    compile(
        folder.path(),
        &SWEEP.replace("sweep", "renamed"),
        &["-DNEW"],
    );
    assert_eq!(
        hottest(&recorded.report(), "functions")["function"],
        "sweep"
    );
    let (shown, said) = text(&recorded);
    assert!(
        !shown.contains("renamed") && said.is_empty(),
        "{shown}{said}"
    );
    // A recording without a copy of the program, as for large programs, still has the names of
    // code.
    std::fs::remove_dir_all(recorded.path().join("files")).expect("copies");
    assert_eq!(
        hottest(&recorded.report(), "functions")["function"],
        "sweep"
    );
    assert!(!text(&recorded).0.contains("renamed"));
    // Without the table of names there are none.
    std::fs::remove_dir_all(recorded.path().join("symbols")).expect("a table");
    let (shown, said) = text(&recorded);
    assert!(shown.contains("p [no symbols]"), "{shown}");
    assert!(!shown.contains("renamed"), "{shown}");
    let path = program.to_str().expect("UTF-8");
    assert!(
        said.contains(path) && said.contains("not the recorded one"),
        "{said}"
    );
}

/// Writes code, makes it executable only then, and names it as perf asks.
const GENERATES: &str = "#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
/* mov (%rdi),%al; add $64,%rdi; sub $64,%rsi; jnz; ret */
static const unsigned char CODE[] = {0x8a, 0x07, 0x48, 0x83, 0xc7, 0x40,
    0x48, 0x83, 0xee, 0x40, 0x75, 0xf4, 0xc3};
int main(void) {
    void *code = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *data = mmap(0, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, CODE, sizeof CODE);
    mprotect(code, 4096, PROT_READ | PROT_EXEC);
    char path[64];
    snprintf(path, sizeof path, \"/tmp/perf-%d.map\", getpid());
    FILE *map = fopen(path, \"w\");
    fprintf(map, \"%lx %zx Generated:sweep\\n\", (long)code, sizeof CODE);
    fclose(map);
    ((void (*)(void *, long))code)(data, 8 << 20);
    printf(\"%s\\n\", path);
}
";

#[test]
fn code_that_a_program_generates_has_the_name_that_it_gives() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), GENERATES, &[]);
    let recorded = Recorded::new(&[], &[program.to_str().expect("UTF-8")]);
    let map = String::from_utf8_lossy(&recorded.output.stdout)
        .trim()
        .to_owned();
    // Process ids are used again: the recording has the names.
    fs::remove_file(&map).expect("the map");
    let report = recorded.report();
    let function = hottest(&report, "functions");
    assert_eq!(function["function"], "Generated:sweep");
    assert_eq!(function["module"], "[jit]");
}

/// Serves one file to everyone, and returns the address.
fn serve(path: String, body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
            let request = lines.next().expect("a request").expect("text");
            lines.find(|line| line.as_deref().unwrap_or("").is_empty());
            let (status, body) = match request.contains(&format!(" {path} ")) {
                true => ("200 OK", body.as_slice()),
                false => ("404 Not Found", b"".as_slice()),
            };
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n");
            let head = head + "Connection: close\r\n\r\n";
            let sent = stream.write_all(&[head.as_bytes(), body].concat());
            sent.expect("the client reads");
        }
    });
    address
}

#[test]
fn stripped_program_has_lines_from_debuginfod_and_reports_need_no_server() {
    if !needs(&["gcc", "objcopy", "strip", "readelf"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), SWEEP, &[]);
    let tool = |name: &str, arguments: &[&Path]| {
        let output = Command::new(name).args(arguments).output();
        let output = output.expect("the tool runs");
        assert!(output.status.success(), "{name}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let notes = tool("readelf", &[Path::new("-n"), &program]);
    let (_, build_id) = notes.split_once("Build ID: ").expect("a build ID");
    let build_id = build_id.split_whitespace().next().expect("a build ID");
    let debug = folder.path().join("p.debug");
    tool(
        "objcopy",
        &[Path::new("--only-keep-debug"), &program, &debug],
    );
    tool("strip", &[&program]);
    let body = fs::read(&debug).expect("debug information");
    fs::remove_file(&debug).expect("it is there");

    let command = [program.to_str().expect("UTF-8")];
    let without = Recorded::new(&[], &command).report();
    assert_eq!(hottest(&without, "functions")["function"], "p [no symbols]");
    assert_eq!(without["unnamed"][0]["module"], command[0]);

    let address = serve(format!("/buildid/{build_id}/debuginfo"), body);
    let cache = folder.path().join("cache");
    let recorded = Recorded::with(&[], &command, |memgauge| {
        memgauge
            .env("DEBUGINFOD_URLS", format!("http://{address}"))
            .env("DEBUGINFOD_CACHE_PATH", &cache);
    });
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    assert!(cache.join(build_id).join("debuginfo").is_file());
    fs::remove_dir_all(&cache).expect("the cache");
    // The report has neither the variable nor the file.
    let report = recorded.report();
    assert_eq!(hottest(&report, "functions")["function"], "sweep");
    let line = hottest(&report, "lines");
    let is_source = line["file"]
        .as_str()
        .is_some_and(|file| file.ends_with("p.c"));
    assert!(is_source && line["line"] == 6, "{line}");
}

#[test]
fn split_debug_information_has_inlined_functions_and_without_its_files_lines_and_a_notice() {
    if !needs(&["gcc", "dwp"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    // dwp of binutils 2.40 crashes on version 5.
    let program = compile(folder.path(), SWEEP, &["-gdwarf-4", "-gsplit-dwarf"]);
    let command = [program.to_str().expect("UTF-8")];
    let problems_if_hottest_is = |function: &str| {
        let report = Recorded::new(&[], &command).report();
        assert_eq!(hottest(&report, "functions")["function"], function);
        assert_eq!(hottest(&report, "lines")["line"], 6);
        report["problems"].as_array().expect("a list").clone()
    };
    assert_eq!(problems_if_hottest_is("sweep").len(), 0);
    let package = program.with_extension("dwp");
    let mut pack = Command::new("dwp");
    let packed = pack.arg("-e").arg(&program).arg("-o").arg(&package);
    assert!(packed.status().expect("dwp runs").success());
    for file in fs::read_dir(folder.path()).expect("the folder") {
        let path = file.expect("a file").path();
        if path.extension().is_some_and(|extension| extension == "dwo") {
            fs::remove_file(path).expect("the file is gone");
        }
    }
    assert_eq!(problems_if_hottest_is("sweep").len(), 0);
    fs::remove_file(package).expect("the package is gone");
    let problems = problems_if_hottest_is("main");
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].to_string().contains(".dwo"), "{problems:?}");
}

#[test]
fn debuginfod_server_that_is_away_is_one_notice() {
    if !needs(&[]) {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let closed = listener.local_addr().expect("an address");
    drop(listener);
    let cache = tempfile::tempdir().expect("a temporary folder");
    let recorded = Recorded::with(&[], &["/bin/ls"], |memgauge| {
        memgauge
            .env("DEBUGINFOD_URLS", format!("http://{closed}"))
            .env("DEBUGINFOD_CACHE_PATH", cache.path());
    });
    assert_eq!(recorded.code(), Some(0));
    let said = recorded.said();
    assert_eq!(
        said.matches("failed to fetch debug information").count(),
        1,
        "{said}"
    );
}

/// Misses in a function that each runtime compiles at once.
const JAVA: &str = "public class Sweeps {
    static long sweepArray(long[] all) {
        long sum = 0;
        for (int i = 0; i < all.length; i += 8) sum += all[i];
        return sum;
    }
    public static void main(String[] words) {
        long[] all = new long[1 << 20];
        long sum = 0;
        for (int i = 0; i < Integer.parseInt(words[0]); i++) sum += sweepArray(all);
        System.out.println(sum);
    }
}
";
const JAVASCRIPT: &str = "function sweepArray(all) {
    let sum = 0;
    for (let i = 0; i < all.length; i += 8) sum += all[i];
    return sum;
}
const all = new Float64Array(1 << 20);
let sum = 0;
for (let i = 0; i < Number(process.argv[2]); i++) sum += sweepArray(all);
console.log(sum);
";

/// Share of the hottest function with this word in its name.
fn share_of(report: &Value, word: &str) -> f64 {
    let rows = report["hot"]["functions"]["rows"]
        .as_array()
        .expect("a table");
    let has_word = |row: &&Value| row["function"].as_str().is_some_and(|f| f.contains(word));
    let row = rows.iter().find(has_word);
    row.map_or(0.0, |row| row["share"].as_f64().expect("a share"))
}

/// Asserts that a report without names of generated code advises `--jit-names`.
fn report_advises_jit_names(command: &[&str], advice: &str) {
    let without = Recorded::by("clock", &[], command, |_| ());
    let report = without.report();
    let unnamed = &report["unnamed"][0];
    assert_eq!(unnamed["module"], "[jit]", "{}", without.said());
    let share = unnamed["share"].as_f64().expect("a share");
    assert!(share > 0.2, "{share}");
    assert_eq!(share_of(&report, "sweepArray"), 0.0);
    let (shown, _) = text(&without);
    let top: String = shown.lines().take(20).collect();
    assert!(top.contains("--jit-names") && top.contains(advice), "{top}");
}

/// Asserts that `--jit-names` gives names, and keeps a value that the user has set in its variable.
fn jit_names_appear(source: &str, command: &[&str], kept: (&str, &str)) {
    let named = Recorded::by(source, &["--jit-names"], command, |memgauge| {
        memgauge.env(kept.0, kept.1);
    });
    let report = named.report();
    let share = share_of(&report, "sweepArray");
    assert!(share > 0.2, "{share}: {}", named.said());
    let settings = &report["recording"]["source"]["settings"]["jit_names"];
    let (variable, value) = kept;
    assert!(
        settings.as_str().is_some_and(|s| s.contains(variable)),
        "{settings}"
    );
    assert!(named.said().contains(value) || variable != "JAVA_TOOL_OPTIONS");
    let (shown, _) = text(&named);
    assert!(shown.contains("sweepArray"), "{shown}");
    assert_eq!(text(&named).0, shown, "the names are in the recording");
}

#[test]
fn code_that_java_compiles_has_names_with_jit_names() {
    if !needs(&["java", "javac"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("Sweeps.java");
    fs::write(&source, JAVA).expect("room");
    let compiled = Command::new("javac").arg(&source).status();
    assert!(compiled.expect("javac runs").success());
    let classes = folder.path().to_str().expect("UTF-8");
    // Fewer threads and one compiler, so that the start takes less.
    let java = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
    let sweeps = |rounds| [&java[..], &["-cp", classes, "Sweeps", rounds]].concat();
    report_advises_jit_names(&sweeps("3000"), "DumpPerfMapAtExit");
    let kept = ("JAVA_TOOL_OPTIONS", "-Dkept=true");
    jit_names_appear("clock", &sweeps("3000"), kept);
    jit_names_appear("emulate", &sweeps("40"), kept);
}

#[test]
fn code_that_node_compiles_has_names_with_jit_names() {
    if !needs(&["node"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = folder.path().join("sweeps.js");
    fs::write(&script, JAVASCRIPT).expect("room");
    let script = script.to_str().expect("UTF-8");
    report_advises_jit_names(&["node", script, "3000"], "--perf-basic-prof");
    let kept = ("NODE_OPTIONS", "--stack-trace-limit=5");
    jit_names_appear("clock", &["node", script, "3000"], kept);
    jit_names_appear("emulate", &["node", script, "40"], kept);
}

#[test]
fn jit_names_are_refused_for_running_programs() {
    let pid = std::process::id().to_string();
    let arguments = [
        "record",
        "--source",
        "clock",
        "--jit-names",
        "-p",
        &pid,
        "true",
    ];
    let output = memgauge().args(arguments).output().expect("memgauge runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("jcmd PID Compiler.perfmap"));
}

/// A library's data, followed directly by memory of the program itself, and a forked child that
/// uses both.
const REGIONS: &str = "#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static char big[4096];
static void use(volatile char *all, long bytes) {
    for (int round = 0; round < 120; round++)
        for (long i = 0; i < bytes; i += 64)
            all[i]++;
}
int main(void) {
    use(big, sizeof big);
    char *arena = mmap(0, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fork() == 0) {
        use(arena, 16 << 20);
        _exit(0);
    }
    wait(0);
}
";

/// Returns true if the kernel shows this user the addresses of its functions.
fn shows_the_kernel() -> bool {
    let list = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let shown = list
        .lines()
        .any(|line| !line.starts_with("0000000000000000"));
    if !shown {
        skipped(Need::Kernel, "/proc/kallsyms shows no addresses".to_owned());
    }
    shown
}

/// Functions of the kernel in the report, and the number of samples without one.
fn of_kernel(recording: &Path) -> (Vec<String>, usize) {
    let report = harness::report(recording);
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let rows = report["hot"]["functions"]["rows"].as_array().expect("rows");
    let kernel = rows.iter().filter(|row| row["module"] == "[kernel]");
    let names = kernel.map(|row| row["function"].as_str().expect("a name").to_owned());
    let (nameless, named): (Vec<_>, Vec<_>) = names.partition(|name| name == "[kernel]");
    (named, nameless.len())
}

#[test]
fn functions_of_the_kernel_have_names_live_and_from_perf() {
    if !needs(&["root"]) || !shows_the_kernel() {
        return;
    }
    let folder = tempfile::tempdir().expect("room");
    let program = [
        "dd",
        "if=/dev/zero",
        "of=/dev/null",
        "bs=64k",
        "count=40000",
    ];
    let live = folder.path().join("live.mg");
    let output = memgauge()
        .args(["record", "-q", "-e", "cpu-clock", "-c", "100000", "-o"])
        .arg(&live)
        .arg("--")
        .args(program)
        .output()
        .expect("memgauge runs");
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return skipped(Need::Kernel, said);
    }
    let (named, nameless) = of_kernel(&live);
    assert!(named.iter().any(|name| name.contains("read")), "{named:?}");
    assert_eq!(nameless, 0);

    let file = folder.path().join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "cpu-clock", "-o"])
        .arg(&file)
        .arg("--");
    if !perf
        .args(program)
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return skipped(Need::Tool, "needs perf".to_owned());
    }
    let imported = folder.path().join("imported.mg");
    let output = memgauge()
        .arg("import")
        .arg(&file)
        .arg("-o")
        .arg(&imported)
        .output();
    assert!(output.expect("memgauge runs").status.success());
    let mut script = Command::new("perf");
    script.args(["script", "-F", "ip,sym,dso", "-i"]).arg(&file);
    let script = script.output().expect("perf runs");
    let script = String::from_utf8_lossy(&script.stdout).into_owned();
    let lines = script
        .lines()
        .filter(|line| line.contains("[kernel.kallsyms]"));
    let by_perf: std::collections::BTreeSet<&str> = lines
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    let (named, nameless) = of_kernel(&imported);
    assert!(nameless == 0 && !named.is_empty(), "{named:?}");
    for name in &named {
        assert!(by_perf.contains(name.as_str()), "{name}: {by_perf:?}");
    }
}

#[test]
fn memory_of_a_forked_child_is_known_natively() {
    let tried = memgauge()
        .args(["stat", "-e", "task-clock", "--", "true"])
        .output();
    if !needs(&["gcc"]) || !tried.is_ok_and(|o| o.status.success()) {
        skipped(Need::Tool, "no perf events here, or no gcc");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), REGIONS, &[]);
    let path = folder.path().join("r.mg");
    let output = memgauge()
        .args(["record", "--quiet", "--source", "clock", "-o"])
        .arg(&path)
        .arg("--")
        .arg(&program)
        .output()
        .expect("memgauge runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let output = memgauge().args(["report", "--json"]).arg(&path).output();
    let report: Value =
        serde_json::from_slice(&output.expect("memgauge runs").stdout).expect("JSON");
    let rows = report["regions"][0]["rows"].as_array().expect("a list");
    let first = &rows[0];
    assert!(
        first["name"]
            .as_str()
            .is_some_and(|n| n.starts_with("anon ")),
        "{rows:?}"
    );
    assert!(
        first["share"].as_f64().is_some_and(|share| share > 0.5),
        "{rows:?}"
    );
    assert!(
        first["bytes"].as_u64().is_some_and(|n| n >= 16 << 20),
        "{rows:?}"
    );
}
