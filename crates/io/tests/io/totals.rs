//! Compares the counts of devices with accounts, and waits until they agree.

use std::time::{Duration, Instant};

use memgauge_io::Session;

use super::{Network, everyone};

/// Size of the Ethernet header in bytes. Devices count it and accounts do not.
const LINK: u64 = 14;

/// Compares the bytes that a device counted between two readings, without the link's headers, with
/// the sum of all processes. The sum lacks at most the kernel's own packets (searches for
/// neighbours, the last acknowledgement of a closed connection). The device is read first and last,
/// so packets between its reading and that of the accounts are only in its own count.
pub(crate) struct Totals {
    before: [u64; 5],
    accounts: (u64, u64),
    side: char,
}

impl Totals {
    pub(crate) fn start(session: &mut Session, network: &Network, side: char) -> Totals {
        let before = network.counted(side, "one");
        let all = everyone(session, network.device(side, "one"));
        Totals {
            before,
            accounts: (all.input.bytes, all.output.bytes),
            side,
        }
    }

    /// Returns a message if more than `rest` bytes of the device's are unattributed.
    pub(crate) fn wrong(
        &self,
        session: &mut Session,
        network: &Network,
        rest: u64,
    ) -> Option<String> {
        let all = everyone(session, network.device(self.side, "one"));
        let now = network.counted(self.side, "one");
        let gained = |i: usize| now[i] - self.before[i];
        let pairs = [
            (
                gained(0) - LINK * gained(1),
                all.input.bytes - self.accounts.0,
                "in",
            ),
            (
                gained(2) - LINK * gained(3),
                all.output.bytes - self.accounts.1,
                "out",
            ),
        ];
        // Packets handed to a device that had no room for them are not counted by it.
        let dropped = gained(4) * 1500;
        let is_wrong = |&(counted, accounted, _): &(u64, u64, _)| {
            accounted > counted + dropped || counted.saturating_sub(accounted) > rest
        };
        let (counted, accounted, way) = pairs.into_iter().find(is_wrong)?;
        Some(format!(
            "{} {way}: {accounted} of {counted}, at most {dropped} dropped",
            self.side
        ))
    }
}

/// Maximum number of bytes of the kernel's own packets, which belong to no process.
pub(crate) const OWN_PACKETS: u64 = 400;

/// Asserts that all but `rest` of the bytes that the devices counted are in accounts. Waits for
/// that, because the last packets of a connection are sent after its processes have ended.
pub(crate) fn charge_open_sockets(
    totals: &[Totals],
    session: &mut Session,
    network: &Network,
    rest: u64,
) {
    let mut wrong = Vec::new();
    let settled = eventually(|| {
        let all = totals.iter();
        wrong = all
            .filter_map(|t| t.wrong(session, network, rest))
            .collect();
        wrong.is_empty()
    });
    assert!(settled, "{wrong:?}");
}

/// Returns true if the condition holds within half a minute.
pub(crate) fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if holds() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
