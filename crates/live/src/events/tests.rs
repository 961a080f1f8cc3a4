use super::*;
use std::fs;
use std::path::Path;

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// A machine with a core PMU, a memory controller and a tracepoint.
fn machine() -> (tempfile::TempDir, Pmus) {
    let dir = tempfile::tempdir().unwrap();
    let devices = dir.path().join("devices");
    for (file, content) in [
        ("cpu/type", "4\n"),
        ("cpu/format/event", "config:0-7\n"),
        ("cpu/format/umask", "config:8-15\n"),
        ("cpu/format/any", "config:21\n"),
        ("cpu/format/ldlat", "config1:0-15\n"),
        ("cpu/format/wide", "config:0-7,32-35\n"),
        ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
        ("imc/type", "13\n"),
        ("imc/cpumask", "0,18\n"),
        ("imc/format/event", "config:0-7\n"),
        ("imc/format/umask", "config:8-15\n"),
        ("imc/events/cas_count_read", "event=0x4,umask=0x3\n"),
        ("imc/events/cas_count_read.scale", "6.103515625e-5\n"),
        ("imc/events/cas_count_read.unit", "MiB\n"),
    ] {
        write(&devices.join(file), content);
    }
    let traced = dir.path().join("tracing");
    write(&traced.join("sched/sched_switch/id"), "314\n");
    let pmus = Pmus::from_dirs(&devices, &traced);
    (dir, pmus)
}

fn one(text: &str) -> Event {
    let (_dir, pmus) = machine();
    let groups = parse(text, &pmus).unwrap();
    assert_eq!(groups.len(), 1, "{text}");
    groups[0].events[0].clone()
}

fn check(text: &str, kind: u32, config: u64) {
    let event = one(text);
    assert_eq!(
        (event.attr.kind, event.attr.config),
        (kind, config),
        "{text}"
    );
    assert_eq!(event.name, text);
}

fn refusal(text: &str) -> String {
    let (_dir, pmus) = machine();
    parse(text, &pmus).unwrap_err().to_string()
}

// Encodings from `perf stat -vv` (perf 6.1), which prints the attribute it opens.
#[test]
fn names_of_perf_have_the_encodings_of_perf() {
    check("cycles", 0, 0);
    check("instructions", 0, 1);
    check("page-faults", 1, 2);
    check("faults", 1, 2);
    check("cpu-clock", 1, 0);
    check("LLC-load-misses", 3, 0x10002);
    check("dTLB-store-misses", 3, 0x10103);
    check("L1-dcache-loads", 3, 0);
    check("r1a8", 4, 0x1a8);
    check("sched:sched_switch", 2, 314);
}

#[test]
fn terms_go_to_the_bits_that_the_format_names() {
    check("cpu/event=0x3c,umask=0x12/", 4, 0x123c);
    check("cpu/event=0x3c,any/", 4, 0x20_003c);
    check("cpu/wide=0xabc/", 4, 0xa_0000_00bc);
    check("cpu/config=0x5300c0/", 4, 0x53_00c0);
    let loads = one("cpu/mem-loads,ldlat=30/pp");
    assert_eq!((loads.attr.config, loads.attr.config1), (0x1cd, 30));
    assert_eq!(loads.attr.precise_ip(), 2);
    check("mem-loads", 4, 0x1cd);
}

#[test]
fn events_outside_the_cores_know_their_processors_and_unit() {
    let reads = one("imc/cas_count_read/");
    assert_eq!(reads.cpus, Some(vec![0, 18]));
    assert_eq!((reads.scale, reads.unit.as_str()), (6.103515625e-5, "MiB"));
    assert_eq!((reads.attr.kind, reads.attr.config), (13, 0x304));
}

#[test]
fn modifiers_exclude_what_they_do_not_name() {
    let user = one("cycles:u").attr;
    assert!(user.has(flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV));
    assert!(!user.has(flag::EXCLUDE_USER));
    let precise = one("instructions:ppk").attr;
    assert_eq!(precise.precise_ip(), 2);
    assert!(precise.has(flag::EXCLUDE_USER) && !precise.has(flag::EXCLUDE_KERNEL));
    assert_eq!(one("cycles").attr.flags, 0);
}

#[test]
fn breakpoints_have_address_length_and_access() {
    let check = |text: &str, address: u64, length: u64, access: u32| {
        let attr = one(text).attr;
        let seen = (attr.kind, attr.config1, attr.config2, attr.bp_type);
        assert_eq!(seen, (kind::BREAKPOINT, address, length, access), "{text}");
    };
    check("mem:0x601040/8:w", 0x601040, 8, BREAK_WRITE);
    check("mem:4096", 4096, 4, BREAK_READ | BREAK_WRITE);
    check("mem:0x10:x:u", 0x10, 8, BREAK_EXECUTE);
    check("mem:0x10/1:rw:u", 0x10, 1, BREAK_READ | BREAK_WRITE);
    assert!(one("mem:0x10/1:rw:u").attr.has(flag::EXCLUDE_KERNEL));
}

#[test]
fn braces_make_groups_and_share_modifiers() {
    let (_dir, pmus) = machine();
    let text = "cycles,{instructions:k,cpu/event=1,umask=2/,page-faults}:u,faults";
    let groups = parse(text, &pmus).unwrap();
    let sizes: Vec<(usize, bool)> = groups.iter().map(|g| (g.events.len(), g.braces)).collect();
    assert_eq!(sizes, [(1, false), (3, true), (1, false)]);
    let modes = groups[1].events[0].modifiers.modes;
    assert!(modes.user && modes.kernel && !modes.hypervisor);
    assert_eq!(groups[1].events[1].name, "cpu/event=1,umask=2/");
}

#[test]
fn invalid_events_are_refused_with_the_reason() {
    let check = |text: &str, words: &[&str]| {
        let said = refusal(text);
        for word in words {
            assert!(said.contains(word), "`{word}` is not in: {said}");
        }
    };
    check("", &["empty"]);
    check("cycles,,faults", &["between two commas"]);
    check("{cycles", &["not closed"]);
    check("cycles}", &["closes nothing"]);
    check("{{cycles}}", &["cannot hold groups"]);
    check("page-fault", &["unknown event", "page-faults"]);
    check("cpu/nonsense=1/", &["no term `nonsense`", "umask"]);
    check("cpu/event=0x1ff/", &["too large", "8 bits"]);
    check("cpu/event=x/", &["not a number"]);
    check("cup/event=1/", &["no PMU `cup`", "cpu"]);
    check("cpu/event=1", &["not closed"]);
    check("cycles:z", &["`z` are not modifiers", "u, k"]);
    check("mem:0x10/3", &["1, 2, 4 or 8"]);
    check("mem:here", &["not an address"]);
    check("mem:0x10:q", &["mem:0x10:q"]);
    check("sched:nothing", &["no tracepoint"]);
    check("..:passwd", &["not a tracepoint"]);
    check(":u", &["no name"]);
}

#[test]
fn no_text_makes_the_parser_panic() {
    let (_dir, pmus) = machine();
    let pieces = [
        "{", "}", ",", "/", ":", "mem:", "cpu", "event", "=", "0x1", "u", "r", "cycles", "é", " ",
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..state % 9 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            text += pieces[(state % pieces.len() as u64) as usize];
        }
        state = state.wrapping_mul(0xd129_0e65_4d2b_35a5) | 1;
        let _ = parse(&text, &pmus);
    }
}

#[test]
fn vendors_names_are_those_of_libpfm() {
    let Some(encoded) = crate::sys::pfm::encode("PERF_COUNT_HW_INSTRUCTIONS") else {
        return memgauge_testing::skipped(memgauge_testing::Need::Tool, "libpfm4 is not installed");
    };
    // A name of the kernel's own, which the library has on every machine.
    assert_eq!(encoded, Ok(Attr::new(kind::HARDWARE, 1)));
    let none = std::path::Path::new("/nonexistent");
    let pmus = Pmus::from_dirs(none, none);
    let groups = parse("PERF_COUNT_HW_INSTRUCTIONS:u", &pmus).unwrap();
    let event = &groups[0].events[0];
    assert_eq!((event.attr.kind, event.attr.config), (kind::HARDWARE, 1));
    assert!(event.attr.has(flag::EXCLUDE_KERNEL));
    assert!(crate::sys::pfm::encode("NO_SUCH_EVENT").unwrap().is_err());
    for event in crate::sys::pfm::events().iter().take(50) {
        assert!(!event.name.is_empty() && !event.pmu.is_empty(), "{event:?}");
    }
}

#[test]
fn a_pattern_stands_for_all_tracepoints_like_it() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["sched/sched_switch", "sched/sched_wakeup", "irq/irq_entry"];
    for (id, name) in names.iter().enumerate() {
        let path = folder.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("id"), id.to_string()).unwrap();
    }
    let pmus = Pmus::from_dirs(Path::new("/nonexistent"), folder.path());
    let check = |text: &str, expected: &[&[&str]]| {
        let groups = parse(text, &pmus).unwrap();
        let named: Vec<Vec<&str>> = groups
            .iter()
            .map(|g| g.events.iter().map(|e| e.name.as_str()).collect())
            .collect();
        assert_eq!(named, expected, "{text}");
    };
    check(
        "sched:*",
        &[&["sched:sched_switch"], &["sched:sched_wakeup"]],
    );
    check("*:*_s*h:u", &[&["sched:sched_switch:u"]]);
    check("{irq:irq_?ntry,faults}", &[&["irq:irq_entry", "faults"]]);
    let why = parse("sched:nothing*", &pmus).unwrap_err().to_string();
    assert!(why.contains("no tracepoint `sched:nothing*`"), "{why}");
}
