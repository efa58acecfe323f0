"""A feed's pipeline process with one thing changed: its task, or a setting of Spark.

    python -m benchmarks.pipeline_probe SPEC_JSON [--task count|deliver|timed|in-source] [--set KEY=VALUE]...

`count` leaves the broker out; `timed` is `deliver` with a clock around its stages; `in-source` delivers
inside the source's read instead of in a mapInArrow after it. Everything else is `tidegate.pipeline.job`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from benchmarks.counting import deliver_timed, encode_and_count
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from tidegate.ipc import ControlClient
from tidegate.model.reports import PipelineHello, Started
from tidegate.pipeline import job
from tidegate.pipeline.deliver import REPORT, deliver
from tidegate.pipeline.feed import Barrier, FeedSpec
from tidegate.pipeline.offsets import Offset
from tidegate.pipeline.source import EventReader, EventSource
from tidegate.spark.session import open_session

TASKS = {"count": encode_and_count, "deliver": deliver, "timed": deliver_timed}


class DeliveringSource(EventSource):
    """The event source whose read delivers and yields the reports."""

    @classmethod
    def name(cls) -> str:
        return "tidegate-delivering"

    def schema(self) -> str:
        return REPORT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return DeliveringReader(self.options["spec"], int(self.options["tasks"]))


class DeliveringReader(EventReader):
    """Its partitions are delivered where they are read."""

    def __init__(self, spec: str, tasks: int) -> None:
        super().__init__(Path(spec), tasks)
        self._path = spec

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from deliver(self._path, super().read(partition))


def start_in_source(
    spark: SparkSession, spec: FeedSpec, path: Path, control: ControlClient
) -> StreamingQuery:
    """The feed's query with delivery inside the source."""
    spark.dataSource.register(DeliveringSource)
    events = spark.readStream.format("tidegate-delivering").option("spec", str(path))

    def run_batch(reports: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        found = reports.collect()
        if found:
            rows = [row.asDict() for row in found]
            control.send(job.durable(spec, rows, time.monotonic() - began))

    folder = spec.work_dir / "checkpoint"
    stream = events.option("tasks", job.tasks(spark)).load().writeStream.foreachBatch(run_batch)
    stream = stream.option("checkpointLocation", str(folder)).trigger(processingTime="0 seconds")
    return stream.queryName(spec.changefeed).start()


def run(path: Path, task: str, settings: dict[str, str]) -> None:
    """Run until SIGTERM."""
    spec = FeedSpec.load(path)
    control = ControlClient(spec.socket_path, PipelineHello(spec.changefeed, spec.incarnation, os.getpid()))
    try:
        spark = open_session(
            f"bench {spec.changefeed}",
            "local[*]",
            spec.work_dir,
            job.DAEMON,
            trial=settings,
        )
        if task == "count":
            offset = Offset(spec.token, dict(Barrier.load(spec.feed_dir / "barrier.json").spans))
        else:
            offset = job.begin(spec).offset
        spec.start_file.write_text(json.dumps(offset.to_json()))
        if task == "in-source":
            query = start_in_source(spark, spec, path, control)
        else:
            query = job.start_query(spark, spec, path, control, TASKS[task])
        control.send(Started(offset.spans))
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
        query.awaitTermination()
    except Exception as error:
        control.send(job.failure(error))
        raise


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spec", type=Path)
    parser.add_argument("--task", choices=[*TASKS, "in-source"], default="deliver")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    options = parser.parse_args()
    run(options.spec, options.task, dict(pair.split("=", 1) for pair in options.settings))


if __name__ == "__main__":
    main()
