//! Distinguishes other work from the same work on other addresses.
//!
//! A gate on misses fails for either reason. More instructions, loads or stores come from the
//! program. The same number with other misses comes from addresses: another linker, another order
//! of objects, other random numbers.

use super::text::signed_percent;
use super::{ComparedMetric, Comparison};

/// Counts that do not depend on addresses.
const WORK: [&str; 3] = ["instructions", "loads", "stores"];
/// Maximum relative difference of work that counts as almost the same. It exceeds what the loader
/// spends on another environment in a small program, and is below any change of an algorithm.
const ALMOST: f64 = 0.001;

impl Comparison {
    /// Returns a clause about the kind of change. `None` if it is unknown, as for native runs.
    pub fn kind_of_change(&self) -> Option<String> {
        let [Some(before), Some(after)] = &self.machines else {
            return None;
        };
        if before != after {
            return Some(format!(
                "the runs modelled different machines ({before} and {after}), which alone can \
                 change every number: record both with one --machine"
            ));
        }
        let metric = |name: &str| self.metrics.iter().find(|metric| metric.name == name);
        let work: Option<Vec<&ComparedMetric>> = WORK.into_iter().map(metric).collect();
        let work = work?;
        let changes: Vec<String> = work
            .iter()
            .filter(|metric| metric.is_change())
            .map(|metric| {
                let change = metric.relative.map_or("new".to_owned(), signed_percent);
                format!("{} {change}", metric.name)
            })
            .collect();
        let sizes = work.iter().filter(|metric| metric.is_change());
        let largest = sizes.map(|m| m.relative.map_or(f64::INFINITY, f64::abs));
        let largest = largest.fold(0.0, f64::max);
        let seed = match &self.seeds {
            [Some(before), Some(after)] if before == after => "",
            _ => "; random numbers may move data: record both runs with one --seed",
        };
        let layout = "where its data lie, or how its threads took turns";
        Some(match largest {
            0.0 => format!(
                "the program did the same work (instructions, loads and stores are equal): only \
                 the memory layout changed, that is {layout}{seed}"
            ),
            size if size < ALMOST => format!(
                "the program did almost the same work ({}): what changed is mostly the memory \
                 layout, that is {layout}{seed}",
                changes.join(", ")
            ),
            _ => format!("the program did other work: {}", changes.join(", ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Measured;
    use super::*;

    fn run(instructions: f64, seed: Option<&str>) -> Measured {
        let counts = [
            ("instructions", instructions),
            ("loads", 300.0),
            ("stores", 100.0),
            ("l1d.miss", 7.0 + instructions),
        ];
        Measured {
            machine: Some("zen4".to_owned()),
            seed: seed.map(str::to_owned),
            metrics: counts.map(|(name, n)| (name.to_owned(), n)).into(),
            ..Measured::default()
        }
    }

    fn kind(before: Measured, after: Measured) -> Option<String> {
        Comparison::of(&[before], &[after], None).kind_of_change()
    }

    #[test]
    fn other_work_is_told_from_another_layout() {
        let seeded = |instructions| run(instructions, Some("1"));
        let other = kind(seeded(1e6), seeded(1.1e6)).unwrap();
        assert_eq!(other, "the program did other work: instructions +10.00 %");
        let almost = kind(seeded(1e6), seeded(1_000_500.0)).unwrap();
        assert!(
            almost.contains("almost the same work (instructions +0.05 %)"),
            "{almost}"
        );
        let mut moved = seeded(1e6);
        moved.metrics.insert("l1d.miss".to_owned(), 5.0);
        let same = kind(seeded(1e6), moved.clone()).unwrap();
        assert!(
            same.contains("same work") && same.contains("only the memory layout"),
            "{same}"
        );
        assert!(!same.contains("--seed"), "{same}");
        moved.seed = None;
        let random = kind(seeded(1e6), moved.clone()).unwrap();
        assert!(
            random.contains("record both runs with one --seed"),
            "{random}"
        );
        moved.machine = Some("i5-6600k".to_owned());
        let machines = kind(seeded(1e6), moved.clone()).unwrap();
        assert!(
            machines.contains("different machines (zen4 and i5-6600k)"),
            "{machines}"
        );
        assert!(!machines.contains("layout"), "{machines}");
        moved.machine = None;
        assert_eq!(kind(seeded(1e6), moved), None);
    }
}
