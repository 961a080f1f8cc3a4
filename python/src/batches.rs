//! Rows of large tables as a stream of record batches.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, Schema};
use memgauge_recording::{Batches as Rows, ErrorKind, Row};
use pyo3::exceptions::{PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::error::from_recording;
use crate::sys::{schema_capsule, stream_capsule};
use crate::table::Table;
use crate::work::detached;

type Problems = Arc<Mutex<Vec<String>>>;

/// Batches of the intact parts. Damaged ones are listed.
struct IntactBatches<R: Row> {
    rows: Rows<R>,
    problems: Problems,
}

impl<R: Row> Iterator for IntactBatches<R> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.rows.next()? {
                Ok(batch) => return Some(Ok(batch)),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    lock(&self.problems).push(error.to_string());
                }
                Err(error) => return Some(Err(ArrowError::ExternalError(Box::new(error)))),
            }
        }
    }
}

impl<R: Row> RecordBatchReader for IntactBatches<R> {
    fn schema(&self) -> Arc<Schema> {
        self.rows.schema().clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream of record batches, which can be read once.
#[pyclass(frozen, module = "memgauge._memgauge")]
pub(crate) struct Batches {
    schema: Arc<Schema>,
    /// `None` after it was handed to another library.
    reader: Mutex<Option<Box<dyn RecordBatchReader + Send>>>,
    problems: Problems,
}

impl Batches {
    pub(crate) fn new<R: Row>(rows: Rows<R>) -> Batches {
        let problems = Problems::default();
        let schema = rows.schema().clone();
        let reader = IntactBatches {
            rows,
            problems: problems.clone(),
        };
        Batches {
            schema,
            reader: Mutex::new(Some(Box::new(reader))),
            problems,
        }
    }
}

#[pymethods]
impl Batches {
    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        let fields = self.schema.fields().iter();
        fields.map(|field| field.name().clone()).collect()
    }

    /// Damaged parts so far, in words.
    #[getter]
    fn problems(&self) -> Vec<String> {
        lock(&self.problems).clone()
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Table> {
        let batch = detached(py, || lock(&self.reader).as_mut().and_then(Iterator::next));
        match batch {
            None => Err(PyStopIteration::new_err(())),
            Some(Ok(batch)) => Ok(Table::new(self.schema.clone(), vec![batch])),
            Some(Err(ArrowError::ExternalError(error))) => {
                Err(match error.downcast_ref::<memgauge_recording::Error>() {
                    Some(error) => from_recording(error),
                    None => PyValueError::new_err(error.to_string()),
                })
            }
            Some(Err(error)) => Err(PyValueError::new_err(error.to_string())),
        }
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        match lock(&self.reader).take() {
            Some(reader) => stream_capsule(py, reader),
            None => Err(PyValueError::new_err(
                "failed to read the batches: another library has taken them",
            )),
        }
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.schema)
    }
}
