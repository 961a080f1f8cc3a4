//! Miss-rate curves.

mod batch;
mod curve;
mod distinct;
mod exact;
mod histogram;
mod pages;
mod partition;
mod ranks;
mod sampled;
#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
mod tests;
mod times;
mod top;

pub use curve::{Curve, Difference, Knee, sizes};
pub use exact::{Exact, Full, Settings};
pub use histogram::Distances;
pub use pages::Advise;
pub use partition::{Division, Method, divide};
pub use sampled::{Estimate, Sampled, Sampling};
pub use sys::Vectors;
