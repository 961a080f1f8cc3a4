//! Writes rows in threads of their own, while the next are read from the file.
//!
//! Encoding takes longer than parsing. Values of groups, which are several rows a
//! sample, are written in one thread and all other rows in another.

use memgauge_recording::{Table, Writer};
use memgauge_trace::{Frame, Module, Sample, SampleRegister, SeriesRow};

use super::queue::{Load, Queue};
use crate::Result;

/// Rows that are handed over at once: some 360 KiB, which stay in a processor's
/// cache. Smaller loads cost more wake-ups, larger ones more new pages, each of which
/// takes microseconds on a virtual machine.
const LOAD_ROWS: usize = 1 << 12;

/// Rows of all tables that a large file fills, but values of groups.
#[derive(Default)]
struct Rows {
    samples: Vec<Sample>,
    modules: Vec<Module>,
    frames: Vec<Frame>,
    registers: Vec<SampleRegister>,
}

impl Rows {
    #[inline]
    fn is_full(&self) -> bool {
        let others = self.modules.len() + self.frames.len() + self.registers.len();
        self.samples.len() + others >= LOAD_ROWS
    }
}

impl Load for Rows {
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

impl Load for Vec<SeriesRow> {
    type Writer = Table<SeriesRow>;

    fn write(&mut self, table: &mut Table<SeriesRow>) -> memgauge_recording::Result<()> {
        table.append(self)?;
        self.clear();
        Ok(())
    }

    fn flush(table: &mut Table<SeriesRow>) -> memgauge_recording::Result<()> {
        table.flush()
    }
}

/// Takes rows; another thread writes the recording.
pub(super) struct Writing {
    rows: Queue<Rows>,
    series: Queue<Vec<SeriesRow>>,
}

impl Writing {
    pub(super) fn new(mut writer: Writer) -> Writing {
        let series = writer.take();
        Writing {
            rows: Queue::new(writer),
            series: Queue::new(series),
        }
    }

    #[inline]
    pub(super) fn sample(&mut self, row: Sample) -> Result<()> {
        self.rows.load.samples.push(row);
        self.added()
    }

    #[inline]
    pub(super) fn series(&mut self, row: SeriesRow) -> Result<()> {
        self.series.load.push(row);
        match self.series.load.len() >= LOAD_ROWS {
            true => self.series.send(),
            false => Ok(()),
        }
    }

    pub(super) fn registers(&mut self, rows: impl Iterator<Item = SampleRegister>) -> Result<()> {
        self.rows.load.registers.extend(rows);
        self.added()
    }

    pub(super) fn module(&mut self, row: Module) -> Result<()> {
        self.rows.load.modules.push(row);
        self.added()
    }

    pub(super) fn frame(&mut self, row: Frame) -> Result<()> {
        self.rows.load.frames.push(row);
        self.added()
    }

    #[inline]
    fn added(&mut self) -> Result<()> {
        match self.rows.load.is_full() {
            true => self.rows.send(),
            false => Ok(()),
        }
    }

    /// Everything has been handed over: waits until it is written.
    pub(super) fn finish(self) -> Result<Writer> {
        let series = self.series.finish();
        let mut writer = self.rows.finish()?;
        writer.put_back(series?);
        Ok(writer)
    }
}
