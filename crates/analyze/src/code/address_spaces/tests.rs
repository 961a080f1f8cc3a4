//! Address spaces whose mappings are known.

use super::*;
use crate::oracle;
use memgauge_trace::VirtAddr;
use proptest::prelude::*;

pub(crate) fn module(time_ns: u64, start: u64, end: u64, path: &str) -> Module {
    Module {
        pid: Pid(1),
        time_ns,
        start: VirtAddr(start),
        end: VirtAddr(end),
        path: path.to_owned(),
        ..Module::default()
    }
}

#[test]
fn mappings_of_descriptors_without_a_file_are_no_files() {
    assert!(is_file("/usr/bin/true") && is_file("jitted-1.so"));
    for path in [
        "",
        "[heap]",
        "anon_inode:[perf_event]",
        "anon_inode:[io_uring]",
    ] {
        assert!(!is_file(path), "{path}");
    }
}

#[test]
fn an_exec_ends_the_mappings_before_it() {
    let spaces = AddressSpaces::of(vec![
        module(0, 0x1000, 0x9000, "[heap]"),
        module(50, 0, u64::MAX, Module::EXEC),
        module(60, 0x4000_0000_0000, 0x4000_0000_1000, "[heap]"),
    ]);
    let at = |addr, time| spaces.data_at(Pid(1), addr, time).map(|m| m.start);
    assert_eq!(at(0x2000, 49), Some(0x1000));
    assert_eq!(at(0x2000, 70), None);
    assert_eq!(at(0x4000_0000_0800, 70), Some(0x4000_0000_0000));
    let heap = spaces.data_at(Pid(1), 0x2000, 10).unwrap().path;
    assert_eq!(spaces.extent(Pid(1), heap), Some((0x1000, 0x9000)));
}

#[test]
fn code_is_of_what_was_mapped_at_that_time() {
    let code = |time_ns, path: &str| Module {
        executable: true,
        ..module(time_ns, 0x1000, 0x2000, path)
    };
    let spaces = AddressSpaces::of(vec![
        code(10, "/a.so"),
        code(20, "/b.so"),
        module(50, 0, u64::MAX, Module::EXEC),
        code(50, "/c"),
    ]);
    for (when, expected) in [
        (When::At(5), "/a.so"),
        (When::At(15), "/a.so"),
        (When::At(25), "/b.so"),
        (When::At(50), "/c"),
        (When::Latest, "/c"),
    ] {
        let (path, _) = spaces.code_at(Pid(1), 0x1800, when);
        assert_eq!(spaces.path(path), expected, "{when:?}");
    }
}

/// An arena of a thread is reserved and trimmed. Another thread, which is behind in virtual time,
/// gets memory there.
#[test]
fn memory_that_was_unmapped_is_what_comes_after() {
    let spaces = AddressSpaces::of(vec![
        module(10, 0x10_0000, 0x90_0000, "[anon]"),
        module(11, 0x18_0000, 0x90_0000, Module::UNMAPPED),
        module(20, 0x20_0000, 0x30_0000, "[anon]"),
    ]);
    for (addr, time_ns, start) in [
        (0x20_1000, 10, 0x10_0000),
        (0x20_1000, 15, 0x20_0000),
        (0x20_1000, 25, 0x20_0000),
        (0x10_1000, 15, 0x10_0000),
        (0x80_0000, 15, 0x10_0000),
    ] {
        let found = spaces.data_at(Pid(1), addr, time_ns).map(|m| m.start);
        assert_eq!(found, Some(start), "{addr:#x} at {time_ns}");
    }
}

#[test]
fn what_two_programs_of_a_process_call_the_same_is_as_large_as_the_larger() {
    let spaces = AddressSpaces::of(vec![
        module(0, 0x9000, 0xa000, "[stack]"),
        module(50, 0, u64::MAX, Module::EXEC),
        module(60, 0x20_0000, 0x20_3000, "[stack]"),
        module(70, 0x1f_f000, 0x20_3000, "[stack]"),
    ]);
    let stack = spaces.data_at(Pid(1), 0x20_0000, 60).unwrap().path;
    assert_eq!(spaces.extent(Pid(1), stack), Some((0x1f_f000, 0x20_3000)));
}

#[test]
fn functions_of_the_kernel_have_their_names_in_every_process() {
    let mut generated = Generated::default();
    generated.observe(&[GeneratedCode {
        pid: KERNEL_PID,
        start: VirtAddr(0xffff_ffff_8100_0000),
        bytes: 0x100,
        name: "do_work".to_owned(),
        ..GeneratedCode::default()
    }]);
    let spaces = AddressSpaces::of(Vec::new()).with_generated(generated);
    let name = |ip| {
        let (path, place) = spaces.code_at(Pid(7), ip, When::Latest);
        assert_eq!(spaces.path(path), KERNEL);
        spaces
            .generated_name(path, place)
            .map(|known| known.name.as_str())
    };
    assert_eq!(name(0xffff_ffff_8100_00ff), Some("do_work"));
    assert_eq!(name(0xffff_ffff_8100_0100), None);
}

/// Live sources record an exec with an empty range.
#[test]
fn an_exec_without_extent_ends_mappings_too() {
    let spaces = spaces(&[
        module(0, 0x9000, 0xa000, "[stack]"),
        module(50, 0, 0, Module::EXEC),
        module(60, 0x20_0000, 0x20_3000, "[stack]"),
    ]);
    let stack = spaces.data_at(Pid(1), 0x20_0000, 60).unwrap().path;
    assert_eq!(spaces.extent(Pid(1), stack), Some((0x20_0000, 0x20_3000)));
    assert_eq!(spaces.data_at(Pid(1), 0x9000, 60), None);
}

/// As the kernel reports an arena that grows: each time as a whole.
#[test]
fn anonymous_memory_that_grew_is_one_region() {
    let big = OWN_REGION_BYTES;
    let spaces = spaces(&[
        module(1, 10 * big, 12 * big, "[anon]"),
        module(2, 9 * big, 12 * big, "[anon]"),
        module(3, 8 * big, 12 * big, "[anon]"),
    ]);
    for (addr, time) in [(11 * big, 1), (9 * big, 2), (8 * big, 9)] {
        let mapping = *spaces.data_at(Pid(1), addr, time).unwrap();
        let region = spaces.anonymous_region(Pid(1), &mapping);
        assert_eq!(region, (8 * big, 12 * big));
    }
}

#[test]
fn code_in_memory_that_was_made_executable_later_is_generated() {
    let spaces = spaces(&[module(0, 0x1000, 0x2000, "[anon]")]);
    check_code(&spaces, 0x1234, (JIT, 0));
}

#[test]
fn generated_code_has_the_name_that_was_given_last() {
    let piece = |start, bytes, name: &str| GeneratedCode {
        pid: Pid(1),
        start: VirtAddr(start),
        bytes,
        name: name.to_owned(),
        ..GeneratedCode::default()
    };
    let mut generated = Generated::default();
    generated.observe(&[
        piece(0x1000, 0x100, "old"),
        piece(0x1100, 0x100, "beside"),
        piece(0x1000, 0x80, "new"),
    ]);
    let spaces = spaces(&[code(0, 0x1000, 0x2000, "[anon]")]).with_generated(generated);
    let name = |ip| {
        let (path, number) = spaces.code_at(Pid(1), ip, When::Latest);
        assert_eq!(spaces.path(path), JIT);
        spaces
            .generated_name(path, number)
            .map(|known| known.name.as_str())
    };
    assert_eq!(name(0x1000), Some("new"));
    assert_eq!(name(0x1080), None);
    assert_eq!(name(0x1150), Some("beside"));
    assert_eq!(name(0x1200), None);
}

pub(crate) fn code(time_ns: u64, start: u64, end: u64, path: &str) -> Module {
    Module {
        executable: true,
        ..module(time_ns, start, end, path)
    }
}

pub(crate) fn spaces(modules: &[Module]) -> AddressSpaces {
    let mut all = Modules::default();
    all.observe(modules);
    all.finish()
}

fn check_code(spaces: &AddressSpaces, ip: u64, expected: (&str, u64)) {
    let (path, offset) = spaces.code_at(Pid(1), ip, When::Latest);
    assert_eq!((spaces.path(path), offset), expected);
}

#[test]
fn code_offset_is_counted_from_the_files_start() {
    let mut lib = code(0, 0x1000, 0x3000, "/lib/a.so");
    lib.file_offset = 0x500;
    let spaces = spaces(&[lib]);
    check_code(&spaces, 0x1010, ("/lib/a.so", 0x510));
    check_code(&spaces, 0x3000, (UNKNOWN, 0));
    check_code(&spaces, 0xfff, (UNKNOWN, 0));
}

#[test]
fn later_mapping_takes_the_code_of_an_earlier_one() {
    let old = code(5, 0x1000, 0x9000, "/lib/old.so");
    let new = code(9, 0x2000, 0x3000, "/lib/new.so");
    let spaces = spaces(&[new, old]);
    check_code(&spaces, 0x2000, ("/lib/new.so", 0));
    check_code(&spaces, 0x4000, ("/lib/old.so", 0x3000));
}

#[test]
fn data_mappings_never_hold_code() {
    let spaces = spaces(&[
        code(0, 0x1000, 0x2000, "/bin/p"),
        module(7, 0x1000, 0x2000, "/data"),
    ]);
    check_code(&spaces, 0x1800, ("/bin/p", 0x800));
}

#[test]
fn code_of_no_file_is_generated_code() {
    let spaces = spaces(&[
        code(0, 0x1000, 0x2000, "[anon]"),
        code(0, 0x5000, 0x6000, "/memfd:jit (deleted)"),
        code(0, 0x8000, 0x9000, "[vdso]"),
    ]);
    check_code(&spaces, 0x1234, (JIT, 0));
    check_code(&spaces, 0x5234, (JIT, 0));
    check_code(&spaces, 0x8234, ("[vdso]", 0x234));
}

#[test]
fn processes_do_not_share_mappings() {
    let spaces = spaces(&[code(0, 0x1000, 0x2000, "/bin/p")]);
    assert_eq!(
        spaces.path(spaces.code_at(Pid(2), 0x1000, When::Latest).0),
        UNKNOWN
    );
}

#[test]
fn touching_small_anonymous_mappings_are_one_region_and_big_ones_their_own() {
    let big = OWN_REGION_BYTES;
    let spaces = spaces(&[
        module(0, 0x1000, 0x2000, "[anon]"),
        module(1, 0x2000, 0x4000, "[anon]"),
        module(2, 0x4000, 0x4000 + big, "[anon]"),
        module(3, 0x4000 + big, 0x4000 + 2 * big, "[anon]"),
    ]);
    let region = |addr| {
        let mapping = spaces.data_at(Pid(1), addr, 9).unwrap();
        spaces.anonymous_region(Pid(1), mapping)
    };
    assert_eq!(region(0x1500), (0x1000, 0x4000));
    assert_eq!(region(0x3500), (0x1000, 0x4000));
    assert_eq!(region(0x4000), (0x4000, 0x4000 + big));
    assert_eq!(region(0x4000 + big), (0x4000 + big, 0x4000 + 2 * big));
}

fn modules() -> impl Strategy<Value = Vec<Module>> {
    let one = (0u64..20, 0u64..100, 1u64..40);
    let one = one.prop_map(|(t, start, len)| module(t, start, start + len, "[anon]"));
    prop::collection::vec(one, 0..20)
}

proptest! {
    #[test]
    fn data_look_up_equals_the_oracle(
        modules in modules(), addr in 0u64..150, time in 0u64..22,
    ) {
        let spaces = spaces(&modules);
        let found = spaces.data_at(Pid(1), addr, time).map(|m| (m.time_ns, m.start, m.end));
        let expected = oracle::mapping_at(&modules, addr, time);
        prop_assert_eq!(found, expected.map(|m| (m.time_ns, m.start.0, m.end.0)));
    }
}
