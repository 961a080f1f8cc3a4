//! Memory divided between running programs, as text and JSON.

use std::fmt::Write as _;

use memgauge_mrc::{FaultDivision, Footprint, MemoryShare};
use serde_json::{Value, json};

use super::printable;
use super::running::{ObservationCost, faults, interval, interval_json, window};
use crate::style::Style;
use crate::units::{bytes, capacity, plural};

/// A program with a share of the memory.
#[derive(Clone, Debug)]
pub struct SharingProgram {
    /// Name of the process or group.
    pub name: String,
    /// Its processes.
    pub pids: Vec<u32>,
    /// Bytes in memory.
    pub resident_bytes: u64,
    /// Memory limit of its control group.
    pub limit_bytes: Option<u64>,
    /// Footprint of its processes together.
    pub footprint: Footprint,
}

/// Memory divided between running programs.
#[derive(Clone, Debug)]
pub struct DivisionView {
    /// Programs.
    pub programs: Vec<SharingProgram>,
    /// Their shares, in this order.
    pub division: FaultDivision,
    /// Memory that was divided.
    pub total_bytes: u64,
    /// Method by which the accessed bits were read.
    pub source: &'static str,
    /// Bytes in a page.
    pub page_bytes: u64,
    /// Cost of the observation.
    pub cost: ObservationCost,
    /// Limitations of these numbers, as sentences.
    pub notes: Vec<String>,
}

impl DivisionView {
    fn each(&self) -> impl Iterator<Item = (&SharingProgram, &MemoryShare)> {
        self.programs.iter().zip(&self.division.shares)
    }

    fn epochs(&self) -> usize {
        let epochs = self.programs.iter().map(|p| p.footprint.epochs());
        epochs.max().unwrap_or(0)
    }

    /// Returns the memory that no window shows a use for. A page or two are left by rounding.
    fn spare(&self) -> Option<String> {
        let rounding = self.page_bytes as f64 * self.programs.len() as f64;
        let spare = self.division.spare_bytes;
        (spare >= rounding).then(|| bytes(spare as u64))
    }

    /// Returns the text, ending in a newline.
    pub fn text(&self, style: &Style) -> String {
        style.shown(self.whole_text(&style.at_least(80)))
    }

    fn whole_text(&self, style: &Style) -> String {
        let mut text = format!(
            "{} between {} programs, for the fewest page faults\n",
            capacity(self.total_bytes),
            self.programs.len()
        );
        let _ = writeln!(
            text,
            "  estimated from accessed bits ({}) in {:.0} s, {}; pages of {}\n",
            self.source,
            self.cost.elapsed_s,
            plural(self.epochs() as u64, "epoch"),
            capacity(self.page_bytes)
        );
        let row = |resident: &str, share: &str, range: &str, rate: &str, name: &str| {
            format!("{resident:>11}  {share:>11}  {range:<21}  {rate:>9}  {name}\n")
        };
        text += &row("in memory", "share", "95 % interval", "faults/s", "program");
        for (program, share) in self.each() {
            let range = match self.epochs() {
                1 => "one epoch".to_owned(),
                _ => interval(&share.bytes, style),
            };
            text += &row(
                &bytes(program.resident_bytes),
                &bytes(share.bytes.value as u64),
                &range,
                &share
                    .faults
                    .map_or(style.none().to_owned(), |rate| faults(rate.faults_s.value)),
                &printable(&program.name),
            );
        }
        if let Some(spare) = self.spare() {
            text += &row("", &spare, "", "", "spare");
        }
        text.push('\n');
        for sentence in self.advice().iter().chain(&self.notes) {
            text += &style.wrap(&printable(sentence), 2);
        }
        text + &self.cost.text()
    }

    /// Returns conclusions as sentences.
    fn advice(&self) -> Vec<String> {
        let all = &self.division.faults_s;
        let mut advice = vec![format!(
            "{} faults/s in all ({} to {}); equal shares would have {}{}",
            faults(all.value),
            faults(all.low.round()),
            faults(all.high.round()),
            if self.division.equal_is_bound {
                "at least "
            } else {
                ""
            },
            faults(self.division.equal_faults_s),
        )];
        if let Some(spare) = self.spare() {
            advice.push(format!("no window shows a use for the spare {spare}"));
        }
        for (program, share) in self.each() {
            let longest = window(program.footprint.max_age_s());
            match share.faults {
                None => advice.push(format!(
                    "{} used the same pages in windows of all lengths, to {longest}, and keeps them",
                    program.name
                )),
                Some(rate) if share.ends_here => advice.push(format!(
                    "windows of {longest} show no use of {} for more than its share, which would \
                     have {} faults/s: use a longer --window",
                    program.name,
                    faults(rate.faults_s.value)
                )),
                Some(_) if program.smallest_bytes() >= Some(share.bytes.value) => advice.push(format!(
                    "{} gets the working set of its shortest window, the smallest size with a \
                     number: more memory is of less use to it than to others",
                    program.name
                )),
                Some(_) => {}
            }
            if let Some(limit) = program
                .limit_bytes
                .filter(|&l| (l as f64) < share.bytes.value)
            {
                advice.push(format!(
                    "the limit of the control group of {} is {}, less than its share",
                    program.name,
                    capacity(limit)
                ));
            }
        }
        advice
    }

    /// Returns the view as JSON.
    pub fn json(&self) -> Value {
        let programs = self.each().map(|(program, share)| {
            json!({
                "name": program.name,
                "pids": program.pids,
                "resident_bytes": program.resident_bytes,
                "limit_bytes": program.limit_bytes,
                "bytes": interval_json(&share.bytes),
                "faults_per_s": share.faults.map(|rate| interval_json(&rate.faults_s)),
                "censored": share.faults.map(|rate| rate.censored),
                "known_bytes": {
                    "smallest": program.smallest_bytes(),
                    "largest": program.largest_bytes(),
                },
                "is_largest_known": share.ends_here,
            })
        });
        json!({
            "schema_version": 1,
            "provenance": "estimated",
            "source": self.source,
            "epochs": self.epochs(),
            "page_bytes": self.page_bytes,
            "total_bytes": self.total_bytes,
            "programs": programs.collect::<Vec<_>>(),
            "spare_bytes": self.division.spare_bytes,
            "faults_per_s": interval_json(&self.division.faults_s),
            "equal_shares": {
                "faults_per_s": self.division.equal_faults_s,
                "is_lower_bound": self.division.equal_is_bound,
            },
            "cost": self.cost.json(),
            "advice": self.advice(),
            "notes": self.notes,
        })
    }
}

impl SharingProgram {
    fn smallest_bytes(&self) -> Option<f64> {
        Some(self.footprint.curve().first()?.bytes)
    }

    fn largest_bytes(&self) -> Option<f64> {
        Some(self.footprint.curve().last()?.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_mrc::{Epoch, WindowUse, divide_by_faults};

    const PAGE: f64 = 4096.0;

    /// Epochs of `rate` uniform references per second to `pages`.
    fn epochs(pages: f64, rate: f64, longest_s: f64) -> Vec<Epoch> {
        let ages = (0..44).map(|n| 0.02 * 1.2f64.powi(n));
        let readings = ages
            .take_while(|&age| age < longest_s)
            .map(|age_s| WindowUse {
                age_s,
                used_bytes: PAGE * pages * (1.0 - (-rate * age_s / pages).exp()),
                resident_bytes: PAGE * pages,
            });
        let epoch = Epoch {
            readings: readings.collect(),
        };
        vec![epoch; 3]
    }

    fn view(total_pages: f64) -> DivisionView {
        // The third program is seen for 5 s of the minutes that it needs.
        let epochs = [
            epochs(20_000.0, 20_000.0, 60.0),
            epochs(20_000.0, 5_000.0, 60.0),
            epochs(1e6, 2_000.0, 5.0),
        ];
        let slices: Vec<&[Epoch]> = epochs.iter().map(Vec::as_slice).collect();
        let total_bytes = (total_pages * PAGE) as u64;
        let names = ["db (4711)", "web (4712)", "batch (4713)"];
        let programs = epochs.iter().zip(names).zip(4711..);
        let programs = programs.map(|((epochs, name), pid)| SharingProgram {
            name: name.to_owned(),
            pids: vec![pid],
            resident_bytes: epochs[0].readings[0].resident_bytes as u64,
            limit_bytes: (pid == 4711).then_some(1 << 20),
            footprint: Footprint::new(epochs, PAGE as u64).unwrap(),
        });
        DivisionView {
            programs: programs.collect(),
            division: divide_by_faults(&slices, PAGE as u64, total_bytes).unwrap(),
            total_bytes,
            source: "page_tables",
            page_bytes: PAGE as u64,
            cost: ObservationCost::default(),
            notes: vec!["a note".to_owned()],
        }
    }

    fn words(view: &DivisionView) -> String {
        let style = Style {
            width: 80,
            line: 80,
            colour: false,
            unicode: false,
            rows: Style::ROWS,
        };
        let text = view.text(&style);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.is_ascii(), "{text}");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn report_has_shares_rates_and_what_the_windows_do_not_show() {
        let text = words(&view(100_000.0));
        for sentence in [
            "391 MiB between 3 programs, for the fewest page faults",
            "in memory share 95 % interval faults/s program",
            "197 MiB spare",
            "no window shows a use for the spare 197 MiB",
            "show no use of batch (4713) for more than its share",
            "the limit of the control group of db (4711) is 1 MiB, less than its share",
            "a note",
        ] {
            assert!(text.contains(sentence), "`{sentence}` is not in: {text}");
        }
    }

    #[test]
    fn json_has_each_share_with_its_interval_and_the_known_sizes() {
        let json = view(30_000.0).json();
        let programs = json["programs"].as_array().unwrap();
        let number = |value: &Value| value.as_f64().unwrap();
        let bytes = programs.iter().map(|p| number(&p["bytes"]["value"]));
        assert!((bytes.sum::<f64>() / PAGE - 30_000.0).abs() < 1.0, "{json}");
        for program in programs {
            let (share, known) = (&program["bytes"], &program["known_bytes"]);
            assert!(
                number(&known["smallest"]) <= number(&share["value"]),
                "{json}"
            );
            assert!(
                number(&share["value"]) <= number(&known["largest"]),
                "{json}"
            );
            assert!(number(&share["low"]) <= number(&share["value"]), "{json}");
        }
        // 20 000 references per second to the first program's pages, the most per page.
        assert!(
            number(&programs[0]["bytes"]["value"]) / PAGE > 19_000.0,
            "{json}"
        );
        assert_eq!(json["provenance"], "estimated");
        assert_eq!(programs[2]["is_largest_known"], false);
        assert!(
            number(&json["faults_per_s"]["value"]) < number(&json["equal_shares"]["faults_per_s"])
        );
    }
}
