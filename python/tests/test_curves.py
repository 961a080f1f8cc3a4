"""Curves equal those of `memgauge mrc`."""

import array
import json

import numpy
import pyarrow
import pytest

import memgauge as mg
from conftest import command

SEED = 20


def addresses(count=200_000):
    """Two working sets, from a fixed seed."""
    random = numpy.random.default_rng(SEED)
    small = random.integers(0, 1 << 15, count)
    large = random.integers(0, 1 << 22, count)
    return numpy.where(random.random(count) < 0.7, small, large).astype("uint64")


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """The addresses as a file for the command."""
    path = tmp_path_factory.mktemp("addresses") / "addresses.raw"
    addresses().tofile(path)
    return path


def of_command(path, *options):
    return json.loads(command("mrc", path, "--json", *options).stdout)["curves"][0]


def check_equal(curve, expected):
    assert {k: v for k, v in curve.facts.items() if k not in ("title", "marks")} == {
        k: v for k, v in expected.items() if k not in ("title", "marks")
    }
    assert curve.table["miss_ratio"] == [point["miss_ratio"] for point in expected["points"]]


@pytest.mark.parametrize("block", [1, 64, 4096])
def test_curve_is_that_of_the_command(listed, block):
    check_equal(mg.mrc(addresses(), block=block), of_command(listed, "--format", "raw", "--block", block))


def test_sampled_curve_is_that_of_the_command(listed):
    curve = mg.mrc(addresses(), sample=0.1)
    check_equal(curve, of_command(listed, "--format", "raw", "--sample", 0.1))
    assert any(band for band in curve.table["half_band_95"])


def test_any_kind_of_addresses_gives_the_same_curve():
    given = addresses(50_000)
    expected = mg.mrc(given).table.to_pydict()
    assert expected["miss_ratio"]
    column = pyarrow.array(given)
    for same in [
        given.tolist(),
        array.array("Q", given.tolist()),
        given.astype("int64"),
        numpy.repeat(given, 2)[::2],
        column,
        pyarrow.chunked_array([column[:100], column[100:]]),
        iter([given[:7], column[7:30_000], given[30_000:]]),
    ]:
        assert mg.mrc(same).table.to_pydict() == expected, type(same)


def test_polars_column_gives_the_same_curve():
    import polars

    given = addresses(50_000)
    curve = mg.mrc(polars.Series(given))
    assert curve.table.to_pydict() == mg.mrc(given).table.to_pydict()


def test_wrong_addresses_are_refused():
    for wrong, words in [
        (numpy.array([1.5]), "float64"),
        (pyarrow.array([1, None]), "null"),
        (numpy.array([], dtype="uint64"), "no addresses"),
    ]:
        with pytest.raises(mg.UsageError, match=words):
            mg.mrc(wrong)
    with pytest.raises(mg.UsageError, match="power of two"):
        mg.mrc([1], block=100)
    with pytest.raises(mg.UsageError, match="above 0"):
        mg.mrc([1], sample=2.0)


def test_curve_of_a_recording_is_that_of_the_command(modelled):
    check_equal(modelled.curve(), of_command(modelled.path))
    check_equal(modelled.curve(block=4096), of_command(modelled.path, "--block", 4096))


def test_miss_ratio_is_known_at_any_size():
    curve = mg.mrc([0, 64, 128, 0, 64, 128], block=64)
    assert [curve.miss_ratio(64 * blocks) for blocks in (1, 2, 3)] == [1.0, 1.0, 0.5]
