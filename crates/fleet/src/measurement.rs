//! Rows of the table of measurements: one number of one recording.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::error::{Error, Result};

/// Scope of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The whole run.
    Total,
    /// A function.
    Function,
    /// A source line.
    Line,
    /// A region of memory, by samples of its data addresses.
    Region,
    /// Data: allocations by where they were made, variables and files.
    Data,
    /// A place that allocates.
    Allocation,
    /// A region of interest.
    Interest,
    /// A program that moved bytes through a device.
    Process,
    /// A device that counted bytes.
    Device,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 9] = [
        Scope::Total,
        Scope::Function,
        Scope::Line,
        Scope::Region,
        Scope::Data,
        Scope::Allocation,
        Scope::Interest,
        Scope::Process,
        Scope::Device,
    ];

    /// Name in the column `scope`.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Total => "total",
            Scope::Function => "function",
            Scope::Line => "line",
            Scope::Region => "region",
            Scope::Data => "data",
            Scope::Allocation => "allocation",
            Scope::Interest => "interest",
            Scope::Process => "process",
            Scope::Device => "device",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| scope.name() == name)
    }
}

/// Name of a row within its recording, scope and metric. Fields that do not apply are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PlaceName {
    /// The function, `FILE:LINE` of a line, or the name of a region or data.
    pub(crate) name: String,
    /// The function that contains a line.
    pub(crate) function: String,
    /// File name of the module that contains a function or line; device of a program's bytes.
    pub(crate) module: String,
}

/// One number of one recording.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) recording: String,
    pub(crate) scope: Scope,
    pub(crate) place: PlaceName,
    pub(crate) metric: String,
    pub(crate) unit: Cow<'static, str>,
    pub(crate) provenance: Cow<'static, str>,
    pub(crate) value: f64,
    /// 95 % interval of the value, if it is an estimate.
    pub(crate) interval: Option<[f64; 2]>,
    /// Number of samples behind the value, if it comes from samples.
    pub(crate) samples: Option<u64>,
}

/// Columns of the table. `docs/fleet.md` describes them.
pub(crate) fn schema() -> SchemaRef {
    let text = |name| Field::new(name, DataType::Utf8, false);
    let maybe_text = |name| Field::new(name, DataType::Utf8, true);
    let number = |name, nullable| Field::new(name, DataType::Float64, nullable);
    Arc::new(Schema::new(vec![
        text("recording"),
        text("file"),
        text("scope"),
        maybe_text("name"),
        maybe_text("function"),
        maybe_text("module"),
        text("metric"),
        text("unit"),
        text("provenance"),
        number("value", false),
        number("low", true),
        number("high", true),
        Field::new("samples", DataType::Int64, true),
    ]))
}

/// Brings rows of one scope and metric together, which then compress well.
pub(crate) fn sort(rows: &mut [Measurement]) {
    rows.sort_by(|a, b| {
        (a.scope, &a.metric, &a.place, &a.recording).cmp(&(
            b.scope,
            &b.metric,
            &b.place,
            &b.recording,
        ))
    });
}

/// Rows as a batch of the file of this name.
pub(crate) fn batch(rows: &[Measurement], file: &str) -> Result<RecordBatch> {
    let text = |of: fn(&Measurement) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(of)))
    };
    let maybe_text = |of: fn(&Measurement) -> &str| -> ArrayRef {
        let texts = rows
            .iter()
            .map(|row| Some(of(row)).filter(|t| !t.is_empty()));
        Arc::new(texts.collect::<StringArray>())
    };
    let end = |which: usize| -> ArrayRef {
        let ends = rows.iter().map(|row| row.interval.map(|ends| ends[which]));
        Arc::new(ends.collect::<Float64Array>())
    };
    let samples = rows.iter().map(|row| row.samples.map(signed));
    let columns: Vec<ArrayRef> = vec![
        text(|row| &row.recording),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|_| file))),
        text(|row| row.scope.name()),
        maybe_text(|row| &row.place.name),
        maybe_text(|row| &row.place.function),
        maybe_text(|row| &row.place.module),
        text(|row| &row.metric),
        text(|row| &row.unit),
        text(|row| &row.provenance),
        Arc::new(Float64Array::from_iter_values(
            rows.iter().map(|row| row.value),
        )),
        end(0),
        end(1),
        Arc::new(samples.collect::<Int64Array>()),
    ];
    RecordBatch::try_new(schema(), columns).map_err(|why| Error::corrupt(file, why))
}

/// Spark has no unsigned 64-bit integers.
pub(crate) fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
