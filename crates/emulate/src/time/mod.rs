//! Virtual time: when waiting threads continue.
//!
//! The engine marks releases and waits among the words (`engine::sync` reads the marks). [`waits`]
//! computes the end of each wait, [`sleep_gate`] keeps sleeping threads behind the running ones, and
//! [`thread_starts`] does so for threads that have not executed anything yet. `follow` uses the times
//! to choose whose words are replayed next. docs/emulate.md explains virtual time, and
//! docs/virtual-time.md how both halves implement it.

pub(crate) mod pipes;
pub(crate) mod sleep_gate;
pub(crate) mod thread_starts;
pub(crate) mod waits;
