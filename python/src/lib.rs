//! Extension module of the Python package `memgauge`.
//!
//! It reads recordings with the crates that the command uses, so results are those of
//! `memgauge report --json`. Tables cross to Python through Arrow's C data interface without a copy.
//! The pure Python part (`memgauge/`) has the API that users see; the classes here are its backends.
//!
//! Every function that reads a recording releases the interpreter's lock. Longer work runs in a
//! thread of its own, so that Ctrl-C interrupts the wait for it.
//!
//! It never links the engine, which is a program of its own under another licence.

mod batches;
mod bucket;
mod comparison;
mod curve;
mod error;
mod fleet;
mod marks;
mod recording;
mod sys;
mod table;
mod values;
mod work;

use pyo3::prelude::*;

/// The module `memgauge._memgauge`.
#[pymodule]
mod _memgauge {
    #[pymodule_export]
    use crate::batches::Batches;
    #[pymodule_export]
    use crate::bucket::Bucket;
    #[pymodule_export]
    use crate::comparison::{Comparison, Run};
    #[pymodule_export]
    use crate::curve::{
        CurveBuilder, MissCurve, TracePartBuilder, check_not_negative, curve_of_recording,
        curve_of_trace_part, merge_trace_parts,
    };
    #[pymodule_export]
    use crate::error::{DamagedError, Error, NewerVersionError, NotARecordingError, UsageError};
    #[pymodule_export]
    use crate::fleet::index_share;
    #[pymodule_export]
    use crate::marks::{region_begin, region_end, value};
    #[pymodule_export]
    use crate::recording::{Recording, Summary, merge_sums, recordings_table};
    #[pymodule_export]
    use crate::table::Table;
    #[pymodule_export]
    use crate::work::{interpreter_ends, interrupt};

    use super::*;

    /// Whether a path is a recording: a directory, or a file that `memgauge pack` wrote.
    #[pyfunction]
    fn is_recording(path: std::path::PathBuf) -> bool {
        memgauge_recording::is_recording(&path)
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let atexit = module.py().import("atexit")?;
        atexit.call_method1("register", (module.getattr("interpreter_ends")?,))?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
