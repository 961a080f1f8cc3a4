//! Results by code: functions, lines and instructions, call stacks, regions of interest, and lines of
//! Python.

pub(crate) mod address_spaces;
pub(crate) mod disassembly;
pub(crate) mod excerpts;
pub(crate) mod hotspots;
pub(crate) mod library_calls;
pub(crate) mod library_names;
pub(crate) mod miss_order;
pub(crate) mod named_code;
pub(crate) mod python;
pub(crate) mod roi;
pub(crate) mod sites;
pub(crate) mod stacked;
pub(crate) mod stacks;
pub(crate) mod unnamed;
