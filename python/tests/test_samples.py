"""Samples and series are those of the tables on disk."""

import resource

import pyarrow
import pyarrow.parquet
import pytest

import memgauge as mg


def on_disk(recording, table="samples"):
    parts = sorted((p for p in path_of(recording, table).glob("part-*.parquet")))
    return pyarrow.concat_tables([pyarrow.parquet.read_table(part) for part in parts])


def path_of(recording, table):
    from pathlib import Path

    return Path(recording.path) / table


def event_id(recording, name):
    return next(event["id"] for event in recording.manifest["events"] if event["name"] == name)


def test_samples_are_those_on_disk(recording):
    expected = on_disk(recording)
    read = pyarrow.table(recording.samples())
    assert read.num_rows > 0 and read.num_rows == expected.num_rows
    for name in expected.column_names:
        assert read[name].to_pylist() == expected[name].to_pylist(), name


def test_samples_are_selected_by_event_time_and_columns(modelled):
    rows = on_disk(modelled).to_pylist()
    number = event_id(modelled, "llc.miss")
    end = max(row["time_ns"] for row in rows)
    start, stop = end // 4, end // 2
    wanted = [
        {"time_ns": row["time_ns"], "addr": row["addr"]}
        for row in rows if row["event"] == number and start <= row["time_ns"] < stop
    ]
    assert wanted
    samples = modelled.samples("llc.miss", time=(f"{start}ns", stop), columns=["addr", "time_ns"])
    assert samples.column_names == ["time_ns", "addr"]
    assert [row for batch in samples for row in batch] == wanted


def test_batches_are_bounded_and_read_once(modelled):
    stream = modelled.samples()
    sizes = [batch.num_rows for batch in stream]
    assert sum(sizes) == on_disk(modelled).num_rows and max(sizes) <= 65_536
    assert list(stream) == []
    taken = modelled.samples()
    pyarrow.RecordBatchReader.from_stream(taken).read_all()
    for read in (pyarrow.table, list):
        with pytest.raises(mg.UsageError, match="another library"):
            read(taken)


def test_wrong_selections_are_refused(modelled):
    with pytest.raises(mg.UsageError, match="`nonsense`.*time_ns"):
        modelled.samples(columns=["nonsense"])
    with pytest.raises(mg.UsageError, match="`nonsense`.*llc.miss"):
        modelled.samples(event="nonsense")
    with pytest.raises(mg.UsageError, match="10 minutes"):
        modelled.samples(time=("10 minutes", "1s"))


def test_series_is_the_reports_bandwidth(modelled):
    bandwidth = modelled.report()["bandwidth"]
    series = modelled.series("dram.read_bytes")
    assert series["value"] == bandwidth["read_bytes"]
    assert set(series["length_ns"][:-1]) <= {bandwidth["bin_ns"]}
    assert sum(series["value"]) == modelled.totals["dram.read_bytes"].value


def test_series_of_threads_add_up(modelled):
    series = modelled.series("dram.read_bytes", by="tid")
    sums = {}
    for row in series:
        sums[row["tid"]] = sums.get(row["tid"], 0) + row["value"]
    threads = {row["tid"]: row["dram.read_bytes"] for row in modelled.threads()}
    assert sums == threads
    with pytest.raises(mg.UsageError, match="by='cpu'"):
        modelled.series("dram.read_bytes", by="cpu")


def test_reading_many_samples_takes_little_memory(modelled):
    """A hundred passes over the samples take no more than one."""
    for _ in range(3):
        list(modelled.samples())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        list(modelled.samples())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 32 << 10, f"{grown} KiB"
