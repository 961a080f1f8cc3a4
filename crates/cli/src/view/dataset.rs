//! The pages of a dataset: all recordings, and each recording's own.
//!
//! The parameters of the address select what is shown: `service` and `metric`, or `recording`. The
//! browser's history and links therefore work, and the page holds no state.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use memgauge_fleet::{Dataset, IndexedRecording, OverviewOptions, Query, open_recording, overview};
use memgauge_recording::Recording;
use memgauge_report::{InDataset, Page, Served};
use memgauge_serve::{PageContent, PageRequest};
use memgauge_symbols::Symbols;

use super::{part, recording_page};
use crate::fleet;

/// Functions of the page.
const FUNCTIONS: usize = 100;

/// Recordings of the page. One has about 200 bytes.
const RECORDINGS: usize = 2000;

/// Recordings that stay open. One in a bucket is copied when it is opened, and its page asks for parts.
const MAX_OPEN: usize = 4;

/// Serves a dataset, which may grow.
pub(super) struct DatasetPages {
    dataset: Dataset,
    /// The recordings that were opened last, the newest first, by ID.
    open: Mutex<VecDeque<(String, Arc<IndexedRecording>)>>,
}

impl DatasetPages {
    /// Opens a dataset, which must have recordings.
    pub(super) fn open(name: &str) -> anyhow::Result<DatasetPages> {
        let dataset = fleet::open(name)?;
        dataset.recordings().map_err(fleet::explained)?;
        Ok(DatasetPages {
            dataset,
            open: Mutex::default(),
        })
    }

    fn recording(&self, id: &str) -> anyhow::Result<Arc<IndexedRecording>> {
        let find = || {
            let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let found = open.iter().find(|(known, _)| known == id);
            found.map(|(_, recording)| Arc::clone(recording))
        };
        if let Some(recording) = find() {
            return Ok(recording);
        }
        // Without the lock: a download would hold up all other requests.
        let recording = Arc::new(open_recording(&self.dataset, id)?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.push_front((id.to_owned(), Arc::clone(&recording)));
        open.truncate(MAX_OPEN);
        Ok(recording)
    }

    fn fleet_page(&self, request: &PageRequest) -> anyhow::Result<String> {
        let query = Query {
            service: request.parameter("service"),
            ..Query::default()
        };
        let options = OverviewOptions {
            metric: request.parameter("metric"),
            functions: FUNCTIONS,
            recordings: RECORDINGS,
        };
        let page = Page {
            title: self.dataset.name().to_owned(),
            fleet: Some(overview(&self.dataset, &query, &options)?),
            served: Some(Served {
                token: request.token().to_owned(),
                is_growing: false,
                in_dataset: None,
            }),
            ..Page::default()
        };
        page.html().context(memgauge_report::NO_FRONT_END)
    }
}

impl PageContent for DatasetPages {
    type Error = anyhow::Error;

    fn page(&self, request: &PageRequest) -> anyhow::Result<String> {
        let Some(id) = request.parameter("recording") else {
            return self.fleet_page(request);
        };
        let indexed = self.recording(&id)?;
        let recording = Recording::open(indexed.path())?;
        let in_dataset = InDataset {
            service: indexed.service().to_owned(),
            dataset: self.dataset.name().to_owned(),
            recording: id,
        };
        let symbols = own_names(&recording);
        recording_page(&recording, symbols, request.token(), Some(in_dataset))
    }

    fn part(&self, request: &PageRequest, time_ns: Range<u64>) -> anyhow::Result<String> {
        let id = request.parameter("recording");
        let id = id.context("failed to read a part: the address has no `recording=ID`")?;
        let indexed = self.recording(&id)?;
        let recording = Recording::open(indexed.path())?;
        part(&recording, own_names(&recording), time_ns)
    }
}

/// Uses only names from the recording. A dataset's recordings come from other machines, where the
/// same paths may be different files.
fn own_names(recording: &Recording) -> Symbols {
    Symbols::recorded(recording)
}
