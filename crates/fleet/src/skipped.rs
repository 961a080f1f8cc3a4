//! Recordings that are not added to a dataset.

/// A recording that is not in the dataset, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// It is still being written, or its recorder was killed.
    Unfinished(String),
    /// It is damaged, or another version of memgauge wrote it.
    Unreadable(String),
}

impl Skipped {
    /// The reason, with the recording's name.
    pub fn message(&self) -> &str {
        match self {
            Skipped::Unfinished(why) | Skipped::Unreadable(why) => why,
        }
    }
}
