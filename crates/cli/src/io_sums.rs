//! From a look at the meter to sums by process and device.

use memgauge_analyze::{Analysis, IoAccounts};
use memgauge_io::Look;

/// Adds what a look saw.
pub(crate) fn take_in(accounts: &mut IoAccounts, look: &Look) {
    accounts.know_owners(&look.owners);
    accounts.know_devices(&look.devices);
    accounts.observe(&look.rows);
    for gained in &look.memory {
        accounts.count(&gained.series.name(), gained.bytes);
    }
}
