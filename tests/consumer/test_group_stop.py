"""A service manager's stop: every process of the consumer gets SIGTERM, and the JVM goes first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


def java_of(group: int) -> list[int]:
    """The JVMs of a process group that are, or will be, Spark's: `java -version` is none."""
    found = []
    for name in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # it has ended
            pid = int(name.parent.name)
            if name.read_text() == "java\n" and os.getpgid(pid) == group:
                found += [pid] if b"SparkSubmit" in name.with_name("cmdline").read_bytes() else []
    return found


def test_a_consumer_whose_whole_group_gets_a_signal_ends_in_order(
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
    with consumer(kafka, new_topic(), tmp_path / "target") as process:
        while not java_of(process.pid):  # its gateway answers seconds later
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGTERM)
        out, errors = process.communicate(timeout=STOP_S)
    assert (process.returncode, errors) == (0, "")
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"
