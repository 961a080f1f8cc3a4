//! Readers of a program's words. One replays them on the modelled machine, for a recording or for
//! samples while the program runs; the other passes single references to a caller.

mod model_reader;
pub(crate) mod parts;
pub(crate) mod recorder;
pub(crate) mod references;
pub(crate) mod roi;
pub mod sampled;
pub(crate) mod stream;
