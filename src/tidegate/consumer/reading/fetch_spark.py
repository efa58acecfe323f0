"""Fetches ranges in Spark tasks: one job for each round.

    master local[..]          tasks stage rows in files that the driver can read
    a cluster                 tasks stage rows on their own disk, and return the files with their results

Returned files pass through the driver's JVM, so `APART_BYTES` bounds such a round.
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

from tidegate.consumer.engine.fetched import Fetched, Range
from tidegate.consumer.reading.fetch import fetch
from tidegate.consumer.reading.source import Topic
from tidegate.disk import CONSUMER_WAITS, writing
from tidegate.errors import Fatal, TidegateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY: Final = "512m"
DAEMON: Final = "tidegate.consumer.reading.daemon"
JVM_LOG: Final = "spark.log"
"""File name, in the consumer's folder, of what the JVM and its workers print."""
APART_BYTES: Final = 64 << 20
"""About how many bytes of messages a round reads if its rows pass through the JVM."""
APART_RANGES: Final = 16
"""The number of ranges in such a round; the following rounds take the others in turn."""
APART_MEMORY: Final = "1536m"
"""Memory of that JVM: decoded rows may be several times as large as their messages before compression."""
STOP_S: Final = 1.0
"""How much later than the JVM this process may get a signal that was sent to both, in seconds."""
POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The addresses and paths that a Spark cluster needs."""

    python: str = ""
    """The executors' Python interpreter, which has this package; empty: the same path as here."""
    driver_host: str = "127.0.0.1"
    """An address of this machine that executors can reach."""

    @property
    def spark_settings(self) -> dict[str, str]:
        """The same as settings of Spark."""
        return {
            "spark.driver.host": self.driver_host,
            "spark.driver.bindAddress": self.driver_host,
            "spark.driver.maxResultSize": "0",  # `APART_BYTES` bounds it
        }


class SparkTasks:
    """Runs fetches on the executors of one Spark session."""

    def __init__(
        self, spark: SparkSession, log: Path, stop: Callable[[], bool], *, apart: bool = False
    ) -> None:
        """`log`: the file in which Spark prints; `stop`: whether the consumer was asked to end.

        `apart`: executors cannot write into files that this process reads.
        """
        self._spark, self._log, self._stop, self._apart = spark, log, stop, apart
        self._turn = 0
        """The index of the range with which the next round begins."""

    def fetch(self, topic: Topic, ranges: Sequence[Range], staging: Path) -> list[Fetched]:
        """Run one job with a task for each range."""
        if self._apart:
            return self._fetch_apart(topic, ranges, staging)

        def task(wanted: Range) -> Fetched:
            return fetch(topic, wanted, staging)

        return list(self._spark.sparkContext.parallelize(ranges, len(ranges)).map(task).collect())

    def _fetch_apart(self, topic: Topic, ranges: Sequence[Range], staging: Path) -> list[Fetched]:
        """A round whose rows pass through the JVM: ranges take turns, and share `APART_BYTES`."""
        # In turn, because a round takes only some ranges: the first partitions must not starve the last ones,
        # whose watermarks hold all back.
        turn = self._turn % len(ranges)
        chosen = [*ranges[turn:], *ranges[:turn]][:APART_RANGES]
        self._turn = turn + len(chosen)
        # The driver's JVM holds the results of all tasks at once, so they share one limit.
        share = APART_BYTES // len(chosen)
        small = [replace(one, max_bytes=min(one.max_bytes, share)) for one in chosen]

        def task(wanted: Range) -> tuple[Fetched, list[tuple[str, bytes]]]:
            with TemporaryDirectory(prefix="tidegate-") as own:
                return carried(fetch(topic, wanted, Path(own)))

        found = self._spark.sparkContext.parallelize(small, len(small)).map(task).collect()
        return [landed(fetched, files, staging) for fetched, files in found]

    def cancel(self) -> None:
        """Cancel the running job."""
        with jvm_may_be_gone(self._stop):
            self._spark.sparkContext.cancelAllJobs()

    def translated(self, error: Exception) -> TidegateError:
        """An error of Spark or the JVM as one of ours."""
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
    """A result, and its staging files as (name, compressed bytes)."""
    files = {segment.file for segment in found.segments}
    return found, [(Path(file).name, zlib.compress(Path(file).read_bytes(), 1)) for file in sorted(files)]


def landed(found: Fetched, files: Sequence[tuple[str, bytes]], staging: Path) -> Fetched:
    """A result, with its files written to `staging`. Raises DiskFull."""
    for name, data in files:
        with writing(staging / name, fix=CONSUMER_WAITS):
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
    """Open a session and end it with the context; None when `stop` comes before there is one."""
    from tidegate.spark.session import open_session

    spark, cluster = None, cluster or ClusterSettings()
    apart = not master.startswith("local")
    if apart:
        # Before the session: the JVM reads it once, when it starts.
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
    """Drop Py4J's log of each error that it also raises: it is shown once, where it is caught."""
    return "py4j" not in Path(record.pathname).parts


@contextmanager
def jvm_may_be_gone(stop: Callable[[], bool]) -> Iterator[None]:
    """Wraps calls of the JVM, which may have ended because of a stop.

    Service managers signal all processes of a service at once, and the JVM may end first. A failure is
    therefore raised only if no stop has come, and none comes within `STOP_S`.
    """
    try:
        yield
    except Exception:
        # docs/guarantees.md#a-stop-is-no-failure: the JVM may notice the signal before this process does.
        until = time.monotonic() + STOP_S
        while not stop():
            if time.monotonic() > until:
                raise
            time.sleep(POLL_S)
