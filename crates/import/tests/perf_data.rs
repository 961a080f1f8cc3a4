//! Imports of perf.data. Some files are built here byte by byte with known content; they are also
//! truncated at any byte and altered. Recordings of real hardware are compared with the counts that
//! their authors gave and with `perf script`.

#![allow(clippy::unwrap_used)]

use memgauge_testing::{Need, skipped};
use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use memgauge_import::{Input, convert, import};
use memgauge_recording::{Recording, Row, Selection};
use memgauge_trace::{DataSource, Loss, LossKind, Module, Sample, SeriesRow, Thread};

/// IP, TID, TIME, ADDR, ID, CPU, PERIOD, DATA_SRC, WEIGHT_STRUCT.
const SAMPLE_TYPE: u64 = 0x1 | 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 1 << 15 | 1 << 24;

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(misc.to_le_bytes());
    bytes.extend((8 + body.len() as u16).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// An attribute of 128 bytes: hardware event `config`, IDs in all trailers.
fn attribute(config: u64, sample_type: u64, read_format: u64) -> Vec<u8> {
    let mut bytes = vec![0u8; 128];
    bytes[4..8].copy_from_slice(&128u32.to_le_bytes());
    bytes[8..16].copy_from_slice(&config.to_le_bytes());
    bytes[16..24].copy_from_slice(&1000u64.to_le_bytes());
    bytes[24..32].copy_from_slice(&sample_type.to_le_bytes());
    bytes[32..40].copy_from_slice(&read_format.to_le_bytes());
    bytes[40..48].copy_from_slice(&(1u64 << 18).to_le_bytes());
    bytes
}

fn padded(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(text.len() / 8 * 8 + 8, 0);
    bytes
}

/// A record with the trailer of [`SAMPLE_TYPE`]: TID, time, ID, CPU.
fn side_band(kind: u32, misc: u16, body: &[u8], time_ns: u64) -> Vec<u8> {
    let trailer = words(&[pair(7, 8), time_ns, 100, 1]);
    record(kind, misc, &[body, &trailer].concat())
}

/// Sample `i` of event 100 or 101. Address, latency and source are computed from `i`.
fn sample(i: u64) -> Vec<u8> {
    let source = if i.is_multiple_of(2) {
        0x6810_0142
    } else {
        0x6810_0842
    };
    let (ip, addr, id) = (0x40_0000 + i, 0x7000 + 8 * i, 100 + i % 2);
    let head = [ip, pair(7, 8), 1000 + i, addr, id, 1, 500];
    record(9, 2, &words(&[&head[..], &[30 + i, source]].concat()))
}

fn records() -> Vec<u8> {
    let comm = [words(&[pair(7, 7)]), padded("prog")].concat();
    let map = words(&[pair(7, 7), 0x40_0000, 0x1000, 0x2000, 0, 0, 0, pair(5, 2)]);
    let mut bytes = side_band(3, 1 << 13, &comm, 900);
    bytes.extend(side_band(10, 0, &[map, padded("/bin/prog")].concat(), 910));
    bytes.extend(side_band(7, 0, &words(&[pair(7, 7), pair(8, 7), 950]), 950));
    bytes.extend((0..20).flat_map(sample));
    bytes.extend(side_band(2, 0, &words(&[100, 3]), 1050));
    bytes.extend(side_band(13, 0, &words(&[2]), 1051));
    bytes.extend(side_band(5, 0, &words(&[1052, 100, 100]), 1052));
    bytes.extend(side_band(
        4,
        0,
        &words(&[pair(7, 7), pair(8, 7), 1060]),
        1060,
    ));
    bytes
}

/// A file with the feature HOSTNAME after its data.
fn file(attributes: &[Vec<u8>], data: &[u8]) -> Vec<u8> {
    let ids = words(&(100..100 + attributes.len() as u64).collect::<Vec<_>>());
    let numbered = attributes.iter().enumerate();
    let entry =
        |(n, attr): (usize, &Vec<u8>)| [attr.clone(), words(&[104 + 8 * n as u64, 8])].concat();
    let entries: Vec<u8> = numbered.flat_map(entry).collect();
    let attrs_at = 104 + ids.len() as u64;
    let (attrs_bytes, data_bytes) = (entries.len() as u64, data.len() as u64);
    let data_at = attrs_at + attrs_bytes;
    let head = [
        104,
        144,
        attrs_at,
        attrs_bytes,
        data_at,
        data_bytes,
        0,
        0,
        1 << 3,
        0,
        0,
        0,
    ];
    let name = [&5u32.to_le_bytes()[..], b"host\0"].concat();
    let feature = words(&[data_at + data_bytes + 16, name.len() as u64]);
    [
        b"PERFILE2",
        &words(&head)[..],
        &ids,
        &entries,
        data,
        &feature,
        &name,
    ]
    .concat()
}

fn two_events() -> [Vec<u8>; 2] {
    [attribute(3, SAMPLE_TYPE, 0), attribute(1, SAMPLE_TYPE, 0)]
}

fn plain_file() -> Vec<u8> {
    file(&two_events(), &records())
}

fn stream(records: &[u8]) -> Vec<u8> {
    let mut bytes = [b"PERFILE2", &words(&[16])[..]].concat();
    for (id, attr) in (100..).zip(two_events()) {
        bytes.extend(record(64, 0, &[attr, words(&[id])].concat()));
    }
    bytes.extend(records);
    bytes
}

/// The records in compressed records, split in the middle of records.
fn compressed() -> Vec<u8> {
    let packed = zstd::encode_all(records().as_slice(), 1).unwrap();
    packed
        .chunks(100)
        .flat_map(|piece| record(81, 0, piece))
        .collect()
}

/// Facts about the import that a recording has.
struct Imported {
    samples: Vec<(String, u64)>,
    records: BTreeMap<u32, u64>,
    losses: Vec<Loss>,
    problems: Vec<String>,
}

impl Imported {
    fn of(path: &Path) -> Imported {
        let recording = Recording::open(path).unwrap();
        let manifest = recording.manifest();
        let name = |id| {
            let defined = manifest.events.iter().find(|e| e.id == id);
            defined.unwrap().name.clone()
        };
        let sampling = manifest.sampling.clone().unwrap();
        let import = manifest.import.clone().unwrap();
        Imported {
            samples: sampling
                .events
                .iter()
                .map(|e| (name(e.event), e.samples))
                .collect(),
            records: import.records,
            losses: rows(path),
            problems: import.problems,
        }
    }
}

struct Read {
    imported: Imported,
    samples: Vec<Sample>,
    dir: tempfile::TempDir,
}

impl Read {
    fn rows<R: Row>(&self) -> Vec<R> {
        rows(&self.dir.path().join("x.mg"))
    }
}

fn rows<R: Row>(dir: &Path) -> Vec<R> {
    let recording = Recording::open(dir).unwrap();
    assert_eq!(recording.problems(), Vec::<String>::new());
    let batches = recording.rows::<R>(&Selection::all());
    batches.flat_map(|batch| batch.unwrap()).collect()
}

fn read(bytes: &[u8]) -> Result<Read, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.mg");
    convert(Cursor::new(bytes), &path).map_err(|e| e.to_string())?;
    let imported = Imported::of(&path);
    let samples = rows(&path);
    Ok(Read {
        imported,
        samples,
        dir,
    })
}

fn check_content(bytes: &[u8]) -> Read {
    let result = read(bytes).unwrap();
    assert_eq!(result.imported.problems, Vec::<String>::new());
    let counts: Vec<u64> = result.imported.samples.iter().map(|s| s.1).collect();
    assert_eq!(counts, [10, 10]);
    assert_eq!(result.samples.len(), 20);
    for (i, s) in (0u64..).zip(&result.samples) {
        let place = (s.ip.0, s.addr.unwrap().0, s.time_ns);
        assert_eq!(place, (0x40_0000 + i, 0x7000 + 8 * i, 100 + i));
        assert_eq!((s.pid.0, s.tid.0, s.cpu.unwrap().0), (7, 8, 1));
        assert_eq!((s.period, u64::from(s.latency_cycles)), (500, 30 + i));
        let source = if i.is_multiple_of(2) {
            DataSource::L1d
        } else {
            DataSource::Llc
        };
        assert_eq!((u64::from(s.event.0), s.source), (256 + i % 2, source));
    }
    result
}

#[test]
fn everything_in_a_file_is_imported() {
    let result = check_content(&plain_file());
    assert_eq!(result.imported.samples[0].0, "cache-misses");
    let losses = result.imported.losses.iter();
    let lost: Vec<(LossKind, u64)> = losses.map(|l| (l.kind, l.count)).collect();
    let expected = [
        (LossKind::RingFull, 3),
        (LossKind::RingFull, 2),
        (LossKind::Throttled, 1),
    ];
    assert_eq!(lost, expected);
    let map = result.rows::<Module>().pop().unwrap();
    assert_eq!((map.path.as_str(), map.executable), ("/bin/prog", true));
    assert_eq!(
        (map.start.0, map.end.0, map.file_offset),
        (0x40_0000, 0x40_1000, 0x2000)
    );
    let threads = result.rows::<Thread>();
    let seen = |t: &Thread| (t.tid.0, t.program.clone(), t.start_ns, t.end_ns);
    let expected = [
        (7, "prog".to_owned(), 0, None),
        (8, "prog".to_owned(), 50, Some(160)),
    ];
    assert_eq!(threads.iter().map(seen).collect::<Vec<_>>(), expected);
    let recording = Recording::open(&result.dir.path().join("x.mg")).unwrap();
    assert_eq!(recording.manifest().host.name, "host");
}

#[test]
fn a_stream_and_compressed_records_have_the_same_content() {
    check_content(&stream(&records()));
    check_content(&stream(&compressed()));
    check_content(&file(&two_events(), &compressed()));
}

#[test]
fn values_of_a_group_become_a_series() {
    // IP, TID, TIME, READ, ID; a group with ids.
    let sample_type = 0x1 | 0x2 | 0x4 | 0x10 | 0x40;
    let attrs = [
        attribute(0, sample_type, 8 | 4),
        attribute(1, sample_type, 8 | 4),
    ];
    let tick = |time: u64, a: u64, b: u64| {
        record(9, 2, &words(&[1, pair(7, 7), time, 100, 2, a, 100, b, 101]))
    };
    let data = [tick(1000, 10, 5), tick(1100, 30, 6), tick(1250, 31, 16)].concat();
    let result = read(&file(&attrs, &data)).unwrap();
    let seen: Vec<_> = result
        .rows::<SeriesRow>()
        .iter()
        .map(|r| (r.time_ns, r.event.0, r.value, r.interval_ns))
        .collect();
    let expected = [
        (0, 256, 10, 0),
        (0, 257, 5, 0),
        (100, 256, 20, 100),
        (100, 257, 1, 100),
        (250, 256, 1, 150),
        (250, 257, 10, 150),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn sizes_of_what_is_left_out_are_respected() {
    // IP, call chain, raw, branch stack, two user registers, user stack, phys.
    let sample_type = 0x1 | 0x20 | 0x400 | 0x800 | 0x1000 | 0x2000 | 1 << 19;
    let mut attr = attribute(0, sample_type, 0);
    attr[80..88].copy_from_slice(&3u64.to_le_bytes());
    let mut body = words(&[0x1234, 2, 0xa, 0xb]);
    body.extend(12u32.to_le_bytes());
    body.extend([9; 12]);
    body.extend(words(&[1, 1, 2, 3, 2, 0x11, 0x22, 16, 0, 0, 8, 0xfeed]));
    let result = read(&file(&[attr], &record(9, 2, &body))).unwrap();
    assert_eq!(result.samples[0].phys.unwrap().0, 0xfeed);
    let losses = result.imported.losses.iter();
    let kept_out: BTreeMap<&str, u64> = losses.map(|l| (l.detail.as_str(), l.count)).collect();
    let expected = [
        ("branch stacks", 1),
        ("raw bytes of samples", 1),
        ("user stacks", 1),
    ];
    assert_eq!(kept_out, BTreeMap::from(expected));
}

#[test]
fn a_file_cut_off_anywhere_gives_what_came_before() {
    // At each byte of the beginning, then at every fifth.
    let cut = |bytes: Vec<u8>, first: usize| {
        let mut most = 0;
        let rest = (600 + first..bytes.len()).step_by(5);
        for end in (0..bytes.len().min(600)).chain(rest).chain([bytes.len()]) {
            match read(&bytes[..end]) {
                Ok(result) => {
                    let n = result.samples.len();
                    assert!((most..=20).contains(&n), "{n} samples of {end} bytes");
                    most = n;
                    let told = result
                        .imported
                        .problems
                        .iter()
                        .filter(|p| p.contains("record"));
                    assert!(told.count() <= 1, "{:?}", result.imported.problems);
                }
                Err(why) => assert!(end < 480, "{end} of {} bytes: {why}", bytes.len()),
            }
        }
        assert_eq!(most, 20);
    };
    // Thousands of imports: run them in parallel, or this is the longest test.
    std::thread::scope(|scope| {
        let files = [plain_file(), stream(&records()), stream(&compressed())];
        for (first, bytes) in files.into_iter().enumerate() {
            scope.spawn(move || cut(bytes, first));
        }
    });
}

/// Xorshift64 (Marsaglia 2003), so that every run creates the same mutants.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

#[test]
fn no_alteration_makes_the_reader_panic() {
    let mut dice = Dice(0x1234_5678_9abc_def1);
    let sound = [plain_file(), stream(&records()), stream(&compressed())];
    for round in 0..1500 {
        let mut bytes = sound[round % sound.len()].clone();
        for _ in 0..=dice.below(4) {
            let at = dice.below(bytes.len());
            match dice.below(4) {
                0 => bytes[at] ^= 1 << dice.below(8),
                1 => bytes[at] = 0xff,
                2 => bytes[at] = dice.below(256) as u8,
                _ => drop(bytes.drain(at..(at + dice.below(9)).min(bytes.len()))),
            }
        }
        if let Ok(result) = read(&bytes) {
            assert!(result.samples.len() <= bytes.len() / 8);
        }
    }
}

/// Recordings of real hardware, if there are any.
fn recordings() -> Option<PathBuf> {
    let path = std::env::var_os("MEMGAUGE_PERFDATA").map(PathBuf::from);
    if path.is_none() {
        skipped(
            Need::Perfdata,
            "MEMGAUGE_PERFDATA names no folder of recordings",
        );
    }
    path
}

fn of_hardware(folder: &Path, name: &str) -> Read {
    read(&std::fs::read(folder.join(name)).unwrap()).unwrap()
}

/// Samples, and the kernel's records by type, from the README of the recordings.
#[test]
fn recordings_of_hardware_have_the_counts_of_their_makers() {
    let Some(folder) = recordings() else { return };
    for (name, samples, kinds) in [
        ("intel-skx-pebs-loadlat-weightstruct.perf.data", 14, vec![]),
        (
            "intel-hsw-pebs-group-lostsamples.perf.data",
            191,
            vec![(13, 2)],
        ),
        (
            "intel-snb-throttle.perf.data",
            14980,
            vec![(5, 68), (6, 64)],
        ),
        ("piped-throttled.perf.data", 228, vec![(5, 1), (6, 1)]),
        ("intel-rpl-hybrid-pebs.perf.data", 7, vec![]),
        ("intel-skl-group.perf.data", 13, vec![]),
    ] {
        let result = of_hardware(&folder, name);
        assert_eq!(result.imported.problems, Vec::<String>::new(), "{name}");
        assert_eq!(result.samples.len(), samples, "{name}");
        for (kind, count) in kinds {
            let seen = result.imported.records.get(&kind);
            assert_eq!(seen, Some(&count), "{name}: kind {kind}");
        }
    }
}

/// perf 6.1 refuses this file, so the test only checks that it decompresses to complete, plausible
/// records.
#[test]
fn a_compressed_recording_of_another_processor_is_read_to_its_end() {
    let Some(folder) = recordings() else { return };
    let result = of_hardware(&folder, "zstd-sleep.perf.data");
    assert_eq!(result.imported.problems, Vec::<String>::new());
    assert_eq!(result.samples.len(), result.imported.records[&9] as usize);
    let named = |t: &Thread| t.program == "sleep";
    assert!(result.rows::<Thread>().iter().any(named));
    assert!(
        result
            .imported
            .losses
            .iter()
            .all(|l| l.kind != LossKind::Unreadable)
    );
}

/// Lines of `perf script` with these fields; none if perf is missing or cannot read the file.
fn perf_script(path: &Path, fields: &str) -> Option<Vec<Vec<String>>> {
    let output = std::process::Command::new("perf")
        .args(["script", "--ns", "-F", fields, "-i"])
        .arg(path)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let lines: Vec<Vec<String>> = text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect();
    (output.status.success() && !lines.is_empty()).then_some(lines)
}

fn nanoseconds(stamp: &str) -> u64 {
    let (s, ns) = stamp.trim_end_matches(':').split_once('.').unwrap();
    s.parse::<u64>().unwrap() * 1_000_000_000 + ns.parse::<u64>().unwrap()
}

#[test]
fn samples_agree_with_perf_script_one_by_one() {
    let Some(folder) = recordings() else { return };
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.to_str().unwrap().ends_with(".perf.data") {
            continue;
        }
        match perf_script(&path, "pid,tid,time,ip,period") {
            Some(lines) => compare(&path, &lines),
            None => skipped(Need::Tool, format!("perf does not read {}", path.display())),
        }
    }
}

/// Time, PID/TID, period and IP of every sample.
fn compare(path: &Path, lines: &[Vec<String>]) {
    let result = read(&std::fs::read(path).unwrap()).unwrap();
    // perf prints each frame of a call chain on its own line.
    let heads = lines.iter().filter(|l| l[0].contains('/') && l.len() >= 3);
    let mut theirs: Vec<_> = heads
        .map(|l| {
            (
                nanoseconds(&l[1]),
                l[0].clone(),
                l[2].clone(),
                l.get(3).cloned(),
            )
        })
        .collect();
    let mut ours: Vec<_> = result
        .samples
        .iter()
        .map(|s| {
            let ids = format!("{}/{}", s.pid.0, s.tid.0);
            (
                s.time_ns,
                ids,
                s.period.to_string(),
                Some(format!("{:x}", s.ip.0)),
            )
        })
        .collect();
    assert_eq!(theirs.len(), ours.len(), "{}", path.display());
    theirs.sort();
    ours.sort();
    // perf's clock starts with the machine, ours with the recording.
    let offset = theirs[0].0 - ours[0].0;
    for (theirs, mut ours) in theirs.into_iter().zip(ours) {
        ours.0 += offset;
        if theirs.3.is_none() {
            ours.3 = None;
        }
        assert_eq!(theirs, ours, "{}", path.display());
    }
}

#[test]
fn addresses_latencies_and_sources_agree_with_perf_script() {
    let Some(folder) = recordings() else { return };
    let name = "intel-skx-pebs-loadlat-weightstruct.perf.data";
    let Some(lines) = perf_script(&folder.join(name), "time,addr,weight,data_src") else {
        skipped(Need::Tool, format!("perf does not read {name}"));
        return;
    };
    let mut ours = of_hardware(&folder, name).samples;
    ours.sort_by_key(|s| s.time_ns);
    assert_eq!(lines.len(), ours.len());
    for (line, s) in lines.iter().zip(&ours) {
        assert_eq!(line[1], format!("{:x}", s.addr.map_or(0, |a| a.0)));
        assert_eq!(
            *line.last().unwrap(),
            s.latency_cycles.to_string(),
            "{line:?}"
        );
        let text = line.join(" ");
        let level = match s.source {
            DataSource::FillBuffer => "LFB/MAB hit",
            DataSource::L1d => "L1 hit",
            DataSource::L2 => "L2 hit",
            DataSource::Llc => "L3 hit",
            DataSource::Dram => "RAM hit",
            other => panic!("{other:?} of {text}"),
        };
        assert!(
            text.contains(level) && text.contains("OP LOAD"),
            "{level} of {text}"
        );
    }
}

/// A record of lost samples: with its time as the kernel writes it, without as perf adds it at the
/// end.
fn lost_samples(count: u64, time_ns: u64) -> Vec<u8> {
    side_band(13, 0, &words(&[count]), time_ns)
}

/// The kernel's count of an event is part of the records lost in rings. Samples dropped by the
/// processor's own buffer are not.
#[test]
fn samples_lost_in_rings_are_told_once() {
    let lost = side_band(2, 0, &words(&[1, 10]), 120);
    let data = [records(), lost, lost_samples(4, 130), lost_samples(7, 0)].concat();
    let result = read(&file(&two_events(), &data)).unwrap();
    let in_rings = result.imported.losses.iter();
    let in_rings = in_rings.filter(|l| l.kind == LossKind::RingFull);
    let told: Vec<(u64, &str)> = in_rings.map(|l| (l.count, l.detail.as_str())).collect();
    println!("{told:?}");
    // 3 and 2 are in `records`: 13 records were lost in rings, 7 of them samples, and hardware
    // dropped 6 samples.
    let sum: u64 = told.iter().map(|t| t.0).sum();
    assert_eq!(sum, 13 + 6, "{told:?}");
    let has = |count, words: &str| told.iter().any(|t| t.0 == count && t.1.contains(words));
    assert!(has(7, "samples lost in perf's rings"), "{told:?}");
    assert!(has(6, "other than samples"), "{told:?}");
    assert!(has(6, "hardware buffers"), "{told:?}");
}

/// `perf record --threads`: one file with the header, and others with only records.
#[test]
fn a_directory_has_the_records_of_all_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let all = records();
    // Split between two records, found by their sizes.
    let mut cut = 0;
    while cut < all.len() / 2 {
        cut += usize::from(u16::from_le_bytes([all[cut + 6], all[cut + 7]]));
    }
    let first = usize::from(u16::from_le_bytes([all[6], all[7]]));
    let head = file(&two_events(), &all[..first]);
    std::fs::write(folder.path().join("data"), head).unwrap();
    std::fs::write(folder.path().join("data.0"), &all[cut..]).unwrap();
    std::fs::write(folder.path().join("data.1"), &all[first..cut]).unwrap();
    let path = folder.path().join("x.mg");
    for named in [folder.path().to_owned(), folder.path().join("data")] {
        let mut input = Input::open(&named, folder.path()).unwrap();
        import(&mut input, &path).unwrap();
        let mut samples: Vec<Sample> = rows(&path);
        samples.sort_by_key(|s| s.time_ns);
        let whole = read(&plain_file()).unwrap();
        assert_eq!(samples, whole.samples);
        assert_eq!(rows::<Thread>(&path), whole.rows::<Thread>());
        let lost = |losses: &[Loss]| losses.iter().map(|l| l.count).sum::<u64>();
        assert_eq!(lost(&rows(&path)), lost(&whole.imported.losses));
        std::fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn a_directory_without_a_head_is_refused_and_says_what_to_name() {
    let folder = tempfile::tempdir().unwrap();
    let refused = Input::open(folder.path(), folder.path()).unwrap_err();
    assert!(
        refused.to_string().contains("has no file `data`"),
        "{refused}"
    );
}

/// `PERF_TYPE_TRACEPOINT`.
const TRACEPOINT: u8 = 2;

fn tracepoint(id: u64) -> Vec<u8> {
    let mut attr = attribute(id, SAMPLE_TYPE, 0);
    attr[0] = TRACEPOINT;
    attr
}

/// An entry that names a tracepoint: ID, text of 64 bytes.
fn event_type(id: u64, name: &str) -> Vec<u8> {
    let mut text = name.as_bytes().to_vec();
    text.resize(64, 0);
    [words(&[id]), text].concat()
}

/// A file of version 1, without features.
fn version_1(attributes: &[Vec<u8>], data: &[u8], event_types: &[u8]) -> Vec<u8> {
    const HEADER: u64 = 72;
    let ids = words(&(100..100 + attributes.len() as u64).collect::<Vec<_>>());
    let entry = |(n, attr): (u64, &Vec<u8>)| [attr.clone(), words(&[HEADER + 8 * n, 8])].concat();
    let entries: Vec<u8> = (0..).zip(attributes).flat_map(entry).collect();
    let attrs_at = HEADER + ids.len() as u64;
    let types_at = attrs_at + entries.len() as u64;
    let data_at = types_at + event_types.len() as u64;
    let head = [
        HEADER,
        144,
        attrs_at,
        entries.len() as u64,
        data_at,
        data.len() as u64,
        types_at,
        event_types.len() as u64,
    ];
    let parts = [&words(&head)[..], &ids, &entries, event_types, data];
    [b"PERFFILE", &parts.concat()[..]].concat()
}

#[test]
fn files_of_version_1_are_read_and_their_tracepoints_named() {
    let mut bytes = plain_file();
    bytes[..8].copy_from_slice(b"PERFFILE");
    check_content(&bytes);
    let types = [
        event_type(316, "sched:sched_switch"),
        event_type(7, "not:used"),
    ];
    let attributes = [tracepoint(316), tracepoint(9)];
    let file = version_1(&attributes, &records(), &types.concat());
    let result = check_content(&file);
    let names: Vec<&str> = (result.imported.samples.iter())
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names, ["sched:sched_switch", "event1/type=2,config=0x9/"]);
}

/// The kernel's descriptions of tracepoints, as copied by perf.
fn tracing_data(tracepoints: &[(&str, &str, u64)]) -> Vec<u8> {
    let counted = |text: &str| [words(&[text.len() as u64]), text.into()].concat();
    let number = |n: usize| (n as u32).to_le_bytes();
    let mut bytes = b"\x17\x08\x44tracing0.5\0\0\x08".to_vec();
    bytes.extend(4096u32.to_le_bytes());
    for part in ["header_page", "header_event"] {
        bytes.extend([part.as_bytes(), b"\0", &counted("field: u64 x")].concat());
    }
    bytes.extend(number(1));
    bytes.extend(counted("name: function\nID: 1\n"));
    bytes.extend(number(tracepoints.len()));
    for (system, name, id) in tracepoints {
        bytes.extend([system.as_bytes(), b"\0", &number(1)].concat());
        bytes.extend(counted(&format!("name: {name}\nID: {id}\nformat:\n")));
    }
    bytes
}

/// Before Linux 4.x, pipes had no record with an event's name.
#[test]
fn tracepoints_of_old_pipes_have_the_names_of_the_kernels_descriptions() {
    let described = tracing_data(&[("sched", "sched_switch", 316), ("irq", "irq_entry", 9)]);
    let padding = vec![0; described.len().next_multiple_of(8) - described.len()];
    let size = (described.len() as u32).to_le_bytes();
    let tracing = [record(66, 0, &size), described, padding].concat();
    let types = record(65, 0, &event_type(9, "irq:irq_handler_entry"));
    let head = [b"PERFILE2", &words(&[16])[..]].concat();
    let attributes: Vec<u8> = (100..)
        .zip([tracepoint(316), tracepoint(9)])
        .flat_map(|(id, attr): (u64, _)| record(64, 0, &[attr, words(&[id])].concat()))
        .collect();
    // A name may come before or after what it names. The first one counts.
    for order in [
        [&types, &attributes, &tracing],
        [&attributes, &types, &tracing],
    ] {
        let stream = [&head, order[0], order[1], order[2], &records()]
            .map(|part| part.as_slice())
            .concat();
        let result = check_content(&stream);
        let names: Vec<&str> = (result.imported.samples.iter())
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["sched:sched_switch", "irq:irq_handler_entry"]);
    }
}

/// A file of `perf record --call-graph lbr`: the processor's stack replaces user-space frame
/// pointers, and the kernel's frames stay.
#[test]
fn the_processors_call_stack_leads_to_samples() {
    const KERNEL: u64 = 0xffff_8000_0000_0000;
    const IN_KERNEL: u64 = -128_i64 as u64;
    const IN_USER: u64 = -512_i64 as u64;
    const CALL_STACK: u64 = 1 << 11;
    const HW_INDEX: u64 = 1 << 17;
    let mut attr = attribute(3, SAMPLE_TYPE | 1 << 5 | 1 << 11, 0);
    attr[72..80].copy_from_slice(&(CALL_STACK | HW_INDEX | 2).to_le_bytes());
    let sample = |ip: u64, chain: &[u64], calls: &[u64]| {
        let head = [ip, pair(7, 8), 1000, 0, 100, 1, 500];
        let chain = [&[chain.len() as u64], chain].concat();
        let branches: Vec<u64> = calls
            .iter()
            .flat_map(|&from| [from, from + 64, 0])
            .collect();
        let stack = [&[calls.len() as u64, 0], &branches[..]].concat();
        record(9, 2, &words(&[&head[..], &chain, &stack, &[0, 0]].concat()))
    };
    let calls = [0x40_0100, 0x40_0200];
    let data = [
        sample(0x40_0010, &[IN_USER, 0x40_0010, 0xbad], &calls),
        sample(
            KERNEL,
            &[IN_KERNEL, KERNEL, KERNEL + 9, IN_USER, 0x40_0020, 0xbad],
            &calls,
        ),
        sample(0x40_0030, &[IN_USER, 0x40_0030, 0x40_0301], &[]),
    ];
    let result = read(&file(&[attr], &data.concat())).unwrap();
    let frames: Vec<memgauge_trace::Frame> = result.rows();
    let stack = |s: &Sample| {
        let mut caller = s.caller;
        let mut calls = Vec::new();
        while let Some(id) = caller {
            let frame = frames.iter().find(|frame| frame.id == id).unwrap();
            calls.push(frame.ip.0);
            caller = frame.caller;
        }
        calls
    };
    let stacks: Vec<_> = result.samples.iter().map(stack).collect();
    let expected = [
        vec![0x40_0100, 0x40_0200],
        vec![KERNEL + 8, 0x40_0020, 0x40_0100, 0x40_0200],
        vec![0x40_0300],
    ];
    assert_eq!(stacks, expected);
    let branches = |loss: &&Loss| loss.detail == "branch stacks";
    assert_eq!(result.imported.losses.iter().find(branches), None);
}

/// Imports bytes as a file with this name and modification time.
fn import_file(bytes: &[u8], written: std::time::SystemTime) -> Read {
    let dir = tempfile::tempdir().unwrap();
    let (source, path) = (dir.path().join("perf.data.z"), dir.path().join("x.mg"));
    std::fs::write(&source, bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&source).unwrap();
    file.set_modified(written).unwrap();
    let mut input = Input::open(&source, dir.path()).unwrap();
    import(&mut input, &path).unwrap();
    Read {
        imported: Imported::of(&path),
        samples: rows(&path),
        dir,
    }
}

#[test]
fn a_compressed_file_has_the_same_content() {
    let plain = plain_file();
    let packed = zstd::encode_all(&plain[..], 1).unwrap();
    let result = import_file(&packed, std::time::SystemTime::now());
    assert_eq!(result.samples, check_content(&plain).samples);
}

/// Uses the ID of an existing process, so that no other process writes files with this name.
#[test]
fn generated_code_has_the_names_that_its_process_left() {
    let pid = std::process::id();
    let dump = std::env::temp_dir().join(format!("jit-{pid}.dump"));
    let map = PathBuf::from(format!("/tmp/perf-{pid}.map"));
    std::fs::write(&map, "7f0000001000 80 Lwalk;\n").unwrap();
    // A jitdump with one function: a header of 40 bytes, then a load record.
    let load = [
        words(&[pair(pid, pid), 0, 0x7f00_0000_2000, 0x40, 1]),
        b"compiled\0".to_vec(),
    ]
    .concat();
    let header = words(&[pair(0x4a69_5444, 1), pair(40, 62), 0, 0, 0]);
    let record_head = words(&[pair(0, 16 + load.len() as u32), 0]);
    std::fs::write(&dump, [header, record_head, load].concat()).unwrap();
    let path = padded(&dump.display().to_string());
    let comm = [words(&[pair(pid, pid)]), padded("java")].concat();
    let mapped = words(&[pair(pid, pid), 0x50_0000, 0x1000, 0, 0, 0, 0, pair(5, 2)]);
    let data = [
        side_band(3, 1 << 13, &comm, 900),
        side_band(10, 0, &[mapped, path].concat(), 910),
        sample(0),
    ];
    let mut bytes = file(&[attribute(3, SAMPLE_TYPE, 0)], &data.concat());
    // Without the name of a machine.
    bytes[8 + 8 * 8] = 0;
    let names = |written| {
        let result = import_file(&bytes, written);
        let code: Vec<memgauge_trace::GeneratedCode> = result.rows();
        let named = code.into_iter().filter(|c| c.pid.0 == pid);
        named
            .map(|c| (c.start.0, c.bytes, c.name))
            .collect::<Vec<_>>()
    };
    let now = std::time::SystemTime::now();
    let of_map = (0x7f00_0000_1000, 0x80, "Lwalk;".to_owned());
    let of_dump = (0x7f00_0000_2000, 0x40, "compiled".to_owned());
    assert_eq!(names(now), [of_map, of_dump.clone()]);
    // Another process reused the ID later.
    let before = now - std::time::Duration::from_secs(3600);
    assert_eq!(names(before), [of_dump]);
    std::fs::remove_file(map).unwrap();
    std::fs::remove_file(dump).unwrap();
}

#[test]
fn files_below_symfs_are_linked_if_they_are_the_recorded_ones() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir_all(root.join("bin")).unwrap();
    // A program with a build ID at the recorded path.
    std::fs::copy(std::env::current_exe().unwrap(), root.join("bin/prog")).unwrap();
    let source = dir.path().join("perf.data");
    std::fs::write(&source, plain_file()).unwrap();
    let path = dir.path().join("x.mg");
    let mut input = Input::open(&source, dir.path()).unwrap();
    input.symfs = Some(root.clone());
    import(&mut input, &path).unwrap();
    let modules: Vec<Module> = rows(&path);
    let prog = modules.iter().find(|row| row.path == "/bin/prog").unwrap();
    let bytes = root.join("bin/prog").metadata().unwrap().len();
    assert_eq!(prog.file_bytes, Some(bytes));
    let name = match prog.build_id.as_str() {
        "" => format!("{bytes}-{}", prog.modified_ns.unwrap()),
        id => id.to_owned(),
    };
    let link = path.join("files").join(name);
    let target = root.canonicalize().unwrap().join("bin/prog");
    assert_eq!(std::fs::read_link(link).unwrap(), target);
    // A recording with the build ID of another file.
    let map = words(&[
        pair(7, 7),
        0x40_0000,
        0x1000,
        0x2000,
        pair(4, 0x0403_0201),
        0,
        0,
        pair(5, 2),
    ]);
    let other = side_band(10, 1 << 14, &[map, padded("/bin/prog")].concat(), 910);
    std::fs::write(&source, file(&two_events(), &[other, records()].concat())).unwrap();
    let path = dir.path().join("y.mg");
    let mut input = Input::open(&source, dir.path()).unwrap();
    input.symfs = Some(root);
    import(&mut input, &path).unwrap();
    let modules: Vec<Module> = rows(&path);
    let prog = modules.iter().find(|row| row.path == "/bin/prog").unwrap();
    assert_eq!(
        (prog.build_id.as_str(), prog.file_bytes),
        ("01020304", None)
    );
}
