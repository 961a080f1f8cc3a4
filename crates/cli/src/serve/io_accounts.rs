//! I/O accounting for the metrics of the service.

use std::os::unix::fs::MetadataExt;

use memgauge_host::memory_counters::NoMemoryCounters;
use memgauge_io::{AccountingOptions, IoFilter, Meter};
use memgauge_serve::{IoSource, IoTransfer};
use memgauge_trace::{Direction, IoRow, Owner};

/// A meter that runs as long as the service.
pub(super) struct ServiceMeter {
    meter: Meter,
    /// The network namespace of the service.
    namespace: Option<u32>,
}

impl ServiceMeter {
    pub(super) fn start() -> anyhow::Result<ServiceMeter> {
        let setup = AccountingOptions {
            forget_ended: true,
            ..AccountingOptions::default()
        };
        let no_counters = Box::new(NoMemoryCounters(String::new()));
        let namespace = std::fs::metadata("/proc/self/ns/net");
        Ok(ServiceMeter {
            meter: Meter::start(IoFilter::default(), setup, no_counters)?,
            namespace: namespace.ok().map(|file| file.ino() as u32),
        })
    }

    fn transfer_of(&self, row: &IoRow) -> IoTransfer {
        let device = self.meter.device(row.device);
        let command = (row.owner != Owner::DEVICE).then(|| {
            let owner = self.meter.owner(row.owner);
            owner.map_or_else(String::new, |owner| owner.command.clone())
        });
        let bytes = match row.direction {
            Direction::In => [row.bytes, 0],
            Direction::Out => [0, row.bytes],
            Direction::Unknown => [0, 0],
        };
        let name = device.map_or("", |device| device.name.as_str());
        // Each namespace may have its own `eth0`.
        let device = match row.device.netns {
            netns if netns == 0 || Some(netns) == self.namespace => name.to_owned(),
            netns => format!("{name}@{netns}"),
        };
        IoTransfer {
            command,
            device,
            bytes,
        }
    }
}

impl IoSource for ServiceMeter {
    fn transfers(&mut self) -> Result<Vec<IoTransfer>, String> {
        let interval = self.meter.read(false).map_err(|e| e.to_string())?;
        Ok(interval
            .rows
            .iter()
            .map(|row| self.transfer_of(row))
            .collect())
    }

    fn losses(&mut self) -> Vec<(String, u64)> {
        let losses = self.meter.losses().unwrap_or_default();
        let losses = losses.into_iter();
        losses
            .map(|loss| (loss.name.to_owned(), loss.count))
            .collect()
    }
}
