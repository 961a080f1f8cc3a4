//! Comparisons of runs, and gates on them.

use memgauge_analyze::{Options, Rank, summarise};
use memgauge_report::{
    Comparison as Compared, Gate, GateError, Measured, check_event, check_group,
};
use memgauge_symbols::Symbols;
use pyo3::prelude::*;
use serde_json::{Map, Value};

use crate::error::{Error, UsageError, from_recording};
use crate::recording::Recording;
use crate::table::{Column, Kind, Table};
use crate::values::to_python;
use crate::work::interruptible;

/// Numbers of a run that are compared.
#[pyclass(frozen, module = "memgauge._memgauge")]
pub(crate) struct Run(Measured);

#[pymethods]
impl Run {
    /// Creates it from a recording. `event` is the one that ranks functions.
    #[staticmethod]
    #[pyo3(signature = (recording, event=None))]
    fn of_recording(
        py: Python<'_>,
        recording: PyRef<'_, Recording>,
        event: Option<&str>,
    ) -> PyResult<Run> {
        let reader = recording.reader().clone();
        let rank = event.and_then(|event| Rank::named(event, reader.manifest()).ok());
        let measured: memgauge_recording::Result<Measured> = interruptible(py, move || {
            let options = Options::every_place(rank);
            let summary = summarise(&reader, &mut Symbols::of(reader.path()), &options)?;
            Ok(Measured {
                is_damaged: reader.is_damaged(),
                ..Measured::of(&summary)
            })
        })?;
        measured.map(Run).map_err(|error| from_recording(&error))
    }

    /// Creates it from the text of a baseline file.
    #[staticmethod]
    fn of_baseline(text: &str, name: &str) -> PyResult<Run> {
        Measured::parse(text).map(Run).map_err(|why| {
            Error::new_err(format!(
                "failed to read baseline `{name}`: {why}: write it with `memgauge report --baseline \
                 FILE`"
            ))
        })
    }

    /// The text of a baseline file.
    fn baseline(&self) -> String {
        self.0.file()
    }
}

/// Two runs, or two groups of runs, compared.
#[pyclass(frozen, module = "memgauge._memgauge")]
pub(crate) struct Comparison(Compared);

#[pymethods]
impl Comparison {
    #[new]
    #[pyo3(signature = (before, after, event=None))]
    fn new(
        before: Vec<PyRef<'_, Run>>,
        after: Vec<PyRef<'_, Run>>,
        event: Option<&str>,
    ) -> PyResult<Comparison> {
        let [before, after] = [before, after]
            .map(|runs| -> Vec<Measured> { runs.iter().map(|run| run.0.clone()).collect() });
        if let Some(event) = event {
            let runs: Vec<&Measured> = before.iter().chain(&after).collect();
            check_event(event, &runs).map_err(UsageError::new_err)?;
        }
        for group in [&before, &after] {
            check_group(group).map_err(UsageError::new_err)?;
        }
        Ok(Comparison(Compared::of(&before, &after, event)))
    }

    /// Returns the output of `memgauge diff --json`.
    fn json(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, &self.0.json())
    }

    /// Metrics of both.
    fn metrics(&self) -> PyResult<Table> {
        self.table(METRICS, "metrics")
    }

    /// Functions that changed.
    fn functions(&self) -> PyResult<Table> {
        self.table(CHANGES, "functions")
    }

    /// Lines that changed.
    fn lines(&self) -> PyResult<Table> {
        self.table(CHANGES, "lines")
    }

    /// A sentence for each gate that fails, and one about what kind of change it is.
    fn failed_gates(&self, gates: Vec<String>) -> PyResult<Vec<String>> {
        let gates = gates.iter().map(|text| {
            text.parse().map_err(|why: String| {
                UsageError::new_err(format!("failed to read gate `{text}`: {why}"))
            })
        });
        let gates = gates.collect::<PyResult<Vec<Gate>>>()?;
        self.0.failed_gates(&gates).map_err(|error| match error {
            GateError::Usage(why) => UsageError::new_err(why),
            GateError::Incomparable(why) => Error::new_err(why),
        })
    }
}

impl Comparison {
    fn table(&self, columns: &[Column], field: &str) -> PyResult<Table> {
        let json = self.0.json();
        let rows = json[field].as_array().into_iter().flatten();
        let rows = rows.filter_map(Value::as_object).map(with_interval);
        Table::of_fields(&rows.collect::<Vec<_>>(), columns, &[])
    }
}

/// A row with the ends of its interval as fields.
fn with_interval(row: &Map<String, Value>) -> Map<String, Value> {
    let mut row = row.clone();
    if let Some(Value::Array(ends)) = row.remove("interval") {
        let names = ["difference_low", "difference_high"];
        row.extend(names.map(str::to_owned).into_iter().zip(ends));
    }
    row
}

const fn column(name: &'static str, kind: Kind) -> Column {
    Column {
        name,
        kind,
        unit: "",
    }
}

const METRICS: &[Column] = &[
    column("name", Kind::Text),
    column("before", Kind::Real),
    column("after", Kind::Real),
    column("difference", Kind::Real),
    column("relative", Kind::Real),
    column("difference_low", Kind::Real),
    column("difference_high", Kind::Real),
];

const CHANGES: &[Column] = &[
    column("function", Kind::Text),
    column("only", Kind::Text),
    column("before", Kind::Count),
    column("after", Kind::Count),
    column("share", Kind::Real),
    column("difference_low", Kind::Real),
    column("difference_high", Kind::Real),
];
