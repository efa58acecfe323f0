"""Ranges as Spark tasks: one job for each round."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate.consumer.source import Fetched, Range, Topic, fetch
from tidegate.errors import Fatal, TidegateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAEMON: Final = "tidegate.consumer.daemon"
JVM_LOG: Final = "spark.log"
"""In the consumer's folder: what the JVM and its workers print."""
STOP_S: Final = 1.0
"""How much later than the JVM this process may get a signal that was sent to both."""
POLL_S: Final = 0.05


class SparkTasks:
    """A session's executors."""

    def __init__(self, spark: SparkSession, log: Path, stop: Callable[[], bool]) -> None:
        """`log`: what Spark prints is there; `stop`: whether the consumer is told to end."""
        self._spark, self._log, self._stop = spark, log, stop

    def fetch(self, topic: Topic, ranges: Sequence[Range], staging: Path) -> list[Fetched]:
        """A job with a task for each range."""

        def task(wanted: Range) -> Fetched:
            return fetch(topic, wanted, staging)

        return list(self._spark.sparkContext.parallelize(ranges, len(ranges)).map(task).collect())

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


@contextmanager
def spark_tasks(
    name: str, master: str, folder: Path, log: Path, stop: Callable[[], bool]
) -> Iterator[SparkTasks | None]:
    """With a session of its own; None when it is told to stop before there is one."""
    from tidegate.spark.session import open_session

    spark = None
    logging.getLogger().addFilter(_not_py4js)
    with jvm_may_be_gone(stop):
        spark = open_session(name, master, folder, DAEMON, log=log)
    try:
        yield SparkTasks(spark, log, stop) if spark is not None else None
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
