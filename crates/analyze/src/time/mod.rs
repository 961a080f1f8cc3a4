//! Results over time, and by what the time was used for.

pub(crate) mod counted_time;
pub(crate) mod file_waits;
pub(crate) mod region_times;
pub(crate) mod series;
pub(crate) mod time_use;
pub(crate) mod timeline;
