"""A service manager's stop: every process of the consumer gets SIGTERM, and the JVM goes first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
STOP_S = 120
"""Seconds on an idle machine; what hangs, hangs for ever."""


@contextmanager
def consumer(kafka: str, topic: str, target: Path) -> Iterator[subprocess.Popen[str]]:
    """`tidegate consumer run` at the head of a process group of its own."""
    source = f"kafka://{kafka}/{topic}?protocol=open-protocol"
    command = [sys.executable, "-m", "tidegate", "consumer", "run", "--json", "--source", source]
    process = subprocess.Popen(
        [*command, "--target", f"delta://{target}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_consumer_whose_whole_group_is_told_to_end_ends_in_order(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    with consumer(kafka, new_topic(), tmp_path / "target") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        os.killpg(process.pid, signal.SIGTERM)
        out, errors = process.communicate(timeout=STOP_S)
    assert (process.returncode, errors) == (0, "")
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"


def test_so_does_one_whose_jvm_is_still_starting(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    log = tmp_path / "target" / "_tidegate" / "spark.log"
    with consumer(kafka, new_topic(), tmp_path / "target") as process:
        while not log.exists():
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGTERM)
        out, errors = process.communicate(timeout=STOP_S)
    assert (process.returncode, errors) == (0, "")
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"
