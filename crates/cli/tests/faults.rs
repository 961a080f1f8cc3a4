//! Faults that must not harm the program: a full disk or full shared memory, too few descriptors,
//! reserved addresses, sanitizers, signals. The program runs to its end, and memgauge reports missing
//! data.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use memgauge_testing::{Need, skipped};
use std::path::Path;
use std::process::{Command, Output};

use harness::{PATH, PROGRAM, Recorded, memgauge, needs};
use tempfile::TempDir;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Path of a program made of `source`, in `folder`.
fn compiled(folder: &Path, source: &str, flags: &[&str]) -> String {
    memgauge_testing::compiled(folder, "p.c", source, flags).expect("gcc is installed")
}

/// Runs a shell script in a mount namespace of its own. `$MG` is memgauge.
fn in_own_mounts(folder: &TempDir, script: &str) -> Output {
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", script]);
    command.env_clear().env("PATH", PATH).env("MG", PROGRAM);
    let output = command.current_dir(folder.path()).output();
    output.expect("unshare runs")
}

/// Many lines of code and of data, so that a recording of it grows.
const GROWING: &str = "i=0; while [ $i -lt 20 ]; do seq 1 3000 | sort -n | tail -1 >/dev/null; \
                       i=$((i+1)); done; echo done > ended";

#[test]
fn a_full_disk_ends_the_recording_and_not_the_program() {
    if !needs(&["root", "unshare", "mount", "seq", "sort"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = format!(
        "mkdir small && mount -t tmpfs -o size=256k none small || exit 77
         $MG record -q --source emulate -I 1us -e l1d.miss:1 -o small/r.mg -- sh -c '{GROWING}'
         echo code $?
         $MG report small/r.mg"
    );
    let output = in_own_mounts(&folder, &script);
    if output.status.code() == Some(77) {
        return skipped(Need::Rights, "a file system cannot be mounted here");
    }
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("code 125"), "{out}{said}");
    assert!(said.contains("no space left"), "{said}");
    assert!(said.contains("ran on unrecorded from"), "{said}");
    assert!(said.contains("exited with 0"), "{said}");
    // The program's own last act.
    assert!(folder.path().join("ended").exists(), "{out}{said}");
    // The report says so, too.
    let words: Vec<&str> = out.split_whitespace().collect();
    assert!(words.join(" ").contains("was not recorded"), "{out}{said}");
}

#[test]
fn threads_without_shared_memory_are_reported_at_the_end() {
    if !needs(&["root", "unshare", "mount"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    // There is room for the process and its code, but not for its thread.
    let script = "mkdir small && mount -t tmpfs -o size=1m none /dev/shm || exit 77
         mount -t tmpfs -o size=64k none small || exit 77
         TMPDIR=small $MG record --source emulate -o r.mg -- sh -c 'exit 5'
         echo code $?
         mkdir apart && mount -t tmpfs -o noexec none apart && cp /bin/true apart
         $MG record --source emulate -o s.mg -- apart/true
         echo code $?";
    let output = in_own_mounts(&folder, script);
    if output.status.code() == Some(77) {
        return skipped(Need::Rights, "a file system cannot be mounted here");
    }
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(out, "code 5\ncode 126\n", "{said}");
    assert!(
        said.contains("1 threads or processes were not recorded: shared memory"),
        "{said}"
    );
    assert!(said.contains("mounted noexec"), "{said}");
}

#[test]
fn a_full_disk_leaves_a_counted_run_its_totals() {
    if !needs(&["root", "unshare", "mount"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    // There is room for the manifest but not for the rows, then for nothing.
    let script = "mkdir small none && mount -t tmpfs -o size=200k none small || exit 77
         mount -t tmpfs -o size=64k none none || exit 77
         $MG stat -I 10us -e page-faults,context-switches -o small/r.mg -- \
             sh -c 'i=0; while [ $i -lt 24000 ]; do i=$((i+1)); done; echo done > ended; exit 5'
         echo code $?
         $MG report small/r.mg
         echo code $?
         $MG stat -q -I 1ms -e page-faults -o none/r.mg -- true
         echo code $?; ls -A none | wc -l";
    let output = in_own_mounts(&folder, script);
    if output.status.code() == Some(77) {
        return skipped(Need::Rights, "a file system cannot be mounted here");
    }
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    let codes: Vec<&str> = out.lines().filter(|l| l.starts_with("code")).collect();
    assert_eq!(codes, ["code 125", "code 0", "code 125"], "{out}{said}");
    assert!(!said.contains("did not end cleanly"), "{said}");
    assert!(folder.path().join("ended").exists(), "{out}{said}");
    assert!(said.contains("no space left"), "{said}");
    assert!(said.contains("the program exited with 5"), "{said}");
    // The report shows the totals and what is missing.
    assert!(out.contains("page-faults"), "{out}");
    assert!(out.contains("not written to the recording"), "{out}");
    assert!(out.ends_with("\n0\n"), "an empty recording stays: {out}");
}

#[test]
fn a_full_disk_leaves_a_sampled_run_its_totals() {
    if !needs(&["root", "unshare", "mount"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Room for the manifest and not for the samples.
    let script = "mkdir small && mount -t tmpfs -o size=160k none small || exit 77
         $MG record -q --source clock -F 20000 -o small/r.mg -- \
             sh -c 'i=0; while [ $i -lt 600000 ]; do i=$((i+1)); done; echo done > ended; exit 5'
         echo code $?
         $MG report --json small/r.mg";
    let output = in_own_mounts(&folder, script);
    if output.status.code() == Some(77) {
        return skipped(Need::Rights, "a file system cannot be mounted here");
    }
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    let (code, report) = out.split_once('\n').expect("a code and a report");
    assert_eq!(code, "code 125", "{out}{said}");
    assert!(folder.path().join("ended").exists(), "{out}{said}");
    assert_eq!(said.matches("o space left").count(), 1, "{said}");
    assert!(said.contains("the program exited with 5"), "{said}");
    let report: serde_json::Value = serde_json::from_str(report).expect("the report is JSON");
    assert_eq!(report["recording"]["complete"], false);
    assert_eq!(
        report["recording"]["end"],
        serde_json::json!({"exited": 5}),
        "{report}"
    );
    let counted = &report["sampling"]["events"][0]["counted"];
    assert!(counted.as_u64() > Some(0), "{report}");
    assert!(report["losses"].to_string().contains("samples"), "{report}");
}

#[test]
fn shared_memory_that_is_full_leaves_the_program_alone() {
    if !needs(&["root", "unshare", "mount", "seq", "sort"]) {
        return;
    }
    // From nothing at all to room for some threads and not for all.
    for kib in [4, 64, 400, 1200, 5000] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let script = format!(
            "mkdir t && mount -t tmpfs -o size={kib}k none t && mount --bind t /dev/shm || exit 77
             export TMPDIR=/dev/shm
             timeout 100 $MG record -q --source emulate -o r.mg -- \
                 sh -c 'for i in 1 2 3; do seq 1 2000 | sort -n | tail -1; done; echo done > ended'
             echo code $?"
        );
        let output = in_own_mounts(&folder, &script);
        if output.status.code() == Some(77) {
            return skipped(Need::Rights, "a file system cannot be mounted here");
        }
        let (out, said) = (text(&output.stdout), text(&output.stderr));
        // Without a first page, nothing is started. Otherwise the program ends well.
        let ended = folder.path().join("ended").exists();
        let refused = said.contains("failed to make shared memory")
            || said.contains("the program is not started");
        assert!(ended || refused, "{kib} KiB: {out}{said}");
        assert!(
            !ended || out.contains("2000\n2000\n2000\n"),
            "{kib} KiB: {out}"
        );
        assert!(!out.contains("code 124"), "{kib} KiB: it hangs: {said}");
        assert!(!out.contains("code 135"), "{kib} KiB: SIGBUS: {said}");
    }
}

/// A ring gets memory block by block. If there is none for the next block, the thread continues
/// without being recorded, and the report states that.
#[test]
fn a_ring_that_finds_no_more_memory_is_counted_as_lost() {
    if !needs(&["root", "unshare", "mount", "seq"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script =
        "mkdir t && mount -t tmpfs -o size=900k none t && mount --bind t /dev/shm || exit 77
         export TMPDIR=/dev/shm
         timeout 100 $MG record -q --source emulate -o r.mg -- seq 1 300000 > numbers
         echo code $?; $MG report r.mg --json";
    let output = in_own_mounts(&folder, script);
    if output.status.code() == Some(77) {
        return skipped(Need::Rights, "a file system cannot be mounted here");
    }
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert!(out.starts_with("code 0"), "{out}{said}");
    let numbers = std::fs::read_to_string(folder.path().join("numbers")).expect("its output");
    assert_eq!(numbers.lines().count(), 300_000);
    assert!(out.contains("shared memory is full"), "{out}{said}");
}

#[test]
fn few_descriptors_leave_the_program_alone() {
    if !needs(&["sh", "seq", "tail", "timeout"]) {
        return;
    }
    for limit in [16, 32] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let script = format!(
            "ulimit -n {limit}; timeout 100 {PROGRAM} record -q --source emulate -o r.mg -- sh -c \
             'for i in 1 2 3 4 5 6 7 8 9 10 11 12; do seq 1 2000 | tail -1 & done; wait; \
             echo done > ended'; echo code $?"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env_clear().env("PATH", PATH);
        let output = command
            .current_dir(folder.path())
            .output()
            .expect("it runs");
        let (out, said) = (text(&output.stdout), text(&output.stderr));
        assert!(!out.contains("code 124"), "{limit}: it hangs: {said}");
        assert!(folder.path().join("ended").exists(), "{limit}: {out}{said}");
        assert_eq!(out.matches("2000\n").count(), 12, "{limit}: {out}{said}");
    }
}

const RESERVE: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
int main(void) {
    /* 64 TiB of addresses, and one page of them in use. */
    char *p = mmap(0, 1ul << 46, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p + (1ul << 45), 4096, PROT_READ | PROT_WRITE) != 0)
        return 1;
    memset(p + (1ul << 45), 1, 4096);
    FILE *status = fopen("/proc/self/status", "r");
    char line[200];
    while (status && fgets(line, sizeof line, status))
        if (strncmp(line, "VmHWM:", 6) == 0)
            fputs(line, stdout);
    return 0;
}
"#;

/// Maximum memory of the emulator in KiB, as the program reads it for its own process.
fn peak_kib(of: &Recorded) -> u64 {
    let said = text(&of.output.stdout);
    let words: Vec<&str> = said.split_whitespace().collect();
    words
        .get(1)
        .and_then(|kib| kib.parse().ok())
        .unwrap_or_else(|| panic!("{said} {}", text(&of.output.stderr)))
}

#[test]
fn a_large_reservation_costs_no_memory() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), RESERVE, &[]);
    let run = Recorded::new(&[], &[program]);
    assert_eq!(run.code(), Some(0), "{}", text(&run.output.stderr));
    assert_eq!(text(&run.output.stderr), "");
    // QEMU 7 kept 24 bytes per page, which would be 384 GiB.
    assert!(peak_kib(&run) < 200 << 10, "{} KiB", peak_kib(&run));
}

const ALIGNED: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include <xmmintrin.h>
static volatile int handled, crooked;
static void handler(int n) {
    __m128 local = _mm_set1_ps((float)n);
    _mm_store_ps((float *)__builtin_alloca_with_align(16, 128), local);
    /* The ABI: at a function's entry the stack is 8 bytes below a multiple of 16. */
    crooked += (unsigned long)__builtin_frame_address(0) % 16 != 0;
    handled++;
}
int main(void) {
    char room[64];
    signal(SIGUSR1, handler);
    for (int i = 0; i < 50; i++) {
        volatile char *down = __builtin_alloca(1 + i);
        down[0] = room[0];
        raise(SIGUSR1);
    }
    printf("%d handled, %d crooked\n", handled, crooked);
    return 0;
}
"#;

#[test]
fn handlers_of_signals_get_an_aligned_stack() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), ALIGNED, &["-O0"]);
    let run = Recorded::new(&[], &[program]);
    assert_eq!(
        text(&run.output.stdout),
        "50 handled, 0 crooked\n",
        "{}",
        text(&run.output.stderr)
    );
}

/// `ls -l` reads extended attributes and prints an error if the system lacks this call.
#[test]
fn a_listing_works_as_without_memgauge() {
    if !needs(&["ls"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("file"), "").expect("a file can be written");
    let path = folder.path().to_str().expect("temporary paths are text");
    let run = Recorded::new(&[], &["ls", "-l", path]);
    assert_eq!(text(&run.output.stderr), "");
    assert!(text(&run.output.stdout).contains("file"));
}

const CHECKED: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(int n, char **v) {
    char *p = malloc(10);
    p[9] = 1;
    printf("%d\n", p[8 + n]);
    free(p);
    return 0;
}
"#;

/// A program with a sanitizer runs, and the sanitizer finds its error. Its search for leaks does
/// not work, and a message explains how to disable it.
#[test]
fn a_program_with_address_sanitizer_runs() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), CHECKED, &["-fsanitize=address"]);
    let run = |arguments: &[&str], options: &str| {
        let command = [&[program.as_str()], arguments].concat();
        Recorded::with(&[], &command, |with| {
            with.env("LSAN_OPTIONS", options);
        })
    };
    let good = run(&[], "detect_leaks=0");
    assert_eq!(good.code(), Some(0), "{}", text(&good.output.stderr));
    assert_eq!(text(&good.output.stdout), "1\n");
    let bad = run(&["x"], "detect_leaks=0");
    let said = text(&bad.output.stderr);
    assert!(said.contains("heap-buffer-overflow"), "{said}");
    let leaks = run(&[], "");
    let said = text(&leaks.output.stderr);
    assert!(
        said.contains("memgauge: ") && said.contains("LSAN_OPTIONS=detect_leaks=0"),
        "{said}"
    );
}

/// Sanitizers use fixed places in memory, and end a program that lies elsewhere.
#[test]
fn a_program_with_thread_sanitizer_runs() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), CHECKED, &["-fsanitize=thread"]);
    let run = Recorded::new(&[], &[program.as_str()]);
    assert_eq!(run.code(), Some(0), "{}", text(&run.output.stderr));
    assert_eq!(text(&run.output.stdout), "1\n");
}

/// Locks, with a second thread that waits for nothing.
const LOCKS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static _Alignas(64) char bytes[128];
static pthread_mutex_t robust;

static void *wait_on(void *unused)
{
    pause();
    return unused;
}

static void *die_with_lock(void *unused)
{
    pthread_mutex_lock(&robust);
    return unused;
}

static int lock_of_dead_owner(void)
{
    pthread_mutexattr_t how;
    pthread_t owner;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &how);
    pthread_create(&owner, NULL, die_with_lock, NULL);
    pthread_join(owner, NULL);
    return pthread_mutex_lock(&robust) == EOWNERDEAD;
}

int main(int argc, char **argv)
{
    (void)argc;
    if (!strcmp(argv[1], "robust"))
        return !lock_of_dead_owner();
    if (!strcmp(argv[1], "low"))
        return (uintptr_t)mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0) >> 32 != 0;
    pthread_t other;
    pthread_create(&other, NULL, wait_on, NULL);
    uint32_t *at = (uint32_t *)(bytes + (!strcmp(argv[1], "line") ? 62 : !strcmp(argv[1], "apart") ? 5 : 8));
    for (int i = 0; i < 20000; i++) {
        __asm__ volatile("nop; nop; lock addl $1, %0" : "+m"(*at) : : "memory");
        __asm__ volatile("xchg %%ecx, %0" : "+m"(*at) : : "ecx", "memory");
    }
    return 0;
}
"#;

/// A misaligned locked instruction counts as one instruction, even if the program has several
/// threads. A robust mutex can be locked after its owner has ended. Low addresses are low.
#[test]
fn locks_work_and_count_as_on_the_processor() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), LOCKS, &["-O1", "-pthread"]);
    for what in ["robust", "low"] {
        let recorded = Recorded::new(&[], &[program.as_str(), what]);
        assert_eq!(recorded.code(), Some(0), "{what}");
    }
    let counted = |mode: &str| {
        let recorded = Recorded::new(&[], &[program.as_str(), mode]);
        assert_eq!(recorded.report()["losses"], serde_json::json!([]), "{mode}");
        recorded.totals()
    };
    let expected = counted("aligned");
    for mode in ["apart", "line"] {
        let found = counted(mode);
        for event in ["instructions", "loads", "stores", "modifies"] {
            let difference = (found[event] - expected[event]).abs();
            // The number of page faults at the start depends on where the library has its strings.
            // If the loop had faults, there would be 20 000.
            assert!(
                difference < 2_000,
                "{mode}: {event}: {found:?} for {expected:?}"
            );
        }
        let splits = found["splits"] - expected["splits"];
        let all = if mode == "line" { 40_000 } else { 0 };
        assert!((splits - all).abs() < 100, "{mode}: {splits}");
    }
}

/// QEMU's own variables are options of nothing here.
#[test]
fn variables_of_the_emulator_are_the_programs() {
    if !needs(&["sh"]) {
        return;
    }
    let recorded = Recorded::with(&[], &["sh", "-c", "echo $QEMU_CPU $QEMU_STRACE"], |with| {
        with.env("QEMU_CPU", "486").env("QEMU_STRACE", "1");
    });
    assert_eq!(recorded.code(), Some(0));
    assert_eq!(text(&recorded.output.stdout), "486 1\n");
    assert!(!text(&recorded.output.stderr).contains("write("));
}

const FORKS: &str = r#"
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
    for (int i = 0; i < 1500; i++) {
        if (fork() == 0)
            _exit(0);
        wait(NULL);
    }
    return 0;
}
"#;

/// Processes that end before the recorder reads them wait for it. 1500 of them took 700 MiB of the
/// recorder's memory.
#[test]
fn short_processes_take_the_recorder_little_memory() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), FORKS, &["-O1"]);
    let recorded = Recorded::new(&[], &[program]);
    assert_eq!(recorded.report()["losses"], serde_json::json!([]));
    let manifest = std::fs::read(recorded.path().join("manifest.json")).expect("a manifest");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("it is JSON");
    let peak = manifest["own_cost"]["peak_memory_bytes"].as_u64();
    assert!(peak < Some(300 << 20), "{peak:?} bytes");
}

const CRASHES: &str = "#include <signal.h>\nint main(void) { raise(SIGSEGV); return 0; }\n";

#[test]
fn a_crash_suggests_the_same_command_without_the_emulator() {
    if !needs(&["cc", "sh"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), CRASHES, &[]);
    let alone = Recorded::new(&[], &[program.as_str()]);
    let hint = format!("run `memgauge --source clock -- {program}`");
    assert!(alone.said().contains(&hint), "{}", alone.said());
    // A script that waits for the crash: the command is the script's.
    let script = format!("{program}; exit 0");
    let child = Recorded::new(&[], &["sh", "-c", &script]);
    assert_eq!(child.code(), Some(0), "{}", child.said());
    let hint = format!("run `memgauge --source clock -- sh -c '{script}'`");
    assert!(child.said().contains(&hint), "{}", child.said());
}

#[test]
fn a_failure_names_the_feature_that_the_emulator_lacks() {
    const PROGRAM: &str = r#"
#include <errno.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    long result = 0;
    char zero[512] = { 0 };
    switch (argv[1][0]) {
    case 'a': __asm__ volatile("vpaddd %%zmm0, %%zmm1, %%zmm2" ::: "memory"); break;
    case 'k': __asm__ volatile("kmovw %%eax, %%k1" ::: "memory"); break;
    case 'i': result = syscall(425, 0, zero); break;
    case 'u': result = syscall(SYS_userfaultfd, 0); break;
    case 'p': result = ptrace(PTRACE_TRACEME, 0, 0, 0); break;
    case 's': result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, zero); break;
    case 'f': result = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, zero); break;
    }
    return result ? atoi(argv[2]) : 0;
}
"#;
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), PROGRAM, &["-w"]);
    for (which, feature, code) in [
        ("a", "AVX-512", 132),
        ("k", "AVX-512", 132),
        ("i", "io_uring", 3),
        ("u", "userfaultfd", 3),
        ("p", "ptrace", 3),
        ("s", "a seccomp filter", 3),
        ("f", "a seccomp filter", 3),
    ] {
        let run = Recorded::new(&[], &[program.as_str(), which, "3"]);
        let said = run.said();
        assert_eq!(run.code(), Some(code), "{feature}: {said}");
        assert!(
            said.contains(&format!("had used {feature}")) && said.contains("use --source clock"),
            "{feature}: {said}"
        );
    }
    let copes = Recorded::new(&[], &[program.as_str(), "i", "0"]);
    assert_eq!(copes.code(), Some(0), "{}", copes.said());
    assert!(!copes.said().contains("io_uring"), "{}", copes.said());
}

const MASKED: &str = r#"
#include <immintrin.h>
#include <stdlib.h>
static int data[64];
int main(int n, char **v) {
    int turns = atoi(v[1]), kept = atoi(v[2]), stores = n == 3;
    int lanes[8];
    for (int i = 0; i < 8; i++) lanes[i] = i < kept ? -1 : 0;
    __m256i mask = _mm256_loadu_si256((__m256i *)lanes), what = _mm256_set1_epi32(7);
    for (int i = 0; i < turns; i++) {
        if (stores)
            _mm256_maskstore_epi32(data, mask, what);
        else
            __asm__ volatile("vpmaskmovd (%1), %2, %0" : "=x"(what) : "r"(data), "x"(mask) : "memory");
        __asm__ volatile("" ::: "memory");
    }
    return 0;
}
"#;

/// Checked by construction: a masked access to neighbouring elements is one access, and there is no
/// access if the mask is zero.
#[test]
fn masked_accesses_are_those_of_the_kept_elements() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), MASKED, &["-O2", "-mavx2"]);
    let counted = |event: &str, turns: &str, kept: &str| {
        let mut command = vec![program.as_str(), turns, kept];
        command.extend((event == "loads").then_some("load"));
        let run = Recorded::new(&[], &command);
        let losses = &run.report()["losses"];
        assert_eq!(losses.as_array().map(Vec::len), Some(0), "{losses}");
        run.totals()[event]
    };
    for event in ["loads", "stores"] {
        let gained = |kept| counted(event, "1010", kept) - counted(event, "1000", kept);
        assert_eq!(["0", "1", "3", "8"].map(gained), [0, 10, 10, 10], "{event}");
    }
}

/// Blocks jump directly to blocks of other pages. That must end if the page's code changes or may
/// no longer be executed, and if the program is single-stepped.
#[test]
fn code_of_another_page_is_followed_through_its_changes() {
    const PROGRAM: &str = r#"
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#define ALL (PROT_READ | PROT_WRITE | PROT_EXEC)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)
#define STEPS(change) __asm__ volatile("pushf; " change ",(%%rsp); popf" ::: "memory", "cc")
static volatile int steps, refused;
static sigjmp_buf back;
static void step(int s) { steps++; }
static void refuse(int s) { refused++; siglongjmp(back, 1); }
static int triple(int x) { return x * 3 + 1; }
static int (*volatile pointer)(int) = triple;
__attribute__((aligned(4096), noinline)) static int across(int x) { return pointer(x) + 2; }
int main(void)
{
    signal(SIGTRAP, step);
    signal(SIGSEGV, refuse);
    int sum = across(1) + across(2);
    STEPS("orq $0x100");
    sum += across(5) + pointer(7);
    STEPS("andq $~0x100");
    printf("%d %d\n", steps, sum);
    unsigned char jump[5] = { 0xe9 }, gives[6] = { 0xb8, 0, 0, 0, 0, 0xc3 };
    unsigned char *page = mmap(0, 8192, ALL, PRIVATE, -1, 0), *next = page + 4096;
    int (*code)(void) = (int (*)(void))page, distance = 4096 - sizeof jump;
    memcpy(jump + 1, &distance, 4);
    memcpy(page, jump, sizeof jump);
    long total = 0;
    for (int turn = 0; turn < 100; turn++) {
        memcpy(gives + 1, &turn, 4);
        memcpy(next, gives, sizeof gives);
        for (int i = 0; i < 50; i++)
            total += code();
        mprotect(next, 4096, turn & 1 ? PROT_READ : PROT_NONE);
        if (!sigsetjmp(back, 1))
            total += code();
        mprotect(next, 4096, ALL);
        if (turn % 7 == 0)
            mmap(next, 4096, ALL, PRIVATE | MAP_FIXED, -1, 0);
    }
    printf("%d %ld\n", refused, total);
    return 0;
}
"#;
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), PROGRAM, &["-O1"]);
    let native = Command::new(&program).output().expect("it runs");
    assert!(text(&native.stdout).ends_with("100 247500\n"));
    for options in [&[][..], &["--sets", "1/8"]] {
        let run = Recorded::new(options, &[program.as_str()]);
        assert_eq!(text(&run.output.stdout), text(&native.stdout));
    }
}

/// Elements with a clear mask may lie in an unmapped page. Compilers create such loads for loops
/// with a condition.
#[test]
fn a_masked_load_at_the_end_of_memory_reads_what_is_there() {
    const PROGRAM: &str = r#"
#include <immintrin.h>
#include <stdio.h>
#include <sys/mman.h>
int main(void)
{
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(page + 4096, 4096);
    int *last = (int *)(page + 4096) - 3, out[8];
    for (int i = 0; i < 3; i++) last[i] = i + 1;
    __m256i mask = _mm256_setr_epi32(-1, -1, -1, 0, 0, 0, 0, 0);
    _mm256_storeu_si256((void *)out, _mm256_maskload_epi32(last, mask));
    printf("%d %d %d %d %d\n", out[0], out[1], out[2], out[3], out[7]);
    _mm256_storeu_ps((float *)out, _mm256_maskload_ps((float *)last, mask));
    printf("%d %d\n", out[2], out[3]);
    __m128d pair = _mm_maskload_pd((double *)(last + 1), _mm_set_epi64x(0, -1));
    _mm_storeu_pd((double *)out, pair);
    printf("%d %d %d\n", out[0], out[1], out[2]);
    /* The mask is the target: what faults must not have changed it. */
    __m256i both = mask;
    __asm__("vpmaskmovd (%1), %0, %0" : "+x"(both) : "r"(last));
    _mm256_storeu_si256((void *)out, both);
    printf("%d %d\n", out[2], out[3]);
    return 0;
}
"#;
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), PROGRAM, &["-O1", "-mavx2"]);
    let native = std::process::Command::new(&program)
        .output()
        .expect("it runs");
    assert_eq!(text(&native.stdout), "1 2 3 0 0\n3 0\n2 3 0\n3 0\n");
    let run = Recorded::new(&[], &[program.as_str()]);
    assert_eq!(text(&run.output.stdout), text(&native.stdout));
}

#[test]
fn without_an_emulator_the_clock_is_taken_and_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = memgauge();
    command.env("MEMGAUGE_QEMU", "/bin/true");
    command
        .args(["record", "-q", "-o"])
        .arg(folder.path().join("r.mg"));
    let output = command.args(["--", "true"]).output().expect("it runs");
    let said = text(&output.stderr);
    assert!(said.contains("source clock"), "{said}");
    assert!(
        said.contains("does not say that it is memgauge's engine"),
        "{said}"
    );
}

#[test]
fn overhead_is_refused_where_it_means_nothing() {
    let mut command = memgauge();
    command.args([
        "record",
        "--source",
        "emulate",
        "--overhead",
        "2%",
        "--",
        "true",
    ]);
    let output = command.output().expect("it runs");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--overhead"), "{said}");
}

#[test]
fn a_mistyped_option_is_no_program() {
    for verb in ["record", "stat"] {
        let output = memgauge().args([verb, "--machin", "zen4", "true"]).output();
        let output = output.expect("memgauge runs");
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains("'--machin'"),
            "{}",
            text(&output.stderr)
        );
    }
    // Behind the program's name they are its own.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = memgauge();
    command.args(["stat", "-e", "task-clock", "sh", "-c", "exit 7"]);
    let output = command.current_dir(folder.path()).output();
    assert_eq!(output.expect("memgauge runs").status.code(), Some(7));
}

#[test]
fn a_folder_that_is_gone_is_not_to_be_made() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = "mkdir gone && cd gone && rmdir ../gone && exec \"$0\" record -o r.mg -- true";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, PROGRAM])
        .current_dir(folder.path());
    let output = command.output().expect("sh runs");
    assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("is gone"),
        "{}",
        text(&output.stderr)
    );
}
