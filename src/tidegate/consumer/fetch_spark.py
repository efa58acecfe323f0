"""Ranges as Spark tasks: one job for each round.

    master local[..]          tasks stage rows where the driver reads them
    a cluster                 tasks stage rows on their own disk, and give them back with their results

What is given back passes through the driver's JVM, so that such a round is bounded by `APART_BYTES`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from tidegate.consumer.fetch import fetch
from tidegate.consumer.fetched import Fetched, Range
from tidegate.consumer.source import Topic
from tidegate.errors import Fatal, TidegateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY: Final = "512m"
DAEMON: Final = "tidegate.consumer.daemon"
JVM_LOG: Final = "spark.log"
"""In the consumer's folder: what the JVM and its workers print."""
APART_BYTES: Final = 64 << 20
"""About how many bytes of messages one round reads whose rows pass through the JVM."""
APART_RANGES: Final = 16
"""Ranges of such a round; the others have their turn in the next ones."""
APART_MEMORY: Final = "1536m"
"""Of that JVM: decoded rows may be several times as large as their messages before they are compressed."""
STOP_S: Final = 1.0
"""How much later than the JVM this process may get a signal that was sent to both."""
POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What a Spark cluster needs to be told."""

    python: str = ""
    """The executors' interpreter, which has this package; empty: at the path of this one."""
    driver_host: str = "127.0.0.1"
    """An address of this machine that executors reach."""

    @property
    def spark_settings(self) -> dict[str, str]:
        """Spark's own."""
        return {
            "spark.driver.host": self.driver_host,
            "spark.driver.bindAddress": self.driver_host,
            "spark.driver.maxResultSize": "0",  # `APART_BYTES` bounds it
        }


class SparkTasks:
    """A session's executors."""

    def __init__(
        self, spark: SparkSession, log: Path, stop: Callable[[], bool], *, apart: bool = False
    ) -> None:
        """`log`: what Spark prints is there; `stop`: whether the consumer is told to end.

        `apart`: executors cannot write where this process reads.
        """
        self._spark, self._log, self._stop, self._apart = spark, log, stop, apart
        self._turn = 0
        """Which range of the next round comes first."""

    def fetch(self, topic: Topic, ranges: Sequence[Range], staging: Path) -> list[Fetched]:
        """A job with a task for each range."""
        if self._apart:
            return self._fetch_apart(topic, ranges, staging)

        def task(wanted: Range) -> Fetched:
            return fetch(topic, wanted, staging)

        return list(self._spark.sparkContext.parallelize(ranges, len(ranges)).map(task).collect())

    def _fetch_apart(self, topic: Topic, ranges: Sequence[Range], staging: Path) -> list[Fetched]:
        turn = self._turn % len(ranges)
        chosen = [*ranges[turn:], *ranges[:turn]][:APART_RANGES]
        self._turn = turn + len(chosen)
        share = APART_BYTES // len(chosen)
        small = [replace(one, max_bytes=min(one.max_bytes, share)) for one in chosen]

        def task(wanted: Range) -> tuple[Fetched, list[tuple[str, bytes]]]:
            with TemporaryDirectory(prefix="tidegate-") as own:
                return carried(fetch(topic, wanted, Path(own)))

        found = self._spark.sparkContext.parallelize(small, len(small)).map(task).collect()
        return [landed(fetched, files, staging) for fetched, files in found]

    def cancel(self) -> None:
        """Cancel the job."""
        with jvm_may_be_gone(self._stop):
            self._spark.sparkContext.cancelAllJobs()

    def translated(self, error: Exception) -> TidegateError:
        """Spark's and the JVM's errors as one of ours."""
        if isinstance(error, TidegateError):
            return error
        lines = [line for line in str(error).splitlines() if line.strip()]
        return Fatal(
            "Spark cannot read the topic",
            where=f"its log is {self._log}",
            why=f"{type(error).__name__}: {' '.join(lines[:3])[:500]}",
            fix="restart the consumer; it resumes from the target's position",
        )


def carried(found: Fetched) -> tuple[Fetched, list[tuple[str, bytes]]]:
    """What was fetched, and its staging files: by name, their bytes, compressed."""
    files = {segment.file for segment in found.segments}
    return found, [(Path(file).name, zlib.compress(Path(file).read_bytes(), 1)) for file in sorted(files)]


def landed(found: Fetched, files: Sequence[tuple[str, bytes]], staging: Path) -> Fetched:
    """The same with its files in `staging`."""
    for name, data in files:
        (staging / name).write_bytes(zlib.decompress(data))
    moved = [replace(segment, file=str(staging / Path(segment.file).name)) for segment in found.segments]
    return replace(found, segments=tuple(moved))


@contextmanager
def spark_tasks(
    name: str,
    master: str,
    folder: Path,
    log: Path,
    stop: Callable[[], bool],
    cluster: ClusterSettings | None = None,
) -> Iterator[SparkTasks | None]:
    """With a session of its own; None when it is told to stop before there is one."""
    from tidegate.spark.session import open_session

    spark, cluster = None, cluster or ClusterSettings()
    apart = not master.startswith("local")
    if apart:
        os.environ["SPARK_LOCAL_IP"] = cluster.driver_host
    logging.getLogger().addFilter(_not_py4js)
    with jvm_may_be_gone(stop):
        spark = open_session(
            *(name, master, folder, DAEMON, APART_MEMORY if apart else DRIVER_MEMORY),
            trial=cluster.spark_settings if apart else {},
            log=log,
            python=cluster.python or sys.executable,
        )
    try:
        yield SparkTasks(spark, log, stop, apart=apart) if spark is not None else None
    finally:
        if spark is not None:
            with jvm_may_be_gone(stop), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM", RuntimeWarning)
                spark.stop()
        logging.getLogger().removeFilter(_not_py4js)
        sys.stdout.flush()


def _not_py4js(record: logging.LogRecord) -> bool:
    """Py4J logs what it raises as well, with a traceback; that is shown once, where it is caught."""
    return "py4j" not in Path(record.pathname).parts


@contextmanager
def jvm_may_be_gone(stop: Callable[[], bool]) -> Iterator[None]:
    """Around calls of the JVM that a stop may come before.

    Service managers signal all processes of a service at once, and the JVM may be gone first. A failure
    counts unless a stop has come, or comes within a moment.
    """
    try:
        yield
    except Exception:
        until = time.monotonic() + STOP_S
        while not stop():
            if time.monotonic() > until:
                raise
            time.sleep(POLL_S)
