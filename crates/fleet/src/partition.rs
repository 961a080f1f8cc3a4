//! Folders of Hive partitions: `day=2026-11-28/service=checkout/host=web-1`.
//!
//! Values come from recordings, which may be of strangers. Every byte that is not a letter, a digit,
//! `-`, `_` or `.` is written as `%XX`, and so is a dot at the start, so no value leaves its folder.
//! DuckDB, pyarrow and Spark decode such values.

use std::fmt::Write;

/// Longest encoded value. File systems limit names to 255 bytes.
const MAX_VALUE_BYTES: usize = 160;

/// Day, service and host of recordings whose rows are in the same folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DatasetPartition {
    pub(crate) day: String,
    pub(crate) service: String,
    pub(crate) host: String,
}

impl DatasetPartition {
    /// Path of the folder within a table's folder.
    pub(crate) fn folder(&self) -> String {
        let [day, service, host] = [&self.day, &self.service, &self.host].map(|v| encoded(v));
        format!("day={day}/service={service}/host={host}")
    }
}

/// A value as part of a path. Long values are cut and end with a checksum of the whole.
pub(crate) fn encoded(value: &str) -> String {
    let mut text = String::new();
    for (at, &byte) in value.as_bytes().iter().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        match is_plain || byte == b'.' && at > 0 {
            true => text.push(byte as char),
            false => write!(text, "%{byte:02X}").expect("SANITY: writing to memory cannot fail"),
        }
    }
    if text.len() > MAX_VALUE_BYTES {
        let mut end = MAX_VALUE_BYTES;
        // Never within `%XX`.
        while text[..end].rfind('%').is_some_and(|at| at + 3 > end) {
            end -= 1;
        }
        text.truncate(end);
        write!(text, "-{:08x}", crc32fast::hash(value.as_bytes()))
            .expect("SANITY: writing to memory cannot fail");
    }
    text
}

/// Name of the day, in UTC, `since_1970_ns` after the start of 1970.
pub(crate) fn day(since_1970_ns: u64) -> String {
    // Days to a date of the Gregorian calendar, by Howard Hinnant's algorithm `civil_from_days`.
    let days = i64::try_from(since_1970_ns / 86_400_000_000_000).unwrap_or(0) + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = match month_from_march {
        0..10 => month_from_march + 3,
        _ => month_from_march - 9,
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_leaves_its_folder() {
        for value in [
            "..",
            ".",
            "../../etc/passwd",
            "/etc",
            "a\0b",
            "a=b/c=d",
            "%2e%2e",
            "é ü",
        ] {
            let text = encoded(value);
            assert!(
                !text.contains(['/', '=', '\0']) && !text.starts_with('.'),
                "{text}"
            );
        }
        assert_eq!(encoded("web-1.example_2"), "web-1.example_2");
        assert_eq!(encoded("../x"), "%2E.%2Fx");
        assert_eq!(encoded("50%"), "50%25");
    }

    #[test]
    fn long_values_stay_distinct() {
        let [a, b] = ["a", "b"].map(|end| encoded(&("/".repeat(300) + end)));
        assert!(a != b && a.len() < 255, "{a} {b}");
    }

    /// Expected dates by `date -u -d @SECONDS +%F`.
    #[test]
    fn days_are_dates_in_utc() {
        let known = [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_764_374_399, "2025-11-28"),
            (1_764_374_400, "2025-11-29"),
            (4_102_444_800, "2100-01-01"),
        ];
        for (seconds, date) in known {
            assert_eq!(day(seconds * 1_000_000_000), date);
        }
    }
}
