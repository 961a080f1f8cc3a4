//! Summaries of recordings that are too large for one process: several processes each read a share
//! of the samples and of the series, the two tables that grow with the run. The sums of their shares
//! are merged in any order and finished into the same [`Summary`](crate::Summary) that
//! [`summarise`](crate::summarise) makes.
//!
//! The sums name code and data by numbers that follow from the recording's mappings. Every process
//! reads those completely, so equal recordings give equal numbers. [`PartialSummary::merge`] refuses
//! sums of another recording, or of one that has grown meanwhile.
//!
//! Memory depends on the state: about 100 bytes for each instruction, region and call path with
//! samples, and 16 bytes for each sampled line, of which at most 2^20 are kept. Beyond that
//! number, the hottest lines of a heat map depend on the shares. Nothing else does.
//!
//! Left out: what a page needs over time. The owner of a cell of its heat map is a majority vote,
//! which depends on the order of samples.

use memgauge_recording::{Recording, Result, Share};
use memgauge_trace::{Sample, SeriesRow};
use serde::{Deserialize, Serialize};

use crate::assemble::Options;
use crate::code::address_spaces::address_spaces;
use crate::code::sites::{SampledSiteSums, SampledSites};
use crate::code::stacks::{SampledStacks, StackSums};
use crate::data::heat::HeatByEvent;
use crate::data::regions::{RegionSums, Regions};
use crate::resolve::Resolve;
use crate::samples::SampleTotals;
use crate::summarise::{LargeTableSums, LargeTables, call_frames, finish};
use crate::summary::Summary;
use crate::{Analysis, Series, ThreadTotals};

/// Version of the encoding. Changes with every change of the sums.
const VERSION: u32 = 1;

/// Sums of a share of a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PartialSummary {
    version: u32,
    recording: RecordingIdentity,
    /// Shares that it contains, in order.
    shares: Vec<u32>,
    curves: Series,
    threads: ThreadTotals,
    samples: SampleTotals,
    regions: RegionSums,
    sites: Option<SampledSiteSums>,
    heat: HeatByEvent,
    stacks: Option<StackSums>,
    problems: Vec<String>,
}

/// Facts that two shares of one recording have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordingIdentity {
    started_unix_ns: u64,
    command: Vec<String>,
    series_parts: u64,
    sample_parts: u64,
    /// Number of shares.
    shares: u32,
    max_bins: u64,
}

/// Sums that do not belong together, or that are no sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MismatchedShares(String);

impl std::fmt::Display for MismatchedShares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MismatchedShares {}

fn mismatch(reason: &str) -> MismatchedShares {
    MismatchedShares(format!("failed to merge shares of a recording: {reason}"))
}

impl PartialSummary {
    /// Reads a share of a recording. `max_bins` is that of the [`Options`] with which it is
    /// finished.
    ///
    /// # Errors
    /// The file system fails. Damaged parts are skipped and will be among the problems.
    pub fn of_share(recording: &Recording, share: Share, max_bins: usize) -> Result<Self> {
        let mut problems = Vec::new();
        let spaces = address_spaces(recording, &mut problems)?;
        let frames = call_frames(recording, &spaces, &mut problems)?;
        let large = LargeTables {
            recording,
            spaces: &spaces,
            share,
            max_bins,
            with_timeline: false,
            with_heat: true,
            with_stacks: !frames.is_empty(),
        };
        let sums = large.read(&mut problems)?;
        Ok(PartialSummary {
            version: VERSION,
            recording: RecordingIdentity::of(recording, share.of, max_bins),
            shares: vec![share.index],
            curves: sums.curves,
            threads: sums.threads,
            samples: sums.samples,
            regions: sums.regions.into_sums(),
            sites: sums.sites.map(SampledSites::into_sums),
            heat: sums.heat.unwrap_or_default(),
            stacks: sums.stacks.map(SampledStacks::into_sums),
            problems,
        })
    }

    /// Adds other shares of the same recording.
    ///
    /// # Errors
    /// They are of another recording or of another division, or contain a share twice.
    pub fn merge(&mut self, other: PartialSummary) -> std::result::Result<(), MismatchedShares> {
        if self.recording != other.recording {
            return Err(mismatch(
                "they are of different recordings, or the recording has grown meanwhile",
            ));
        }
        self.shares.extend(other.shares);
        self.shares.sort_unstable();
        if self.shares.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(mismatch("one of them is there twice"));
        }
        self.curves.merge(other.curves);
        self.threads.merge(other.threads);
        self.samples.merge(other.samples);
        self.regions.merge(other.regions);
        if let (Some(sites), Some(others)) = (&mut self.sites, other.sites) {
            sites.merge(others);
        }
        self.heat.merge(other.heat);
        if let (Some(stacks), Some(others)) = (&mut self.stacks, other.stacks) {
            stacks.merge(others);
        }
        self.problems.extend(other.problems);
        Ok(())
    }

    /// Encodes the sums for another process with the same version of memgauge.
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("SANITY: memory is not a failing device")
    }

    /// Decodes what [`PartialSummary::to_bytes`] returned.
    ///
    /// # Errors
    /// The bytes are damaged, or another version of memgauge encoded them.
    pub fn from_bytes(bytes: &[u8]) -> std::result::Result<Self, MismatchedShares> {
        // The version comes first and has one encoding.
        let version = postcard::take_from_bytes::<u32>(bytes);
        if !version.is_ok_and(|(version, _)| version == VERSION) {
            return Err(mismatch(
                "one of them is of another version of memgauge: use the same one everywhere",
            ));
        }
        postcard::from_bytes(bytes).map_err(|_| mismatch("one of them is damaged"))
    }

    /// Adds what the small tables of the recording hold, and combines everything.
    ///
    /// # Errors
    /// Shares are missing, they are of another recording, or the file system fails.
    pub fn finish(
        self,
        recording: &Recording,
        symbols: &mut dyn Resolve,
        options: &Options,
    ) -> std::result::Result<Summary, PartialError> {
        let all = self.recording.shares;
        let identity = RecordingIdentity::of(recording, all, options.max_bins);
        if self.recording != identity {
            let reason = "they are of another recording, or it has grown meanwhile";
            return Err(mismatch(reason).into());
        }
        if self.shares.len() != all as usize {
            let reason = format!("{} of {all} are there", self.shares.len());
            return Err(mismatch(&reason).into());
        }
        let mut problems = recording.problems();
        let spaces = address_spaces(recording, &mut problems)?;
        let frames = call_frames(recording, &spaces, &mut problems)?;
        // In the order in which a single process finds them: by table and part.
        let mut found = self.problems;
        found.sort_unstable();
        for problem in found {
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        let regions = Regions::with_sums(&spaces, self.regions);
        let sums = LargeTableSums {
            spaces: &spaces,
            curves: self.curves,
            threads: self.threads,
            fine: None,
            samples: self.samples,
            regions: regions.with_sets(recording.manifest().sets.as_ref()),
            sites: self
                .sites
                .map(|sums| SampledSites::with_sums(&spaces, sums)),
            heat: Some(self.heat),
            times: None,
            stacks: self
                .stacks
                .map(|sums| SampledStacks::with_sums(&spaces, sums)),
        };
        let options = Options {
            timeline: false,
            ..options.clone()
        };
        Ok(finish(
            recording, sums, frames, problems, symbols, &options,
        )?)
    }
}

impl RecordingIdentity {
    fn of(recording: &Recording, shares: u32, max_bins: usize) -> RecordingIdentity {
        let manifest = recording.manifest();
        RecordingIdentity {
            started_unix_ns: manifest.started_unix_ns,
            command: manifest.command.clone(),
            series_parts: recording.part_count::<SeriesRow>() as u64,
            sample_parts: recording.part_count::<Sample>() as u64,
            shares,
            max_bins: max_bins as u64,
        }
    }
}

/// A summary could not be finished from shares.
#[derive(Debug)]
pub enum PartialError {
    /// The shares do not belong together.
    Mismatched(MismatchedShares),
    /// The recording cannot be read.
    Recording(memgauge_recording::Error),
}

impl From<MismatchedShares> for PartialError {
    fn from(error: MismatchedShares) -> Self {
        PartialError::Mismatched(error)
    }
}

impl From<memgauge_recording::Error> for PartialError {
    fn from(error: memgauge_recording::Error) -> Self {
        PartialError::Recording(error)
    }
}
