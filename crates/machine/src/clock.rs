//! Virtual time: cycles and nanoseconds, in integers.
//!
//! Times within a core are thousandths of a cycle (*millicycles*) since virtual time zero, so that
//! fractions of a cycle per instruction add up exactly. 2^64 millicycles are six weeks at 5 GHz.

const NS_PER_S: u128 = 1_000_000_000;

/// Clock rate, for conversions.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    frequency_hz: u64,
}

impl Clock {
    pub(crate) fn new(frequency_hz: u64) -> Self {
        Clock { frequency_hz }
    }

    /// Converts millicycles to nanoseconds, rounded down.
    pub(crate) fn ns(self, millicycles: u64) -> u64 {
        let per_ns = u128::from(self.frequency_hz) * 1000;
        (u128::from(millicycles) * NS_PER_S / per_ns) as u64
    }

    /// Returns the first millicycle at which the clock shows `ns`.
    pub(crate) fn millicycles(self, ns: u64) -> u64 {
        let rate = u128::from(self.frequency_hz) * 1000;
        let exact = (u128::from(ns) * rate).div_ceil(NS_PER_S);
        u64::try_from(exact).unwrap_or(u64::MAX)
    }

    /// Returns the millicycles that a transfer of `bytes` takes, at least 1.
    pub(crate) fn transfer_millicycles(self, bytes: u64, bytes_per_s: u64) -> u64 {
        let rate = u128::from(self.frequency_hz) * 1000;
        let exact = u128::from(bytes) * rate / u128::from(bytes_per_s);
        u64::try_from(exact).unwrap_or(u64::MAX).max(1)
    }
}
