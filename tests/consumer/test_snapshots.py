"""Two lines to read a consistent snapshot, from plain Python and from PySpark."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.consumer.at_delta import applier_of
from tests.consumer.logs import bank_topic, snapshots
from tests.consumer.memory_topic import consume
from tidegate.consumer.selecting.rules import Rules
from tidegate.consumer.selecting.selection import Selection
from tidegate.consumer.snapshots import open_snapshot
from tidegate.errors import InvalidInput


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lake") / "target"
    applier = applier_of(made, selection=Selection(Rules(partition_by=("bank.transfers:region",))))
    consume(bank_topic("open-protocol", 2), made, until=snapshots()[2].ts, size=500, applier=applier)
    return made


def test_two_lines_read_all_tables_at_one_ts(target: Path) -> None:
    tables = open_snapshot(f"delta://{target}").tables
    assert sorted(tables) == sorted(snapshots()[2].tables)
    assert tables["bank.accounts"].to_arrow().num_rows == snapshots()[2].tables["bank.accounts"].count
    assert tables["bank.accounts"].dataset().count_rows() == tables["bank.accounts"].to_arrow().num_rows


def test_reading_imports_neither_spark_nor_kafka(target: Path) -> None:
    code = (
        "import sys; from tidegate.consumer.snapshots import open_snapshot; "
        f"open_snapshot({str(target)!r}).tables; "
        "print(sorted({'pyspark', 'confluent_kafka', 'numba'} & set(sys.modules)))"
    )
    src = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {src!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_no_snapshot_says_so(target: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such snapshot"):
        open_snapshot(tmp_path)
    with pytest.raises(InvalidInput, match="no such snapshot"):
        open_snapshot(target, at=1)
    with pytest.raises(InvalidInput, match="target"):
        open_snapshot("mysql://x")


@pytest.mark.integration
def test_spark_reads_the_same_rows(target: Path, spark: SparkSession) -> None:
    for name, table in open_snapshot(target).tables.items():
        assert table.to_spark(spark).count() == table.to_arrow().num_rows, name
    accounts = open_snapshot(target).tables["bank.accounts"].to_spark(spark)
    assert str(accounts.selectExpr("sum(balance)").first()[0]) == "3000000.0000"
    transfers = open_snapshot(target).tables["bank.transfers"]
    assert transfers.partition_columns == ["region"]
    found = transfers.to_spark(spark)
    assert found.columns == transfers.to_arrow().column_names
    counts = Counter(transfers.to_arrow()["region"].to_pylist())
    assert {row["region"]: row["count"] for row in found.groupBy("region").count().collect()} == counts
