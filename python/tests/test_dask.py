"""Curves and recordings on a cluster equal those of one process."""

import functools
import glob
import os
import random
import shutil
import signal

import numpy
import pytest

import memgauge as mg
from memgauge import _memgauge

distributed = pytest.importorskip("distributed")

from conftest import command  # noqa: E402
from memgauge.dask import index_share, merge, observe, observe_share  # noqa: E402


@pytest.fixture(scope="module")
def seed():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return seed


def trace(random, count):
    """References to blocks of which few are frequent."""
    one, other = (random.integers(0, 1 << 20, count) for _ in range(2))
    return numpy.minimum(one, other).astype("uint64")


def facts(curve):
    return {name: value for name, value in curve.facts.items() if name != "title"}


def test_any_division_and_merge_tree_gives_the_curve_of_one_process(seed):
    dice = numpy.random.default_rng(seed)
    for parts in (1, 2, 7, 30):
        addresses = trace(dice, 40_000)
        cuts = numpy.sort(dice.integers(0, len(addresses) + 1, parts - 1))
        states = [observe(part, 64) for part in numpy.split(addresses, cuts)]
        while len(states) > 1:
            at = dice.integers(0, len(states) - 1)
            states[at : at + 2] = [merge(states[at], states[at + 1])]
        assert states[0] == observe(addresses, 64)
        curve = mg.MissCurve(_memgauge.curve_of_trace_part(states[0], "parts"))
        assert facts(curve) == facts(mg.mrc(addresses))
        assert curve.table.to_pydict() == mg.mrc(addresses).table.to_pydict()


def test_sampled_curve_is_the_same_for_any_division_and_its_band_holds_the_exact_one(seed):
    dice = numpy.random.default_rng(seed)
    addresses = trace(dice, 300_000)
    exact = mg.mrc(addresses)
    curves = []
    for parts in (1, 5):
        cuts = numpy.sort(dice.integers(0, len(addresses) + 1, parts - 1))
        states = [observe(part, 64, 0.1) for part in numpy.split(addresses, cuts)]
        whole = functools.reduce(merge, states)
        curves.append(mg.MissCurve(_memgauge.curve_of_trace_part(whole, "parts")))
    assert facts(curves[0]) == facts(curves[1])
    sizes = [64 << power for power in range(8, 20)]
    sampled, counted = (curve.at(sizes).to_pydict() for curve in (curves[0], exact))
    bands = zip(sampled["miss_ratio"], counted["miss_ratio"], sampled["half_band_95"])
    held = sum(abs(one - other) <= half for one, other, half in bands)
    assert held >= len(sizes) - 2, sampled
    with pytest.raises(mg.UsageError, match="in different ways"):
        merge(observe(addresses, 64, 0.1), observe(addresses, 64))
    with pytest.raises(mg.UsageError, match="at most 1"):
        observe(addresses, 64, 2.0)


def test_curve_of_a_cluster_is_that_of_one_process(seed, tmp_path):
    addresses = trace(numpy.random.default_rng(seed), 200_000)
    expected = facts(mg.mrc(addresses, block=4096))
    parts = numpy.array_split(addresses, 9)
    for index, part in enumerate(parts):
        part.tofile(tmp_path / f"{index}.raw")
    files = [lambda path=tmp_path / f"{i}.raw": numpy.fromfile(path, "uint64") for i in range(9)]
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        assert facts(mg.dask.mrc(parts, block=4096)) == expected
        assert facts(mg.dask.mrc(files, block=4096, client=client)) == expected
        whole = mg.MissCurve(_memgauge.curve_of_trace_part(observe(addresses, 4096, 0.5), "parts"))
        assert facts(mg.dask.mrc(parts, block=4096, sample=0.5)) == facts(whole)
        with pytest.raises(mg.UsageError, match="power of two"):
            mg.dask.mrc(parts, block=3)
        with pytest.raises(mg.UsageError, match="no parts"):
            mg.dask.mrc([])
    with pytest.raises(mg.UsageError, match="failed to find a cluster"):
        mg.dask.mrc(parts)


def test_states_of_other_versions_and_truncated_ones_are_refused():
    state = observe([1, 2, 1], 64)
    with pytest.raises(mg.UsageError, match="truncated"):
        merge(state, state[:-1])
    with pytest.raises(mg.UsageError, match="version 9"):
        merge(state[:7] + b"\x09" + state[8:], state)


@pytest.fixture(scope="module")
def cluster():
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


def test_recording_opened_on_a_cluster_equals_that_of_one_process(recording, cluster):
    counted = set(recording.functions().column_names)
    event = next((name for name in recording.totals if name in counted), None)
    expected = recording.report()
    for shares in (None, 1, 7):
        on_cluster = mg.dask.open(recording.path, client=cluster, shares=shares)
        assert on_cluster.report() == expected
        for table in ("functions", "lines", "instructions", "regions", "threads", "levels"):
            whole = getattr(recording, table)().to_pydict()
            assert getattr(on_cluster, table)().to_pydict() == whole
    assert on_cluster.functions(by=event).to_pydict() == recording.functions(by=event).to_pydict()


def test_recording_survives_a_lost_worker(modelled, cluster):
    states = [
        cluster.submit(lose_worker_once, modelled.path, index, 6, pure=False) for index in range(6)
    ]
    merged = states[0].result()
    for state in states[1:]:
        merged = _memgauge.merge_sums(merged, state.result())
    assert mg.Recording(modelled._inner, merged).report() == modelled.report()


def lose_worker_once(path, index, shares):
    """Kills its process the first time that share 3 is read."""
    marker = os.path.join(os.path.dirname(path), "lost")
    if index == 3 and not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return observe_share(path, index, shares)


def test_shares_of_different_recordings_are_refused(modelled, sampled):
    one, other = observe_share(modelled.path, 0, 2), observe_share(sampled.path, 1, 2)
    with pytest.raises(mg.UsageError, match="different recordings"):
        _memgauge.merge_sums(one, other)
    with pytest.raises(mg.UsageError, match="1 of 2"):
        modelled._inner.summary_of_sums(one)
    with pytest.raises(mg.UsageError, match="version of memgauge"):
        _memgauge.merge_sums(b"", one)


@pytest.fixture(scope="module")
def fleet(modelled, longer, sampled, tmp_path_factory):
    """Recordings in folders: one of them twice, one packed, one damaged, one unfinished."""
    folder = tmp_path_factory.mktemp("fleet")
    for number, recording in enumerate((modelled, longer, sampled)):
        shutil.copytree(recording.path, folder / f"web-{number}" / "run.mg")
    shutil.copytree(modelled.path, folder / "copy.mg")
    command("pack", longer.path, "-o", folder / "packed.mg.tar")
    shutil.copytree(modelled.path, folder / "damaged.mg")
    (folder / "damaged.mg/manifest.json").write_text("{")
    (folder / "begun.mg").mkdir()
    return folder


def rows(dataset):
    """Rows of the newest version and their measurements, without what names files."""
    polars = pytest.importorskip("polars")
    newest = max(glob.glob(f"{dataset}/recordings/*.parquet"))
    recordings = polars.read_parquet(newest)
    measurements = polars.read_parquet(f"{dataset}/measurements/**/*.parquet", hive_partitioning=True)
    measurements = measurements.join(recordings.select("recording", "file"), on=["recording", "file"], how="semi")
    # Copies have the same rows, and either path may be that of the row.
    recordings = recordings.drop("file", "curve_file", "version", "path").to_dicts()
    measurements = measurements.drop("file").to_dicts()
    return sorted(map(str, recordings)), sorted(map(str, measurements))


@pytest.fixture(scope="module")
def expected(fleet, tmp_path_factory):
    """The rows of an index by the command."""
    dataset = tmp_path_factory.mktemp("whole") / "dataset"
    run = command("fleet", "index", fleet, "--to", dataset, "--label", "team=a", check=False)
    assert run.returncode == 3 and "added 3 recordings" in run.stderr, run.stderr
    return rows(dataset)


def test_cluster_indexes_the_rows_of_the_command(fleet, expected, cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(fleet.parent)
    for shares in (None, 1, 5):
        dataset = tmp_path / f"of-{shares}"
        indexed = mg.dask.index(fleet.name, dataset, {"team": "a"}, client=cluster, shares=shares)
        assert (indexed.added, indexed.known) == (3, 2)
        assert [len(indexed.unfinished), len(indexed.unreadable)] == [1, 1], indexed
        assert "begun.mg" in indexed.unfinished[0] and "damaged.mg" in indexed.unreadable[0]
        assert rows(dataset) == expected
        again = mg.dask.index([fleet], dataset, {"team": "a"}, client=cluster, shares=3)
        assert (again.added, again.known) == (0, 5)
        assert rows(dataset) == expected


def test_one_worker_indexes_the_same_rows(fleet, expected, tmp_path):
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as one, distributed.Client(one) as client:
        mg.dask.index(fleet, tmp_path / "dataset", {"team": "a"}, client=client)
    assert rows(tmp_path / "dataset") == expected


def test_index_survives_lost_workers(fleet, expected, cluster, tmp_path, seed):
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    shares = 4
    dice = random.Random(seed)
    # Before its commit and after it: the share is done again.
    lost = {share: dice.choice(["before", "after"]) for share in dice.sample(range(shares), 2)}
    tasks = [
        cluster.submit(
            lose_index_once, [str(fleet)], str(dataset), share, shares, lost.get(share), pure=False
        )
        for share in range(shares)
    ]
    done = cluster.gather(tasks)
    assert len(list(tmp_path.glob("lost-*"))) == 2
    assert sum(each["added"] + each["known"] for each in done) == 5
    assert rows(dataset) == expected


def lose_index_once(inputs, to, share, shares, when):
    """Kills its process once, before or after it has added its share."""
    marker = os.path.join(os.path.dirname(to), f"lost-{share}")
    is_lost = when is not None and not os.path.exists(marker)
    if is_lost and when == "before":
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    indexed = index_share(inputs, to, {"team": "a"}, share, shares)
    if is_lost:
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return indexed


def test_an_index_without_inputs_or_shares_is_refused(cluster, tmp_path):
    with pytest.raises(mg.UsageError, match="there are no inputs"):
        mg.dask.index([], tmp_path, client=cluster)
    with pytest.raises(mg.UsageError, match="shares=0"):
        mg.dask.index(tmp_path, tmp_path, client=cluster, shares=0)
    with pytest.raises(mg.Error, match="there is no such folder"):
        mg.dask.index(tmp_path / "none", tmp_path / "dataset", client=cluster)
