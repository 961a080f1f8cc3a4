"""Recordings in a bucket, on a server that is a process of its own."""

import gc
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import command

import memgauge as mg

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto")

SERVER = Path(__file__).parents[2] / "crates/cli/tests/buckets/server.py"


@pytest.fixture(scope="module")
def bucket():
    """The bucket `fleet`, which the environment names."""
    words = [sys.executable, str(SERVER), "0", "fleet"]
    pipe = subprocess.PIPE
    server = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    address = f"http://127.0.0.1:{int(server.stdout.readline())}"
    settings = {
        "GOOGLE_BASE_URL": address,
        "GOOGLE_BEARER_TOKEN": "testing",
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        yield boto3.resource("s3", region_name="us-east-1").Bucket("fleet")
    server.kill()
    server.communicate()


@pytest.fixture(scope="module")
def packed(modelled, bucket, tmp_path_factory):
    """A packed recording at three places of the bucket."""
    path = tmp_path_factory.mktemp("packed") / "ls.mg.tar"
    command("pack", modelled.path, "-o", path)
    for key in ["runs/web/a.mg.tar", "runs/web/deep/b.mg.tar", "runs/c.mg.tar", "runs/c.txt"]:
        bucket.upload_file(str(path), key)
    return path


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_recording_in_a_bucket_is_that_which_was_packed(
    modelled, packed, tmp_path, monkeypatch, scheme
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    url = f"{scheme}://fleet/runs/web/a.mg.tar"
    recording = mg.open(url)
    assert recording.path == url
    assert recording.totals == modelled.totals
    assert list(recording.functions()) == list(modelled.functions())
    assert not mg.diff(modelled, f"{scheme}://fleet/runs/c.mg.tar").changed
    [copy] = tmp_path.iterdir()
    assert copy.stat().st_mode & 0o777 == 0o600
    del recording
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "pattern, names",
    [
        ("s3://fleet/**/*.mg.tar", ["runs/c", "runs/web/a", "runs/web/deep/b"]),
        ("s3://fleet/runs/*.mg.tar", ["runs/c"]),
        ("s3://fleet/runs/w?b/[!x].mg.tar", ["runs/web/a"]),
        ("s3://fleet/runs/web/deep/b.mg.tar", ["runs/web/deep/b"]),
        ("gs://fleet/**/*.mg.tar", ["runs/c", "runs/web/a", "runs/web/deep/b"]),
    ],
)
def test_patterns_match_objects(packed, pattern, names):
    found = mg.open_many(pattern)
    expected = [f"{pattern[:2]}://fleet/{name}.mg.tar" for name in names]
    assert [recording.path for recording in found] == expected
    assert list(found.table["path"]) == expected


def test_a_truncated_object_is_named(packed, bucket):
    whole = packed.read_bytes()
    bucket.put_object(Key="bad/cut.mg.tar", Body=whole[:300])
    bucket.put_object(Key="bad/whole.mg.tar", Body=whole)
    found = mg.open_many("s3://fleet/bad/*.mg.tar")
    assert [recording.path for recording in found] == ["s3://fleet/bad/whole.mg.tar"]
    [(path, why)] = found.unreadable.items()
    assert path == "s3://fleet/bad/cut.mg.tar" and path in why and tempfile.gettempdir() not in why


def test_what_is_missing_is_named(packed):
    with pytest.raises(mg.NotARecordingError, match="there is no such object"):
        mg.open("s3://fleet/runs/d.mg.tar")
    with pytest.raises(mg.NotARecordingError, match="nothing matches"):
        mg.open_many("s3://fleet/runs/*.mg")
    with pytest.raises(mg.Error, match="there is no such bucket; create it"):
        mg.open("s3://nowhere/runs/d.mg.tar")
    for url in ("s3://fleet", "s3://fleet/", "gs://fleet"):
        with pytest.raises(mg.UsageError, match=f"names no object; write `{url[:2]}://BUCKET"):
            mg.open(url)
