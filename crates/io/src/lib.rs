//! I/O accounting: which process moves how many bytes through which device.
//!
//! BPF programs (`bpf/`) charge every request to a disk and every packet of a TCP or
//! UDP socket to its process, in the kernel, as it happens. This module loads them,
//! reads their tables, and adds names, users, control groups, devices, and the devices'
//! own counters. `docs/io.md` has the hooks and the cases, `docs/io-map.md` the tables'
//! layout.
//!
//! Attribution is counted, not estimated. Unattributed bytes are the difference to the
//! device's own counter.

#![deny(unsafe_code)]

mod command_group;
mod deferred;
mod device_monitor;
mod devices;
mod hooks;
mod layout;
mod meter;
mod names;
mod programs;
mod recorder;
mod session;
#[allow(unsafe_code)]
pub mod sys;
mod target;

pub use command_group::GroupedCommand;
pub use devices::{Device, DeviceCounters, list_devices};
pub use layout::{Account, Flow, OwnerFacts, ProcessRate};
pub use memgauge_host::{Error, ErrorKind, Result};
pub use meter::{IoFilter, IoInterval, Meter};
pub use names::{OwnerNames, cgroup_path};
pub use programs::{AccountingOptions, unified_hierarchy};
pub use recorder::IoRecorder;
pub use session::{AccountKey, AccountingLoss, Session};
pub use target::{check_devices, check_pids, control_group};

use memgauge_host as host;
