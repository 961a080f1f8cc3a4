//! Numbers with units, as typed on the command line.
//!
//! Leading zeros are allowed everywhere: two command lines of equal length make
//! the parser do the same accesses.

use std::time::Duration;

/// Largest size accepted: 64 TiB.
const MAX_BYTES: u64 = 1 << 46;

/// A size: plain bytes, `k M G` or `KiB MiB GiB` (powers of 1024), `kB MB GB`
/// (powers of 1000).
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "" | "B" => 1,
        "k" | "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => {
            return Err(format!(
                "unknown unit `{unit}`: use B, KiB, MiB, GiB, kB, MB or GB"
            ));
        }
    };
    scale(number, factor)
        .filter(|&bytes| bytes <= MAX_BYTES)
        .ok_or_else(|| format!("`{text}` is more than 64 TiB"))
}

/// A distance in bytes, at least 1.
pub(crate) fn stride(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("must be at least 1".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A count: plain, or with `k`, `M`, `G` (powers of 1000).
pub(crate) fn count(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return Err(format!("unknown unit `{unit}`: use k, M or G")),
    };
    scale(number, factor).ok_or_else(|| format!("`{text}` is too large"))
}

/// A duration with its unit: `us`, `ms` or `s`; bare numbers are milliseconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    match unit {
        "us" => Ok(Duration::from_micros(number)),
        "" | "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => Err(format!("unknown unit `{unit}`: use us, ms or s")),
    }
}

fn scale(number: u64, factor: u64) -> Option<u64> {
    number.checked_mul(factor)
}

fn split(text: &str) -> Result<(u64, &str), String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let number = digits
        .parse()
        .map_err(|_| "expected a whole number and an optional unit".to_owned())?;
    Ok((number, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_and_decimal_units() {
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("3k"), Ok(3072));
        assert_eq!(size("3kB"), Ok(3000));
        assert_eq!(size("17"), Ok(17));
    }

    #[test]
    fn leading_zeros_do_not_change_a_number() {
        assert_eq!(size("000004096"), Ok(4096));
        assert_eq!(size("000000000"), Ok(0));
        assert_eq!(count("0007k"), Ok(7000));
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        for text in [
            "",
            "MiB",
            "-1",
            "1.5k",
            "4 KiB",
            "1XiB",
            "99999999999999999999",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
        assert!(size("16777215GiB").unwrap_err().contains("64 TiB"));
        assert!(stride("0").is_err());
        assert!(count("18446744073709551615k").is_err());
    }

    #[test]
    fn durations_are_milliseconds_unless_they_say_otherwise() {
        assert_eq!(duration("100"), Ok(Duration::from_millis(100)));
        assert_eq!(duration("100us"), Ok(Duration::from_micros(100)));
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        assert!(duration("2h").is_err());
    }
}
