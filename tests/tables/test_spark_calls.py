"""Spark 4.3's calls of a stream's reader, in order: `tidegate.tables.stream` is built on them.

A kill is what it leaves behind: a batch in the offset log of the checkpoint that is not in its commit log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

pytestmark = pytest.mark.integration


class Calls(DataSource):
    """A source of the numbers 1 to `rows`, one in a batch, that writes down what it is asked."""

    @classmethod
    def name(cls) -> str:
        return "calls"

    def schema(self) -> str:
        return "n bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return CallsReader(self.options["log"], self.options["checkpoint"], int(self.options["rows"]))


class CallsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, log: str, checkpoint: str, rows: int) -> None:
        self.log, self.checkpoint, self.rows = log, checkpoint, rows

    def note(self, call: str, *asked: object) -> None:
        """The call, and the last batch in the commit log (-1: none) while it is answered."""
        folder = Path(self.checkpoint) / "commits"
        known = [int(file.name) for file in folder.glob("[0-9]*")] if folder.is_dir() else []
        with Path(self.log).open("a") as file:
            file.write(json.dumps([call, *asked, max(known, default=-1)]) + "\n")

    def initialOffset(self) -> dict[str, int]:
        self.note("initial")
        return {"n": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self.note("prepare")

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(77)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        self.note("latest", start["n"], str(limit))
        return {"n": min(start["n"] + 1, self.rows)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self.note("partitions", start["n"], end["n"])
        return [InputPartition((start["n"], end["n"]))] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        start, end = partition.value
        return iter([(n,) for n in range(start + 1, end + 1)])

    def commit(self, end: dict[str, int]) -> None:
        self.note("commit", end["n"])


class Query:
    """Runs of one checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.checkpoint = spark, folder, folder / "checkpoint"
        self.rows: list[list[int]] = []
        spark.dataSource.register(Calls)

    def source(self, rows: int, name: str = "log") -> DataFrame:
        options = {"log": self.folder / name, "checkpoint": self.checkpoint, "rows": rows}
        return self.spark.readStream.format("calls").options(**options).load()

    def run(self, stream: DataFrame, trigger: dict[str, bool] | None = None) -> list[list[Any]]:
        """Until there is nothing new; the calls of this run."""
        log = self.folder / "log"
        log.write_text("")
        writer = stream.writeStream.option("checkpointLocation", str(self.checkpoint))
        writer = writer.foreachBatch(lambda batch, _: self.rows.append(sorted(r.n for r in batch.collect())))
        query = writer.trigger(**trigger).start() if trigger else writer.start()
        try:
            if trigger:
                assert query.awaitTermination(300)
            else:
                query.processAllAvailable()
        finally:
            query.stop()
        return [json.loads(line) for line in log.read_text().splitlines()]

    def kill(self, batch: int) -> None:
        (self.checkpoint / "commits" / str(batch)).unlink()


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


NOW = {"availableNow": True}
LIMIT = str(ReadMaxBytes(77))


def test_the_next_offset_is_asked_once_the_commit_log_has_the_last_batch(query: Query) -> None:
    """So `latest` of a start tells that all up to it is done, earlier than `commit` does."""
    calls = query.run(query.source(rows=3))
    assert calls[:11] == [
        ["initial", -1],
        ["latest", 0, LIMIT, -1],
        ["initial", -1],
        ["partitions", 0, 1, -1],
        ["latest", 1, LIMIT, 0],
        ["commit", 1, 0],
        ["partitions", 1, 2, 0],
        ["latest", 2, LIMIT, 1],
        ["commit", 2, 1],
        ["partitions", 2, 3, 1],
        ["latest", 3, LIMIT, 2],
    ]
    assert all(call == calls[10] for call in calls[11:])
    assert query.rows == [[1], [2], [3]]


def test_an_available_now_trigger_is_announced_and_asks_the_same(query: Query) -> None:
    calls = query.run(query.source(rows=2), NOW)
    assert calls == [
        ["prepare", -1],
        ["initial", -1],
        ["latest", 0, LIMIT, -1],
        ["initial", -1],
        ["partitions", 0, 1, -1],
        ["latest", 1, LIMIT, 0],
        ["commit", 1, 0],
        ["partitions", 1, 2, 0],
        ["latest", 2, LIMIT, 1],
    ]


def test_the_last_end_of_a_run_is_committed_with_the_next_runs_batch(query: Query) -> None:
    query.run(query.source(rows=1), NOW)
    assert query.run(query.source(rows=1), NOW) == [["prepare", 0], ["latest", 1, LIMIT, 0]]
    assert query.run(query.source(rows=2), NOW) == [
        ["prepare", 0],
        ["latest", 1, LIMIT, 0],
        ["commit", 1, 0],
        ["partitions", 1, 2, 0],
        ["latest", 2, LIMIT, 1],
    ]


def test_after_a_kill_in_the_first_batch_its_start_is_asked_for_again(query: Query) -> None:
    """Only ends are in the offset log: another initial offset would make another batch of the same number."""
    query.run(query.source(rows=1), NOW)
    query.kill(0)
    assert query.run(query.source(rows=2), NOW) == [
        ["prepare", -1],
        ["initial", -1],
        ["partitions", 0, 1, -1],
        ["latest", 1, LIMIT, 0],
        ["commit", 1, 0],
        ["partitions", 1, 2, 0],
        ["latest", 2, LIMIT, 1],
    ]
    assert query.rows == [[1], [1], [2]]


def test_a_batch_that_was_killed_is_planned_again_before_a_new_offset(query: Query) -> None:
    query.run(query.source(rows=2), NOW)
    query.kill(1)
    assert query.run(query.source(rows=3), NOW) == [
        ["prepare", 0],
        ["partitions", 1, 2, 0],
        ["latest", 2, LIMIT, 1],
        ["commit", 2, 1],
        ["partitions", 2, 3, 1],
        ["latest", 3, LIMIT, 2],
    ]
    assert query.rows == [[1], [2], [2], [3]]


def test_a_source_without_news_is_not_in_the_plan_of_anothers_batch(query: Query) -> None:
    calls = query.run(query.source(rows=1).union(query.source(rows=2, name="other")), NOW)
    assert calls[-3:] == [["latest", 1, LIMIT, 0], ["commit", 1, 0], ["latest", 1, LIMIT, 1]]
    assert ["partitions", 1, 1, 0] not in calls
    assert query.rows == [[1, 1], [2]]


def test_a_trigger_without_limits_asks_for_all_and_commits_nothing(query: Query) -> None:
    calls = query.run(query.source(rows=5), {"once": True})
    assert calls == [
        ["initial", -1],
        ["latest", 0, str(ReadAllAvailable()), -1],
        ["initial", -1],
        ["partitions", 0, 1, -1],
    ]
