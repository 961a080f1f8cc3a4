"""Curves on a cluster equal those of one process."""

import random

import numpy
import pytest

import memgauge as mg
from memgauge import _memgauge

distributed = pytest.importorskip("distributed")

from memgauge.dask import merge, observe  # noqa: E402


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
