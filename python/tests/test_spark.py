"""Spark reads samples and datasets as other readers do.

PySpark takes half a gigabyte and some minutes to install, so it is not among the packages of
`./setup.sh test`. The tests run where `pyspark` and Java are.
"""

import glob
import json
import random

import pytest

from conftest import command

pyspark = pytest.importorskip("pyspark")
polars = pytest.importorskip("polars")

from pyspark.sql import SparkSession, functions  # noqa: E402


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    session = builder.config("spark.sql.warehouse.dir", tmp_path_factory.mktemp("spark")).getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def dataset(modelled, longer, tmp_path_factory):
    """A dataset whose partitions have encoded names, after an addition and a compaction."""
    dataset = tmp_path_factory.mktemp("fleet") / "dataset"
    service = f"a/b {random.randrange(1000)}"
    for recording in (modelled, longer):
        command("fleet", "index", recording.path, "--to", dataset, "--label", f"service={service}")
    command("fleet", "compact", dataset)
    return dataset, service


@pytest.mark.parametrize("table", ["samples", "sites", "series", "modules", "symbols"])
def test_spark_reads_tables_of_a_recording(spark, modelled, sampled, table):
    for recording in (modelled, sampled):
        if not glob.glob(f"{recording.path}/{table}/*.parquet"):
            continue
        rows = spark.read.parquet(f"{recording.path}/{table}")
        expected = polars.read_parquet(f"{recording.path}/{table}/*.parquet")
        assert rows.columns == expected.columns and rows.count() == len(expected) > 0
        numbers = [name for name, kind in rows.dtypes if kind in ("bigint", "int", "smallint", "tinyint")]
        # Decimals do not overflow, as sums of addresses would.
        sums = rows.agg(*(functions.sum(functions.col(n).cast("decimal(38,0)")).alias(n) for n in numbers))
        wide = expected.select(polars.col(n).cast(polars.Int128).sum() for n in numbers)
        # Spark's sum of no values is null.
        found = {name: int(value or 0) for name, value in sums.first().asDict().items()}
        assert found == {name: int(value or 0) for name, value in wide.to_dicts()[0].items()}


def test_spark_answers_from_one_version_of_a_dataset(spark, dataset):
    folder, service = dataset
    versions = spark.read.parquet(f"{folder}/recordings")
    newest = versions.agg(functions.max("version")).first()[0]
    recordings = versions.where(versions.version == newest).select("recording", "file", "labels")
    measurements = spark.read.parquet(f"{folder}/measurements")
    rows = measurements.join(recordings, ["recording", "file"], "left_semi")
    of_functions = rows.where("scope = 'function' and metric = 'stalled_cycles'")
    found = of_functions.groupBy("name", "service").agg(functions.sum("value").alias("sum"))
    found = {row["name"]: row["sum"] for row in found.collect() if row["service"] == service}
    assert recordings.count() == 2
    assert {row["labels"]["service"] for row in recordings.collect()} == {service}

    top = json.loads(command("fleet", "top", folder, "--json", "--rows", "100000").stdout)
    expected = {}
    for row in top["rows"]:
        expected[row["name"]] = expected.get(row["name"], 0.0) + row["value"]
    assert top["metric"] == "stalled_cycles" and found == expected and len(found) > 10
