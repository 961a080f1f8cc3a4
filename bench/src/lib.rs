//! Parts that several benchmark programs share.

pub mod random;
