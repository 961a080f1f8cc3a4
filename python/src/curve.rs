//! Miss-ratio curves of references that Python passes.

use std::sync::{Mutex, PoisonError};

use memgauge_analyze::{no_references, references};
use memgauge_mrc::{
    Curve, Exact, Full, PartError, Sampled, SampledPart, SampledPartBuilder, Sampling, Settings,
    TracePart, TracePartBuilder as ExactPartBuilder, feed_blocks,
};
use memgauge_report::mrc::{CurveUnit, CurveView, MeasuredCurve};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use serde_json::Value;

use crate::error::{Error, UsageError, from_recording};
use crate::recording::Recording;
use crate::table::{Column, Kind, Table};
use crate::values::to_python;
use crate::work::{detached, interruptible};

/// Seed of the choice of blocks, as the command's default.
const SALT: u64 = 1;

enum EngineKind {
    Exact(Box<Exact>),
    Sampled(Box<Sampled>),
}

struct Engine {
    block_bytes: u64,
    kind: EngineKind,
    references: u64,
}

impl Engine {
    fn new(block_bytes: u64, sample: Option<f64>) -> PyResult<Engine> {
        check_block_size(block_bytes)?;
        let kind = match sample {
            None => EngineKind::Exact(Box::new(Exact::new(block_bytes, Settings::default()))),
            Some(rate) => {
                let sampling = Sampling::Rate(checked_rate(rate)?);
                let sampled = Sampled::new(block_bytes, sampling, SALT, Settings::default());
                EngineKind::Sampled(Box::new(sampled))
            }
        };
        Ok(Engine {
            block_bytes,
            kind,
            references: 0,
        })
    }

    fn feed(&mut self, addresses: &[u64], sizes: &[(usize, u32)]) -> Result<(), Full> {
        let Engine {
            block_bytes,
            kind,
            references,
        } = self;
        *references += addresses.len() as u64;
        feed_blocks(
            *block_bytes,
            addresses,
            sizes,
            &mut |addresses| match kind {
                EngineKind::Exact(engine) => engine.feed(addresses),
                EngineKind::Sampled(engine) => engine.feed(addresses),
            },
        )
    }

    fn finish(self) -> Result<MeasuredCurve, Full> {
        match self.kind {
            EngineKind::Exact(engine) => {
                let distances = engine.finish()?;
                Ok(MeasuredCurve::Exact(Curve::exact(
                    &distances,
                    self.block_bytes,
                )))
            }
            EngineKind::Sampled(engine) => Ok(MeasuredCurve::Sampled(engine.finish()?)),
        }
    }
}

fn check_block_size(block_bytes: u64) -> PyResult<()> {
    if block_bytes.is_power_of_two() {
        return Ok(());
    }
    Err(UsageError::new_err(format!(
        "failed to make a curve of blocks of {block_bytes} bytes: use a power of two"
    )))
}

fn checked_rate(rate: f64) -> PyResult<f64> {
    if rate > 0.0 && rate <= 1.0 {
        return Ok(rate);
    }
    Err(UsageError::new_err(format!(
        "failed to sample {rate} of the blocks: use a share above 0 and at most 1"
    )))
}

fn too_many(full: &Full) -> PyErr {
    Error::new_err(format!(
        "failed to track all blocks: {full} exceed the memory limit: use a smaller sample"
    ))
}

fn view(title: String, measured: MeasuredCurve, note: Option<String>, weight: f64) -> CurveView {
    CurveView {
        title,
        note,
        measured,
        unit: CurveUnit::Ratio,
        compulsory: true,
        marks: Vec::new(),
        sizes: Vec::new(),
        against: None,
        span: None,
        weight,
        full: false,
    }
}

/// A curve that is being made.
#[pyclass(frozen, module = "memgauge._memgauge")]
pub(crate) struct CurveBuilder(Mutex<Option<Engine>>);

#[pymethods]
impl CurveBuilder {
    #[new]
    #[pyo3(signature = (block, sample=None))]
    fn new(block: u64, sample: Option<f64>) -> PyResult<CurveBuilder> {
        Ok(CurveBuilder(Mutex::new(Some(Engine::new(block, sample)?))))
    }

    /// Takes addresses of eight bytes in this machine's order.
    fn feed(&self, py: Python<'_>, addresses: PyBackedBytes) -> PyResult<()> {
        detached(py, || {
            let addresses = words(&addresses);
            let mut engine = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let engine = engine.as_mut();
            engine.map_or(Ok(()), |engine| engine.feed(&addresses, &[]))
        })
        .map_err(|full| too_many(&full))
    }

    /// The curve.
    fn finish(&self, py: Python<'_>, title: String) -> PyResult<MissCurve> {
        let mut engine = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = engine.take().filter(|engine| engine.references > 0) else {
            return Err(UsageError::new_err(
                "failed to make a curve: there are no addresses",
            ));
        };
        let measured = detached(py, || engine.finish());
        let measured = measured.map_err(|full| too_many(&full))?;
        Ok(MissCurve(view(title, measured, None, 1.0)))
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|&word| u64::from_ne_bytes(word)).collect()
}

/// Refuses addresses that are negative as signed integers.
#[pyfunction]
pub(crate) fn check_not_negative(py: Python<'_>, addresses: PyBackedBytes) -> PyResult<()> {
    let negative = detached(py, || {
        let (words, _) = addresses.as_chunks::<8>();
        let mut words = words.iter().map(|&word| i64::from_ne_bytes(word));
        words.find(|&word| word < 0)
    });
    match negative {
        Some(address) => Err(UsageError::new_err(format!(
            "failed to read addresses: {address} is negative; use unsigned integers"
        ))),
        None => Ok(()),
    }
}

/// The state of a part of a trace, which is being made.
#[pyclass(frozen, module = "memgauge._memgauge")]
pub(crate) struct TracePartBuilder(Mutex<Option<PartBuilder>>);

enum PartBuilder {
    Exact(Box<ExactPartBuilder>),
    Sampled(Box<SampledPartBuilder>),
}

impl PartBuilder {
    fn feed(&mut self, addresses: &[u64]) -> Result<(), Full> {
        match self {
            PartBuilder::Exact(builder) => builder.feed(addresses),
            PartBuilder::Sampled(builder) => builder.feed(addresses),
        }
    }

    fn finish(self) -> Result<PartState, Full> {
        Ok(match self {
            PartBuilder::Exact(builder) => PartState::Exact(builder.finish()?),
            PartBuilder::Sampled(builder) => PartState::Sampled(builder.finish()?),
        })
    }
}

/// The state of a part of a trace: of all its blocks, or of a sample of them.
enum PartState {
    Exact(TracePart),
    Sampled(SampledPart),
}

impl PartState {
    fn from_bytes(bytes: &[u8]) -> Result<PartState, PartError> {
        match SampledPart::begins(bytes) {
            true => SampledPart::from_bytes(bytes).map(PartState::Sampled),
            false => TracePart::from_bytes(bytes).map(PartState::Exact),
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        match self {
            PartState::Exact(part) => part.to_bytes(),
            PartState::Sampled(part) => part.to_bytes(),
        }
    }

    fn merge(self, right: PartState) -> Result<PartState, PartError> {
        match (self, right) {
            (PartState::Exact(left), PartState::Exact(right)) => {
                left.merge(right).map(PartState::Exact)
            }
            (PartState::Sampled(left), PartState::Sampled(right)) => {
                left.merge(right).map(PartState::Sampled)
            }
            _ => Err(PartError::OtherSample),
        }
    }

    /// The curve of a whole trace. `None` without references.
    fn measured(self) -> Option<MeasuredCurve> {
        match self {
            PartState::Exact(part) => {
                let (block_bytes, references) = (part.block_bytes(), part.references());
                (references > 0)
                    .then(|| MeasuredCurve::Exact(Curve::exact(&part.finish(), block_bytes)))
            }
            PartState::Sampled(part) => {
                (part.references() > 0).then(|| MeasuredCurve::Sampled(part.finish()))
            }
        }
    }
}

#[pymethods]
impl TracePartBuilder {
    #[new]
    #[pyo3(signature = (block, sample=None))]
    fn new(block: u64, sample: Option<f64>) -> PyResult<TracePartBuilder> {
        check_block_size(block)?;
        let settings = Settings::default();
        let builder = match sample {
            None => PartBuilder::Exact(Box::new(ExactPartBuilder::new(block, settings))),
            Some(rate) => {
                let builder = SampledPartBuilder::new(block, checked_rate(rate)?, SALT, settings);
                PartBuilder::Sampled(Box::new(builder))
            }
        };
        Ok(TracePartBuilder(Mutex::new(Some(builder))))
    }

    /// Takes addresses of eight bytes in this machine's order.
    fn feed(&self, py: Python<'_>, addresses: PyBackedBytes) -> PyResult<()> {
        detached(py, || {
            let addresses = words(&addresses);
            let mut builder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let builder = builder.as_mut();
            builder.map_or(Ok(()), |builder| builder.feed(&addresses))
        })
        .map_err(|full| too_many(&full))
    }

    /// The state as bytes with a version.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let builder = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(builder) = builder else {
            return Err(UsageError::new_err(
                "failed to finish a part of a trace: it is finished already",
            ));
        };
        let bytes = detached(py, || builder.finish().map(|part| part.to_bytes()));
        let bytes = bytes.map_err(|full| too_many(&full))?;
        Ok(PyBytes::new(py, &bytes))
    }
}

fn unmergeable(error: &PartError) -> PyErr {
    UsageError::new_err(format!("failed to merge parts of a trace: {error}"))
}

/// The state of two consecutive parts.
#[pyfunction]
pub(crate) fn merge_trace_parts<'py>(
    py: Python<'py>,
    left: PyBackedBytes,
    right: PyBackedBytes,
) -> PyResult<Bound<'py, PyBytes>> {
    let merged = detached(py, || {
        let left = PartState::from_bytes(&left)?;
        Ok(left.merge(PartState::from_bytes(&right)?)?.to_bytes())
    });
    let merged = merged.map_err(|error: PartError| unmergeable(&error))?;
    Ok(PyBytes::new(py, &merged))
}

/// The curve of the state of a whole trace.
#[pyfunction]
pub(crate) fn curve_of_trace_part(
    py: Python<'_>,
    part: PyBackedBytes,
    title: String,
) -> PyResult<MissCurve> {
    let measured = detached(py, || PartState::from_bytes(&part).map(PartState::measured));
    match measured.map_err(|error: PartError| unmergeable(&error))? {
        Some(measured) => Ok(MissCurve(view(title, measured, None, 1.0))),
        None => Err(UsageError::new_err(
            "failed to make a curve: there are no addresses",
        )),
    }
}

/// Reason why a recording gives no curve.
enum Failure {
    Recording(memgauge_recording::Error),
    Full(Full),
    NoReferences(String),
}

impl From<memgauge_recording::Error> for Failure {
    fn from(error: memgauge_recording::Error) -> Failure {
        Failure::Recording(error)
    }
}

/// The curve of a recording's sampled addresses.
#[pyfunction]
#[pyo3(signature = (recording, block, sample=None))]
pub(crate) fn curve_of_recording(
    py: Python<'_>,
    recording: PyRef<'_, Recording>,
    block: u64,
    sample: Option<f64>,
) -> PyResult<MissCurve> {
    let reader = recording.reader().clone();
    let mut engine = Engine::new(block, sample)?;
    let made: Result<CurveView, Failure> = interruptible(py, move || {
        let mut problems = reader.problems();
        let read = references(&reader, &mut problems, &mut |addresses, sizes| {
            engine.feed(addresses, sizes).map_err(Failure::Full)
        })?;
        let Some(read) = read else {
            return Err(Failure::NoReferences(no_references(&reader, &problems)));
        };
        let mut measured = engine.finish().map_err(Failure::Full)?;
        measured.scale(read.weight);
        let title = reader.path().display().to_string();
        Ok(view(title, measured, read.note, read.weight))
    })?;
    made.map(MissCurve).map_err(|failure| match failure {
        Failure::Recording(error) => from_recording(&error),
        Failure::Full(full) => too_many(&full),
        Failure::NoReferences(why) => UsageError::new_err(why),
    })
}

/// A miss-ratio curve.
#[pyclass(frozen, module = "memgauge._memgauge")]
pub(crate) struct MissCurve(CurveView);

#[pymethods]
impl MissCurve {
    /// Returns the output of `memgauge mrc --json` for a curve.
    fn json(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, &self.0.json())
    }

    /// Misses at sizes of memory. The sizes are on a scale of equal ratios unless given in bytes.
    #[pyo3(signature = (sizes=None))]
    fn points(&self, sizes: Option<Vec<u64>>) -> PyResult<Table> {
        let view = CurveView {
            sizes: sizes.unwrap_or_default(),
            ..self.0.clone()
        };
        let json = view.json();
        let points = json["points"].as_array().into_iter().flatten();
        let rows: Vec<_> = points.filter_map(Value::as_object).cloned().collect();
        Table::of_fields(&rows, POINTS, &[])
    }
}

const fn point(name: &'static str, kind: Kind, unit: &'static str) -> Column {
    Column { name, kind, unit }
}

const POINTS: &[Column] = &[
    point("bytes", Kind::Count, "bytes"),
    point("misses", Kind::Real, "count"),
    point("miss_ratio", Kind::Real, "ratio"),
    point("half_band_95", Kind::Real, "ratio"),
];
