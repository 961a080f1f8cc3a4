//! I/O: bytes by process and device, and bytes that belong to no known process.
//!
//! Sums are exact. The unattributed bytes of a device are its own count minus the sum of its
//! owners. The two are counted at different times: a request is charged when it is queued, and the
//! device counts it when it completes. A short interval can therefore be off by that much. It is
//! never shown below zero.

pub(crate) mod curves;
pub(crate) mod memory;
pub(crate) mod moved;
pub(crate) mod over_time;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memgauge_recording::{Recording, Result, Row, Selection};
use memgauge_trace::{
    DeviceId, EventDef, EventId, IoDevice, IoOwner, IoRow, Loss, Owner, Provenance, SeriesRow,
    Unit, catalogue,
};
use serde::Serialize;

use crate::Analysis;
use crate::counts::Counts;
use crate::io::curves::IoOverTime;
use crate::io::memory::{IoMemory, MemoryCounterSums, share_out};
use crate::io::moved::{BothWays, IoDeviceLine, IoLine, Moved};

/// Sums rows by owner and device.
#[derive(Clone, Debug, Default)]
pub struct IoAccounts {
    moved: BTreeMap<(Owner, DeviceId), BothWays>,
    owners: BTreeMap<Owner, IoOwner>,
    devices: BTreeMap<DeviceId, IoDevice>,
    counters: MemoryCounterSums,
    /// Origin of the memory traffic counters, and the reason if there are none.
    counted_by: [String; 2],
    end_ns: u64,
}

impl IoAccounts {
    /// Sets the origin of the memory traffic counters, and the reason if there are none.
    pub fn set_counter_source(&mut self, source: &str, without: &str) {
        self.counted_by = [source, without].map(str::to_owned);
    }

    /// Adds an increment of a memory traffic counter by the name of its event.
    pub fn count(&mut self, name: &str, bytes: u64) {
        self.counters.add(name, bytes);
    }

    /// Stores facts about owners. Later rows replace earlier ones.
    pub fn add_owners(&mut self, rows: &[IoOwner]) {
        self.owners
            .extend(rows.iter().map(|row| (row.owner, row.clone())));
    }

    /// Stores facts about devices. Later rows replace earlier ones.
    pub fn add_devices(&mut self, rows: &[IoDevice]) {
        self.devices
            .extend(rows.iter().map(|row| (row.device, row.clone())));
    }

    /// Clears the counts and keeps the names, for the next interval of a live view.
    pub fn clear(&mut self) {
        self.moved.clear();
        self.counters.clear();
    }

    /// True if nothing is known about any owner or device.
    fn is_empty(&self) -> bool {
        self.moved.is_empty() && self.owners.is_empty() && self.devices.is_empty()
    }

    /// Time of the last row.
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// Result for `duration_ns` of metering.
    pub fn summary(&self, duration_ns: u64) -> IoSummary {
        let mut lines: Vec<IoLine> = self
            .moved
            .iter()
            .filter(|((owner, _), _)| *owner != Owner::DEVICE)
            .map(|(&(owner, device), moved)| self.line(owner, device, *moved))
            .collect();
        lines.sort_by_key(|line| (Reverse(line.moved.bytes()), line.pid, line.device.clone()));
        let mut devices: Vec<IoDeviceLine> =
            self.device_ids().map(|id| self.device_line(id)).collect();
        devices.sort_by_key(|line| (Reverse(line.counted.bytes()), line.name.clone()));
        let [source, without] = self.counted_by.clone();
        let memory = IoMemory {
            source,
            without,
            ..share_out(&self.counters, &mut devices, &mut lines)
        };
        IoSummary {
            schema_version: 2,
            duration_ns,
            lines,
            devices,
            memory,
            ..IoSummary::default()
        }
    }

    fn line(&self, owner: Owner, device: DeviceId, moved: BothWays) -> IoLine {
        let known = self.owners.get(&owner).cloned().unwrap_or_default();
        let hardware = self.devices.get(&device).is_some_and(|d| !d.is_virtual);
        IoLine {
            pid: known.process.unwrap_or(owner.pid().0),
            tid: known.process.map(|_| owner.pid().0),
            processes: 1,
            owner: owner.0,
            command: known.command,
            user: known.user,
            cgroup: known.cgroup,
            kernel: known.kernel,
            device: self.device_name(device),
            id: device,
            memory_bytes: None,
            memory_bytes_at_most: if hardware { moved.bytes() } else { 0 },
            moved,
        }
    }

    fn device_name(&self, id: DeviceId) -> String {
        match (self.devices.get(&id), id.disk()) {
            (Some(device), _) => device.name.clone(),
            (None, Some((major, minor))) => format!("{major}:{minor}"),
            (None, None) => format!("if{}@{}", id.number, id.netns),
        }
    }

    fn device_ids(&self) -> impl Iterator<Item = DeviceId> + '_ {
        let mut ids: Vec<DeviceId> = self.moved.keys().map(|(_, device)| *device).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter()
    }

    fn device_line(&self, id: DeviceId) -> IoDeviceLine {
        let known = self.devices.get(&id).cloned().unwrap_or_default();
        let of_device = self.moved.iter().filter(|((_, device), _)| *device == id);
        let (mut attributed, mut counted) = (BothWays::default(), BothWays::default());
        for ((owner, _), moved) in of_device {
            match *owner {
                Owner::DEVICE => counted.add(moved),
                _ => attributed.add(moved),
            }
        }
        IoDeviceLine {
            name: self.device_name(id),
            netns: id.netns,
            number: id.number,
            kind: known.kind,
            pci: known.pci,
            slot: known.slot,
            pci_root: known.pci_root,
            peer: known.peer,
            numa_node: known.numa_node,
            link_bytes_per_s: known.link_bytes_per_s,
            below: known.below,
            is_virtual: known.is_virtual,
            unattributed_in_bytes: unattributed(&counted.r#in, &attributed.r#in),
            unattributed_out_bytes: unattributed(&counted.out, &attributed.out),
            memory_bytes: None,
            attributed,
            counted,
        }
    }
}

/// Bytes that a device counted beyond the sum of its owners. Some devices count packets as they are
/// on the wire, with the headers of each segment; others count whole packets. The number of packets
/// shows which.
fn unattributed(counted: &Moved, attributed: &Moved) -> u64 {
    let on_the_wire =
        attributed.segments > attributed.operations && counted.operations >= attributed.segments;
    let headers = if on_the_wire {
        attributed.header_bytes
    } else {
        0
    };
    counted.bytes.saturating_sub(attributed.bytes + headers)
}

impl Analysis for IoAccounts {
    type Row = IoRow;
    type Output = IoSummary;

    fn observe(&mut self, batch: &[IoRow]) {
        for row in batch {
            self.moved
                .entry((row.owner, row.device))
                .or_default()
                .add_row(row);
            self.end_ns = self.end_ns.max(row.time_ns);
        }
    }

    fn merge(&mut self, other: Self) {
        for (key, moved) in &other.moved {
            self.moved.entry(*key).or_default().add(moved);
        }
        self.owners.extend(other.owners);
        self.devices.extend(other.devices);
        self.counters.merge(&other.counters);
        self.end_ns = self.end_ns.max(other.end_ns);
    }

    fn finish(self) -> IoSummary {
        self.summary(self.end_ns)
    }
}

/// Summarises an I/O recording. Also returns messages about parts that could not be read.
pub fn summarise_io(recording: &Recording) -> Result<(IoSummary, Vec<String>)> {
    let mut problems = recording.problems();
    let summary = accounted(recording, &mut problems)?;
    Ok((summary.unwrap_or_default(), problems))
}

/// Sums of the I/O that the recording accounts for. `None` if it accounts for none.
pub(crate) fn accounted(
    recording: &Recording,
    problems: &mut Vec<String>,
) -> Result<Option<IoSummary>> {
    let mut accounts = IoAccounts::default();
    each(recording, problems, |rows| accounts.add_owners(rows))?;
    each(recording, problems, |rows| accounts.add_devices(rows))?;
    each(recording, problems, |rows: &[IoRow]| accounts.observe(rows))?;
    let manifest = recording.manifest();
    let settings = &manifest.source.settings;
    // Recordings of I/O have this setting, also if nothing moved.
    if accounts.is_empty() && settings.no_counters.is_none() {
        return Ok(None);
    }
    let mut losses: BTreeMap<String, u64> = BTreeMap::new();
    each(recording, problems, |rows: &[Loss]| {
        for row in rows {
            *losses.entry(row.detail.clone()).or_default() += row.count;
        }
    })?;
    let names: BTreeMap<EventId, &str> = manifest
        .events
        .iter()
        .filter(|event| MemoryCounterSums::knows(&event.name))
        .map(|event| (event.id, event.name.as_str()))
        .collect();
    each(recording, problems, |rows: &[SeriesRow]| {
        for row in rows {
            let name = names.get(&row.event).copied().unwrap_or_default();
            accounts.count(name, row.value);
        }
    })?;
    let text = |setting: &Option<String>| setting.clone().unwrap_or_default();
    accounts.set_counter_source(&text(&settings.counters), &text(&settings.no_counters));
    let missing = text(&settings.missing);
    let losses = losses.into_iter().map(|(meaning, count)| IoLoss {
        name: "io_not_attributed".to_owned(),
        meaning,
        count,
    });
    Ok(Some(IoSummary {
        filtered: settings.filtered == Some(true),
        missing: missing
            .split("; ")
            .filter(|m| !m.is_empty())
            .map(str::to_owned)
            .collect(),
        losses: losses.collect(),
        ..accounts.finish()
    }))
}

/// Passes batches of a table to `f`. Damaged parts become messages, each once.
fn each<R: Row>(
    recording: &Recording,
    problems: &mut Vec<String>,
    take: impl FnMut(&[R]),
) -> Result<()> {
    let mut found = Vec::new();
    recording.for_each_intact_batch(&Selection::all(), &mut found, take)?;
    // Another analysis may have read the same table before.
    found.retain(|problem| !problems.contains(problem));
    problems.extend(found);
    Ok(())
}

/// Bytes by process and device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IoSummary {
    /// Version of the JSON form.
    pub schema_version: u32,
    /// Length of the accounting in nanoseconds.
    pub duration_ns: u64,
    /// True if only some processes were accounted, so that a device's unattributed bytes include
    /// others.
    pub filtered: bool,
    /// A line for each process and device, by falling bytes.
    pub lines: Vec<IoLine>,
    /// A line for each device, by falling bytes.
    pub devices: Vec<IoDeviceLine>,
    /// Memory traffic of the I/O.
    pub memory: IoMemory,
    /// Limits of this machine's kernel, in sentences.
    pub missing: Vec<String>,
    /// Losses of the accounting.
    pub losses: Vec<IoLoss>,
    /// Bytes over time, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_time: Option<IoOverTime>,
}

/// Key by which lines are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoBy {
    /// Not merged.
    #[default]
    Process,
    /// The program's name.
    Command,
    /// The user.
    User,
    /// The control group.
    Cgroup,
}

/// Events of I/O: name and definition. All are in bytes and counted.
const EVENTS: [(&str, &str); 4] = [
    (
        IoSummary::BYTES,
        "Bytes that processes moved through devices, in and out, counted at devices that are not \
         layered on others.",
    ),
    (
        IoSummary::IN_BYTES,
        "The part of io.bytes that was read from a disk or received from a network.",
    ),
    (
        IoSummary::OUT_BYTES,
        "The part of io.bytes that was written to a disk or sent to a network.",
    ),
    (
        IoSummary::UNATTRIBUTED_BYTES,
        "Bytes that these devices counted and no process accounts for.",
    ),
];

impl IoSummary {
    /// Name of the event for bytes that processes moved.
    pub const BYTES: &str = "io.bytes";
    /// Name of the event for the bytes of [`Self::BYTES`] that were read or received.
    pub const IN_BYTES: &str = "io.in_bytes";
    /// Name of the event for the bytes of [`Self::BYTES`] that were written or sent.
    pub const OUT_BYTES: &str = "io.out_bytes";
    /// Name of the event for bytes of no known process.
    pub const UNATTRIBUTED_BYTES: &str = "io.unattributed_bytes";

    /// Totals of the events of I/O. A device that is layered on another one, as a partition of a
    /// RAID is, passes its bytes on, so only the lowest one counts.
    pub fn totals(&self) -> Counts {
        let lowest = self.devices.iter().filter(|device| device.below.is_empty());
        let mut sums = [0; EVENTS.len()];
        for device in lowest {
            let attributed = &device.attributed;
            let unattributed = device.unattributed_in_bytes + device.unattributed_out_bytes;
            let of_device = [
                attributed.bytes(),
                attributed.r#in.bytes,
                attributed.out.bytes,
                unattributed,
            ];
            for (sum, bytes) in sums.iter_mut().zip(of_device) {
                *sum += bytes;
            }
        }
        let names = EVENTS.iter().map(|event| event.0.to_owned());
        names.zip(sums).collect()
    }

    /// Definitions of the events of I/O, with the first free IDs after those of `events`.
    pub(crate) fn definitions(events: &[EventDef]) -> Vec<EventDef> {
        let used = events
            .iter()
            .map(|event| event.id.0.saturating_add(1))
            .max();
        let first = used.unwrap_or(0).max(catalogue::FIRST_FREE);
        (first..)
            .zip(EVENTS)
            .map(|(id, (name, description))| EventDef {
                id: EventId(id),
                name: name.to_owned(),
                unit: Unit::Bytes,
                provenance: Provenance::Counted,
                description: description.to_owned(),
            })
            .collect()
    }

    /// Merges the lines of all processes with the same key.
    pub fn by(mut self, by: IoBy) -> IoSummary {
        if by == IoBy::Process {
            return self;
        }
        let mut groups: BTreeMap<(String, DeviceId), IoLine> = BTreeMap::new();
        for line in self.lines {
            let common = match by {
                IoBy::Command => &line.command,
                IoBy::User => &line.user,
                IoBy::Cgroup | IoBy::Process => &line.cgroup,
            };
            let group = groups.entry((common.clone(), line.id));
            group
                .and_modify(|sum| {
                    sum.add(&line);
                    sum.keep_common(&line);
                })
                .or_insert_with(|| IoLine {
                    pid: 0,
                    tid: None,
                    owner: 0,
                    ..line
                });
        }
        self.lines = groups.into_values().collect();
        self.lines
            .sort_by_key(|line| (Reverse(line.moved.bytes()), line.device.clone()));
        self
    }
}

/// Bytes or facts that could not be accounted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IoLoss {
    /// Name.
    pub name: String,
    /// Meaning of the count.
    pub meaning: String,
    /// Number of bytes, packets or processes, as `meaning` says.
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_trace::Direction;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const DISK: DeviceId = DeviceId {
        netns: 0,
        number: 8 << 20,
    };

    fn row(owner: u64, direction: Direction, bytes: u64) -> IoRow {
        IoRow {
            owner: Owner(owner),
            device: DISK,
            direction,
            bytes,
            operations: 1,
            ..IoRow::default()
        }
    }

    fn of(rows: &[IoRow]) -> IoSummary {
        let mut accounts = IoAccounts::default();
        accounts.observe(rows);
        accounts.finish()
    }

    #[test]
    fn bytes_of_no_owner_are_unattributed() {
        let owner = 7 << 32;
        let summary = of(&[
            row(0, Direction::In, 100),
            row(owner, Direction::In, 60),
            row(0, Direction::Out, 10),
            row(owner, Direction::Out, 10),
        ]);
        let device = &summary.devices[0];
        assert_eq!(
            (device.unattributed_in_bytes, device.unattributed_out_bytes),
            (40, 0)
        );
        assert_eq!(summary.lines.len(), 1);
        assert_eq!(
            (summary.lines[0].pid, summary.lines[0].moved.bytes()),
            (7, 70)
        );
    }

    #[test]
    fn owners_ahead_of_their_device_leave_no_negative_rest() {
        let summary = of(&[row(0, Direction::Out, 5), row(7 << 32, Direction::Out, 9)]);
        assert_eq!(summary.devices[0].unattributed_out_bytes, 0);
    }

    #[test]
    fn headers_of_segments_count_only_where_the_device_counts_segments() {
        let attributed = Moved {
            bytes: 2950,
            operations: 1,
            segments: 2,
            header_bytes: 52,
        };
        let check = |packets, expected| {
            let counted = Moved {
                bytes: 3100,
                operations: packets,
                ..Moved::default()
            };
            assert_eq!(
                unattributed(&counted, &attributed),
                expected,
                "{packets} packets"
            );
        };
        check(2, 98);
        check(1, 150);
    }

    #[test]
    fn processes_of_one_id_are_two_lines() {
        let summary = of(&[
            row(7 << 32 | 1, Direction::In, 1),
            row(7 << 32 | 2, Direction::In, 2),
        ]);
        assert_eq!(summary.lines.len(), 2);
    }

    fn owner(pid: u32, command: &str, user: &str) -> IoOwner {
        IoOwner {
            owner: Owner(u64::from(pid) << 32),
            command: command.to_owned(),
            user: user.to_owned(),
            ..IoOwner::default()
        }
    }

    #[test]
    fn lines_are_summed_up_by_what_processes_have_in_common() {
        let mut accounts = IoAccounts::default();
        accounts.add_owners(&[
            owner(7, "dd", "ann"),
            owner(8, "dd", "bob"),
            owner(9, "tar", "bob"),
        ]);
        accounts.observe(&[
            row(7 << 32, Direction::In, 1),
            row(8 << 32, Direction::Out, 20),
            row(9 << 32, Direction::In, 300),
        ]);
        let summary = accounts.summary(1);
        let shown = |by| {
            let lines = summary.clone().by(by).lines;
            let line = |l: &IoLine| {
                (
                    l.command.clone(),
                    l.user.clone(),
                    l.processes,
                    l.moved.bytes(),
                )
            };
            lines.iter().map(line).collect::<Vec<_>>()
        };
        let line = |command: &str, user: &str, processes, bytes| {
            (command.to_owned(), user.to_owned(), processes, bytes)
        };
        let by_command = [line("tar", "bob", 1, 300), line("dd", "", 2, 21)];
        assert_eq!(shown(IoBy::Command), by_command);
        let by_user = [line("", "bob", 2, 320), line("dd", "ann", 1, 1)];
        assert_eq!(shown(IoBy::User), by_user);
        assert_eq!(shown(IoBy::Cgroup), [line("", "", 3, 321)]);
        assert_eq!(shown(IoBy::Process).len(), 3);
    }

    #[test]
    fn threads_are_lines_with_their_process() {
        let mut accounts = IoAccounts::default();
        accounts.add_owners(&[IoOwner {
            process: Some(7),
            ..owner(8, "worker", "ann")
        }]);
        accounts.observe(&[row(8 << 32, Direction::In, 5)]);
        let lines = accounts.finish().lines;
        assert_eq!((lines[0].pid, lines[0].tid), (7, Some(8)));
    }

    fn any_row() -> impl Strategy<Value = IoRow> {
        (0u64..4, 0u32..3, 0u64..3, 0u64..1000).prop_map(|(pid, number, way, bytes)| IoRow {
            owner: Owner(pid << 32),
            device: DeviceId { netns: 0, number },
            direction: Direction::from_code(way),
            bytes,
            operations: bytes / 3,
            segments: bytes / 2,
            header_bytes: bytes / 5,
            ..IoRow::default()
        })
    }

    proptest! {
        #[test]
        fn batches_and_merges_change_nothing(rows in vec(any_row(), 0..60), cut in 0usize..60) {
            let cut = cut.min(rows.len());
            let (mut first, mut second) = (IoAccounts::default(), IoAccounts::default());
            first.observe(&rows[..cut]);
            rows[cut..].iter().for_each(|row| second.observe(std::slice::from_ref(row)));
            first.merge(second);
            prop_assert_eq!(first.finish(), of(&rows));
        }

        #[test]
        fn nothing_is_lost_between_rows_and_lines(rows in vec(any_row(), 0..60)) {
            let summary = of(&rows);
            let rows_sum: u64 = rows.iter().filter(|r| r.owner != Owner::DEVICE).map(|r| r.bytes).sum();
            let lines_sum: u64 = summary.lines.iter().map(|l| l.moved.bytes()).sum();
            prop_assert_eq!(rows_sum, lines_sum);
        }
    }
}
