//! Arrow's C data interface: capsules for other libraries. Marks of regions of interest. Interrupts.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use arrow_array::RecordBatchReader;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, Schema};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::error::Error;

const STREAM: &CStr = c"arrow_array_stream";
const SCHEMA: &CStr = c"arrow_schema";

/// A capsule with a stream of record batches. Whoever does not consume it releases it with the
/// capsule.
pub(crate) fn stream_capsule<'py>(
    py: Python<'py>,
    batches: Box<dyn RecordBatchReader + Send>,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new(
        py,
        FFI_ArrowArrayStream::new(batches),
        Some(STREAM.to_owned()),
    )
}

/// A capsule with a schema.
pub(crate) fn schema_capsule<'py>(
    py: Python<'py>,
    schema: &Arc<Schema>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema.as_ref()).map_err(arrow_error)?;
    PyCapsule::new(py, schema, Some(SCHEMA.to_owned()))
}

/// The exception for an error of the Arrow library.
pub(crate) fn arrow_error(error: ArrowError) -> PyErr {
    Error::new_err(error.to_string())
}

// SAFETY: the declarations are those of `marks.c`.
unsafe extern "C" {
    fn memgauge_python_begin(name: *const c_char);
    fn memgauge_python_end(name: *const c_char);
    fn memgauge_python_value(name: *const c_char, value: u64);
}

/// Begins a region of interest in this thread.
pub(crate) fn region_begin(name: &CStr) {
    // SAFETY: the name ends in NUL and is only read during the call.
    unsafe { memgauge_python_begin(name.as_ptr()) }
}

/// Ends it.
pub(crate) fn region_end(name: &CStr) {
    // SAFETY: as above.
    unsafe { memgauge_python_end(name.as_ptr()) }
}

/// Reports a value.
pub(crate) fn report_value(name: &CStr, value: u64) {
    // SAFETY: as above.
    unsafe { memgauge_python_value(name.as_ptr(), value) }
}

/// Sends SIGINT with a number to a process.
pub(crate) fn send_interrupt(pid: i32, number: i32) -> std::io::Result<()> {
    let value = libc::sigval {
        sival_ptr: number as usize as *mut libc::c_void,
    };
    // SAFETY: the call only reads its arguments.
    match unsafe { libc::sigqueue(pid, libc::SIGINT, value) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
