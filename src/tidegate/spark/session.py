"""The Spark session of a pipeline or consumer process, and why each setting is there.

A setting is here only if Spark's semantics require it or an interleaved A/B run has shown its benefit.
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
    # The web UI is not needed, and its port would conflict between processes.
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Spark must never run a failed or slow task a second time at the same time: delivery has its own retry.
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
    # Keep driver and executor connected across clock jumps. They are one process, but Spark measures
    # heartbeats by the wall clock: after a jump forward the driver forgets its executor, whose heartbeats
    # then fail until it ends the process.
    "spark.storage.blockManagerHeartbeatTimeoutMs": "36500d",
}
"""Settings with a master `local[..]`."""

QUIET: Final = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""
"""Log4j settings. Without them Spark prints a banner and warnings before `spark.log.level` takes effect."""

JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""The JVM only schedules here, so the optimising compiler costs more at the start than it gains later."""


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

    `daemon`: the module that starts its Python workers. `trial`: settings of an A/B run, which override ours.
    `log`: the file for output of the JVM and its workers; None: this process's standard error. `archive`: the
    JVM's options for the archive of its classes; None: the options that use it. `python`: the workers'
    interpreter; on a cluster's machines it may have another path, but must be of the same version. The
    caller's handler of SIGINT is kept. Raises Retryable if the JVM does not start.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    os.environ["JAVA_HOME"] = str(spark_java_home(work_dir))
    # Workers must run with the same interpreter and the same package as this process.
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
        # Spark installs its own handler, which would raise KeyboardInterrupt at any place of the program.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)


@contextmanager
def _started_without_fork() -> Iterator[None]:
    """Let PySpark start its JVM by vfork, which Python uses if no function has to be called in the child.

    PySpark passes such a function, by which the JVM ignores SIGINT. Because of it Python uses fork. Then
    gRPC's fork handlers abort one child in fifty while other threads are inside gRPC (measured with a client
    of PD in the process): "the Java gateway exited". Here this process ignores SIGINT during the start
    instead, and the child inherits that.
    """
    known: type[subprocess.Popen[bytes]] = java_gateway.Popen

    def start(command: list[str], **wanted: Any) -> subprocess.Popen[bytes]:
        main = threading.current_thread() is threading.main_thread()
        if main:  # only the main thread may set a signal handler
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
    """The end of the JVM's output, for an error text: the log may be removed before somebody reads it."""
    if log is None or not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        text = " ".join(file.read().decode(errors="replace").split())
    return f"; it printed: {text}" if text else "; it printed nothing"


@contextmanager
def _errors_to(log: Path | None) -> Iterator[None]:
    """Processes started inside the `with` block inherit `log` as their standard error."""
    if log is None:
        yield
        return
    ours = os.dup(2)
    try:
        with log.open("wb") as file:
            # The descriptor and not `sys.stderr`, because the JVM inherits descriptors.
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
