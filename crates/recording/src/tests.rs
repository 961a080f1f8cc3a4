//! Tests that need internals: a full disk, and parts forged with matching checksums.

use super::sink::{CHECKSUM_DIGITS, CRC_DIGITS, Create, OutputFile, checksum_position};
use super::*;
use memgauge_trace::*;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A disk with room for this many bytes. Deleting files does not free any.
#[derive(Clone)]
struct SmallDisk(Arc<AtomicUsize>);

struct SmallFile(std::fs::File, SmallDisk);

impl io::Write for SmallFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.1.0.load(Ordering::SeqCst).min(bytes.len());
        if room == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.1.0.fetch_sub(room, Ordering::SeqCst);
        self.0.write(&bytes[..room])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SmallDisk {
    fn of(bytes: usize) -> Self {
        SmallDisk(Arc::new(AtomicUsize::new(bytes)))
    }

    fn create(&self) -> Create {
        let disk = self.clone();
        Arc::new(move |path: &Path| {
            let file = std::fs::File::create(path)?;
            Ok(Box::new(SmallFile(file, disk.clone())) as OutputFile)
        })
    }

    fn set_room(&self, bytes: usize) {
        self.0.store(bytes, Ordering::SeqCst);
    }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.mg");
    (dir, path)
}

fn sample(time_ns: u64) -> Sample {
    Sample {
        time_ns,
        ip: VirtAddr(time_ns.wrapping_mul(0x9E37_79B9)),
        ..Sample::default()
    }
}

fn times(recording: &Recording) -> Vec<u64> {
    let rows = recording.rows::<Sample>(&Selection::all());
    rows.flat_map(|rows| rows.unwrap())
        .map(|row| row.time_ns)
        .collect()
}

#[test]
fn full_disk_keeps_closed_parts_and_reports_the_loss() {
    let (_dir, path) = place();
    let disk = SmallDisk::of(1 << 20);
    let mut writer = Writer::create_with(&path, Manifest::default(), disk.create()).unwrap();
    let each_10_ms = |number: u64| sample(number * 10_000_000);
    writer.extend((0..100).map(each_10_ms)).unwrap();
    writer.flush().unwrap();
    disk.set_room(1_000);
    writer.extend((100..9_000).map(each_10_ms)).unwrap();
    let error = writer.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DiskFull);
    let expected = "no space left; free some or record to another disk; the 100 rows of table `samples` written before are kept, 8900 are lost from 0.99 s on";
    assert!(error.to_string().ends_with(expected), "{error}");
    assert_eq!(std::fs::read_dir(path.join("samples")).unwrap().count(), 1);
    assert_eq!(writer.lost_rows(), 8_900);
    assert_eq!(
        times(&Recording::open(&path).unwrap()),
        (0..100).map(|n| n * 10_000_000).collect::<Vec<_>>()
    );
}

#[test]
fn writer_continues_when_there_is_room_again_and_reports_the_loss() {
    let (_dir, path) = place();
    let disk = SmallDisk::of(1 << 20);
    let mut writer = Writer::create_with(&path, Manifest::default(), disk.create()).unwrap();
    writer.extend((0..10).map(sample)).unwrap();
    disk.set_room(10);
    writer.flush().unwrap_err();
    disk.set_room(1 << 20);
    writer.extend((10..20).map(sample)).unwrap();
    writer
        .finish(|manifest| manifest.recorder = "ended".into())
        .unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!(times(&recording), (10..20).collect::<Vec<_>>());
    assert_eq!(recording.problems(), Vec::<String>::new());
    assert_eq!(recording.manifest().recorder, "ended");
    assert!(!recording.manifest().complete);
    let losses: Vec<Loss> = recording
        .rows::<Loss>(&Selection::all())
        .flat_map(|rows| rows.unwrap())
        .collect();
    let kind = LossKind::PartNotWritten;
    let detail = "rows of table samples from 0.00 s on".to_owned();
    assert_eq!(
        losses,
        [Loss {
            kind,
            count: 10,
            detail,
            ..Loss::default()
        }]
    );
}

#[test]
fn failed_manifest_update_keeps_the_old_manifest() {
    let (_dir, path) = place();
    let disk = SmallDisk::of(1 << 20);
    let mut writer = Writer::create_with(&path, Manifest::default(), disk.create()).unwrap();
    writer
        .update_manifest(|manifest| manifest.recorder = "first".into())
        .unwrap();
    disk.set_room(20);
    let error = writer
        .finish(|manifest| manifest.recorder = "second".into())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DiskFull);
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1);
    assert_eq!(Recording::open(&path).unwrap().manifest().recorder, "first");
}

#[test]
fn disk_filling_at_any_time_leaves_a_readable_recording() {
    for room in (0..6_000).step_by(97) {
        let (_dir, path) = place();
        let disk = SmallDisk::of(1 << 20);
        let mut writer = Writer::create_with(&path, Manifest::default(), disk.create()).unwrap();
        disk.set_room(room);
        let first = writer
            .extend((0..10).map(sample))
            .and_then(|()| writer.flush());
        let second = writer
            .extend((10..20).map(sample))
            .and_then(|()| writer.flush());
        let expected = [(first, 0..10), (second, 10..20)];
        let expected = expected.into_iter().filter(|(written, _)| written.is_ok());
        let expected: Vec<u64> = expected.flat_map(|(_, times)| times).collect();
        let _ = writer.finish(|_| {});
        let recording = Recording::open(&path).unwrap();
        assert_eq!(recording.problems(), Vec::<String>::new());
        assert_eq!(times(&recording), expected, "room for {room} bytes");
    }
}

/// Recomputes the checksums of an altered part.
fn reseal(part: &mut [u8]) {
    let tail = part.len() - 8;
    let length: [u8; 4] = part[tail..tail + 4].try_into().unwrap();
    let footer_at = tail.saturating_sub(u32::from_le_bytes(length) as usize);
    let Some(at) = checksum_position(&part[footer_at..]) else {
        return;
    };
    let at = footer_at + at;
    let data = format!("{:08x}", crc32fast::hash(&part[..footer_at]));
    part[at..at + CRC_DIGITS].copy_from_slice(data.as_bytes());
    part[at + CRC_DIGITS..at + CHECKSUM_DIGITS].fill(b'0');
    let footer = format!("{:08x}", crc32fast::hash(&part[footer_at..]));
    part[at + CRC_DIGITS..at + CHECKSUM_DIGITS].copy_from_slice(footer.as_bytes());
}

#[test]
fn forged_parts_never_panic() {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    writer.extend((0..3_000).map(sample)).unwrap();
    writer.finish(|_| {}).unwrap();
    let part_path = path.join("samples/part-000000.parquet");
    let sound = std::fs::read(&part_path).unwrap();
    let mut unaltered = sound.clone();
    reseal(&mut unaltered);
    assert!(unaltered == sound);
    let mut noticed = 0;
    let mut dice = 0x2545_F491_4F6C_DD1D_u64;
    for round in 0..1_200 {
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let near_end = round % 2 * (sound.len() - 2_000.min(sound.len()));
        let at = near_end + (dice >> 33) as usize % (sound.len() - 8 - near_end);
        let mut forged = sound.clone();
        forged[at] ^= (dice >> 20) as u8 | 1;
        reseal(&mut forged);
        std::fs::write(&part_path, &forged).unwrap();
        let recording = Recording::open(&path).unwrap();
        let errors = recording
            .rows::<Sample>(&Selection::all())
            .filter(|rows| rows.is_err())
            .count();
        noticed += (errors + recording.problems().len()).min(1);
    }
    assert!(noticed > 0);
}

/// Returns name, type and nullability of a table's columns from `docs/format.md`.
fn documented<R: Row>(text: &str) -> Vec<[String; 3]> {
    let heading = format!("### `{}`\n", R::TABLE);
    let (_, section) = text.split_once(&heading).unwrap();
    let lines = section.lines().skip_while(|line| !line.starts_with("| `"));
    let lines = lines.take_while(|line| line.starts_with("| `"));
    let cell = |line: &str, n: usize| {
        line.split('|')
            .nth(n)
            .unwrap()
            .trim()
            .trim_matches('`')
            .to_owned()
    };
    lines.map(|line| [1, 2, 3].map(|n| cell(line, n))).collect()
}

#[track_caller]
fn check_documented<R: Row>(text: &str) {
    let schema = super::columns::schema(R::COLUMNS);
    let fields = schema.fields().iter().map(|field| {
        let kind = match field.data_type().to_string().as_str() {
            "UInt8" => "UINT_8",
            "UInt16" => "UINT_16",
            "UInt32" => "UINT_32",
            "UInt64" => "UINT_64",
            "Boolean" => "BOOLEAN",
            "Utf8" => "STRING",
            "Binary" => "BINARY",
            other => panic!("the format has no type {other}"),
        };
        let null = if field.is_nullable() { "yes" } else { "no" };
        [field.name().as_str(), kind, null].map(str::to_owned)
    });
    assert_eq!(documented::<R>(text), fields.collect::<Vec<_>>());
}

#[test]
fn documented_columns_are_those_written() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
    let text = std::fs::read_to_string(path).unwrap();
    macro_rules! check {
        ($($row:ident in $table:ident, $name:literal;)+) => {
            $( check_documented::<memgauge_trace::$row>(&text); )+
        };
    }
    super::tables::each_table!(check);
}

#[test]
fn failed_file_creation_is_reported_with_the_reason() {
    let (_dir, path) = place();
    let refuse: Create = Arc::new(|path: &Path| match path.extension() {
        Some(_) if path.to_string_lossy().contains("part-") => {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }
        _ => Ok(Box::new(std::fs::File::create(path)?) as OutputFile),
    });
    let mut writer = Writer::create_with(&path, Manifest::default(), refuse).unwrap();
    writer.push(sample(1)).unwrap();
    let error = writer.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(
        error.to_string().contains("the file system is read-only"),
        "{error}"
    );
    assert_eq!(writer.lost_rows(), 1);
}

/// Returns the names of a table's files.
fn parts_of(path: &Path) -> Vec<String> {
    let files = std::fs::read_dir(path.join("samples")).unwrap();
    let mut names: Vec<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn small_table_has_one_part_however_often_it_is_closed() {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    for round in 0..5 {
        writer
            .extend((round * 10..round * 10 + 10).map(sample))
            .unwrap();
        writer.flush_so_far().unwrap();
        // A recorder killed now would leave all rows so far.
        let rows = times(&Recording::open(&path).unwrap());
        assert_eq!(rows, (0..round * 10 + 10).collect::<Vec<_>>());
        assert_eq!(parts_of(&path), ["part-000000.parquet"]);
    }
    let bytes = writer.bytes_written();
    writer.finish(|_| {}).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!(recording.problems(), Vec::<String>::new());
    assert_eq!(recording.manifest().tables["samples"].parts, 1);
    let on_disk = path
        .join("samples/part-000000.parquet")
        .metadata()
        .unwrap()
        .len();
    assert!(
        bytes > on_disk && bytes < on_disk + 4_000,
        "{bytes} and {on_disk}"
    );
}

#[test]
fn large_part_is_final_and_the_next_one_starts_small() {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    let ends = [10, 16_000, 17_000, 17_010, 17_020];
    let mut from = 0;
    for end in ends {
        writer.extend((from..end).map(sample)).unwrap();
        writer.flush_so_far().unwrap();
        from = end;
    }
    writer.finish(|_| {}).unwrap();
    assert_eq!(
        parts_of(&path),
        ["part-000000.parquet", "part-000001.parquet"]
    );
    let recording = Recording::open(&path).unwrap();
    assert_eq!(times(&recording), (0..17_020).collect::<Vec<_>>());
    assert_eq!(recording.manifest().tables["samples"].parts, 2);
}

#[test]
fn part_that_cannot_be_replaced_is_kept() {
    let (_dir, path) = place();
    let disk = SmallDisk::of(1 << 20);
    let mut writer = Writer::create_with(&path, Manifest::default(), disk.create()).unwrap();
    writer.extend((0..10).map(sample)).unwrap();
    writer.flush_so_far().unwrap();
    disk.set_room(10);
    writer.extend((10..20).map(sample)).unwrap();
    writer.flush_so_far().unwrap_err();
    assert_eq!(writer.lost_rows(), 10);
    disk.set_room(1 << 20);
    writer.extend((20..30).map(sample)).unwrap();
    writer.finish(|_| {}).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!(recording.problems(), Vec::<String>::new());
    assert_eq!(times(&recording), (0..10).chain(20..30).collect::<Vec<_>>());
}

#[test]
fn table_is_added_once_to_a_finished_recording() {
    let (_dir, path) = place();
    let writer = Writer::create(&path, Manifest::default()).unwrap();
    writer.finish(|_| {}).unwrap();
    assert!(super::add_table(&path, &[sample(1), sample(2)]).unwrap() > 0);
    assert!(super::add_table(&path, &[sample(3)]).is_err());
    let recording = Recording::open(&path).unwrap();
    assert_eq!(recording.problems(), Vec::<String>::new());
    assert_eq!(times(&recording), [1, 2]);
    assert_eq!(recording.manifest().tables["samples"].parts, 1);
}

#[test]
fn a_table_that_fills_a_part_at_once_has_a_part_for_each_time_it_was_closed() {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    for round in 0..3 {
        let rows = round * 20_000..(round + 1) * 20_000;
        writer.extend(rows.map(sample)).unwrap();
        writer.flush_so_far().unwrap();
    }
    writer.finish(|_| {}).unwrap();
    assert_eq!(parts_of(&path).len(), 3);
    let recording = Recording::open(&path).unwrap();
    assert_eq!(times(&recording), (0..60_000).collect::<Vec<_>>());
}
