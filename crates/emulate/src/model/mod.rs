//! Replays words on the modelled machine, and charges misses to code, calls, lines of Python, and
//! data.

pub(crate) mod calls;
pub(crate) mod costs;
pub(crate) mod data;
pub(crate) mod dependences;
pub(crate) mod file_waits;
pub mod geometry;
pub(crate) mod huge_pages;
pub(crate) mod moves;
pub(crate) mod pending;
pub(crate) mod python;
pub(crate) mod replay;
pub(crate) mod sets;
pub(crate) mod sharing;
