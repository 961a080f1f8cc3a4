//! Reads the rings of all CPUs and passes their records to the recorder in the order of time.

use ahash::HashMap;
use memgauge_trace::LossKind;

use super::open::{EventRing, OpenEvents};
use super::recorder::{AuxOwner, Recorder};
use super::time_order::TimeOrder;
use memgauge_perf::abi::record;
use memgauge_perf::record::{Layout, Record};
use memgauge_perf::spe::Decoder;

/// Maximum size of the records that wait for older ones.
const MAX_WAITING_BYTES: usize = 64 << 20;

/// Index of the requested event by the ID in its records.
type EventById = HashMap<u64, usize>;

/// Merges the records of all rings.
pub(super) struct RecordMerger {
    order: TimeOrder,
    /// Layout of records that are not samples.
    side_band: Layout,
    lookup: EventLookup,
    /// Decoders of SPE's packets, one for each ring.
    packet_decoders: Vec<Decoder>,
}

/// Finds the event of a sample. IDs are never used again, so the last one can be kept.
#[derive(Default)]
struct EventLookup {
    /// ID in the previous sample, and the index of its event.
    latest: Option<(u64, usize)>,
}

impl EventLookup {
    #[inline]
    fn event_of_sample(&mut self, event_by_id: &EventById, body: &[u8]) -> Option<usize> {
        let id = id_of_sample(body)?;
        if let Some((latest_id, event)) = self.latest
            && latest_id == id
        {
            return Some(event);
        }
        let event = *event_by_id.get(&id)?;
        self.latest = Some((id, event));
        Some(event)
    }
}

/// The event's ID in a sample, which comes first.
#[inline]
fn id_of_sample(body: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*body.first_chunk::<8>()?))
}

impl RecordMerger {
    pub(super) fn new(rings: usize) -> RecordMerger {
        RecordMerger {
            order: TimeOrder::new(MAX_WAITING_BYTES),
            side_band: Layout::new(&OpenEvents::side_band_attr()),
            lookup: EventLookup::default(),
            packet_decoders: (0..rings).map(|_| Decoder::default()).collect(),
        }
    }

    /// Reads all rings. Records wait in the merger, except for SPE's samples, which have no
    /// order among the others.
    pub(super) fn read_rings(&mut self, open: &mut OpenEvents, recorder: &mut Recorder) {
        let OpenEvents {
            rings, event_by_id, ..
        } = open;
        for (index, ring) in rings.iter_mut().enumerate() {
            let owner = self.read_ring(ring, event_by_id, recorder);
            self.read_aux_area(index, ring, owner, recorder);
        }
    }

    /// Returns the owner of the packets in the AUX area.
    fn read_ring(
        &mut self,
        ring: &mut EventRing,
        event_by_id: &EventById,
        recorder: &mut Recorder,
    ) -> AuxOwner {
        let mut owner = AuxOwner::default();
        let walked = ring.ring.read_records(|header, body| {
            let time_ns = match header.kind {
                record::SAMPLE if recorder.python.is_output(id_of_sample(body)) => {
                    if recorder.python.read(body).is_none() {
                        add_unreadable_record(recorder);
                    }
                    return;
                }
                // Nothing but the time of a sample is needed yet.
                record::SAMPLE => {
                    let event = self.lookup.event_of_sample(event_by_id, body);
                    let layout = event.and_then(|event| recorder.layout(event).copied());
                    let time_ns = layout.and_then(|layout| layout.sample_time(body));
                    // Frames get the time of their sample, so that they stay ahead of it.
                    let python =
                        layout.and_then(|layout| recorder.python.take_waiting(&layout, body));
                    if let Some((time_ns, frames)) = time_ns.zip(python) {
                        self.order.push(time_ns, header, &frames);
                    }
                    time_ns
                }
                _ => self
                    .side_band
                    .record(header, body)
                    .map(|(record, trailer)| {
                        match &record {
                            Record::Aux { .. } => {
                                owner = AuxOwner {
                                    time_ns: trailer.time_ns,
                                    pid: trailer.pid,
                                    tid: trailer.tid,
                                };
                            }
                            Record::Mmap(map) => recorder.python.mapped(map, trailer.time_ns),
                            Record::Fork(task) => recorder.python.forked(task, trailer.time_ns),
                            Record::Lost { .. } | Record::LostSamples { .. } => {
                                recorder.python.forget_waiting();
                            }
                            _ => {}
                        }
                        trailer.time_ns
                    }),
            };
            match time_ns {
                Some(time_ns) => self.order.push(time_ns, header, body),
                None => add_unreadable_record(recorder),
            }
        });
        let what = "bytes of a ring";
        recorder.add_loss(LossKind::Unreadable, what, walked.unreadable_bytes);
        owner
    }

    fn read_aux_area(
        &mut self,
        index: usize,
        ring: &mut EventRing,
        owner: AuxOwner,
        recorder: &mut Recorder,
    ) {
        let Some(aux) = &mut ring.aux else { return };
        let conversion = ring.ring.conversion();
        let decoder = &mut self.packet_decoders[index];
        aux.area.drain(&ring.ring, |first, second| {
            for piece in [first, second] {
                decoder.feed(piece, |operation| {
                    let ticks = operation.timestamp.zip(conversion);
                    let owner = AuxOwner {
                        time_ns: ticks.map_or(owner.time_ns, |(ticks, c)| c.ns(ticks)),
                        pid: owner.pid,
                        // The kernel can be configured to write thread IDs into the context
                        // register.
                        tid: operation
                            .context
                            .map_or(owner.tid, |context| context as u32),
                    };
                    recorder.record_operation(aux.event, operation, owner);
                });
            }
        });
        let unreadable = std::mem::take(&mut decoder.unreadable_bytes);
        recorder.add_loss(LossKind::Unreadable, "bytes of packets", unreadable);
    }

    /// Passes on the records older than `horizon_ns` in order.
    pub(super) fn release(
        &mut self,
        horizon_ns: u64,
        event_by_id: &EventById,
        recorder: &mut Recorder,
    ) {
        let RecordMerger {
            order,
            side_band,
            lookup,
            ..
        } = self;
        order.release(horizon_ns, |header, body| {
            if header.kind != record::SAMPLE {
                if let Some((record, trailer)) = side_band.record(header, body) {
                    let event = event_by_id.get(&trailer.id).copied();
                    recorder.observe(&record, &trailer, event);
                }
                return;
            }
            if recorder.python.is_output(id_of_sample(body)) {
                recorder.record_python(body);
                return;
            }
            // The event may have been replaced since the record was read.
            let Some(event) = lookup.event_of_sample(event_by_id, body) else {
                return;
            };
            let layout = recorder.layout(event);
            match layout.and_then(|layout| layout.sample(body)) {
                Some(sample) => recorder.record_sample(event, header, &sample),
                None => add_unreadable_record(recorder),
            }
        });
    }

    /// Number of records that arrived after younger ones had been passed on.
    pub(super) fn late_records(&self) -> u64 {
        self.order.late()
    }
}

fn add_unreadable_record(recorder: &mut Recorder) {
    recorder.add_loss(LossKind::Unreadable, "records of a ring", 1);
}
