//! Rows of the table of recordings.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder, MapBuilder, MapFieldNames, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{
    Array, ArrayRef, Float64Array, Int32Array, Int64Array, MapArray, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::error::{Error, Result};
use crate::partition::DatasetPartition;

/// A recording of a dataset.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RecordingRow {
    /// When and where it was recorded, as text. Copies of a recording have the same.
    pub(crate) id: String,
    /// Name of the file with its measurements, without folder and suffix.
    pub(crate) file: String,
    /// The same of its curves, if it has any.
    pub(crate) curve_file: Option<String>,
    pub(crate) partition: DatasetPartition,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) command: Vec<String>,
    /// The modelled machine.
    pub(crate) machine: Option<String>,
    pub(crate) source: String,
    pub(crate) recorder: String,
    pub(crate) format_version: u32,
    pub(crate) started_unix_ns: u64,
    /// On the recording's clock.
    pub(crate) duration_ns: u64,
    pub(crate) wall_s: Option<f64>,
    pub(crate) kernel: String,
    pub(crate) cpu: String,
    pub(crate) cpus: u32,
    pub(crate) memory_bytes: u64,
    /// One in this many cache sets was modelled.
    pub(crate) estimated_from: Option<u32>,
    pub(crate) only_regions: Option<String>,
    pub(crate) seed: Option<String>,
    /// Losses by kind.
    pub(crate) losses: BTreeMap<String, u64>,
    /// Metrics that its functions have.
    pub(crate) metrics: Vec<String>,
    /// Where it was when it was indexed.
    pub(crate) path: String,
}

impl RecordingRow {
    pub(crate) fn measurements_path(&self) -> String {
        measurements_path(&self.partition, &self.file)
    }

    pub(crate) fn curves_path(&self) -> Option<String> {
        let file = self.curve_file.as_ref()?;
        Some(curves_path(&self.partition, file))
    }
}

pub(crate) fn measurements_path(partition: &DatasetPartition, file: &str) -> String {
    format!("measurements/{}/{file}.parquet", partition.folder())
}

pub(crate) fn curves_path(partition: &DatasetPartition, file: &str) -> String {
    format!("curves/{}/{file}.parquet", partition.folder())
}

fn list_field() -> Field {
    Field::new("element", DataType::Utf8, false)
}

fn map_type(value: DataType) -> DataType {
    let entries = vec![
        Field::new("key", DataType::Utf8, false),
        Field::new("value", value, false),
    ];
    let entries = Field::new("key_value", DataType::Struct(entries.into()), false);
    DataType::Map(Arc::new(entries), false)
}

fn map_names() -> Option<MapFieldNames> {
    Some(MapFieldNames {
        entry: "key_value".to_owned(),
        key: "key".to_owned(),
        value: "value".to_owned(),
    })
}

/// Columns of the table. `docs/fleet.md` describes them.
pub(crate) fn schema() -> SchemaRef {
    let text = |name| Field::new(name, DataType::Utf8, false);
    let maybe_text = |name| Field::new(name, DataType::Utf8, true);
    let int = |name| Field::new(name, DataType::Int64, false);
    let list = |name| Field::new(name, DataType::List(Arc::new(list_field())), false);
    let started = DataType::Timestamp(arrow_schema::TimeUnit::Microsecond, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        int("version"),
        text("recording"),
        text("file"),
        maybe_text("curve_file"),
        text("day"),
        text("service"),
        text("host"),
        maybe_text("commit"),
        Field::new("labels", map_type(DataType::Utf8), false),
        list("command"),
        maybe_text("machine"),
        text("source"),
        text("recorder"),
        Field::new("format_version", DataType::Int32, false),
        Field::new("started", started, false),
        int("started_unix_ns"),
        int("duration_ns"),
        Field::new("wall_s", DataType::Float64, true),
        text("kernel"),
        text("cpu"),
        Field::new("cpus", DataType::Int32, false),
        int("memory_bytes"),
        Field::new("estimated_from", DataType::Int32, true),
        maybe_text("only_regions"),
        maybe_text("seed"),
        Field::new("losses", map_type(DataType::Int64), false),
        list("metrics"),
        text("path"),
    ]))
}

fn int32(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// The rows of a version as a batch.
pub(crate) fn batch(rows: &[RecordingRow], version: u64) -> Result<RecordBatch> {
    let text = |of: fn(&RecordingRow) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(of)))
    };
    let maybe_text = |of: fn(&RecordingRow) -> Option<&String>| -> ArrayRef {
        Arc::new(rows.iter().map(of).collect::<StringArray>())
    };
    let int = |of: fn(&RecordingRow) -> u64| -> ArrayRef {
        let numbers = rows.iter().map(|row| crate::measurement::signed(of(row)));
        Arc::new(Int64Array::from_iter_values(numbers))
    };
    let small = |of: fn(&RecordingRow) -> u32| -> ArrayRef {
        let numbers = rows.iter().map(|row| int32(of(row)));
        Arc::new(Int32Array::from_iter_values(numbers))
    };
    let list = |of: fn(&RecordingRow) -> &[String]| -> ArrayRef {
        let mut lists = ListBuilder::new(StringBuilder::new()).with_field(list_field());
        for row in rows {
            of(row)
                .iter()
                .for_each(|text| lists.values().append_value(text));
            lists.append(true);
        }
        Arc::new(lists.finish())
    };
    let mut labels = MapBuilder::new(map_names(), StringBuilder::new(), StringBuilder::new())
        .with_values_field(Field::new("value", DataType::Utf8, false));
    let mut losses = MapBuilder::new(map_names(), StringBuilder::new(), Int64Builder::new())
        .with_values_field(Field::new("value", DataType::Int64, false));
    let corrupt = |why: arrow_schema::ArrowError| Error::corrupt("recordings", why);
    for row in rows {
        for (key, value) in &row.labels {
            labels.keys().append_value(key);
            labels.values().append_value(value);
        }
        labels.append(true).map_err(corrupt)?;
        for (kind, &count) in &row.losses {
            losses.keys().append_value(kind);
            losses
                .values()
                .append_value(crate::measurement::signed(count));
        }
        losses.append(true).map_err(corrupt)?;
    }
    let started = rows
        .iter()
        .map(|row| crate::measurement::signed(row.started_unix_ns / 1000));
    let started = TimestampMicrosecondArray::from_iter_values(started).with_timezone("UTC");
    let part = rows.iter().map(|row| row.estimated_from.map(int32));
    let versions = rows.iter().map(|_| crate::measurement::signed(version));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(versions)),
        text(|row| &row.id),
        text(|row| &row.file),
        maybe_text(|row| row.curve_file.as_ref()),
        text(|row| &row.partition.day),
        text(|row| &row.partition.service),
        text(|row| &row.partition.host),
        maybe_text(|row| row.labels.get("commit")),
        Arc::new(labels.finish()),
        list(|row| &row.command),
        maybe_text(|row| row.machine.as_ref()),
        text(|row| &row.source),
        text(|row| &row.recorder),
        small(|row| row.format_version),
        Arc::new(started),
        int(|row| row.started_unix_ns),
        int(|row| row.duration_ns),
        Arc::new(rows.iter().map(|row| row.wall_s).collect::<Float64Array>()),
        text(|row| &row.kernel),
        text(|row| &row.cpu),
        small(|row| row.cpus),
        int(|row| row.memory_bytes),
        Arc::new(part.collect::<Int32Array>()),
        maybe_text(|row| row.only_regions.as_ref()),
        maybe_text(|row| row.seed.as_ref()),
        Arc::new(losses.finish()),
        list(|row| &row.metrics),
        text(|row| &row.path),
    ];
    RecordBatch::try_new(schema(), columns).map_err(corrupt)
}

/// Reads the rows of a batch. `None` if its columns are not those of [`schema`].
pub(crate) fn rows(batch: &RecordBatch) -> Option<Vec<RecordingRow>> {
    let columns = BatchColumns(batch);
    let mut rows = Vec::with_capacity(batch.num_rows());
    let [
        id,
        file,
        day,
        service,
        host,
        source,
        recorder,
        kernel,
        cpu,
        path,
    ] = [
        "recording",
        "file",
        "day",
        "service",
        "host",
        "source",
        "recorder",
        "kernel",
        "cpu",
        "path",
    ]
    .map(|name| columns.texts(name));
    let [curve_file, machine, only_regions, seed] =
        ["curve_file", "machine", "only_regions", "seed"].map(|name| columns.texts(name));
    let (labels, losses) = (columns.map("labels")?, columns.map("losses")?);
    let [command, metrics] = ["command", "metrics"].map(|name| columns.lists(name));
    let (id, file, path) = (id?, file?, path?);
    let (day, service, host) = (day?, service?, host?);
    let (source, recorder, kernel, cpu) = (source?, recorder?, kernel?, cpu?);
    let (curve_file, machine) = (curve_file?, machine?);
    let (only_regions, seed) = (only_regions?, seed?);
    let (command, metrics) = (command?, metrics?);
    let [started, duration, memory] =
        ["started_unix_ns", "duration_ns", "memory_bytes"].map(|name| columns.ints(name));
    let (started, duration, memory) = (started?, duration?, memory?);
    let [format_version, cpus, estimated_from] =
        ["format_version", "cpus", "estimated_from"].map(|name| columns.small_ints(name));
    let (format_version, cpus, estimated_from) = (format_version?, cpus?, estimated_from?);
    let wall_s = batch
        .column_by_name("wall_s")?
        .as_primitive_opt::<Float64Type>()?;
    batch
        .column_by_name("started")?
        .as_primitive_opt::<TimestampMicrosecondType>()?;
    let unsigned = |n: i64| u64::try_from(n).unwrap_or(0);
    for row in 0..batch.num_rows() {
        let maybe = |texts: &StringArray| texts.is_valid(row).then(|| texts.value(row).to_owned());
        let text = |texts: &StringArray| maybe(texts).unwrap_or_default();
        let of_loss = |values: &ArrayRef, at: usize| {
            values
                .as_primitive_opt::<Int64Type>()
                .map(|n| unsigned(n.value(at)))
        };
        let of_label = |values: &ArrayRef, at: usize| {
            values
                .as_string_opt::<i32>()
                .map(|text| text.value(at).to_owned())
        };
        rows.push(RecordingRow {
            id: text(id),
            file: text(file),
            curve_file: maybe(curve_file),
            partition: DatasetPartition {
                day: text(day),
                service: text(service),
                host: text(host),
            },
            labels: entries(labels, row, of_label)?,
            command: texts_of(&command.value(row))?,
            machine: maybe(machine),
            source: text(source),
            recorder: text(recorder),
            format_version: u32::try_from(format_version.value(row)).ok()?,
            started_unix_ns: unsigned(started.value(row)),
            duration_ns: unsigned(duration.value(row)),
            wall_s: wall_s.is_valid(row).then(|| wall_s.value(row)),
            kernel: text(kernel),
            cpu: text(cpu),
            cpus: u32::try_from(cpus.value(row)).ok()?,
            memory_bytes: unsigned(memory.value(row)),
            estimated_from: match estimated_from.is_valid(row) {
                true => Some(u32::try_from(estimated_from.value(row)).ok()?),
                false => None,
            },
            only_regions: maybe(only_regions),
            seed: maybe(seed),
            losses: entries(losses, row, of_loss)?,
            metrics: texts_of(&metrics.value(row))?,
            path: text(path),
        });
    }
    Some(rows)
}

struct BatchColumns<'a>(&'a RecordBatch);

impl<'a> BatchColumns<'a> {
    fn texts(&self, name: &str) -> Option<&'a StringArray> {
        self.0.column_by_name(name)?.as_string_opt()
    }

    fn map(&self, name: &str) -> Option<&'a MapArray> {
        self.0.column_by_name(name)?.as_map_opt()
    }

    fn lists(&self, name: &str) -> Option<&'a arrow_array::ListArray> {
        self.0.column_by_name(name)?.as_list_opt()
    }

    fn ints(&self, name: &str) -> Option<&'a Int64Array> {
        self.0.column_by_name(name)?.as_primitive_opt::<Int64Type>()
    }

    fn small_ints(&self, name: &str) -> Option<&'a Int32Array> {
        self.0.column_by_name(name)?.as_primitive_opt::<Int32Type>()
    }
}

fn texts_of(list: &ArrayRef) -> Option<Vec<String>> {
    let texts = list.as_string_opt::<i32>()?;
    Some(texts.iter().flatten().map(str::to_owned).collect())
}

fn entries<V>(
    maps: &MapArray,
    row: usize,
    value: impl Fn(&ArrayRef, usize) -> Option<V>,
) -> Option<BTreeMap<String, V>> {
    let map = maps.value(row);
    let keys = map.column(0).as_string_opt::<i32>()?;
    let entry = |at: usize| Some((keys.value(at).to_owned(), value(map.column(1), at)?));
    (0..map.len()).map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were_written() {
        let full = RecordingRow {
            id: "1-2".to_owned(),
            file: "f".to_owned(),
            curve_file: Some("c".to_owned()),
            partition: DatasetPartition {
                day: "2026-11-28".to_owned(),
                service: "../checkout".to_owned(),
                host: "web-1".to_owned(),
            },
            labels: [("commit".to_owned(), "abc".to_owned())].into(),
            command: vec!["./prog".to_owned(), "a b".to_owned()],
            machine: Some("zen4".to_owned()),
            source: "emulate".to_owned(),
            recorder: "memgauge".to_owned(),
            format_version: 1,
            started_unix_ns: 1_764_374_400_123_456_789,
            duration_ns: 5,
            wall_s: Some(0.25),
            kernel: "6.18".to_owned(),
            cpu: "x".to_owned(),
            cpus: 2,
            memory_bytes: 1 << 34,
            estimated_from: Some(8),
            only_regions: Some("parse".to_owned()),
            seed: Some("1".to_owned()),
            losses: [("ring_full".to_owned(), 7)].into(),
            metrics: vec!["cycles".to_owned()],
            path: "a.mg".to_owned(),
        };
        let written = [full, RecordingRow::default()];
        let batch = batch(&written, 3).unwrap();
        assert_eq!(rows(&batch).unwrap(), written);
        assert!(rows(&batch.project(&[0, 1, 2]).unwrap()).is_none());
    }
}
