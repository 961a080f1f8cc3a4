//! Counts samples by data source. Names are made at the end only: making them for each sample
//! took longer than all other work on it.

use std::collections::BTreeMap;

use ahash::HashMap;
use memgauge_perf::data_src::DataSrc;

/// Samples of one data source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataSourceSum {
    /// Number of samples.
    pub samples: u64,
    /// Sum of their latencies in cycles.
    pub latency_cycles: u64,
}

impl DataSourceSum {
    fn add_sample(&mut self, latency_cycles: u32) {
        self.samples += 1;
        self.latency_cycles += u64::from(latency_cycles);
    }

    fn add(&mut self, other: DataSourceSum) {
        self.samples += other.samples;
        self.latency_cycles += other.latency_cycles;
    }
}

/// Sums by data source.
#[derive(Default)]
pub(super) struct DataSourceSums {
    /// By the kernel's packed code.
    by_code: HashMap<u64, DataSourceSum>,
    /// The code of the latest samples and their sum, which is not in `by_code` yet. Most samples
    /// have the same source as the one before.
    latest: (u64, DataSourceSum),
    by_static_name: BTreeMap<&'static str, DataSourceSum>,
    by_name: BTreeMap<String, DataSourceSum>,
}

impl DataSourceSums {
    /// Adds a sample with the kernel's packed code.
    #[inline]
    pub(super) fn add_code(&mut self, code: DataSrc, latency_cycles: u32) {
        if code.0 != self.latest.0 {
            self.store_latest();
            self.latest.0 = code.0;
        }
        self.latest.1.add_sample(latency_cycles);
    }

    /// True if the previous sample had this code.
    #[inline]
    pub(super) fn is_latest(&self, code: DataSrc) -> bool {
        self.latest.1.samples > 0 && code.0 == self.latest.0
    }

    fn store_latest(&mut self) {
        let (code, sum) = std::mem::take(&mut self.latest);
        self.by_code.entry(code).or_default().add(sum);
    }

    /// Adds a sample by the name of its source. An empty name counts nowhere.
    pub(super) fn add_static_name(&mut self, name: &'static str, latency_cycles: u32) {
        if !name.is_empty() {
            let sum = self.by_static_name.entry(name).or_default();
            sum.add_sample(latency_cycles);
        }
    }

    /// Adds a sample by a name that had to be made.
    pub(super) fn add_name(&mut self, name: String, latency_cycles: u32) {
        self.by_name
            .entry(name)
            .or_default()
            .add_sample(latency_cycles);
    }

    /// Returns all sums by name. Codes with the same name are added up.
    pub(super) fn into_named(mut self) -> BTreeMap<String, DataSourceSum> {
        self.store_latest();
        let by_code = self.by_code.into_iter();
        let by_code = by_code.map(|(code, sum)| (DataSrc(code).words(), sum));
        let by_static_name = self.by_static_name.into_iter();
        let by_static_name = by_static_name.map(|(name, sum)| (name.to_owned(), sum));
        let mut named = self.by_name;
        for (name, sum) in by_code.chain(by_static_name) {
            if !name.is_empty() {
                named.entry(name).or_default().add(sum);
            }
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_names_of_each_sample() {
        // Loads from L1, L2, L3 and memory. The second differs in bits without a name.
        let codes = [0x6810_0142, 0x2_6810_0142, 0x6810_0242, 0x6810_0842, 0];
        let mut sums = DataSourceSums::default();
        let mut expected = BTreeMap::<String, DataSourceSum>::new();
        for n in 0..1000u32 {
            let code = DataSrc(codes[n as usize % codes.len()]);
            sums.add_code(code, n);
            if !code.words().is_empty() {
                expected.entry(code.words()).or_default().add_sample(n);
            }
        }
        sums.add_static_name("DRAM", 5);
        sums.add_static_name("", 7);
        sums.add_name("DRAM".to_owned(), 6);
        let dram = DataSourceSum {
            samples: 2,
            latency_cycles: 11,
        };
        expected.insert("DRAM".to_owned(), dram);
        let named = sums.into_named();
        assert_eq!(named, expected);
        assert!(named.len() > 3, "{named:?}");
    }
}
