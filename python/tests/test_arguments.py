"""Wrong arguments are refused in one sentence, by every public function."""

import inspect
import random
import subprocess
import sys
import types

import numpy
import pytest

import memgauge as mg
from conftest import command
from memgauge import dask, plots, samples, stacks

WRONG = [
    None, True, -1, 0, 2**70, 1.5, float("nan"), float("inf"), 1j, "", "nonsense", "a\0b", "\ud800", b"x",
    object(), [], [None], [[1, 2], [3]], (1, 2, 3), {"a": 1}, {1, 2}, iter([None]), len, numpy.array(5),
    numpy.zeros((2, 2)), numpy.array(["a"]),
]
"""Values that few parameters take. Those that one takes are no failure."""

UNEXPORTED = [samples.Batches, stacks.Stacks, plots.Plots, type(mg.Totals({}))]
CONSTRUCTED = {mg.roi}
"""Classes that users construct. Functions return the others."""


class Done:
    """A future of a task that has run."""

    def __init__(self, value):
        self.value = value

    def result(self):
        return self.value


class InlineClient:
    """A cluster that runs each task at once."""

    def submit(self, function, *arguments, **_):
        return Done(function(*(a.value if isinstance(a, Done) else a for a in arguments)))

    def scatter(self, parts, hash):
        return [Done(part) for part in parts]

    def gather(self, futures):
        return [future.result() for future in futures]

    def nthreads(self):
        return {"here": 1}


def is_function(value):
    return isinstance(value, types.FunctionType)


def public_functions():
    """Name and function of all of the public API: of the modules, and of their classes."""
    named = [(name, getattr(mg, name)) for name in mg.__all__]
    named += [(f"dask.{name}", getattr(dask, name)) for name in dask.__all__]
    classes = [value for _, value in named if inspect.isclass(value)] + UNEXPORTED
    functions = [(name, value) for name, value in named if is_function(value)]
    for kind in dict.fromkeys(classes):
        if kind in CONSTRUCTED:
            functions.append((kind.__name__, kind))
        functions += [
            (f"{kind.__name__}.{name}", value)
            for name, value in vars(kind).items()
            if is_function(value) and not name.startswith("_")
        ]
    return functions


FUNCTIONS = dict(public_functions())
PARAMETERS = [
    (name, parameter.name)
    for name, function in FUNCTIONS.items()
    for parameter in inspect.signature(function).parameters.values()
    if parameter.name != "self"
]


@pytest.fixture(scope="module")
def objects(modelled):
    """An object of each public class with methods."""
    objects = [
        modelled, modelled.functions(), modelled.totals, modelled.samples(), modelled.stacks(), modelled.plot,
        mg.diff(modelled, modelled), mg.mrc([64, 128, 64]), mg.open_many(modelled.path), mg.roi("x"),
    ]
    return {type(made).__name__: made for made in objects}


def usable(name, parameter, objects):
    """An argument that the function takes."""
    recording = objects["Recording"]
    known = {
        "addresses": [64], "after": recording, "before": recording, "client": InlineClient(),
        "command": ["/bin/true"], "curve": objects["MissCurve"], "event": "llc.miss", "gates": "cycles > +2%",
        "index": 0, "inputs": recording.path, "name": "x", "number": 1, "parts": [[64]], "path": recording.path, "paths": recording.path,
        "run": recording, "size": 64, "sizes": [64],
        "to": "dataset",
    }
    if name == "baseline":
        known["path"] = "base.json"
    # A new function needs an argument here, and is then covered.
    assert parameter in known, f"no usable argument of {name} for `{parameter}`: add one"
    return known[parameter]


def call(name, wrong, value, objects):
    """Call the function with one wrong argument and otherwise as few as possible."""
    positional, keywords = [], {}
    for parameter in inspect.signature(FUNCTIONS[name]).parameters.values():
        is_wrong = parameter.name == wrong
        if parameter.name == "self":
            positional.append(objects[name.split(".")[0]])
        elif parameter.kind is parameter.VAR_POSITIONAL:
            positional.append(value if is_wrong else usable(name, parameter.name, objects))
        elif is_wrong:
            keywords[parameter.name] = value
        elif parameter.default is parameter.empty:
            keywords[parameter.name] = usable(name, parameter.name, objects)
        elif parameter.name == "client":
            keywords["client"] = InlineClient()
    return FUNCTIONS[name](*positional, **keywords)


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_wrong_argument_raises_an_error_of_the_package(name, parameter, objects, tmp_path, monkeypatch):
    if name.startswith("dask."):
        pytest.importorskip("distributed")
    if name.startswith("Plots.") or name == "plot_curve":
        pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    # Every recording fails at once.
    monkeypatch.setenv("MEMGAUGE", "/bin/false")
    for value in WRONG:
        try:
            call(name, parameter, value, objects)
        except mg.Error as error:
            message = str(error)
            assert message and "\n" not in message and "object at 0x" not in message[:20], message
        except BaseException as error:
            pytest.fail(f"{name}({parameter}={value!r}) raised {error!r}")
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


def test_docstrings_list_exceptions():
    lacking = [
        name
        for name, function in FUNCTIONS.items()
        if "Raises:" not in (function.__doc__ or "") and name != "Table.to_pydict"
    ]
    assert not lacking


def test_call_with_other_parameters_is_pythons_own_error():
    with pytest.raises(TypeError):
        mg.open()
    with pytest.raises(TypeError):
        mg.mrc([1], blocks=64)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda a: numpy.ma.array(a, mask=[True] + [False] * (len(a) - 1)), "masked"),
        (lambda a: -a.astype("int64") - 1, "negative"),
        (lambda a: [int(n) for n in a] + [-1], "addresses=-1"),
        (lambda a: a % 2 == 0, "bool"),
        (lambda a: [True, False], "addresses=True"),
        (lambda a: a.astype("float64"), "float64"),
        (lambda a: [1.5], "addresses=1.5"),
        (lambda a: set(a.tolist()), "a list of integers"),
        (lambda a: {1: 2}, "a list of integers"),
        (lambda a: a.reshape(-1, 2), "2 dimensions"),
        (lambda a: "addresses", "a list of integers"),
        (lambda a: a.astype(str), "<U"),
        (lambda a: a.astype(object), "object"),
        (lambda a: iter([a, None]), "addresses=None"),
        (lambda a: 7, "a list of integers"),
        (lambda a: [2**64], "addresses=18446744073709551616"),
    ],
)
def test_mrc_refuses_what_is_no_ordered_list_of_addresses(make, said):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    addresses = numpy.random.default_rng(seed).integers(0, 1 << 20, 2 * random.randint(2, 50), dtype="uint64")
    with pytest.raises(mg.UsageError, match=said):
        mg.mrc(make(addresses))


def test_mrc_of_single_integers_and_batches_is_that_of_the_whole():
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    addresses = numpy.random.default_rng(seed).integers(0, 1 << 14, 1000, dtype="uint64")
    expected = mg.mrc(addresses).facts
    cut = random.randrange(1, 999)
    mixed = [*addresses[:cut].tolist(), addresses[cut:]]
    for same in (
        addresses.tolist(), iter(addresses.tolist()), iter(addresses), iter(mixed), addresses.astype("int32"),
        numpy.repeat(addresses, 2)[::2], numpy.ma.array(addresses), tuple(addresses),
    ):
        assert mg.mrc(same).facts == expected


def test_unknown_events_and_columns_are_refused_with_the_known_ones(modelled):
    known = modelled.functions()
    counted = [name for name in modelled.totals if name in known.column_names]
    for refuse in (
        lambda: modelled.functions(by="bogus"),
        lambda: modelled.samples(event="bogus"),
        lambda: modelled.series("bogus"),
        lambda: modelled.stacks("bogus"),
        lambda: mg.diff(modelled, modelled, event="bogus"),
    ):
        with pytest.raises(mg.UsageError, match=rf"`bogus`.*{random.choice(counted)}"):
            refuse()
    with pytest.raises(mg.UsageError, match="`bogus`"):
        modelled.regions("bogus")
    with pytest.raises(mg.UsageError, match="`instructions`.*samples of .*llc.miss"):
        modelled.samples(event="instructions")
    with pytest.raises(mg.UsageError, match="bogus"):
        modelled.samples(columns=["bogus"])
    with pytest.raises(KeyError, match="bogus.*function"):
        known["bogus"]


def test_event_without_counts_by_code_is_refused_as_by_the_command(modelled):
    in_code = modelled.functions().column_names
    totals = modelled.totals.items()
    [*others] = [name for name, total in totals if total.value and name not in in_code]
    events = {event["name"] for event in modelled.manifest["events"]}
    others = [name for name in others if name in events]
    assert "l1d.hit" in others
    for event in random.sample(others, 2):
        with pytest.raises(mg.UsageError, match="llc.miss") as raised:
            modelled.functions(by=event)
        said = command("report", modelled.path, "--event", event, check=False)
        assert said.returncode and said.stderr.splitlines()[-1] == f"memgauge: {raised.value}"


def test_times_are_a_pair_in_order(modelled):
    for time in ("10ms", ("10ms",), (2, 1), ("1 parsec", "2s"), (None, 1), (0, float("nan")), (True, 2), (-1, 5)):
        with pytest.raises(mg.UsageError, match="time="):
            modelled.samples(time=time)
    assert list(modelled.samples(time=(numpy.int64(0), numpy.float64(1)))) == []


def test_program_that_cannot_be_started_is_named(tmp_path, monkeypatch):
    (tmp_path / "text").write_text("no program")
    for program, why in (("/nope", "No such file"), (str(tmp_path / "text"), "Permission denied")):
        monkeypatch.setenv("MEMGAUGE", program)
        with pytest.raises(mg.RecordError, match=f"failed to run `{program}`: {why}.*MEMGAUGE"):
            mg.record(["ls"], output=tmp_path / "x.mg")
        run = subprocess.run([sys.executable, "-m", "memgauge", "list"], capture_output=True, text=True)
        assert run.returncode == 1
        assert run.stderr.startswith(f"memgauge: failed to run `{program}`") and run.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "environment", [{"A": 3}, {"A=B": "x"}, {"": "x"}, {"A": "x\0y"}, {3: "x"}, ["A=B"], "A=B"]
)
def test_environment_that_no_process_can_have_is_refused(environment, tmp_path):
    with pytest.raises(mg.UsageError, match="environment="):
        mg.record(["ls"], environment=environment, output=tmp_path / "x.mg")


def test_missing_folder_for_recordings_is_an_error_of_the_package(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/nope")
    with pytest.raises(mg.RecordError, match="TMPDIR"):
        mg.record(["ls"])
