//! Names of the files of a recording.

/// Name of the manifest.
pub(super) const MANIFEST: &str = "manifest.json";

/// Folder of a recording that contains copies of files.
pub const COPIES: &str = "files";

/// Name of a part.
pub(super) fn part_name(number: u32) -> String {
    format!("part-{number:06}.parquet")
}

/// Number in the name of a part. `None` for other names.
pub(super) fn part_number(name: &str) -> Option<u32> {
    let number = name
        .strip_prefix("part-")?
        .strip_suffix(".parquet")?
        .parse()
        .ok()?;
    (part_name(number) == name).then_some(number)
}
