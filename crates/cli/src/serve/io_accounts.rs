//! I/O accounting for the metrics of the service.

use memgauge_host::memory_counters::NoCounters;
use memgauge_io::{Filter, Meter, Setup};
use memgauge_serve::{IoSource, Moved};
use memgauge_trace::{Direction, IoRow, Owner};

/// A meter that runs as long as the service.
pub(super) struct IoAccounts(Meter);

impl IoAccounts {
    pub(super) fn start() -> anyhow::Result<IoAccounts> {
        let setup = Setup {
            forget_ended: true,
            ..Setup::default()
        };
        let no_counters = Box::new(NoCounters(String::new()));
        Ok(IoAccounts(Meter::start(
            Filter::default(),
            setup,
            no_counters,
        )?))
    }

    fn moved_by(&self, row: &IoRow) -> Moved {
        let device = self.0.device(row.device);
        let command = (row.owner != Owner::DEVICE).then(|| {
            let owner = self.0.owner(row.owner);
            owner.map_or_else(String::new, |owner| owner.command.clone())
        });
        let bytes = match row.direction {
            Direction::In => [row.bytes, 0],
            Direction::Out => [0, row.bytes],
            Direction::Unknown => [0, 0],
        };
        Moved {
            command,
            device: device.map_or_else(String::new, |device| device.name.clone()),
            bytes,
        }
    }
}

impl IoSource for IoAccounts {
    fn moved(&mut self) -> Result<Vec<Moved>, String> {
        let look = self.0.look(false).map_err(|e| e.to_string())?;
        Ok(look.rows.iter().map(|row| self.moved_by(row)).collect())
    }

    fn losses(&mut self) -> Vec<(String, u64)> {
        let losses = self.0.losses().unwrap_or_default();
        let losses = losses.into_iter();
        losses
            .map(|loss| (loss.name.to_owned(), loss.count))
            .collect()
    }
}
