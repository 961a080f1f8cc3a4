//! Writes rows in background threads, while the next ones are parsed.
//!
//! Encoding takes longer than parsing. Counter values of groups have several rows per sample; one
//! thread writes them and another one all other rows.

use memgauge_recording::{DetachedTable, Writer};
use memgauge_trace::{Frame, Module, Sample, SampleRegister, SeriesRow};

use super::batch_queue::{Batch, BatchQueue};
use crate::Result;

/// Rows per batch: about 360 KiB, which fit into a CPU's cache. Smaller batches need more wake-ups.
/// Larger ones need more new pages, each of which takes microseconds on a virtual machine.
const BATCH_ROWS: usize = 1 << 12;

/// Rows of all tables that a large file fills, except counter values.
#[derive(Default)]
struct RowBatch {
    samples: Vec<Sample>,
    modules: Vec<Module>,
    frames: Vec<Frame>,
    registers: Vec<SampleRegister>,
}

impl RowBatch {
    #[inline]
    fn is_full(&self) -> bool {
        let others = self.modules.len() + self.frames.len() + self.registers.len();
        self.samples.len() + others >= BATCH_ROWS
    }
}

impl Batch for RowBatch {
    type Writer = Writer;

    fn write(&mut self, writer: &mut Writer) -> memgauge_recording::Result<()> {
        writer.append(&self.samples)?;
        writer.append(&self.registers)?;
        writer.extend(self.modules.drain(..))?;
        writer.extend(self.frames.drain(..))?;
        self.samples.clear();
        self.registers.clear();
        Ok(())
    }

    fn flush(writer: &mut Writer) -> memgauge_recording::Result<()> {
        writer.flush()
    }
}

impl Batch for Vec<SeriesRow> {
    type Writer = DetachedTable<SeriesRow>;

    fn write(&mut self, table: &mut DetachedTable<SeriesRow>) -> memgauge_recording::Result<()> {
        table.append(self)?;
        self.clear();
        Ok(())
    }

    fn flush(table: &mut DetachedTable<SeriesRow>) -> memgauge_recording::Result<()> {
        table.flush()
    }
}

/// Accepts rows and writes them in the background.
pub(super) struct BackgroundWriter {
    rows: BatchQueue<RowBatch>,
    series: BatchQueue<Vec<SeriesRow>>,
}

impl BackgroundWriter {
    pub(super) fn new(mut writer: Writer) -> BackgroundWriter {
        let series = writer.take();
        BackgroundWriter {
            rows: BatchQueue::new(writer),
            series: BatchQueue::new(series),
        }
    }

    #[inline]
    pub(super) fn sample(&mut self, row: Sample) -> Result<()> {
        self.rows.batch.samples.push(row);
        self.send_if_full()
    }

    #[inline]
    pub(super) fn series(&mut self, row: SeriesRow) -> Result<()> {
        self.series.batch.push(row);
        match self.series.batch.len() >= BATCH_ROWS {
            true => self.series.send(),
            false => Ok(()),
        }
    }

    pub(super) fn registers(&mut self, rows: impl Iterator<Item = SampleRegister>) -> Result<()> {
        self.rows.batch.registers.extend(rows);
        self.send_if_full()
    }

    pub(super) fn module(&mut self, row: Module) -> Result<()> {
        self.rows.batch.modules.push(row);
        self.send_if_full()
    }

    pub(super) fn frame(&mut self, row: Frame) -> Result<()> {
        self.rows.batch.frames.push(row);
        self.send_if_full()
    }

    #[inline]
    fn send_if_full(&mut self) -> Result<()> {
        match self.rows.batch.is_full() {
            true => self.rows.send(),
            false => Ok(()),
        }
    }

    /// Waits until all rows are written.
    pub(super) fn finish(self) -> Result<Writer> {
        let series = self.series.finish();
        let mut writer = self.rows.finish()?;
        writer.put_back(series?);
        Ok(writer)
    }
}
