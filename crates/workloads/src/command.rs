//! The command line. The doc comments are the help text.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::time::Duration;

use crate::units;

/// Small programs whose loads and stores are known in closed form.
///
/// N, S, P, A, K, T and so on in a closed form are the options of the same
/// initial. Sizes take units (64MiB, 4k, 1GB) and leading zeros. The form counts
/// 8-byte loads and stores of the measured loop alone: subtract a run of the
/// same program with N, P or K = 0 and equally long arguments. `help SUBCOMMAND`
/// gives the form.
///
/// Memory comes from one anonymous mapping of 4 KiB pages, filled by the kernel,
/// so set-up makes no access of the program itself (but see `chase`).
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub(crate) struct Cli {
    /// The workload to run.
    #[command(subcommand)]
    pub(crate) command: Command,

    /// Print seconds and GB/s of the measured loop to stderr. The bytes are
    /// those loaded and stored, without write-allocate and write-back.
    #[arg(long, global = true)]
    pub(crate) time: bool,

    /// Print the loads, stores and line splits of the closed form, and do not run.
    #[arg(long, global = true)]
    pub(crate) expect: bool,
}

/// The workloads.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Read N bytes in order.
    ///
    /// P passes of 8-byte loads, S bytes apart, the first at A bytes past a page
    /// start. A load at an address whose last six bits exceed 56 is split over
    /// two 64-byte lines (A = 60 and S = 64: every load is).
    ///
    /// Closed form: loads = P × ⌊N/S⌋, stores = 0. With S = 8 and A = 0 a pass
    /// touches ⌈⌊N/8⌋/8⌉ lines; beyond the last-level cache each is read from
    /// memory once a pass.
    Linear(Walk),

    /// Store to N bytes in order.
    ///
    /// As `linear`, with stores.
    ///
    /// Closed form: loads = 0, stores = P × ⌊N/S⌋. Beyond a write-allocating
    /// last-level cache N bytes are read and N bytes written back a pass.
    Write(Walk),

    /// `a[i] = b[i] + k × c[i]` over three arrays of N bytes each.
    ///
    /// The triad of STREAM on 64-bit integers (k = 3). The arrays start on line
    /// boundaries, a page-rounded N and four lines apart.
    ///
    /// Closed form: loads = 2 × P × ⌊N/8⌋, stores = P × ⌊N/8⌋.
    Triad {
        /// Bytes in each array (N).
        #[arg(long, value_parser = units::size, default_value = "16MiB")]
        bytes: u64,
        /// Passes (P).
        #[arg(long, value_parser = units::count, default_value = "1")]
        passes: u64,
    },

    /// Increment random words of an array of N bytes.
    ///
    /// K steps; the word is chosen by xorshift64 from a fixed seed. Its page
    /// miss-rate curve is a straight line from K misses at no memory to none at N.
    ///
    /// Closed form: loads = stores = K, or 0 when N < 8.
    Rand {
        /// Bytes in the array (N).
        #[arg(long, value_parser = units::size, default_value = "4MiB")]
        bytes: u64,
        /// Increments (K).
        #[arg(long, value_parser = units::count, default_value = "4M")]
        steps: u64,
    },

    /// Increment every word of an array of N bytes in order, P times.
    ///
    /// Its page miss-rate curve is flat until all N bytes fit, then a cliff.
    ///
    /// Closed form: loads = stores = P × ⌊N/8⌋.
    Bigarray {
        /// Bytes in the array (N).
        #[arg(long, value_parser = units::size, default_value = "4MiB")]
        bytes: u64,
        /// Passes (P).
        #[arg(long, value_parser = units::count, default_value = "25")]
        passes: u64,
    },

    /// Multiply a matrix of R rows and C columns with a vector.
    ///
    /// Per element one load of the matrix and one of the vector in turn, per row
    /// one store of the result. As given: 1024 pages of matrix, 128 of vector,
    /// one of result; the page miss-rate curve steps down just above 256 pages
    /// and just above 1152.
    ///
    /// Closed form: loads = 2 × P × R × C, stores = P × R.
    Randmatmult(Matrix),

    /// Follow a random cycle of pointers through N bytes, one pointer a line.
    ///
    /// Each load gives the address of the next, so the time of a step is the
    /// latency of the level the cycle fits in.
    ///
    /// Closed form: loads = K, stores = 0, or no loads when N < 64. Set-up, apart
    /// from the measured loop, with n = ⌊N/64⌋ ≥ 1 nodes: loads = 2(n − 1),
    /// stores = 3n − 2. So compare K with K = 0 at equal N.
    Chase(Cycles),

    /// Read working sets of 2ⁿ bytes, each for T bytes in all.
    ///
    /// Every power of two w from FROM to TO is read in order, ⌊T/w⌋ times over.
    ///
    /// Closed form: loads = Σ ⌊T/w⌋ × w/8, stores = 0: T/8 a working set when T
    /// is a multiple of TO.
    Sweep(Sweep),

    /// Alternate between a high and a low rate of loads.
    ///
    /// C cycles of: every word of N bytes in order, then the first word of each
    /// line of them with S turns of an empty loop after it.
    ///
    /// Closed form: loads = C × (⌊N/8⌋ + ⌊N/64⌋), stores = 0. Lines touched are
    /// the same in both phases.
    Phases(Phases),

    /// Increment counters in T threads at once.
    ///
    /// Closed form: loads = stores = T × K; `shared` uses locked increments.
    /// Starting and joining threads makes accesses of its own that depend on the
    /// scheduler, some hundred a thread; subtract K = 0 at equal T.
    Threads {
        /// Threads (T).
        #[arg(long, default_value = "2", value_parser = clap::value_parser!(u16).range(0..=1024))]
        threads: u16,
        /// Increments in each thread (K).
        #[arg(long, value_parser = units::count, default_value = "1M")]
        steps: u64,
        /// Where the counters lie.
        #[arg(long, value_enum, default_value = "private")]
        sharing: Sharing,
    },

    /// Sleep.
    ///
    /// Closed form: loads = stores = 0.
    Idle {
        /// How long: us, ms or s; a bare number is milliseconds.
        #[arg(long = "for", value_parser = units::duration, default_value = "100ms")]
        duration: Duration,
    },
}

/// A walk in order.
#[derive(Debug, Args)]
pub(crate) struct Walk {
    /// Bytes walked over (N).
    #[arg(long, value_parser = units::size, default_value = "64MiB")]
    pub(crate) bytes: u64,
    /// Bytes from one access to the next (S).
    #[arg(long, value_parser = units::stride, default_value = "8")]
    pub(crate) stride: u64,
    /// Passes (P).
    #[arg(long, value_parser = units::count, default_value = "1")]
    pub(crate) passes: u64,
    /// Bytes from a page start to the first access (A).
    #[arg(long, value_parser = units::size, default_value = "0")]
    pub(crate) align: u64,
}

/// A matrix and how often to multiply it.
#[derive(Debug, Args)]
pub(crate) struct Matrix {
    /// Rows (R).
    #[arg(long, value_parser = units::count, default_value = "8")]
    pub(crate) rows: u64,
    /// Columns (C).
    #[arg(long, value_parser = units::count, default_value = "65536")]
    pub(crate) columns: u64,
    /// Multiplications (P).
    #[arg(long, value_parser = units::count, default_value = "4")]
    pub(crate) passes: u64,
}

/// A cycle of pointers.
#[derive(Debug, Args)]
pub(crate) struct Cycles {
    /// Bytes the cycle lies in (N).
    #[arg(long, value_parser = units::size, default_value = "64MiB")]
    pub(crate) bytes: u64,
    /// Pointers followed (K).
    #[arg(long, value_parser = units::count, default_value = "1M")]
    pub(crate) steps: u64,
}

/// A range of working sets.
#[derive(Debug, Args)]
pub(crate) struct Sweep {
    /// Smallest working set (FROM); at least one word.
    #[arg(long, value_parser = units::size, default_value = "4KiB")]
    pub(crate) from: u64,
    /// Largest working set (TO).
    #[arg(long, value_parser = units::size, default_value = "64MiB")]
    pub(crate) to: u64,
    /// Bytes read in each working set (T).
    #[arg(long, value_parser = units::size, default_value = "64MiB")]
    pub(crate) total: u64,
}

/// Alternating phases.
#[derive(Debug, Args)]
pub(crate) struct Phases {
    /// Bytes read in each phase (N).
    #[arg(long, value_parser = units::size, default_value = "16MiB")]
    pub(crate) bytes: u64,
    /// Cycles of a fast and a slow phase (C).
    #[arg(long, value_parser = units::count, default_value = "5")]
    pub(crate) cycles: u64,
    /// Empty turns after each load of a slow phase (S).
    #[arg(long, value_parser = units::count, default_value = "200")]
    pub(crate) spins: u64,
}

/// Where the counters of `threads` lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sharing {
    /// Each counter in a page of its own.
    Private,
    /// One counter for all, incremented with a lock.
    Shared,
    /// Counters of their own, eight to a line.
    False,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_workload_gives_its_closed_form_in_its_help() {
        for workload in Cli::command().get_subcommands() {
            let help = workload.get_long_about().map(ToString::to_string);
            let help = help.unwrap_or_default();
            assert!(help.contains("Closed form: "), "{}", workload.get_name());
        }
    }
}
