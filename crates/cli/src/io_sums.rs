//! Adds intervals of the meter to sums by process and device.

use memgauge_analyze::{Analysis, IoAccounts};
use memgauge_io::IoInterval;

/// Adds an interval.
pub(crate) fn take_in(accounts: &mut IoAccounts, interval: &IoInterval) {
    accounts.add_owners(&interval.owners);
    accounts.add_devices(&interval.devices);
    accounts.observe(&interval.rows);
    for gained in &interval.memory {
        accounts.count(&gained.series.name(), gained.bytes);
    }
}
