//! Runs the fuzz targets' code on a fixed set of mutants of valid files, for compilers without
//! fuzzing.

#![allow(clippy::unwrap_used)] // in the helpers; the tests may anyway

#[path = "../../../fuzz/src/entry.rs"]
mod entry;
mod rows;

use memgauge_recording::Writer;
use memgauge_trace::{
    CodeRegion, CodeValue, EventId, GeneratedCode, IoDevice, IoOwner, IoRow, Loss, LossKind,
    Manifest, Module, Overflow, OverflowBlock, Pid, Provenance, RegionSpan, SampleRegister,
    SeriesRow, SiteCount, SymbolRow, Thread, Tid, catalogue,
};
use rows::{place, ticking};
use std::fs;

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

/// Applies one to four random edits.
fn mutant(sound: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len());
        match dice.below(5) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            2 if at < bytes.len() => bytes[at] = dice.below(256) as u8,
            3 => bytes.insert(at, dice.below(256) as u8),
            _ => drop(bytes.drain(at..(at + dice.below(9)).min(bytes.len()))),
        }
    }
    bytes
}

fn push_io(writer: &mut Writer) {
    writer
        .extend((0..500).map(|time_ns| IoRow {
            time_ns,
            ..IoRow::default()
        }))
        .unwrap();
    let owner = IoOwner {
        command: "dd".into(),
        ..IoOwner::default()
    };
    let device = IoDevice {
        name: "vda".into(),
        numa_node: Some(1),
        ..IoDevice::default()
    };
    writer.push(owner).unwrap();
    writer.push(device).unwrap();
}

/// Returns a valid part of every table, each after the byte that selects it, and a manifest.
fn sound_files() -> (Vec<Vec<u8>>, Vec<u8>) {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    writer.extend(ticking(500)).unwrap();
    writer
        .extend((0..500).map(|time_ns| SeriesRow {
            time_ns,
            ..SeriesRow::default()
        }))
        .unwrap();
    writer
        .extend((0..500).map(|time_ns| Overflow {
            time_ns,
            ..Overflow::default()
        }))
        .unwrap();
    writer
        .extend((0..500).map(|count| SiteCount {
            count,
            ..SiteCount::default()
        }))
        .unwrap();
    writer
        .push(Thread {
            program: "/bin/true".into(),
            ..Thread::default()
        })
        .unwrap();
    writer
        .push(Module {
            path: "[heap]".into(),
            ..Module::default()
        })
        .unwrap();
    writer
        .push(Loss {
            kind: LossKind::RingFull,
            ..Loss::default()
        })
        .unwrap();
    let times: Vec<u64> = (0..500).map(|n| n * 7).collect();
    let block = OverflowBlock::from_times(&mut &times[..], Pid(1), Tid(1), EventId(0), 10, 64);
    writer.extend(block).unwrap();
    push_io(&mut writer);
    writer
        .extend((0..500).map(|value| SampleRegister {
            value,
            ..SampleRegister::default()
        }))
        .unwrap();
    writer
        .push(GeneratedCode {
            name: "a::b".into(),
            ..GeneratedCode::default()
        })
        .unwrap();
    writer
        .push(CodeRegion {
            name: "phase".into(),
            ..CodeRegion::default()
        })
        .unwrap();
    writer
        .push(CodeValue {
            name: "rows".into(),
            ..CodeValue::default()
        })
        .unwrap();
    writer
        .push(RegionSpan {
            name: "phase".into(),
            ..RegionSpan::default()
        })
        .unwrap();
    writer
        .push(SymbolRow {
            function: "a::b".into(),
            offset: Some(7),
            ..SymbolRow::default()
        })
        .unwrap();
    writer
        .finish(|manifest| manifest.events = catalogue::definitions(Provenance::Modelled))
        .unwrap();
    let part = |(index, table): (usize, &&str)| {
        let part = fs::read(path.join(table).join("part-000000.parquet")).unwrap();
        [vec![index as u8], part].concat()
    };
    let parts = entry::TABLES.iter().enumerate().map(part).collect();
    (parts, fs::read(path.join("manifest.json")).unwrap())
}

#[test]
fn mutants_of_parts_never_panic_and_never_yield_rows() {
    let (parts, _) = sound_files();
    let scratch = tempfile::tempdir().unwrap();
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    for part in &parts {
        assert!(entry::read_part(scratch.path(), part) > 0);
        for _ in 0..150 {
            let mutant = [vec![part[0]], mutant(&part[1..], &mut dice)].concat();
            let rows = entry::read_part(scratch.path(), &mutant);
            assert!(rows == 0 || mutant == *part);
        }
    }
}

#[test]
fn mutants_of_manifests_never_panic() {
    let (_, manifest) = sound_files();
    let scratch = tempfile::tempdir().unwrap();
    let mut dice = Dice(0xD1B5_4A32_D192_ED03);
    assert!(entry::open_recording(scratch.path(), &manifest));
    for _ in 0..1_000 {
        entry::open_recording(scratch.path(), &mutant(&manifest, &mut dice));
    }
}
