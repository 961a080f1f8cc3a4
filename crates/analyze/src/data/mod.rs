//! Results by data: memory regions, allocations, variables and types, and the lines that threads
//! share.

pub(crate) mod address_gap;
pub(crate) mod fine_heat;
pub(crate) mod heap_history;
pub(crate) mod heat;
pub(crate) mod layout;
pub(crate) mod placement;
pub(crate) mod references;
pub(crate) mod regions;
pub(crate) mod sharing;
pub(crate) mod table;
pub(crate) mod types;
