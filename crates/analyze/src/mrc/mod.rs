//! Miss-rate curves.

mod batch;
mod exact;
mod histogram;
mod pages;
mod ranks;
mod sampled;
#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
mod tests;
mod times;
mod top;

pub use exact::{Exact, Full, Settings};
pub use histogram::Distances;
pub use pages::Advise;
pub use sys::Vectors;
