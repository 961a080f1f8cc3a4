//! The engine and its output: starting it, the memory shared with it, and the encoding of words,
//! marks and the catalogue. `engine/src/` is the other side.

pub(crate) mod address_space;
pub(crate) mod allocators;
pub(crate) mod catalogue;
pub(crate) mod instructions;
pub(crate) mod launch;
pub(crate) mod pid_namespace;
pub(crate) mod python_code;
pub(crate) mod session;
pub(crate) mod sync;
#[allow(unsafe_code)]
pub(crate) mod sys;
pub(crate) mod wire;
pub(crate) mod words;
