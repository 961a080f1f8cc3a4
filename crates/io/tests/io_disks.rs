//! Accounting of disks against known amounts and the disk's own counters. Needs root
//! and a kernel that takes the programs; says why it is skipped elsewhere.

#![allow(clippy::unwrap_used)]

mod io;

use std::collections::BTreeSet;

use memgauge_host::memory_counters::NoMemoryCounters;
use memgauge_io::{AccountingOptions, IoFilter, Meter, list_devices};
use memgauge_testing::{Need, skipped};
use memgauge_trace::{Direction, Owner};

use io::{Actor, Disk, MIB, Mirror, account, act, everyone, fresh, quiet, session, sh};

const SIZE: u64 = 16 * MIB;
const SIZE_TEXT: &str = "16777216";

/// Metadata that a first look at a file reads: a directory's block, the inode's.
const METADATA: u64 = 8 * 4096;

fn check_read(deed: &str) {
    let Some((mut session, _turn)) = session() else {
        return;
    };
    let disk = Disk::new();
    let path = disk.file("data", SIZE);
    let before = (
        disk.counted().0,
        everyone(&mut session, disk.id).input.bytes,
    );
    let pid = act(&[deed, &path]);
    let read = account(&mut session, pid, disk.id);
    assert!(
        (SIZE..=SIZE + METADATA).contains(&read.input.bytes),
        "{read:?}"
    );
    assert_eq!(read.output.bytes, 0);
    let counted = disk.counted().0 - before.0;
    assert_eq!(
        everyone(&mut session, disk.id).input.bytes - before.1,
        counted
    );
    if deed != "read_direct" {
        // The kernel may have dropped the pages from its cache, but it does not do so each time.
        let cached = (0..5).any(|_| {
            let again = act(&[deed, &path]);
            account(&mut session, again, disk.id).input.bytes == 0
        });
        assert!(cached);
    }
}

#[test]
fn direct_reads_belong_to_the_reader() {
    check_read("read_direct");
}

#[test]
fn buffered_reads_belong_to_the_reader_once() {
    check_read("read_buffered");
}

#[test]
fn reads_through_a_mapping_belong_to_the_process_that_faults() {
    check_read("read_mapped");
}

/// Runs the writers, then the flush. Each must have written exactly its number of bytes.
fn check_write(prepare: u64, writers: &[(&[&str], u64)], flush: &[&str]) {
    let Some((mut session, _turn)) = session() else {
        return;
    };
    let disk = Disk::new();
    let path = disk.path("data");
    if prepare > 0 {
        disk.file("data", prepare);
    }
    let words = |words: &[&str]| -> Vec<String> {
        words
            .iter()
            .map(|w| {
                if *w == "PATH" {
                    path.clone()
                } else {
                    (*w).to_owned()
                }
            })
            .collect()
    };
    let run = |deed: &[&str]| {
        let words = words(deed);
        act(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let before = (
        disk.counted().1,
        everyone(&mut session, disk.id).output.bytes,
    );
    let pids: Vec<u32> = writers.iter().map(|(deed, _)| run(deed)).collect();
    let flusher = match flush {
        [] => 0,
        ["everything"] => {
            disk.forget();
            0
        }
        _ => run(flush),
    };
    for (pid, (deed, bytes)) in pids.iter().zip(writers) {
        let written = account(&mut session, *pid, disk.id).output.bytes;
        assert_eq!(written, *bytes, "{deed:?}");
    }
    assert_eq!(account(&mut session, flusher, disk.id).output.bytes, 0);
    disk.forget();
    let counted = disk.counted().1 - before.0;
    let sum = everyone(&mut session, disk.id).output.bytes - before.1;
    assert_eq!(sum, counted, "all that the disk counted has an owner");
}

#[test]
fn direct_writes_belong_to_the_writer() {
    check_write(0, &[(&["write_direct", "PATH", SIZE_TEXT], SIZE)], &[]);
}

#[test]
fn buffered_writes_belong_to_the_writer_that_syncs_itself() {
    check_write(
        0,
        &[(&["write", "PATH", "0", SIZE_TEXT, "fsync"], SIZE)],
        &[],
    );
}

#[test]
fn buffered_writes_belong_to_a_writer_that_has_ended_when_another_syncs() {
    check_write(
        0,
        &[(&["write", "PATH", "0", SIZE_TEXT], SIZE)],
        &["sync", "PATH"],
    );
}

#[test]
fn buffered_writes_belong_to_the_writer_when_the_system_flushes() {
    check_write(
        0,
        &[(&["write", "PATH", "0", SIZE_TEXT], SIZE)],
        &["everything"],
    );
}

#[test]
fn halves_of_a_file_belong_to_their_writers() {
    let half = (8 * MIB).to_string();
    check_write(
        0,
        &[
            (&["write", "PATH", "0", &half], 8 * MIB),
            (&["write", "PATH", &half, &half], 8 * MIB),
        ],
        &["sync", "PATH"],
    );
}

#[test]
fn alternate_pages_belong_to_their_writers() {
    check_write(
        SIZE,
        &[
            (&["write_pages", "PATH", "0", "2", "2048"], 8 * MIB),
            (&["write_pages", "PATH", "1", "2", "2048"], 8 * MIB),
        ],
        &["sync", "PATH"],
    );
}

#[test]
fn the_last_writer_of_a_page_is_charged() {
    check_write(
        SIZE,
        &[
            (&["write_pages", "PATH", "0", "1", "512"], MIB),
            (&["write_pages", "PATH", "256", "1", "512"], 2 * MIB),
        ],
        &["sync", "PATH"],
    );
}

#[test]
fn earlier_writer_of_a_cleaned_page_is_not_charged_again() {
    check_write(
        SIZE,
        &[
            (&["write_pages", "PATH", "0", "1", "512"], MIB),
            (&["write_pages", "PATH", "256", "1", "512"], 2 * MIB),
            (&["sync", "PATH"], 0),
            (&["write_pages", "PATH", "0", "1", "512"], 3 * MIB / 2),
            (&["write_pages", "PATH", "256", "1", "128"], MIB / 2),
        ],
        &["sync", "PATH"],
    );
}

#[test]
fn a_mapping_adds_what_was_not_dirty_before() {
    check_write(
        SIZE,
        &[
            (&["write_pages", "PATH", "0", "1", "512"], 2 * MIB),
            (&["write_mapped", "PATH"], SIZE - 2 * MIB),
        ],
        &["sync", "PATH"],
    );
}

#[test]
fn writes_through_a_mapping_belong_to_the_process_that_faults() {
    check_write(
        SIZE,
        &[(&["write_mapped", "PATH"], SIZE)],
        &["sync", "PATH"],
    );
}

#[test]
fn a_file_that_is_removed_before_it_is_written_back_costs_nothing() {
    check_write(
        0,
        &[(&["write_unlink", "PATH", SIZE_TEXT], 0)],
        &["everything"],
    );
}

#[test]
fn small_writes_add_up_to_pages() {
    check_write(
        0,
        &[(&["write_small", "PATH", "1000", "100"], 25 * 4096)],
        &[],
    );
}

#[test]
fn an_owner_that_has_ended_keeps_its_name_user_and_group() {
    let Some((mut session, _turn)) = session() else {
        return;
    };
    let Some(root) = memgauge_io::unified_hierarchy() else {
        skipped(Need::Kernel, "no control groups of version 2");
        return;
    };
    let disk = Disk::new();
    let group = root.join(format!("memgauge-test-{}", std::process::id()));
    std::fs::create_dir_all(&group).unwrap();
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec dd if=/dev/zero of={} bs=1M count=4 2>/dev/null",
        group.display(),
        disk.path("data")
    );
    sh(&format!("sh -c '{script}'"));
    disk.forget();
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&group).unwrap());
    let path = memgauge_io::cgroup_path(inode);
    std::fs::remove_dir(&group).unwrap();
    let accounts = session.accounts().unwrap();
    let found = accounts.iter().find(|((o, d), a)| {
        *d == disk.id && a.output.bytes == 4 * MIB && session.facts(*o).unwrap().command == "dd"
    });
    let ((owner, _), _) = found.expect("dd's account");
    let facts = session.facts(*owner).unwrap();
    assert_eq!((facts.uid, facts.cgroup, facts.kernel), (0, inode, false));
    assert!(
        path.unwrap()
            .ends_with(&format!("memgauge-test-{}", std::process::id()))
    );
}

#[test]
fn bytes_without_an_account_go_to_the_control_group() {
    let disk = Disk::new();
    let path = disk.path("data");
    let setup = AccountingOptions {
        max_accounts: Some(1),
        ..AccountingOptions::default()
    };
    let Some((mut session, _turn)) = fresh(setup) else {
        return;
    };
    for _ in 0..2 {
        act(&["write_direct", &path, SIZE_TEXT]);
    }
    let written = everyone(&mut session, disk.id).output.bytes;
    assert!(
        (2 * SIZE..=2 * SIZE + METADATA).contains(&written),
        "{written}"
    );
    let losses = session.losses().unwrap();
    assert!(
        losses.iter().all(|loss| loss.name != "accounts_full"),
        "{losses:?}"
    );
}

/// There are more short processes than accounts, and their pages are written back when all have
/// ended. Each byte is in the account of a process or of a control group.
#[test]
fn a_burst_of_short_processes_is_accounted_to_the_last_byte() {
    const CHILDREN: u64 = 2000;
    let disk = Disk::new();
    let setup = AccountingOptions {
        max_accounts: Some(256),
        ..AccountingOptions::default()
    };
    let Some((mut session, _turn)) = fresh(setup) else {
        return;
    };
    disk.forget();
    let before = disk.counted().1;
    act(&["burst", &disk.path("."), &CHILDREN.to_string()]);
    disk.forget();
    let counted = disk.counted().1 - before;
    let accounts = session.accounts().unwrap();
    let of_disk = accounts.iter().filter(|(key, _)| key.1 == disk.id);
    let of_disk: Vec<_> = of_disk.map(|(key, a)| (key.0, a.output.bytes)).collect();
    let sum: u64 = of_disk.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(sum, counted);
    assert!(sum >= CHILDREN * 8192);
    let groups = of_disk.iter().filter(|(owner, _)| owner.pid().0 == 0);
    let groups: Vec<_> = groups.collect();
    let group_accounts: u64 = groups.iter().map(|(_, bytes)| bytes).sum();
    assert!(
        group_accounts >= (CHILDREN - 256) * 8192,
        "{group_accounts}"
    );
    for (owner, _) in groups {
        let facts = session.facts(*owner).unwrap();
        assert!(
            facts.command.starts_with("other processes of /"),
            "{facts:?}"
        );
    }
    let losses = session.losses().unwrap();
    assert!(
        losses.iter().all(|loss| loss.name != "accounts_full"),
        "{losses:?}"
    );
}

/// Dropping accounts after they were reported loses nothing, although pages of ended processes are
/// written back even later.
#[test]
fn accounts_of_ended_processes_are_dropped_without_a_loss() {
    const CHILDREN: u64 = 200;
    let Some(_turn) = quiet() else {
        return;
    };
    let disk = Disk::new();
    disk.forget();
    let setup = AccountingOptions {
        max_accounts: Some(256),
        forget_ended: true,
        ..AccountingOptions::default()
    };
    let counters = Box::new(NoMemoryCounters(String::new()));
    let mut meter = Meter::start(IoFilter::default(), setup, counters).unwrap();
    let before = disk.counted().1;
    let (mut told, mut unnamed, mut owners) = (0, 0, BTreeSet::new());
    let mut interval = |meter: &mut Meter| {
        for row in meter.read(false).unwrap().rows {
            if row.device != disk.id || row.direction != Direction::Out {
                continue;
            }
            if row.owner != Owner::DEVICE {
                told += row.bytes;
                owners.insert(row.owner);
                unnamed += usize::from(meter.owner(row.owner).is_none());
            }
        }
    };
    for _ in 0..3 {
        act(&["burst_twice", &disk.path("."), &CHILDREN.to_string()]);
        // The processes are seen, found to have ended, reported for the last time, and dropped.
        for _ in 0..4 {
            interval(&mut meter);
        }
        disk.forget();
        interval(&mut meter);
    }
    assert_eq!(told, disk.counted().1 - before);
    assert!(told >= 3 * CHILDREN * 24576, "{told}");
    assert_eq!(unnamed, 0);
    let known = owners.iter().filter(|owner| meter.owner(**owner).is_some());
    assert!(known.count() < owners.len(), "some are forgotten");
}

#[test]
fn reads_through_a_ring_of_requests_belong_to_its_process() {
    let Some((mut session, _turn)) = session() else {
        return;
    };
    let disk = Disk::new();
    let path = disk.file("data", SIZE);
    let mut actor = Actor::start(&["env"], &["read_uring", &path]);
    let said = actor.line();
    let pid = actor.end();
    if said.starts_with("none") {
        skipped(Need::Kernel, format!("no io_uring here ({said})"));
        return;
    }
    let read = account(&mut session, pid, disk.id).input.bytes;
    assert!((SIZE..=SIZE + METADATA).contains(&read), "{read}");
}

#[test]
fn threads_have_accounts_of_their_own_where_that_is_asked_for() {
    let setup = AccountingOptions {
        by_thread: true,
        ..AccountingOptions::default()
    };
    let Some((mut session, _turn)) = fresh(setup) else {
        return;
    };
    let disk = Disk::new();
    let sizes = [4 * MIB, 8 * MIB];
    let words = sizes.map(|size| size.to_string());
    let mut actor = Actor::start(
        &["env"],
        &["write_threads", &disk.path("data"), &words[0], &words[1]],
    );
    let said = actor.line();
    let process = actor.end();
    for (thread, size) in said.split(' ').zip(sizes) {
        let (_, tid) = thread.split_once(':').unwrap();
        let tid: u32 = tid.parse().unwrap();
        assert_ne!(tid, process);
        let written = account(&mut session, tid, disk.id).output.bytes;
        assert!(
            (size..=size + METADATA).contains(&written),
            "{written} of {size}"
        );
        let accounts = session.accounts().unwrap();
        let owner = accounts.keys().find(|(o, _)| o.pid().0 == tid).unwrap().0;
        assert_eq!(session.facts(owner).unwrap().process, process);
    }
}

/// The kernel gives the next process the id after this one.
fn set_last_pid(pid: u32) -> bool {
    std::fs::write("/proc/sys/kernel/ns_last_pid", pid.to_string()).is_ok()
}

#[test]
fn a_process_id_that_is_used_again_is_another_owner() {
    let Some((mut session, _turn)) = session() else {
        return;
    };
    let disk = Disk::new();
    let words = ["write_direct", &disk.path("first"), "4194304"];
    let first = act(&words);
    let again = [words[0], &disk.path("second"), "8388608"];
    // Another process may get the id in between.
    let used_again = (0..50).any(|_| set_last_pid(first - 1) && act(&again) == first);
    if !used_again {
        skipped(
            Need::Kernel,
            "the kernel does not give the same process id again",
        );
        return;
    }
    let accounts = session.accounts().unwrap();
    let of_pid = accounts
        .iter()
        .filter(|((o, d), _)| o.pid().0 == first && *d == disk.id);
    let mut written: Vec<u64> = of_pid.map(|(_, a)| a.output.bytes / MIB).collect();
    written.sort_unstable();
    assert_eq!(written, [4, 8]);
}

#[test]
fn a_mapped_device_is_charged_above_its_disk_and_knows_it() {
    let Some((mut session, _turn)) = session() else {
        return;
    };
    let name = format!("memgauge-test-{}", std::process::id());
    let Some(disk) = Disk::mapped(&name) else {
        skipped(
            Need::Tool,
            "needs dmsetup and a kernel with the device mapper",
        );
        return;
    };
    let path = disk.file("data", SIZE);
    let pid = act(&["read_direct", &path]);
    let below = disk.below.unwrap();
    for id in [disk.id, below] {
        let read = account(&mut session, pid, id).input.bytes;
        assert!((SIZE..=SIZE + METADATA).contains(&read), "{read}");
    }
    let devices = list_devices(None);
    let (upper, lower) = (&devices[&disk.id].facts, &devices[&below].facts);
    assert_eq!(
        (upper.below.as_str(), upper.is_virtual),
        (lower.name.as_str(), true)
    );
    assert_eq!(upper.kind, format!("dm {name}"));
}

/// A mirror writes to both of its disks and reads from either.
#[test]
fn a_mirror_is_charged_above_its_disks_and_knows_them() {
    let Some((mut session, _turn)) = session() else {
        return;
    };
    let Some(mirror) = Mirror::new() else {
        skipped(Need::Tool, "needs mdadm and a kernel with md and raid1");
        return;
    };
    let writer = act(&["write_direct", &mirror.path, SIZE_TEXT]);
    let mut at = |pid, id| account(&mut session, pid, id);
    let written = |account: memgauge_io::Account| account.output.bytes;
    assert_eq!(written(at(writer, mirror.id)), SIZE);
    for disk in mirror.below {
        assert_eq!(written(at(writer, disk)), SIZE);
    }
    let reader = act(&["read_direct", &mirror.path]);
    let read = at(reader, mirror.id).input.bytes;
    let below: u64 = mirror.below.map(|d| at(reader, d).input.bytes).iter().sum();
    assert!(read > 60 * MIB && below == read, "{below} of {read}");
    let devices = list_devices(None);
    let (upper, lower) = (
        &devices[&mirror.id].facts,
        mirror.below.map(|d| devices[&d].facts.name.clone()),
    );
    let mut below: Vec<&str> = upper.below.split(' ').collect();
    below.sort_unstable();
    let mut expected = lower.to_vec();
    expected.sort_unstable();
    assert_eq!(below, expected);
    assert_eq!(upper.kind, "md raid1");
    assert!(upper.is_virtual);
}

#[test]
fn a_loop_device_knows_the_disk_of_its_file_and_vanishes_with_its_account_kept() {
    let Some(_turn) = quiet() else {
        return;
    };
    let memory = Box::new(NoMemoryCounters("not asked for".to_owned()));
    let mut meter =
        Meter::start(IoFilter::default(), AccountingOptions::default(), memory).unwrap();
    let disk = Disk::new();
    let id = disk.id;
    act(&["write_direct", &disk.path("data"), SIZE_TEXT]);
    let interval = meter.read(true).unwrap();
    let seen = interval.devices.iter().find(|d| d.device == id).unwrap();
    assert!(seen.is_virtual && seen.kind == "loop", "{seen:?}");
    act(&["write_direct", &disk.path("more"), SIZE_TEXT]);
    drop(disk);
    let interval = meter.read(true).unwrap();
    let of_device = interval
        .rows
        .iter()
        .filter(|r| r.device == id && r.owner != Owner::DEVICE);
    let written: u64 = of_device.map(|r| r.bytes).sum();
    assert!(written >= SIZE, "{written}");
}

#[test]
fn xfs_tells_the_last_writer_of_a_page_too() {
    let Some((mut session, _turn)) = session() else {
        return;
    };
    let Some(disk) = Disk::with("mkfs.xfs -q -f") else {
        skipped(Need::Tool, "needs mkfs.xfs and a kernel with xfs");
        return;
    };
    let path = disk.file("data", SIZE);
    let even = act(&["write_pages", &path, "0", "2", "2048"]);
    let odd = act(&["write_pages", &path, "1", "2", "2048"]);
    act(&["sync", &path]);
    for pid in [even, odd] {
        assert_eq!(account(&mut session, pid, disk.id).output.bytes, 8 * MIB);
    }
}
