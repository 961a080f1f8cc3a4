//! Tables as Arrow record batches, from rows that can be serialised.
//!
//! A column is the row's field of its name, so that a table has the numbers of the JSON report.
//! Event counts become a column for each event.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float64Array, RecordBatch, RecordBatchIterator,
    RecordBatchOptions, StringArray, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema};
use memgauge_trace::EventDef;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::sys::{arrow_error, schema_capsule, stream_capsule};

/// Field of a row with counts by event.
const COUNTS: &str = "counts";
/// Field of a row with totals by event. A row may lack an event, which then is null.
const TOTALS: &str = "totals";
/// Field of a row with 95 % intervals by event.
const INTERVALS: &str = "intervals";

/// Type of a column.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// An unsigned integer.
    Count,
    /// A number.
    Real,
    /// A text.
    Text,
    /// The functions of a list of callers.
    Functions,
    /// A list of texts.
    Texts,
    /// True or false.
    Flag,
}

/// A column: the field's name, its type and its unit.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Unit, or an empty text.
    pub(crate) unit: &'static str,
}

/// A table in memory.
#[pyclass(frozen, module = "memgauge._memgauge")]
pub(crate) struct Table {
    schema: Arc<Schema>,
    batches: Vec<RecordBatch>,
}

impl Table {
    pub(crate) fn new(schema: Arc<Schema>, batches: Vec<RecordBatch>) -> Table {
        Table { schema, batches }
    }

    /// A table of rows. `events` gives the units of the columns of counts.
    pub(crate) fn of_rows(
        rows: &[impl Serialize],
        columns: &[Column],
        events: &[EventDef],
    ) -> PyResult<Table> {
        let rows: Vec<Map<String, Value>> = (rows.iter())
            .filter_map(|row| match serde_json::to_value(row) {
                Ok(Value::Object(fields)) => Some(fields),
                _ => None,
            })
            .collect();
        Table::of_fields(&rows, columns, events)
    }

    /// The same of rows as objects.
    pub(crate) fn of_fields(
        rows: &[Map<String, Value>],
        columns: &[Column],
        events: &[EventDef],
    ) -> PyResult<Table> {
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for column in columns {
            let (data_type, array) = column_array(column, rows);
            let field = Field::new(column.name, data_type, true);
            fields.push(match column.unit {
                "" => field,
                unit => field.with_metadata(metadata([("unit", unit)])),
            });
            arrays.push(array);
        }
        let field = |event: &str| {
            let def = events.iter().find(|def| def.name == event);
            let facts = def.map(|def| {
                metadata([
                    ("unit", def.unit.name()),
                    ("provenance", def.provenance.name()),
                ])
            });
            Field::new(event, DataType::UInt64, true).with_metadata(facts.unwrap_or_default())
        };
        for event in event_names(rows, TOTALS) {
            let total = |row: &Map<String, Value>| row.get(TOTALS)?.get(&event)?.as_u64();
            fields.push(field(&event));
            arrays.push(Arc::new(rows.iter().map(total).collect::<UInt64Array>()) as ArrayRef);
        }
        for event in event_names(rows, COUNTS) {
            // A row has no entry for an event that did not occur there.
            let count = |row: &Map<String, Value>| {
                Some(
                    row.get(COUNTS)
                        .map_or(0, |counts| counts[&event].as_u64().unwrap_or(0)),
                )
            };
            fields.push(field(&event));
            arrays.push(Arc::new(rows.iter().map(count).collect::<UInt64Array>()) as ArrayRef);
        }
        for event in event_names(rows, INTERVALS) {
            for end in ["low", "high"] {
                let value =
                    |row: &Map<String, Value>| row.get(INTERVALS)?.get(&event)?.get(end)?.as_u64();
                fields.push(Field::new(format!("{event}.{end}"), DataType::UInt64, true));
                arrays.push(Arc::new(rows.iter().map(value).collect::<UInt64Array>()) as ArrayRef);
            }
        }
        let schema = Arc::new(Schema::new(fields));
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let batch = RecordBatch::try_new_with_options(schema.clone(), arrays, &options);
        Ok(Table::new(schema, vec![batch.map_err(arrow_error)?]))
    }
}

fn metadata<const N: usize>(pairs: [(&str, &str); N]) -> HashMap<String, String> {
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pairs.into_iter().collect()
}

/// Names of all events that the field of any row has.
fn event_names(rows: &[Map<String, Value>], field: &str) -> BTreeSet<String> {
    let fields = rows.iter().filter_map(|row| row.get(field)?.as_object());
    fields.flat_map(|events| events.keys().cloned()).collect()
}

fn column_array(column: &Column, rows: &[Map<String, Value>]) -> (DataType, ArrayRef) {
    let values = rows.iter().map(|row| row.get(column.name));
    let array: ArrayRef = match column.kind {
        Kind::Count => Arc::new(values.map(|v| v?.as_u64()).collect::<UInt64Array>()),
        Kind::Real => Arc::new(values.map(|v| v?.as_f64()).collect::<Float64Array>()),
        Kind::Text => Arc::new(values.map(|v| v?.as_str()).collect::<StringArray>()),
        Kind::Flag => Arc::new(values.map(|v| v?.as_bool()).collect::<BooleanArray>()),
        Kind::Texts => {
            let mut lists = ListBuilder::new(StringBuilder::new());
            for texts in values {
                for text in texts.and_then(Value::as_array).into_iter().flatten() {
                    lists.values().append_option(text.as_str());
                }
                lists.append(true);
            }
            Arc::new(lists.finish())
        }
        Kind::Functions => {
            let mut lists = ListBuilder::new(StringBuilder::new());
            for callers in values {
                let callers = callers.and_then(Value::as_array).into_iter().flatten();
                for caller in callers {
                    lists.values().append_option(caller["function"].as_str());
                }
                lists.append(true);
            }
            Arc::new(lists.finish())
        }
    };
    (array.data_type().clone(), array)
}

#[pymethods]
impl Table {
    /// Number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        let fields = self.schema.fields().iter();
        fields.map(|field| field.name().clone()).collect()
    }

    /// Facts about the columns, such as their units, by name.
    fn metadata(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let fields = self.schema.fields().iter();
        fields
            .map(|field| {
                let facts = field.metadata().clone().into_iter().collect();
                (field.name().clone(), facts)
            })
            .collect()
    }

    /// The values of a column as a list.
    fn column(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyList>> {
        let index = self.schema.index_of(name);
        let index = index.map_err(|_| PyKeyError::new_err(name.to_owned()))?;
        let list = PyList::empty(py);
        for batch in &self.batches {
            append_values(py, &list, batch.column(index).as_ref())?;
        }
        Ok(list.unbind())
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The protocol lets a producer ignore it.
        drop(requested_schema);
        let batches = self.batches.clone().into_iter().map(Ok);
        stream_capsule(
            py,
            Box::new(RecordBatchIterator::new(batches, self.schema.clone())),
        )
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.schema)
    }
}

fn append_values(py: Python<'_>, list: &Bound<'_, PyList>, array: &dyn Array) -> PyResult<()> {
    for row in 0..array.len() {
        list.append(value(py, array, row)?)?;
    }
    Ok(())
}

fn value(py: Python<'_>, array: &dyn Array, row: usize) -> PyResult<Py<PyAny>> {
    if array.is_null(row) {
        return Ok(py.None());
    }
    match array.data_type() {
        DataType::UInt8 => array.as_primitive::<UInt8Type>().value(row).into_py_any(py),
        DataType::UInt16 => array
            .as_primitive::<UInt16Type>()
            .value(row)
            .into_py_any(py),
        DataType::UInt32 => array
            .as_primitive::<UInt32Type>()
            .value(row)
            .into_py_any(py),
        DataType::UInt64 => array
            .as_primitive::<UInt64Type>()
            .value(row)
            .into_py_any(py),
        DataType::Float64 => array
            .as_primitive::<Float64Type>()
            .value(row)
            .into_py_any(py),
        DataType::Utf8 => array.as_string::<i32>().value(row).into_py_any(py),
        DataType::Boolean => array.as_boolean().value(row).into_py_any(py),
        DataType::List(_) => {
            let items = PyList::empty(py);
            append_values(py, &items, array.as_list::<i32>().value(row).as_ref())?;
            Ok(items.into_any().unbind())
        }
        _ => Ok(py.None()),
    }
}
