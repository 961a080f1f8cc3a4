//! The option `--source`.

use clap::ValueEnum;

/// Where events come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// The best source that works on this machine
    #[default]
    Auto,
    /// Run the program under QEMU and model a machine
    Emulate,
    /// Sample by a timer; data addresses are rebuilt from registers and code
    Clock,
    /// Sample events of the processor and the kernel (-e)
    Pmu,
    /// Sample calls of malloc and free in the running program, for `memgauge heap`
    Malloc,
}
