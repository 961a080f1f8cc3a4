//! Virtual time: when a thread continues on the modelled machine.
//!
//! This page explains both halves: the engine's, `engine/src/time/`, and this folder with its
//! users. docs/machine-model.md defines the times.
//!
//! While a thread executes, the clock of its core advances by the instructions and stalls of the
//! model, whatever the host does. The host's order of events matters only where one thread waits
//! for another. The engine sees such waits, and this crate computes how long they take.
//!
//! | | engine, in the program's threads | emulate, in the recorder |
//! |---|---|---|
//! | releases and waits | `sync.c` puts a numbered release before a call that may wake others, and an acquire after one that may have waited. `keys.c` names the object of both, `ends.c` finds the writers of a pipe | [`waits`] ends a wait at the time of its release. `follow` replays a waiting thread after everything with a smaller number |
//! | bytes in a pipe | `sync.c` records the sizes of reads and writes | [`pipes`] finds the write that a read waited for |
//! | sleeps | `asked.c` reads the requested time from the arguments, `timers.c` finds the timer of a signal, `hold.c` holds a thread whose sleep has ended on the host | [`sleep_gate`] lets it continue when the running threads have reached the end of the sleep |
//! | starts | `sync.c` puts a mark before a clone or fork | [`thread_starts`] counts threads that exist and have not executed anything, and a thread begins at the time of its mark |
//! | waits for something outside the session | `outside.c` measures them by the host's clock | [`waits`] adds the measured time |
//! | waits for files | `files.c` measures them by the host's clock | virtual time does not contain them. The manifest has their sum (`file_waits_s`) |
//!
//! The marks are words among the others (`engine::sync` decodes them), so their order is that of
//! the program. `engine/src/stream.h` draws them. Three numbers pass through the shared memory
//! instead, because they are needed before the words are read: each ring's count of system calls,
//! the end of the sleep that a thread asks for, and how far the recorder has let it go.
//!
//! The engine knows no virtual time. It was rejected there, because it would need the model, which
//! runs in the recorder. The halves share memory and no code, since the engine is under the GPL.

pub(crate) mod pipes;
pub(crate) mod sleep_gate;
pub(crate) mod thread_starts;
pub(crate) mod waits;
