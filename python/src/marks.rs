//! Marks of regions of interest (docs/regions.md).

use std::ffi::CString;

use pyo3::prelude::*;

use crate::sys;

/// Begins the region in this thread.
#[pyfunction]
pub(crate) fn region_begin(name: CString) {
    sys::region_begin(&name);
}

/// Ends the region in this thread.
#[pyfunction]
pub(crate) fn region_end(name: CString) {
    sys::region_end(&name);
}

/// Reports a value.
#[pyfunction]
pub(crate) fn value(name: CString, value: u64) {
    sys::report_value(&name, value);
}
