//! Rows of every table, small and arbitrary.
#![allow(dead_code)]

use memgauge_recording::{Recording, Row, Selection, Writer};
use memgauge_trace::*;
use proptest::prelude::*;
use std::path::{Path, PathBuf};

pub(crate) fn sample() -> impl Strategy<Value = Sample> {
    let places = (
        any::<u64>(),
        any::<u64>(),
        any::<Option<u64>>(),
        any::<Option<u64>>(),
    );
    let ids = (
        any::<Option<u32>>(),
        any::<u32>(),
        any::<u32>(),
        any::<u16>(),
    );
    let details = (0u64..6, any::<u16>(), any::<u32>(), 0u64..7, any::<u64>());
    (places, ids, details).prop_map(|((time_ns, ip, addr, phys), (cpu, pid, tid, event), d)| {
        Sample {
            time_ns,
            cpu: cpu.map(Cpu),
            pid: Pid(pid),
            tid: Tid(tid),
            event: EventId(event),
            ip: VirtAddr(ip),
            addr: addr.map(VirtAddr),
            phys: phys.map(PhysAddr),
            kind: AccessKind::from_code(d.0),
            size_bytes: d.1,
            latency_cycles: d.2,
            source: DataSource::from_code(d.3),
            period: d.4,
            derivation: memgauge_trace::Derivation::from_code(d.0),
            caller: cpu.map(memgauge_trace::FrameId),
        }
    })
}

pub(crate) fn series() -> impl Strategy<Value = SeriesRow> {
    let ids = (
        any::<Option<u32>>(),
        any::<u32>(),
        any::<u32>(),
        any::<u16>(),
    );
    (any::<u64>(), ids, any::<u64>(), any::<u64>()).prop_map(
        |(time_ns, (cpu, pid, tid, event), value, interval_ns)| SeriesRow {
            time_ns,
            cpu: cpu.map(Cpu),
            pid: Pid(pid),
            tid: Tid(tid),
            event: EventId(event),
            value,
            interval_ns,
        },
    )
}

pub(crate) fn overflow() -> impl Strategy<Value = Overflow> {
    (any::<u64>(), any::<u32>(), any::<u16>()).prop_map(|(time_ns, tid, event)| Overflow {
        time_ns,
        tid: Tid(tid),
        event: EventId(event),
    })
}

pub(crate) fn register() -> impl Strategy<Value = SampleRegister> {
    let all = (
        any::<u64>(),
        any::<u32>(),
        any::<u16>(),
        any::<u8>(),
        any::<u64>(),
    );
    all.prop_map(|(time_ns, tid, event, register, value)| SampleRegister {
        time_ns,
        tid: Tid(tid),
        event: EventId(event),
        register,
        value,
    })
}

pub(crate) fn site() -> impl Strategy<Value = SiteCount> {
    let ids = (any::<u32>(), any::<u64>(), any::<u16>());
    let counts = (any::<u64>(), any::<Option<u8>>(), any::<Option<u64>>());
    (ids, counts).prop_map(
        |((pid, ip, event), (count, set_group, code_ns))| SiteCount {
            pid: Pid(pid),
            ip: VirtAddr(ip),
            event: EventId(event),
            count,
            set_group,
            code_ns,
        },
    )
}

pub(crate) fn thread() -> impl Strategy<Value = Thread> {
    let ids = (any::<u32>(), any::<u32>(), any::<u32>());
    (ids, any::<String>(), any::<u64>(), any::<Option<u64>>()).prop_map(
        |((pid, tid, parent), program, start_ns, end_ns)| Thread {
            pid: Pid(pid),
            tid: Tid(tid),
            parent_pid: Pid(parent),
            program,
            start_ns,
            end_ns,
            idle_ns: end_ns.map(|ns| ns / 2),
        },
    )
}

pub(crate) fn module() -> impl Strategy<Value = Module> {
    let places = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let file = (any::<String>(), any::<Option<u64>>(), any::<Option<u64>>());
    (any::<u32>(), places, any::<String>(), any::<bool>(), file).prop_map(
        |(pid, (time_ns, start, end, file_offset), path, executable, file)| Module {
            pid: Pid(pid),
            time_ns,
            start: VirtAddr(start),
            end: VirtAddr(end),
            file_offset,
            path,
            executable,
            build_id: file.0,
            file_bytes: file.1,
            modified_ns: file.2,
        },
    )
}

pub(crate) fn generated_code() -> impl Strategy<Value = GeneratedCode> {
    let all = (any::<u32>(), any::<u64>(), any::<u64>(), any::<String>());
    let place = (any::<String>(), any::<String>(), any::<Option<u32>>());
    (all, place).prop_map(
        |((pid, start, bytes, name), (module, file, line))| GeneratedCode {
            pid: Pid(pid),
            start: VirtAddr(start),
            bytes,
            name,
            module,
            file,
            line,
        },
    )
}

pub(crate) fn python_line() -> impl Strategy<Value = PythonLine> {
    let place = (any::<String>(), any::<String>(), any::<Option<u32>>());
    let counted = (any::<u32>(), any::<u16>(), any::<u64>());
    (place, counted).prop_map(|((file, function, line), (pid, event, count))| PythonLine {
        pid: Pid(pid),
        file,
        function,
        line,
        event: EventId(event),
        count,
    })
}

pub(crate) fn code_region() -> impl Strategy<Value = CodeRegion> {
    let ids = (any::<u32>(), any::<u32>(), any::<String>());
    let sums = (
        any::<u64>(),
        any::<u64>(),
        any::<Option<u16>>(),
        any::<u64>(),
    );
    (ids, sums).prop_map(
        |((pid, tid, name), (entries, time_ns, event, count))| CodeRegion {
            pid: Pid(pid),
            tid: Tid(tid),
            name,
            entries,
            time_ns,
            event: event.map(EventId),
            count,
        },
    )
}

pub(crate) fn code_value() -> impl Strategy<Value = CodeValue> {
    let all = (
        any::<u64>(),
        any::<u32>(),
        any::<u32>(),
        any::<String>(),
        any::<u64>(),
    );
    all.prop_map(|(time_ns, pid, tid, name, value)| CodeValue {
        time_ns,
        pid: Pid(pid),
        tid: Tid(tid),
        name,
        value,
    })
}

pub(crate) fn region_span() -> impl Strategy<Value = RegionSpan> {
    let ids = (any::<u32>(), any::<u32>(), any::<String>());
    let times = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    (ids, times).prop_map(
        |((pid, tid, name), (time_ns, duration_ns, inside_ns, entries))| RegionSpan {
            time_ns,
            pid: Pid(pid),
            tid: Tid(tid),
            name,
            duration_ns,
            inside_ns,
            entries,
        },
    )
}

pub(crate) fn symbol() -> impl Strategy<Value = SymbolRow> {
    let places = (
        any::<u32>(),
        any::<u64>(),
        any::<u64>(),
        any::<Option<u64>>(),
    );
    let texts = (any::<String>(), any::<String>(), any::<String>());
    let lines = (any::<String>(), any::<Option<u32>>(), any::<String>());
    (places, texts, lines).prop_map(
        |((pid, ip, time_ns, offset), (module, build_id, function), (file, line, inlined_into))| {
            SymbolRow {
                pid: Pid(pid),
                ip: VirtAddr(ip),
                time_ns,
                module,
                build_id,
                offset,
                function,
                file,
                line,
                inlined_into,
            }
        },
    )
}

pub(crate) fn loss() -> impl Strategy<Value = Loss> {
    (
        any::<u64>(),
        any::<u32>(),
        0u64..14,
        any::<u64>(),
        any::<String>(),
    )
        .prop_map(|(time_ns, pid, kind, count, detail)| Loss {
            time_ns,
            pid: Pid(pid),
            kind: LossKind::from_code(kind),
            count,
            detail,
        })
}

pub(crate) fn io() -> impl Strategy<Value = IoRow> {
    let ids = (any::<u64>(), any::<u32>(), any::<u32>(), 0u64..4);
    let counts = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    (any::<u64>(), any::<u64>(), ids, counts).prop_map(
        |(time_ns, interval_ns, (owner, netns, number, direction), counts)| IoRow {
            time_ns,
            interval_ns,
            owner: Owner(owner),
            device: DeviceId { netns, number },
            direction: Direction::from_code(direction),
            bytes: counts.0,
            operations: counts.1,
            segments: counts.2,
            header_bytes: counts.3,
        },
    )
}

pub(crate) fn io_owner() -> impl Strategy<Value = IoOwner> {
    let texts = (any::<String>(), any::<String>(), any::<String>());
    (
        any::<u64>(),
        any::<u64>(),
        any::<u32>(),
        texts,
        any::<bool>(),
        any::<Option<u32>>(),
    )
        .prop_map(
            |(time_ns, owner, uid, (command, user, cgroup), kernel, process)| IoOwner {
                time_ns,
                owner: Owner(owner),
                command,
                uid,
                user,
                cgroup,
                kernel,
                process,
            },
        )
}

pub(crate) fn io_device() -> impl Strategy<Value = IoDevice> {
    let ids = (any::<u64>(), any::<u32>(), any::<u32>());
    let texts = (
        any::<String>(),
        any::<String>(),
        any::<String>(),
        any::<String>(),
    );
    let places = (any::<String>(), any::<String>(), any::<String>());
    let facts = (any::<Option<u32>>(), any::<Option<u64>>(), any::<bool>());
    (ids, texts, places, facts).prop_map(|((time_ns, netns, number), texts, places, facts)| {
        IoDevice {
            time_ns,
            device: DeviceId { netns, number },
            name: texts.0,
            kind: texts.1,
            pci: texts.2,
            slot: places.0,
            pci_root: places.1,
            peer: places.2,
            below: texts.3,
            numa_node: facts.0,
            link_bytes_per_s: facts.1,
            is_virtual: facts.2,
        }
    })
}

/// Samples one nanosecond apart, from 0.
pub(crate) fn ticking(count: u64) -> impl Iterator<Item = Sample> {
    (0..count).map(|i| Sample {
        time_ns: i,
        pid: Pid(7),
        ip: VirtAddr(0x40_0000 + i % 5),
        addr: Some(VirtAddr(0x7000_0000 + 8 * i)),
        period: 1_000,
        ..Sample::default()
    })
}

/// An empty directory and the path of a recording to be made in it.
pub(crate) fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.mg");
    (dir, path)
}

/// A finished recording of these parts of samples.
pub(crate) fn record(path: &Path, parts: &[&[Sample]]) {
    let mut writer = Writer::create(path, Manifest::default()).unwrap();
    for part in parts {
        writer.extend(part.iter().cloned()).unwrap();
        writer.flush().unwrap();
    }
    writer.finish(|_| {}).unwrap();
}

/// Every row of a table; panics on an error.
pub(crate) fn read<R: Row>(recording: &Recording, selection: &Selection) -> Vec<R> {
    recording
        .rows::<R>(selection)
        .flat_map(|rows| rows.unwrap())
        .collect()
}
