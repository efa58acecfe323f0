"""Settings that Spark needs in a process that is driver and executor at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def test_no_jump_of_the_clock_lets_the_driver_take_its_executor_for_dead(spark: SparkSession) -> None:
    settings = spark.sparkContext._jsc.sc().conf()  # type: ignore[attr-defined]
    patience_ms = settings.getTimeAsMs("spark.storage.blockManagerHeartbeatTimeoutMs", "120s")
    assert patience_ms > 10 * 365 * 86_400_000


SESSION = """
import sys
from pathlib import Path
from tidegate.spark.session import open_session
folder = Path(sys.argv[1])
option = "-XX:ReservedCodeCacheSize=1"
open_session("test", "local[1]", folder, "pyspark.daemon", log=folder / "log", archive=option)
"""


def test_the_error_of_a_jvm_that_does_not_start_has_its_last_words(tmp_path: Path) -> None:
    """Its log may lie in a folder that goes with the process."""
    done = subprocess.run([sys.executable, "-c", SESSION, str(tmp_path)], capture_output=True, text=True)
    assert "Spark's JVM does not start" in done.stderr
    assert "ReservedCodeCacheSize=1 is outside" in done.stderr.split("it printed: ")[1]


STARTED = """
import os, sys
from pathlib import Path
from tidegate.spark.session import open_session
os.register_at_fork(before=lambda: print("forked", flush=True))
spark = open_session("test", "local[1]", Path(sys.argv[1]), "pyspark.daemon", log=Path(sys.argv[1]) / "log")
jvm = spark.sparkContext._gateway.proc.pid
print(*(line for line in open(f"/proc/{jvm}/status") if line.startswith("SigIgn")))
spark.stop()
"""


def test_the_jvm_is_started_without_a_fork_and_ignores_sigint(tmp_path: Path) -> None:
    """gRPC aborts forked children of a process whose other threads are within it."""
    done = subprocess.run([sys.executable, "-c", STARTED, str(tmp_path)], capture_output=True, text=True)
    assert "forked" not in done.stdout
    ignored = int(done.stdout.split()[1], 16)
    assert ignored & 1 << signal.SIGINT - 1
