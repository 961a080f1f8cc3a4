//! Many recordings as one dataset of Parquet files, and questions about it.
//!
//! ```text
//! DATASET/
//! ├── recordings/version-0000000007.parquet            one row for each recording
//! ├── measurements/day=2026-11-28/service=checkout/host=web-1/….parquet
//! └── curves/day=2026-11-28/service=checkout/host=web-1/….parquet
//! ```
//!
//! Files are only ever added, by put-if-absent. A version of the table of recordings is the commit:
//! it names the file that holds the rows of each recording. Rows of a recording in another file
//! (left behind by a writer that was killed, superseded by [`compact`], or written twice by two
//! writers) do not belong to the version, and readers leave them out by joining on recording and
//! file. So neither adding nor compacting ever shows a half state.
//!
//! [`index`] adds recordings, [`compact`] makes few files of many, [`top`], [`diff`], [`curve`],
//! [`outliers`] and [`overview`] answer questions, and [`open_recording`] opens what was indexed. `docs/fleet.md` describes the columns and the same questions in SQL.
//!
//! A dataset is a folder or a bucket's prefix (`memgauge_storage`). Rejected: a
//! table format such as Delta Lake or Iceberg, because readers would need a library for it. Rejected:
//! a file of its own for each recording that plain globbing finds, because it could not be compacted
//! without a moment in which readers see rows twice or not at all.
#![forbid(unsafe_code)]

mod collection;
mod compact;
mod curve;
mod dataset;
mod diff;
mod error;
mod find;
mod index;
mod measure;
mod measurement;
mod opened;
mod outliers;
mod overview;
mod partition;
mod query;
mod recording_row;
mod scan;
mod skipped;
mod top;
mod totals;

pub use collection::{Collection, CollectionOptions, CollectionOutcome};
pub use compact::{Compacted, compact};
pub use curve::curve;
pub use dataset::{Dataset, RETENTION};
pub use diff::diff;
pub use error::{Error, ErrorKind, Result};
pub use index::{IndexOptions, Indexed, Share, index};
pub use measure::service_and_host;
pub use measurement::Scope;
pub use opened::{IndexedRecording, open_recording};
pub use outliers::outliers;
pub use overview::{OverviewOptions, overview};
pub use query::Query;
pub use skipped::Skipped;
pub use top::{TopOptions, top};
