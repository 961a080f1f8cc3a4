#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod bodies;
mod client;
mod connection;
mod http;
mod io_bytes;
mod metrics;
mod page_server;
mod profilers;
mod programs;
mod push;
mod refusal;
mod rights;
mod routes;
mod server;
mod service;
mod socket;

pub use bodies::{
    AddProcess, AddThread, ChangeProfiler, ChangeThread, CleanRequest, CleanWhich, Lifetime,
    NewProfiler, SharingName, ShownProfiler, ShownProgram, ShownSample, ShownThread, SourceName,
    Totals, WhenFullName,
};
pub use client::Client;
pub use http::{ParsedRequest, Request, Response, parse};
pub use io_bytes::{IoSource, IoTransfer};
pub use metrics::{Family, Labels, MetricKind, MetricValue};
pub use page_server::{PageContent, PageRequest, PageServer};
pub use profilers::Limits;
pub use programs::{NewProgram, ProgramSource};
pub use push::{Push, ReportOutcome, SendMetrics};
pub use refusal::{KINDS, Refusal};
pub use rights::{AccessPolicy, Peer, Rights, group};
pub use routes::{Operation, ROUTES, Route};
pub use server::{Setup, serve};
pub use service::{OPENAPI, parameters};
pub use socket::Socket;
