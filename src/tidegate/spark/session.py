"""The Spark session of a pipeline or consumer process, and why each setting is there.

A setting stands here only if Spark's semantics need it or an interleaved A/B run has shown its worth.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pyspark import java_gateway
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

import tidegate
from tidegate.errors import Retryable
from tidegate.java import spark_java_home
from tidegate.spark.archive import options

ALWAYS: Final = {
    # Nothing here needs the web UI, and its port would clash between feeds.
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A failed or slow task must never run a second time beside the first: delivery has its own retry.
    "spark.task.maxFailures": "1",
    "spark.speculation": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    # Offset and commit logs on local disk: 8 + 8 ms a micro-batch instead of 50 + 58 (interleaved A/B).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Flat memory over months: keep no history of batches.
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    "spark.sql.ui.retainedExecutions": "1",
    "spark.ui.retainedJobs": "1",
    "spark.ui.retainedStages": "1",
    "spark.ui.retainedTasks": "16",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}

LOCAL: Final = {
    # Driver and executor are one process that cannot lose itself. By the wall clock it could: after a jump
    # ahead the driver forgets its executor, whose heartbeats then fail until it ends the process.
    "spark.storage.blockManagerHeartbeatTimeoutMs": "36500d",
}
"""With a master `local[..]`."""

QUIET: Final = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""
"""Log4j settings: without them Spark greets and warns before its own log level holds."""

JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""The JVM only schedules here: the optimising compiler costs more at the start than it gives back."""


def open_session(
    name: str,
    master: str,
    work_dir: Path,
    daemon: str,
    driver_memory: str = "512m",
    trial: Mapping[str, str] = MappingProxyType({}),
    log: Path | None = None,
    archive: str | None = None,
    python: str = sys.executable,
) -> SparkSession:
    """Start Spark with its temporary files under `work_dir`. Takes 4-8 s and 0.5 GB.

    `daemon`: the module that starts its Python workers. `trial`: settings of an A/B run, laid over ours.
    `log`: where the JVM and its workers print; None: where this process prints its errors. `archive`: the
    JVM's options about the archive of its classes, by default those to use it. `python`: the workers'
    interpreter, on a cluster's machines another one of the same version. The handler of SIGINT stays the
    caller's. Raises Retryable when the JVM does not start.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    os.environ["JAVA_HOME"] = str(spark_java_home(work_dir))
    # Workers must run this very interpreter, with this very package.
    os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = python, sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    package = str(Path(tidegate.__file__).parent.parent)
    known = os.environ.get("PYTHONPATH", "")
    if package not in known.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (package, known) if part)
    log4j = work_dir.absolute() / "log4j2.properties"
    log4j.write_text(QUIET)
    java_options = f"{JAVA_OPTIONS} {options() if archive is None else archive}"
    builder = SparkSession.builder.appName(name).master(master)
    settings = ALWAYS | {
        "spark.python.daemon.module": daemon,
        "spark.driver.memory": driver_memory,
        "spark.local.dir": str(work_dir),
        "spark.sql.warehouse.dir": str(work_dir / "warehouse"),
        "spark.driver.extraJavaOptions": f"{java_options} -Dlog4j2.configurationFile={log4j.as_uri()}",
        **(LOCAL if master.startswith("local") else {}),
        **trial,
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with _errors_to(log), _started_without_fork():
            return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise Retryable(
            "Spark's JVM does not start",
            where=str(log or work_dir),
            why=f"{' '.join(str(error).split())[:500]}{_last_words(log)}",
            fix="see the log; check JAVA_HOME and that half a GB of memory is free",
        ) from error
    finally:
        # Spark puts its own in its place, which raises KeyboardInterrupt wherever the program stands.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)


@contextmanager
def _started_without_fork() -> Iterator[None]:
    """Let PySpark start its JVM by vfork, as Python does when no function is to be called in the child.

    PySpark asks for such a function, which has the JVM ignore SIGINT. For it the whole process is forked, and
    gRPC's handlers of that abort one child of fifty when other threads are within gRPC (measured with a
    client of PD beside it): "the Java gateway exited". What a process ignores, its children ignore.
    """
    known: type[subprocess.Popen[bytes]] = java_gateway.Popen

    def start(command: list[str], **wanted: Any) -> subprocess.Popen[bytes]:
        main = threading.current_thread() is threading.main_thread()
        if main:  # of another thread nobody may set a signal's handler
            wanted.pop("preexec_fn", None)
            interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return known(command, **wanted)
        finally:
            if main:
                signal.signal(signal.SIGINT, interrupt)

    java_gateway.Popen = start
    try:
        yield
    finally:
        java_gateway.Popen = known


def _last_words(log: Path | None) -> str:
    """The end of what the JVM printed, for an error: the log may go with its folder before that is read."""
    if log is None or not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        text = " ".join(file.read().decode(errors="replace").split())
    return f"; it printed: {text}" if text else "; it printed nothing"


@contextmanager
def _errors_to(log: Path | None) -> Iterator[None]:
    """What is started within inherits `log` as its standard error."""
    if log is None:
        yield
        return
    ours = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
