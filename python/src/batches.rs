//! Rows of large tables as a stream of record batches.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, Schema};
use memgauge_recording::{Batches as Rows, ErrorKind, Recording as Reader, Row};
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::error::{DamagedError, UsageError, from_recording};
use crate::sys::{arrow_error, schema_capsule, stream_capsule};
use crate::table::Table;
use crate::work::detached;

type Problems = Arc<Mutex<Vec<String>>>;

/// No part of a table can be read.
#[derive(Debug)]
struct Lost(String);

impl Lost {
    fn of<R: Row>(reader: &Reader, problems: &[String]) -> Lost {
        Lost(format!(
            "failed to read {} of `{}`: all parts are missing or damaged: {}",
            R::TABLE,
            reader.path().display(),
            problems.join("; ")
        ))
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Lost {}

/// Batches of the intact parts. Damaged ones are listed, also by the recording. If all are damaged, the last one is
/// an error, since no rows would look like a run without samples.
struct IntactBatches<R: Row> {
    reader: Arc<Reader>,
    rows: Rows<R>,
    intact_parts: usize,
    problems: Problems,
}

impl<R: Row> Iterator for IntactBatches<R> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.rows.next()? {
                Ok(batch) => return Some(Ok(batch)),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let problem = self.reader.skip(&error);
                    lock(&self.problems).push(problem);
                    self.intact_parts = self.intact_parts.saturating_sub(1);
                    if self.intact_parts == 0 {
                        let lost = Lost::of::<R>(&self.reader, &lock(&self.problems));
                        return Some(Err(ArrowError::ExternalError(Box::new(lost))));
                    }
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
    /// # Errors
    /// All parts of the table are missing or damaged.
    pub(crate) fn new<R: Row>(reader: Arc<Reader>, rows: Rows<R>) -> PyResult<Batches> {
        if reader.has_lost::<R>() {
            let lost = Lost::of::<R>(&reader, &reader.problems());
            return Err(DamagedError::new_err(lost.0));
        }
        let problems = Problems::default();
        let schema = rows.schema().clone();
        let batches = IntactBatches {
            reader,
            intact_parts: rows.remaining_parts(),
            rows,
            problems: problems.clone(),
        };
        Ok(Batches {
            schema,
            reader: Mutex::new(Some(Box::new(batches))),
            problems,
        })
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
        let batch = detached(py, || lock(&self.reader).as_mut().map(Iterator::next));
        match batch {
            None => Err(taken()),
            Some(None) => Err(PyStopIteration::new_err(())),
            Some(Some(Ok(batch))) => Ok(Table::new(self.schema.clone(), vec![batch])),
            Some(Some(Err(error))) => Err(of_batch(error)),
        }
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let mut reader = lock(&self.reader).take().ok_or_else(taken)?;
        // Errors within the stream become exceptions of the other library. Those of a recording without intact parts
        // come with the first batch.
        let first = detached(py, || reader.next());
        let first = first.transpose().map_err(of_batch)?;
        let batches = first.into_iter().map(Ok).chain(reader);
        let batches = RecordBatchIterator::new(batches, self.schema.clone());
        stream_capsule(py, Box::new(batches))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.schema)
    }
}

fn taken() -> PyErr {
    UsageError::new_err(
        "failed to read the batches: another library has taken them; call samples() again",
    )
}

/// The exception for an error of the reader.
fn of_batch(error: ArrowError) -> PyErr {
    if let ArrowError::ExternalError(error) = &error {
        if let Some(lost) = error.downcast_ref::<Lost>() {
            return DamagedError::new_err(lost.0.clone());
        }
        if let Some(error) = error.downcast_ref::<memgauge_recording::Error>() {
            return from_recording(error);
        }
    }
    arrow_error(error)
}
