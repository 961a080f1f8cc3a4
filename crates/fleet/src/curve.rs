//! Miss-ratio curves of recordings, and their sum.
//!
//! A recording has the curve that `memgauge mrc --json=NAME.mg/curves.json` wrote into its folder. The
//! index keeps the first one of each block size, at fixed sizes of memory, so that the curves of all
//! recordings have the same sizes and SQL can add them up.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use memgauge_report::fleet::{FleetCurve, FleetCurvePoint};
use serde_json::Value;

use crate::dataset::{self, Dataset};
use crate::error::{Error, ErrorKind, Result};
use crate::measurement::signed;
use crate::query::{Query, facts};

/// Largest file of curves that is read.
const MAX_BYTES: u64 = 64 << 20;
/// Sizes of memory in a doubling, and the range of sizes in bytes as powers of two.
const SIZES_PER_DOUBLING: u32 = 4;
const SMALLEST: u32 = 6;
const LARGEST: u32 = 44;

/// A recording's curve of one block size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecordedCurve {
    pub(crate) recording: String,
    pub(crate) block_bytes: u64,
    /// References, which are the misses without memory.
    pub(crate) references: f64,
    /// Sizes of memory in bytes, ascending, and misses with that much.
    pub(crate) points: Vec<CurvePoint>,
}

/// Misses with an amount of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CurvePoint {
    pub(crate) bytes: u64,
    pub(crate) misses: f64,
    /// Half the width of the 95 % interval of the miss ratio, if the curve is sampled.
    pub(crate) half_band: Option<f64>,
}

/// Sizes of memory at which the dataset has curves.
fn sizes() -> impl Iterator<Item = u64> {
    let steps = SMALLEST * SIZES_PER_DOUBLING..=LARGEST * SIZES_PER_DOUBLING;
    steps.map(|step| {
        let exponent = f64::from(step) / f64::from(SIZES_PER_DOUBLING);
        exponent.exp2().round() as u64
    })
}

/// Reads a recording's file of curves. It may have none.
///
/// # Errors
/// The file was not written by `memgauge mrc`. The message says why.
pub(crate) fn read(
    path: &Path,
    recording: &str,
) -> std::result::Result<Vec<RecordedCurve>, String> {
    let failed =
        |why: &str| format!("curves.json: {why}; write it with `memgauge mrc --json=FILE`");
    let size = match path.symlink_metadata() {
        // A packed recording is not a folder.
        Err(why)
            if matches!(
                why.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Vec::new());
        }
        Err(why) => return Err(failed(&why.to_string())),
        Ok(file) if !file.is_file() => return Err(failed("it is not a regular file")),
        Ok(file) => file.len(),
    };
    if size > MAX_BYTES {
        return Err(failed("it is larger than any file of curves"));
    }
    let bytes = std::fs::read(path).map_err(|why| failed(&why.to_string()))?;
    parse(&bytes, recording).ok_or_else(|| failed("it is not a file of curves"))
}

fn parse(bytes: &[u8], recording: &str) -> Option<Vec<RecordedCurve>> {
    let file: Value = serde_json::from_slice(bytes).ok()?;
    let mut curves: Vec<RecordedCurve> = Vec::new();
    for curve in file.get("curves")?.as_array()? {
        let block_bytes = curve.get("block_bytes")?.as_u64()?;
        if curves.iter().any(|known| known.block_bytes == block_bytes) {
            continue;
        }
        let references = curve.get("references")?.as_f64()?;
        let points = curve.get("points")?.as_array()?.iter().map(point);
        let known: Vec<Option<CurvePoint>> = points.collect::<Option<Vec<_>>>()?;
        let known: Vec<CurvePoint> = known.into_iter().flatten().collect();
        let is_sorted = known.is_sorted_by(|a, b| a.bytes < b.bytes);
        let is_sane = is_sorted && references.is_finite() && references >= 0.0;
        if !is_sane {
            return None;
        }
        curves.push(RecordedCurve {
            recording: recording.to_owned(),
            block_bytes,
            references,
            points: at_sizes(&known, block_bytes, references),
        });
    }
    Some(curves)
}

/// `Some(None)`: a point at which the curve is unknown.
fn point(point: &Value) -> Option<Option<CurvePoint>> {
    let bytes = point.get("bytes")?.as_u64()?;
    let misses = match point.get("misses")? {
        Value::Null => return Some(None),
        misses => misses.as_f64()?,
    };
    let half_band = point.get("half_band_95").and_then(Value::as_f64);
    (misses.is_finite() && misses >= 0.0).then_some(Some(CurvePoint {
        bytes,
        misses,
        half_band,
    }))
}

/// A curve is a step function that falls at its points. Below the first one, nothing is known, except
/// that without a block of memory each reference misses.
fn at_sizes(known: &[CurvePoint], block_bytes: u64, references: f64) -> Vec<CurvePoint> {
    let at = |bytes: u64| {
        let next = known.partition_point(|point| point.bytes <= bytes);
        match next.checked_sub(1) {
            Some(last) => Some(CurvePoint {
                bytes,
                ..known[last]
            }),
            None => (bytes < block_bytes).then_some(CurvePoint {
                bytes,
                misses: references,
                half_band: None,
            }),
        }
    };
    sizes().filter_map(at).collect()
}

/// Columns of the table. `docs/fleet.md` describes them.
fn schema() -> SchemaRef {
    let text = |name| Field::new(name, DataType::Utf8, false);
    let int = |name| Field::new(name, DataType::Int64, false);
    Arc::new(Schema::new(vec![
        text("recording"),
        text("file"),
        int("block_bytes"),
        int("bytes"),
        Field::new("total_references", DataType::Float64, false),
        Field::new("misses", DataType::Float64, false),
        Field::new("half_band", DataType::Float64, true),
    ]))
}

pub(crate) fn batch(curves: &[RecordedCurve], file: &str) -> Result<RecordBatch> {
    let rows = || {
        let rows = curves.iter();
        rows.flat_map(|curve| curve.points.iter().map(move |point| (curve, point)))
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(
            rows().map(|(curve, _)| &curve.recording),
        )),
        Arc::new(StringArray::from_iter_values(rows().map(|_| file))),
        Arc::new(Int64Array::from_iter_values(
            rows().map(|(curve, _)| signed(curve.block_bytes)),
        )),
        Arc::new(Int64Array::from_iter_values(
            rows().map(|(_, point)| signed(point.bytes)),
        )),
        Arc::new(Float64Array::from_iter_values(
            rows().map(|(curve, _)| curve.references),
        )),
        Arc::new(Float64Array::from_iter_values(
            rows().map(|(_, point)| point.misses),
        )),
        Arc::new(
            rows()
                .map(|(_, point)| point.half_band)
                .collect::<Float64Array>(),
        ),
    ];
    RecordBatch::try_new(schema(), columns).map_err(|why| Error::corrupt(file, why))
}

/// Adds the curves in a batch of a file to those of earlier batches. The last of these curves may
/// continue in this batch. `None` if the columns are not those of [`schema`].
fn add_rows(batch: &RecordBatch, curves: &mut Vec<RecordedCurve>) -> Option<()> {
    let column = |name| batch.column_by_name(name);
    let recordings = column("recording")?.as_string_opt::<i32>()?;
    let [block_bytes, bytes] = ["block_bytes", "bytes"].map(|name| {
        let column = column(name)?;
        column.as_primitive_opt::<Int64Type>()
    });
    let [references, misses, half_band] = ["total_references", "misses", "half_band"].map(|name| {
        let column = column(name)?;
        column.as_primitive_opt::<Float64Type>()
    });
    let (block_bytes, bytes) = (block_bytes?, bytes?);
    let (references, misses, half_band) = (references?, misses?, half_band?);
    for row in 0..batch.num_rows() {
        let (recording, block) = (recordings.value(row), block_bytes.value(row));
        let block = u64::try_from(block).ok()?;
        let is_same =
            |curve: &&mut RecordedCurve| curve.recording == recording && curve.block_bytes == block;
        let point = CurvePoint {
            bytes: u64::try_from(bytes.value(row)).ok()?,
            misses: misses.value(row),
            half_band: half_band.is_valid(row).then(|| half_band.value(row)),
        };
        match curves.last_mut().filter(is_same) {
            Some(curve) => curve.points.push(point),
            None => curves.push(RecordedCurve {
                recording: recording.to_owned(),
                block_bytes: block,
                references: references.value(row),
                points: vec![point],
            }),
        }
    }
    Some(())
}

/// Curves of the recordings with these IDs.
pub(crate) fn curves_of(
    dataset: &Dataset,
    path: &str,
    recordings: &BTreeSet<&str>,
) -> Result<Vec<RecordedCurve>> {
    let missing = || Error::corrupt(path, "the file is gone");
    let bytes = dataset.store.get(path)?.ok_or_else(missing)?;
    let mut curves = Vec::new();
    for batch in dataset::read(path, bytes)? {
        add_rows(&batch, &mut curves)
            .ok_or_else(|| Error::corrupt(path, "it does not have the columns of curves"))?;
    }
    curves.retain(|curve: &RecordedCurve| recordings.contains(&*curve.recording));
    Ok(curves)
}

/// Sums of the curves of all recordings that the query selects, one for each block size: each
/// recording has its own memory of the size.
///
/// # Errors
/// No recording has a curve, or the storage fails.
pub fn curve(dataset: &Dataset, query: &Query) -> Result<Vec<FleetCurve>> {
    let selected = query.select(dataset.newest_with_recordings()?)?;
    let mut files: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for row in &selected {
        if let Some(path) = row.curves_path() {
            files.entry(path).or_default().insert(&row.id);
        }
    }
    let mut by_block: BTreeMap<u64, Vec<RecordedCurve>> = BTreeMap::new();
    for (path, recordings) in &files {
        for curve in curves_of(dataset, path, recordings)? {
            by_block.entry(curve.block_bytes).or_default().push(curve);
        }
    }
    if by_block.is_empty() {
        let message = "failed to sum curves: no selected recording has one; write it into the recording \
                       with `memgauge mrc --json=NAME.mg/curves.json -- PROGRAM` before indexing";
        return Err(Error::new(ErrorKind::Question, message));
    }
    let sum = |(block_bytes, mut curves): (u64, Vec<RecordedCurve>)| {
        curves.sort_by(|a, b| a.recording.cmp(&b.recording));
        let with_curve: BTreeSet<&str> = curves.iter().map(|c| &*c.recording).collect();
        let rows = selected.iter().filter(|row| with_curve.contains(&*row.id));
        FleetCurve {
            facts: facts(rows),
            without_curve: (selected.len() - with_curve.len()) as u64,
            block_bytes,
            references: curves.iter().map(|curve| curve.references).sum(),
            points: summed(&curves),
        }
    };
    Ok(by_block.into_iter().map(sum).collect())
}

/// Sums at the sizes that all curves have, up to the first size from which on all are flat.
fn summed(curves: &[RecordedCurve]) -> Vec<FleetCurvePoint> {
    let references: f64 = curves.iter().map(|curve| curve.references).sum();
    let mut sums: BTreeMap<u64, (usize, FleetCurvePoint)> = BTreeMap::new();
    for curve in curves {
        for point in &curve.points {
            let (known, sum) = sums.entry(point.bytes).or_default();
            *known += 1;
            sum.bytes = point.bytes;
            sum.misses += point.misses;
            // Bands of sampled curves are independent: each samples its own blocks.
            let half = point.half_band.unwrap_or(0.0) * curve.references / references.max(1.0);
            sum.half_band = sum.half_band.hypot(half);
        }
    }
    let complete = sums
        .into_values()
        .filter(|(known, _)| *known == curves.len());
    let mut points: Vec<FleetCurvePoint> = complete
        .map(|(_, sum)| FleetCurvePoint {
            miss_ratio: (references > 0.0).then(|| sum.misses / references),
            ..sum
        })
        .collect();
    let last = points.last().map_or(0.0, |point| point.misses);
    let flat_from = points.iter().position(|point| point.misses == last);
    points.truncate(flat_from.map_or(0, |at| at + 1));
    points
}
