//! Treatment of the input by the fuzz targets of live collection: parse all of it.
//! Nothing may panic, hang or take memory beyond a record; errors are right
//! answers.

use std::io::Cursor;

use memgauge_perf::Result;
use memgauge_perf::abi::Attr;
use memgauge_perf::data_src::DataSrc;
use memgauge_perf::ibs::Op;
use memgauge_perf::perf_data::{Events, PerfData, Visit};
use memgauge_perf::record::{Header, Layout, Record};
use memgauge_perf::ring::walk;
use memgauge_perf::spe::Decoder;

/// Bytes of the attribute that begins an input of records.
const ATTR_BYTES: usize = 136;

/// Parses a ring image: an attribute, a byte that says where the ring wraps, then
/// records. Returns how many could be told apart.
pub(crate) fn records(input: &[u8]) -> u64 {
    let Some((attr, rest)) = input.split_at_checked(ATTR_BYTES) else {
        return 0;
    };
    let (Some(attr), Some((&wrap, ring))) = (Attr::parse(attr), rest.split_first()) else {
        return 0;
    };
    let (first, second) = ring.split_at(ring.len() * usize::from(wrap) / 256);
    let layout = Layout::new(&attr);
    let walked = walk(first, second, &mut Vec::new(), |header, body| {
        look_at(&layout, header, body);
    });
    walked.records
}

fn look_at(layout: &Layout, header: Header, body: &[u8]) {
    let Some((Record::Sample(sample), _)) = layout.record(header, body) else {
        return;
    };
    assert!(layout.sample_time(body).is_some(), "a sample has its time");
    let _ = (layout.latency(&sample), DataSrc(sample.data_src).words());
    if let Some(reading) = sample.reading {
        for i in 0..reading.len() {
            assert!(reading.value(i).is_some(), "as many values as it says");
            let _ = reading.id(i);
        }
    }
    let registers = [sample.user_regs, sample.intr_regs];
    let _ = registers.iter().flatten().filter_map(|r| r.get(63)).count();
    if let Some(op) = Op::parse(sample.raw) {
        let _ = (op.fields(), op.level(), op.size_bytes());
    }
}

struct Look;

impl Visit for Look {
    type Error = memgauge_perf::Error;

    fn record(&mut self, events: &Events, header: Header, body: &[u8]) -> Result<()> {
        if let Some((_, layout)) = events.event_of_sample(body) {
            look_at(layout, header, body);
        }
        Ok(())
    }
}

/// Reads a perf.data to its end; whether it was one.
pub(crate) fn perf_data(input: &[u8]) -> bool {
    let Ok(mut file) = PerfData::open(Cursor::new(input)) else {
        return false;
    };
    file.read(&mut Look).is_ok()
}

/// Decodes a trace of ARM's SPE, cut in two as its first byte says. Returns how
/// many operations there were.
pub(crate) fn packets(input: &[u8]) -> u64 {
    let Some((&cut, trace)) = input.split_first() else {
        return 0;
    };
    let (first, second) = trace.split_at(trace.len() * usize::from(cut) / 256);
    let (mut decoder, mut operations) = (Decoder::default(), 0);
    for piece in [first, second] {
        decoder.feed(piece, |operation| {
            let _ = (operation.words(), operation.level());
            operations += 1;
        });
    }
    decoder.finish();
    assert!(decoder.unreadable_bytes <= trace.len() as u64);
    operations
}
