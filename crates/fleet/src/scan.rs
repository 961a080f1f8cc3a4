//! Reads measurements of selected recordings in several threads, of which each reads whole files.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type};
use arrow_array::{
    Array, BooleanArray, DictionaryArray, Float64Array, Int64Array, RecordBatch, StringArray,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowPredicateFn, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowFilter,
};

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::measurement::{PlaceName, Scope, schema};
use crate::recording_row::RecordingRow;

/// Rows that a question needs.
#[derive(Clone, Debug)]
pub(crate) struct MeasurementFilter {
    pub(crate) scopes: Vec<Scope>,
    /// `None`: all metrics.
    pub(crate) metric: Option<String>,
}

/// Rows of a file that are wanted, of recordings that may not be.
pub(crate) struct SelectedRows<'a> {
    batch: &'a MeasurementColumns,
    /// Index of the selected recording by dictionary key.
    recordings: Vec<Option<usize>>,
    scopes: Vec<Option<Scope>>,
}

struct MeasurementColumns {
    recording: Texts,
    scope: Texts,
    name: Texts,
    function: Texts,
    module: Texts,
    metric: Texts,
    unit: Texts,
    provenance: Texts,
    value: Float64Array,
    low: Float64Array,
    high: Float64Array,
    samples: Int64Array,
}

/// A column of texts that are stored once each.
struct Texts(DictionaryArray<Int32Type>);

impl Texts {
    fn values(&self) -> Option<&StringArray> {
        self.0.values().as_string_opt()
    }

    fn key(&self, row: usize) -> Option<usize> {
        self.0.key(row)
    }

    fn get(&self, row: usize) -> &str {
        let key = self.key(row);
        key.zip(self.values())
            .map_or("", |(key, values)| values.value(key))
    }

    fn by_key<T>(&self, of: impl Fn(&str) -> T) -> Vec<T> {
        let values = self.values().into_iter().flatten();
        values.map(|text| of(text.unwrap_or_default())).collect()
    }
}

/// One number.
#[derive(Clone, Copy)]
pub(crate) struct MeasurementRow<'a> {
    rows: &'a SelectedRows<'a>,
    at: usize,
    /// Index of its recording in the selection.
    pub(crate) recording: usize,
    pub(crate) scope: Scope,
}

impl<'a> SelectedRows<'a> {
    /// The wanted rows of selected recordings.
    pub(crate) fn iter(&'a self) -> impl Iterator<Item = MeasurementRow<'a>> {
        (0..self.batch.value.len()).filter_map(move |at| {
            Some(MeasurementRow {
                rows: self,
                at,
                recording: self.recordings[self.batch.recording.key(at)?]?,
                scope: self.scopes[self.batch.scope.key(at)?]?,
            })
        })
    }
}

impl MeasurementRow<'_> {
    /// Identifies the place within [`SelectedRows`].
    pub(crate) fn place_key(&self) -> [Option<usize>; 3] {
        let columns = self.rows.batch;
        [&columns.name, &columns.function, &columns.module].map(|texts| texts.key(self.at))
    }

    pub(crate) fn place(&self) -> PlaceName {
        let columns = self.rows.batch;
        let [name, function, module] = [&columns.name, &columns.function, &columns.module]
            .map(|texts| texts.get(self.at).to_owned());
        PlaceName {
            name,
            function,
            module,
        }
    }

    pub(crate) fn metric(&self) -> &str {
        self.rows.batch.metric.get(self.at)
    }

    pub(crate) fn unit(&self) -> &str {
        self.rows.batch.unit.get(self.at)
    }

    pub(crate) fn provenance(&self) -> &str {
        self.rows.batch.provenance.get(self.at)
    }

    pub(crate) fn value(&self) -> f64 {
        self.rows.batch.value.value(self.at)
    }

    pub(crate) fn interval(&self) -> Option<[f64; 2]> {
        let (low, high) = (&self.rows.batch.low, &self.rows.batch.high);
        let is_known = low.is_valid(self.at) && high.is_valid(self.at);
        is_known.then(|| [low.value(self.at), high.value(self.at)])
    }

    pub(crate) fn samples(&self) -> Option<u64> {
        let samples = &self.rows.batch.samples;
        samples
            .is_valid(self.at)
            .then(|| u64::try_from(samples.value(self.at)).unwrap_or(0))
    }
}

/// A file and the recordings of the selection that it holds, by ID.
type Files<'a> = BTreeMap<String, HashMap<&'a str, usize>>;

/// Visits the wanted rows of all recordings of a selection. Each thread has a state of its own; they
/// are returned in no particular order, and so are rows visited.
pub(crate) fn scan<S: Send>(
    dataset: &Dataset,
    selected: &[RecordingRow],
    filter: &MeasurementFilter,
    new_state: impl Fn() -> S + Sync,
    visit: impl Fn(&mut S, &SelectedRows) + Sync,
) -> Result<Vec<S>> {
    let mut files = Files::new();
    for (index, row) in selected.iter().enumerate() {
        let file = files.entry(row.measurements_path()).or_default();
        file.insert(&row.id, index);
    }
    let files: Vec<(String, HashMap<&str, usize>)> = files.into_iter().collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut state = new_state();
        while let Some((path, recordings)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            scan_file(dataset, path, recordings, filter, |rows| {
                visit(&mut state, rows)
            })?;
        }
        Ok(state)
    };
    let threads = dataset.readers();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.min(files.len()))
            .map(|_| scope.spawn(work))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<S>>| {
            let joined = thread.join();
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

fn scan_file(
    dataset: &Dataset,
    path: &str,
    recordings: &HashMap<&str, usize>,
    filter: &MeasurementFilter,
    mut visit: impl FnMut(&SelectedRows),
) -> Result<()> {
    let bytes = dataset.store.get(path)?;
    let bytes = bytes.ok_or_else(|| {
        Error::corrupt(
            path,
            "the file is gone, although the newest version needs it",
        )
    })?;
    let corrupt = |why: &dyn std::fmt::Display| Error::corrupt(path, why);
    let batches = filtered(bytes, filter).map_err(|why| corrupt(&why))?;
    for batch in batches {
        let columns = batch
            .map(|batch| columns(&batch))
            .map_err(|why| corrupt(&why))?;
        let columns =
            columns.ok_or_else(|| corrupt(&"it does not have the columns of measurements"))?;
        let is_wanted = |scope: &Scope| filter.scopes.contains(scope);
        visit(&SelectedRows {
            recordings: columns.recording.by_key(|id| recordings.get(id).copied()),
            scopes: columns
                .scope
                .by_key(|name| Scope::named(name).filter(is_wanted)),
            batch: &columns,
        });
    }
    Ok(())
}

/// Batches with the rows of the wanted scopes and metric.
fn filtered(
    bytes: Bytes,
    filter: &MeasurementFilter,
) -> std::result::Result<
    impl Iterator<Item = std::result::Result<RecordBatch, ArrowError>>,
    parquet::errors::ParquetError,
> {
    let options = ArrowReaderOptions::new().with_schema(with_dictionaries());
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(bytes, options)?;
    let parquet_schema = builder.parquet_schema();
    let scopes: Vec<&'static str> = filter.scopes.iter().map(|scope| scope.name()).collect();
    let by_scope = equal_to(move |scope| scopes.contains(&scope));
    let mut predicates: Vec<Box<dyn parquet::arrow::arrow_reader::ArrowPredicate>> =
        vec![Box::new(ArrowPredicateFn::new(
            ProjectionMask::columns(parquet_schema, ["scope"]),
            by_scope,
        ))];
    if let Some(wanted) = filter.metric.clone() {
        predicates.push(Box::new(ArrowPredicateFn::new(
            ProjectionMask::columns(parquet_schema, ["metric"]),
            equal_to(move |metric| metric == wanted),
        )));
    }
    builder
        .with_row_filter(RowFilter::new(predicates))
        .with_batch_size(65_536)
        .build()
}

/// A predicate on the texts of the first column, which is asked once for each distinct text.
fn equal_to(
    is_wanted: impl Fn(&str) -> bool + Send + 'static,
) -> impl FnMut(RecordBatch) -> std::result::Result<BooleanArray, ArrowError> + Send + 'static {
    move |batch| {
        let texts = batch.column(0).as_dictionary_opt::<Int32Type>();
        let texts = Texts(
            texts
                .cloned()
                .ok_or_else(|| ArrowError::SchemaError("a column of texts is none".to_owned()))?,
        );
        let wanted = texts.by_key(&is_wanted);
        let rows = (0..texts.0.len()).map(|row| texts.key(row).is_some_and(|key| wanted[key]));
        Ok(BooleanArray::from_iter(rows.map(Some)))
    }
}

/// The schema of measurements with dictionaries of texts.
fn with_dictionaries() -> SchemaRef {
    let schema = schema();
    let fields = schema.fields().iter().map(|field| match field.data_type() {
        DataType::Utf8 => {
            let texts = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
            Field::new(field.name(), texts, field.is_nullable())
        }
        _ => field.as_ref().clone(),
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn columns(batch: &RecordBatch) -> Option<MeasurementColumns> {
    let texts = |name| {
        let column = batch
            .column_by_name(name)?
            .as_dictionary_opt::<Int32Type>()?;
        Some(Texts(column.clone()))
    };
    let number = |name| {
        let column = batch
            .column_by_name(name)?
            .as_primitive_opt::<Float64Type>()?;
        Some(column.clone())
    };
    Some(MeasurementColumns {
        recording: texts("recording")?,
        scope: texts("scope")?,
        name: texts("name")?,
        function: texts("function")?,
        module: texts("module")?,
        metric: texts("metric")?,
        unit: texts("unit")?,
        provenance: texts("provenance")?,
        value: number("value")?,
        low: number("low")?,
        high: number("high")?,
        samples: batch
            .column_by_name("samples")?
            .as_primitive_opt::<Int64Type>()?
            .clone(),
    })
}
