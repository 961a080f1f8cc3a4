"""Call stacks."""

import pytest

import memgauge as mg
from conftest import command, report


@pytest.fixture(scope="module")
def stacks(tmp_path_factory):
    """A timer-sampled run with call stacks."""
    output = tmp_path_factory.mktemp("stacks") / "sh.mg"
    loop = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"
    return mg.record(["/bin/sh", "-c", loop], source="clock", output=output, options=["-g"])


def test_folded_stacks_are_those_of_the_export(stacks, modelled, tmp_path):
    for recording in (stacks, modelled):
        path = tmp_path / "folded"
        command("export", recording.path, "-f", "folded", "-o", path)
        assert recording.stacks().folded() == path.read_text()
        path.unlink()


def test_tree_is_the_reports(stacks):
    tree = report(stacks)["calls"][0]
    assert stacks.stacks().tree() == tree["nodes"] and tree["nodes"]

    def total(nodes):
        return sum(n["metrics"]["events"] + total(n["children"]) for n in nodes)

    literal = stacks.stacks().literal()
    assert total(literal) == tree["events"]
    assert all(node["metrics"]["events (inc)"] >= node["metrics"]["events"] for node in literal)


def test_recording_without_stacks_says_how_to_get_them(modelled):
    with pytest.raises(mg.UsageError, match="-g"):
        modelled.stacks().literal()


def test_hatchet_reads_the_tree(stacks):
    frame = stacks.stacks().to_hatchet().dataframe
    assert frame["events"].sum() == report(stacks)["calls"][0]["events"]
