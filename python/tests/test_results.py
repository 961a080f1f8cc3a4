"""Results are those of `memgauge report --json`."""

import json
import random
import subprocess

import pyarrow
import pytest

import memgauge as mg
from conftest import command, report

ALL_ROWS = ["--rows", "1000000"]


def rows_of(table):
    """Rows without the numbers that do not exist."""
    return [without_nothing(row) for row in table]


def without_nothing(row):
    return {name: value for name, value in row.items() if value is not None}


def expected_rows(rows, table):
    """Rows of the report in the table's form: a column for each event, 0 where it did not occur."""
    events = [name for name, facts in table.metadata.items() if "provenance" in facts]
    return [{**dict.fromkeys(events, 0), **flat(row)} for row in rows]


def flat(row):
    row = dict(row)
    counts = row.pop("counts", {})
    ends = {
        f"{event}.{end}": interval[end]
        for event, interval in row.pop("intervals", {}).items()
        for end in ("low", "high")
    }
    if "inlined_into" in row:
        row["inlined_into"] = [caller["function"] for caller in row["inlined_into"]]
    return without_nothing({**row, **counts, **ends})


def test_report_is_that_of_the_command(recording):
    assert recording.report() == report(recording)
    assert recording.report(rows=3) == report(recording, "--rows", "3")


def test_totals_are_those_of_the_report(recording):
    expected = report(recording)
    totals = recording.totals
    assert {name: total.value for name, total in totals.items()} == expected["totals"]
    events = {event["name"]: event for event in expected["events"]}
    for name, total in totals.items():
        if name in events:
            assert total.unit == events[name]["unit"]
            assert total.provenance == events[name]["provenance"]
    unattributed = totals.get("dram.unattributed_write_bytes")
    assert unattributed is None or (unattributed.unit, unattributed.provenance) == ("bytes", "modelled")


def test_totals_of_estimates_have_the_reports_intervals(estimated, modelled):
    estimates = report(estimated)["sets"]["estimates"]
    found = {name: t.interval for name, t in estimated.totals.items() if t.interval}
    expected = {name: (of["low"], of["high"]) for name, of in estimates.items()}
    assert found == {name: ends for name, ends in expected.items() if name in estimated.totals}
    assert found
    assert all(total.interval is None for total in modelled.totals.values())


@pytest.mark.parametrize("table", ["functions", "lines", "instructions"])
def test_places_are_those_of_the_report(recording, table):
    expected = report(recording, *ALL_ROWS)["hot"][table]["rows"]
    found = getattr(recording, table)()
    assert rows_of(found) == expected_rows(expected, found)


def test_places_are_ranked_by_an_event(modelled):
    expected = report(modelled, *ALL_ROWS, "--event", "llc.miss")["hot"]["functions"]["rows"]
    table = modelled.functions(by="llc.miss")
    assert rows_of(table) == expected_rows(expected, table)
    assert table["value"] == sorted(table["value"], reverse=True)
    assert table["value"] == table["llc.miss"]
    assert table["value"] != modelled.functions()["value"]


@pytest.mark.parametrize("table", ["threads", "processes", "levels"])
def test_threads_and_levels_are_those_of_the_report(recording, table):
    expected = report(recording)[table]
    found = getattr(recording, table)()
    assert rows_of(found) == expected_rows(expected, found)


def test_regions_are_those_of_the_report(recording):
    tables = report(recording, *ALL_ROWS)["regions"]
    expected = [{**flat(row), "event": of["event"]} for of in tables for row in of["rows"]]
    assert rows_of(recording.regions()) == expected
    for of in tables:
        assert len(recording.regions(event=of["event"])) == len(of["rows"])


def test_data_and_heap_are_those_of_the_report(recording, modelled):
    expected = report(recording)
    data, heap = recording.data(), recording.heap()
    rows = expected.get("data", {}).get("rows", [])
    without = [{k: v for k, v in row.items() if k != "allocation"} for row in rows]
    assert rows_of(data) == expected_rows(without, data)
    sites = expected.get("heap", {}).get("sites", [])
    hidden = {"calls", "named_by", "errors"}
    without = [{k: v for k, v in row.items() if k not in hidden} for row in sites]
    assert rows_of(heap) == [without_nothing(row) for row in without]
    if recording is modelled:
        assert "allocated" in data["kind"] and sum(heap["allocations"]) > 0


def test_tables_have_all_rows(tmp_path):
    sites = random.randrange(120, 160)
    print(f"sites {sites}")
    source = tmp_path / "allocate.c"
    source.write_text(
        "#include <stdlib.h>\n#include <string.h>\n"
        + "".join(f"void f{i}(void) {{ memset(malloc({4096 + 64 * i}), 1, 4096); }}\n" for i in range(sites))
        + "int main(void) {\n"
        + "".join(f"    f{i}();\n" for i in range(sites))
        + "    return 0;\n}\n"
    )
    program = tmp_path / "allocate"
    subprocess.run(["gcc", "-g", "-fno-builtin", "-o", program, source], check=True)
    recording = mg.record([program], output=tmp_path / "allocate.mg")
    listed = recording.report(rows=10)
    for table, rows, others in (
        (recording.heap(), listed["heap"]["sites"], listed["heap"]["other_sites"]),
        (recording.data(), listed["data"]["rows"], listed["data"]["other_rows"]),
    ):
        assert len(table) == len(rows) + others >= sites > len(rows)
        assert table["name"][: len(rows)] == [row["name"] for row in rows]
    own = {name for name in recording.functions()["function"] if name.startswith("f") and name[1:].isdigit()}
    assert len(own) == sites


def test_heap_over_time_is_that_of_the_report(recording):
    history = report(recording).get("heap", {}).get("over_time")
    rows = rows_of(recording.heap_over_time())
    if history is None:
        assert rows == []
        return
    curves = [(None, history["in_use"])]
    curves += [(site["name"], site["bytes"]) for site in history["sites"]]
    curves += [("other sites", history["other_bytes"])]
    expected = [
        without_nothing({"name": name, "time_ns": i * history["bin_ns"], "bytes": value})
        for name, values in curves
        for i, value in enumerate(values)
    ]
    assert [without_nothing(row) for row in rows] == expected


def test_types_are_those_of_the_report(recording):
    table = report(recording).get("types") or {"rows": []}
    expected = []
    for row in table["rows"]:
        members = row["members"] or [{"name": None, "counts": row["counts"]}]
        expected += [(row["name"], row["bytes"], member["name"]) for member in members]
    found = recording.types()
    rows = [(row["type"], row["type_bytes"], row.get("member")) for row in rows_of(found)]
    assert rows[: len(expected)] == expected
    # The report has the first types, the table has all.
    others = {row[:2] for row in rows[len(expected) :]} - {row[:2] for row in expected}
    assert len(others) <= table.get("other_rows", 0) and bool(others) == bool(table.get("other_rows"))


def test_python_lines_are_those_of_the_report(recording):
    table = report(recording).get("python") or {"lines": []}
    expected = [(row["function"], row["file"], row["line"], row["share"], row["counts"]["cycles"]) for row in table["lines"]]
    rows = rows_of(recording.python_lines())
    assert [(row["function"], row["file"], row["line"], row["share"], row["cycles"]) for row in rows] == expected


def test_losses_are_those_of_the_report(recording):
    assert rows_of(recording.losses) == report(recording)["losses"]


def test_tables_cross_to_other_libraries_unchanged(modelled):
    table = modelled.functions()
    columns = table.to_pydict()
    assert pyarrow.table(table).to_pydict() == columns
    assert table.to_arrow().schema.field("llc.miss").metadata[b"provenance"] == b"modelled"
    frame = table.to_pandas()
    assert frame["llc.miss"].tolist() == columns["llc.miss"]
    assert table.metadata["dram.read_bytes"]["unit"] == "bytes"


def test_polars_reads_tables_unchanged(modelled):
    import polars

    table = modelled.functions()
    assert table.to_polars().to_dict(as_series=False) == table.to_pydict()
    assert polars.DataFrame(table).height == table.num_rows


def test_notebook_shows_names_as_text(modelled, tmp_path):
    import memgauge as mg

    output = tmp_path / "named.mg"
    named = mg.record(["/bin/echo", "<b>&"], machine="i5-6600k", output=output)
    assert "&lt;b&gt;&amp;" in named._repr_html_() and "<b>" not in named._repr_html_()
    shown = modelled.functions()._repr_html_()
    assert shown.startswith("<table>") and modelled.functions()["function"][0] in shown
    assert f"{modelled.totals['llc.miss'].value:,}" in modelled.totals._repr_html_()


def test_io_recordings_have_the_report_of_the_command(tmp_path):
    import memgauge as mg

    manifest = {"format_version": 1, "source": {"name": "io"}, "recorder": "test", "clock": "monotonic"}
    recording = tmp_path / "io.mg"
    recording.mkdir()
    (recording / "manifest.json").write_text(json.dumps(manifest))
    opened = mg.open(recording)
    assert opened.report() == report(opened)
    assert len(opened.functions()) == 0


def ranges(row):
    """Bytes of a line as the table shows them."""
    ends = [(of["first"], of["last"]) for of in row]
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def test_sharing_is_that_of_the_report(tmp_path, modelled):
    source = tmp_path / "share.c"
    source.write_text(
        "#include <pthread.h>\nstatic volatile long counts[2];\n"
        "static void *add(void *own) {\n"
        "    for (int i = 0; i < 20000; i++) ++*(volatile long *)own;\n    return 0;\n}\n"
        "int main(void) {\n    pthread_t a, b;\n"
        "    pthread_create(&a, 0, add, (void *)&counts[0]);\n"
        "    pthread_create(&b, 0, add, (void *)&counts[1]);\n"
        "    return pthread_join(a, 0) || pthread_join(b, 0);\n}\n"
    )
    program = tmp_path / "share"
    subprocess.run(["gcc", "-g", "-pthread", "-o", program, source], check=True)
    recording = mg.record([program], output=tmp_path / "share.mg")
    lines = report(recording)["sharing"]["lines"]
    found = recording.sharing()
    hidden = {"accesses"}
    assert rows_of(found) == [{k: v for k, v in line.items() if k not in hidden} for line in lines]
    assert any("counts" in name for name in found["name"])
    accesses = [
        {
            **without_nothing(access),
            "pid": line["pid"],
            "address": line["address"],
            "loaded": ranges(access["loaded"]),
            "stored": ranges(access["stored"]),
        }
        for line in lines
        for access in line["accesses"]
    ]
    assert rows_of(recording.sharing(by="access")) == accesses
    assert len(modelled.sharing()) == 0
    with pytest.raises(mg.UsageError, match='use "line" or "access"'):
        recording.sharing(by="tid")
    # As an estimate from samples, through perf's format.
    recording = mg.record([program], output=tmp_path / "sampled.mg", options=["-e", "l1d.miss:7"])
    command("export", "-f", "perf", recording.path, "-o", tmp_path / "perf.data")
    command("import", tmp_path / "perf.data", "-o", tmp_path / "imported.mg")
    imported = mg.open(tmp_path / "imported.mg")
    line = rows_of(imported.sharing())[0]
    assert line["hitm"] == 7 * line["hitm_samples"] > 0
    table = imported.sharing(by="access")
    assert sum(table["samples"]) >= line["samples"]


def test_other_machines_are_those_of_the_report(tmp_path, modelled):
    options = ["--what-if", "llc=2x", "--what-if", "machine=zen4"]
    recording = mg.record(["/bin/true"], output=tmp_path / "true.mg", options=options)
    machines = report(recording)["what_if"]
    found = recording.what_if()
    expected = [{k: v for k, v in row.items() if k not in ("time", "totals")} for row in machines]
    names = list(found.column_names)[: len(expected[0])]
    assert [{name: row[name] for name in names} for row in found] == expected
    assert found["name"] == ["llc=2x", "machine=zen4"]
    for row, machine in zip(found, machines):
        assert {k: row[k] for k in machine["totals"]} == machine["totals"]
    assert found.metadata["cycles"]["unit"] == "cycles"
    assert len(modelled.what_if()) == 0


def test_packed_recordings_give_equal_results(recording, tmp_path):
    archive = tmp_path / "packed.tar"
    command("pack", recording.path, "-o", archive)
    packed = mg.open(archive)
    assert packed.report() == report(recording)
    assert packed.totals == recording.totals
