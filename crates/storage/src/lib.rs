//! Folders and buckets: where datasets and packed recordings are.
//!
//! A name is a path, a URL `file:///…`, or the URL of a bucket: `s3://BUCKET/PREFIX`, or
//! `gs://BUCKET/PREFIX` for Google's service. This is the only crate that reaches the network: for the URL of a bucket, and for the debug information of programs from
//! the servers that the user names in `DEBUGINFOD_URLS`.
//!
//! Both kinds are used through `object_store`, and only by what buckets can do, too: listing, reading,
//! put-if-absent and removing. A put-if-absent is a PUT with `If-None-Match: *` (with
//! `x-goog-if-generation-match: 0` for Google's service). `object_store` is asynchronous, and
//! memgauge is not. A folder needs no runtime: without one, system calls are made in the calling thread.
//! Each bucket that is opened gets a runtime of its own, so that a forked child can open one, too.
//!
//! Settings and credentials come from the environment, by the names that the AWS tools and Google's libraries use.
//! Files in `~/.aws` are not read. TLS is rustls with ring, which needs a C compiler and nothing else to build.
#![forbid(unsafe_code)]

mod bucket;
mod debuginfod;
mod error;
mod listing;
mod store;

pub use debuginfod::Debuginfod;
pub use error::{Error, Result};
pub use store::{Listing, LocalCopy, Object, Store, fetch, is_url, local_path};
