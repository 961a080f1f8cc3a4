//! Reads tables of a recording into analyses.

use memgauge_recording::{Recording, Result, Row, Selection};

use crate::Analysis;

/// Reads whole tables, and collects problems of damaged parts.
pub(crate) struct TableReader<'a> {
    pub(crate) recording: &'a Recording,
    pub(crate) problems: &'a mut Vec<String>,
}

impl TableReader<'_> {
    pub(crate) fn read<A>(&mut self, analysis: A, selection: &Selection) -> Result<A::Output>
    where
        A: Analysis,
        A::Row: Row,
    {
        Ok(self.observe(analysis, selection)?.finish())
    }

    pub(crate) fn observe<A>(&mut self, mut analysis: A, selection: &Selection) -> Result<A>
    where
        A: Analysis,
        A::Row: Row,
    {
        self.recording
            .for_each_intact_batch(selection, self.problems, |rows| analysis.observe(rows))?;
        Ok(analysis)
    }
}
