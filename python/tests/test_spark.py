"""Spark reads samples and datasets as other readers do.

PySpark takes half a gigabyte and some minutes to install, so it is not among the packages of
`./setup.sh test`. The tests run where `pyspark` and Java are; tests/long/spark installs it and runs them.
"""

import glob
import json
import os
import pathlib
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


def newest_version(spark, folder):
    """The recordings of the newest version and their measurements."""
    versions = spark.read.parquet(f"{folder}/recordings")
    newest = versions.agg(functions.max("version")).first()[0]
    recordings = versions.where(versions.version == newest)
    measurements = spark.read.parquet(f"{folder}/measurements")
    return recordings, measurements.join(recordings.select("recording", "file"), ["recording", "file"], "left_semi")


def test_spark_answers_from_one_version_of_a_dataset(spark, dataset):
    folder, service = dataset
    recordings, rows = newest_version(spark, folder)
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


def test_documented_question_has_the_answer_of_top(spark, dataset):
    # tests/long/spark names a dataset of 10 000 recordings.
    folder = os.environ.get("MEMGAUGE_TEST_DATASET") or dataset[0]
    page = pathlib.Path(__file__).parents[2] / "docs/fleet.md"
    question = page.read_text().split("**Worst functions of the fleet")[1].split("```sql\n")[1].split("LIMIT 10;")[0]
    for name, rows in zip(("recordings", "measurements"), newest_version(spark, folder)):
        rows.createOrReplaceTempView(name)
    answer = spark.sql(question.replace("list_contains", "array_contains")).collect()
    found = {(row["name"], row["module"]): row for row in answer}

    top = json.loads(command("fleet", "top", folder, "--json", "--rows", "100000").stdout)
    # `top` may sum the functions of startup in a row.
    rows = [row for row in top["rows"] if (row["name"], row["module"]) in found]
    assert len(rows) >= len(top["rows"]) - 1 > 10
    for row in rows:
        of_function = found[row["name"], row["module"]]
        assert of_function["recordings"] == row["recordings"]
        for column, field in (("stalled", "value"), ("share", "share"), ("mean", "mean")):
            assert of_function[column] == pytest.approx(row[field], rel=1e-9)
