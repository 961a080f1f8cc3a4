//! Samples of a program that runs natively have the regions of interest that it marks.

mod common;

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use common::{faults, profiler, until};
use memgauge_online::{MARKS_VARIABLE, Sample, Settings, Sharing, ThreadState};
use memgauge_testing::compiled;

/// Two threads touch pages of their own. Each touch is a fault: a number of them in region `load`,
/// in `parse` within it, and in no region. They start when a line arrives on standard input. At the
/// end the program writes the addresses.
const PAGES: &str = r#"
#define _GNU_SOURCE
#include <memgauge_region.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
static char *all[2][3];
static pthread_barrier_t begin;
static char *fresh(long pages)
{
    char *memory = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, pages * 4096, MADV_NOHUGEPAGE);
    return memory;
}
static void touch(char *memory, long pages)
{
    for (long page = 0; page < pages; page++)
        memory[page * 4096] = 1;
}
static void *work(void *given)
{
    char **of = given;
    pthread_barrier_wait(&begin);
    memgauge_region_begin("load");
    touch(of[0], 400);
    memgauge_region_begin("parse");
    touch(of[1], 300);
    memgauge_region_end("parse");
    memgauge_region_end("load");
    touch(of[2], 200);
    return 0;
}
int main(void)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            all[i][j] = fresh(400);
    pthread_barrier_init(&begin, 0, 3);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, work, all[i]);
    getchar();
    pthread_barrier_wait(&begin);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            printf("%p\n", (void *)all[i][j]);
}
"#;

#[test]
fn each_fault_is_in_the_regions_that_its_thread_was_in() {
    let folder = tempfile::tempdir().expect("room");
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../capi/include");
    let flags = ["-O1", "-pthread", "-I", include];
    let Some(program) = compiled(folder.path(), "pages.c", PAGES, &flags) else {
        return;
    };
    let settings = Settings {
        roi: true,
        buffer: 1 << 14,
        ring_pages: 128,
        ..faults()
    };
    let Some(profiler) = profiler(settings) else {
        return;
    };
    let mut reader = profiler.reader(Sharing::Each).expect("a reader");
    let marks = profiler.marks_file().expect("regions are asked for");
    let mut child = Command::new("sh")
        .args(["-c", "read line; exec \"$0\""])
        .arg(&program)
        .env(MARKS_VARIABLE, &marks)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("sh runs");
    profiler.add_process(child.id()).expect("it runs");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(b"go\n").expect("sh reads");
    until("both threads", || {
        let all = profiler.all_statistics();
        all.iter()
            .filter(|s| s.state == ThreadState::Started)
            .count()
            == 3
    });
    input.write_all(b"go\n").expect("the program reads");
    let told = child.wait_with_output().expect("it ends");
    until("the end of its threads", || {
        let all = profiler.all_statistics();
        all.iter().all(|s| s.state == ThreadState::Ended)
    });
    let mut samples: Vec<Sample> = Vec::new();
    while reader.wait(Duration::from_millis(100)) {
        reader.read(&mut samples, 1 << 14);
    }
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    let arrays = text.lines().map(|line| {
        let digits = line.trim_start_matches("0x");
        u64::from_str_radix(digits, 16).expect("an address")
    });
    let expected = [(400, "load"), (300, "load/parse"), (200, "")];
    for (start, (pages, regions)) in arrays.zip(expected.iter().cycle()) {
        let of = samples.iter().filter(|s| {
            let addr = s.addr.map_or(0, |addr| addr.0);
            (start..start + pages * 4096).contains(&addr)
        });
        let names = of.map(|s| profiler.region_names(s.region).join("/"));
        let names: Vec<String> = names.collect();
        assert_eq!(names.len() as u64, *pages, "{regions}");
        let others: Vec<&String> = names.iter().filter(|name| name != regions).collect();
        assert!(others.is_empty(), "{regions}: {others:?}");
    }
    assert_eq!(profiler.notes(), Vec::<String>::new());
    drop(profiler);
    assert!(!marks.exists());
}
