//! Rows of the table `sharing`.

use memgauge_trace::{LossKind, Pid, SharingRow, SiteCount, Tid, VirtAddr, catalogue as events};

use super::{ModelSink, ModelledThread, Process, RecordedThread, RecordingSink};

impl RecordingSink {
    /// Writes the shared lines of a thread that has ended.
    pub(super) fn write_sharing(
        &mut self,
        process: &mut Process,
        tid: Tid,
        thread: &mut ModelledThread<RecordedThread>,
    ) {
        let sharing = &mut thread.cursor.sharing;
        let dropped = std::mem::take(&mut sharing.dropped);
        if dropped > 0 {
            let detail = "misses of lines that a thread shares, in too many places";
            self.lose_sharing(process, dropped, detail);
        }
        let pid = Pid(process.entry.pid);
        let state = &mut process.state;
        let (mut rows, mut counts) = (Vec::new(), Vec::new());
        for (place, sums) in sharing.take() {
            let catalogue = &state.program.catalogue;
            let ip = catalogue.ip(place.block, place.index);
            let block = catalogue.block(place.block);
            let code_ns = block.map_or(0, |block| state.sink.mapped.code_ns(block.mappings));
            rows.push(SharingRow {
                pid,
                tid,
                line: VirtAddr(place.line),
                site: sums.site,
                time_ns: state.now_ns,
                ip,
                code_ns,
                loaded: sums.bytes.loaded,
                stored: sums.bytes.stored,
                hitm: sums.hitm,
                invalidating: sums.invalidating,
                true_sharing: sums.true_sharing,
                false_sharing: sums.false_sharing,
                stall_cycles: state.sink.sharing_carry.add(sums.stalled_millicycles),
                ..SharingRow::default()
            });
            let by_event = [
                (events::COHERENCE_HITM, sums.hitm),
                (events::COHERENCE_TRUE_SHARING, sums.true_sharing),
                (events::COHERENCE_FALSE_SHARING, sums.false_sharing),
            ];
            let by_event = by_event.into_iter().filter(|(_, count)| *count > 0);
            counts.extend(by_event.map(|(event, count)| SiteCount {
                pid,
                ip,
                event,
                count,
                set_group: None,
                code_ns: Some(code_ns),
            }));
        }
        let written = self.writer.extend(rows);
        self.keep_error(written);
        let written = self.writer.extend(counts);
        self.keep_error(written);
    }

    fn lose_sharing(&mut self, process: &Process, count: u64, detail: &str) {
        self.lose(Some(process), LossKind::SharingNotAttributed, count, detail);
    }
}
