//! Frames of CPython at samples of perf events.
//!
//! A BPF program (`bpf/`) runs at each sample in the sampled thread, before the kernel writes the
//! sample. It follows the interpreter's frames and writes them into the ring of the event. A reader
//! that looked at the process later would see the frames of a later moment.
//!
//! [`Interpreter`] finds out where an interpreter keeps its frames, [`FrameReader`] loads the
//! program, and [`RingRecord`] is what the program writes.
//!
//! Rejected: `python3 -X perf`, which only 3.12 and later have and which changes the program's speed;
//! and the names of all code objects of a process from its memory, which misses processes that have
//! ended.

#![deny(unsafe_code)]

mod cpython;
mod layout;
mod reader;

pub use cpython::{FileContent, Interpreter};
pub use layout::{Code, InterpreterFrame, RingRecord, Text};
pub use reader::{FrameReader, LostRecords};
