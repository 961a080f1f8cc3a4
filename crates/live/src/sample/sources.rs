//! Where samples' data came from: sums by source, in words at the end alone. Making the
//! words took longer than all other work on a sample.

use std::collections::BTreeMap;

use ahash::HashMap;
use memgauge_perf::data_src::DataSrc;

/// Samples, and the sum of their latencies in cycles.
pub(super) type Sums = (u64, u64);

/// Sums by source.
#[derive(Default)]
pub(super) struct Sources {
    /// By the kernel's packed code.
    packed: HashMap<u64, Sums>,
    /// Samples of one code that came last, one after the other: not in `packed` yet.
    latest: (u64, Sums),
    /// By words that need not be made.
    named: BTreeMap<&'static str, Sums>,
    /// By others.
    worded: BTreeMap<String, Sums>,
}

impl Sources {
    /// A sample whose source the kernel has packed.
    #[inline]
    pub(super) fn packed(&mut self, packed: DataSrc, latency_cycles: u32) {
        if packed.0 != self.latest.0 {
            self.keep_latest();
            self.latest.0 = packed.0;
        }
        add(&mut self.latest.1, latency_cycles);
    }

    /// Whether this is the code of the sample that came last, and so is known.
    #[inline]
    pub(super) fn is_latest(&self, packed: DataSrc) -> bool {
        self.latest.1.0 > 0 && packed.0 == self.latest.0
    }

    fn keep_latest(&mut self) {
        let (code, latest) = std::mem::take(&mut self.latest);
        let sums = self.packed.entry(code).or_default();
        *sums = (sums.0 + latest.0, sums.1 + latest.1);
    }

    /// A sample of a source with a name; one without counts nowhere.
    pub(super) fn named(&mut self, words: &'static str, latency_cycles: u32) {
        if !words.is_empty() {
            add(self.named.entry(words).or_default(), latency_cycles);
        }
    }

    /// A sample of a source in other words.
    pub(super) fn worded(&mut self, words: String, latency_cycles: u32) {
        add(self.worded.entry(words).or_default(), latency_cycles);
    }

    /// All of them, in words; codes that mean the same are one.
    pub(super) fn in_words(mut self) -> BTreeMap<String, Sums> {
        self.keep_latest();
        let packed = self.packed.into_iter();
        let packed = packed.map(|(code, sums)| (DataSrc(code).words(), sums));
        let named = self.named.into_iter();
        let named = named.map(|(words, sums)| (words.to_owned(), sums));
        let mut all = self.worded;
        for (words, sums) in packed.chain(named).filter(|(words, _)| !words.is_empty()) {
            let sum = all.entry(words).or_default();
            *sum = (sum.0 + sums.0, sum.1 + sums.1);
        }
        all
    }
}

fn add(sums: &mut Sums, latency_cycles: u32) {
    sums.0 += 1;
    sums.1 += u64::from(latency_cycles);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if words were made for each sample, as before.
    #[test]
    fn sums_are_those_of_the_words_of_each_sample() {
        // Loads from L1, L2, L3 and memory; the second differs in bits without words.
        let codes = [0x6810_0142, 0x2_6810_0142, 0x6810_0242, 0x6810_0842, 0];
        let (mut sources, mut expected) = (Sources::default(), BTreeMap::<String, Sums>::new());
        for n in 0..1000u32 {
            let code = DataSrc(codes[n as usize % codes.len()]);
            sources.packed(code, n);
            if !code.words().is_empty() {
                let sums = expected.entry(code.words()).or_default();
                *sums = (sums.0 + 1, sums.1 + u64::from(n));
            }
        }
        sources.named("DRAM", 5);
        sources.named("", 7);
        sources.worded("DRAM".to_owned(), 6);
        expected.insert("DRAM".to_owned(), (2, 11));
        let found = sources.in_words();
        assert_eq!(found, expected);
        assert!(found.len() > 3, "{found:?}");
    }
}
