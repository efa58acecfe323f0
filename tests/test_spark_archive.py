"""The archive of Spark's classes: used where it is, and no matter where it does not fit."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidegate.java import java_home
from tidegate.spark.archive import QUIET, archive_file, options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def test_our_jvms_map_the_archive_that_setup_has_made(spark: SparkSession) -> None:
    if not archive_file().exists():
        pytest.skip("make setup could not make an archive with this Java")
    jvm = spark.sparkContext._gateway.proc.pid
    assert str(archive_file()) in Path(f"/proc/{jvm}/maps").read_text()


@pytest.mark.parametrize("damage", [b"", b"no archive", None], ids=["empty", "foreign", "of other classes"])
def test_an_archive_that_does_not_fit_is_left_aside_without_a_word(
    damage: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "archive.jsa"
    if damage is None:
        path.symlink_to(archive_file())
    else:
        path.write_bytes(damage)
    java = str(java_home() / "bin/java")
    command = [java, f"-XX:SharedArchiveFile={path}", *QUIET.split(), "--list-modules"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("java.base@")


def test_without_an_archive_there_are_no_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert options() == ""
