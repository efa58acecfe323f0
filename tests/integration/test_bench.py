"""The benchmarks run: what nobody runs each day breaks unseen when a name it wraps is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.rig import eventually
from benchmarks.stage_clock import StageClock
from benchmarks.topic_to_database import steady
from tools.processes import Child, ChildError

from tidegate.eventstore import span_store

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
JAVA = "JAVA_TOOL_OPTIONS"
QUICKLY = os.environ | {JAVA: f"{os.environ.get(JAVA, '')} -XX:TieredStopAtLevel=1"}
"""Without the optimising compiler, which takes a third of a new broker's time and pays only at real rates."""


def test_the_end_of_a_child_is_reported_at_once_with_its_last_lines(tmp_path: Path) -> None:
    program = "import sys; print('the name is gone', file=sys.stderr); sys.exit(3)"
    child = Child("probe", [sys.executable, "-c", program], tmp_path / "log")
    began = time.monotonic()
    with pytest.raises(ChildError, match=r"probe ended with 3\.\nthe name is gone"):
        eventually("what never comes", lambda: False, 3600.0, children=[child])
    assert time.monotonic() - began < 1800
    child.end()


def test_a_stage_that_is_gone_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no_such_function"):
        StageClock().wrap(span_store, "no_such_function", "write")


def test_a_steady_rate_leaves_the_first_write_and_its_rows_out() -> None:
    calls = [
        {"stage": stage, "at": at, "rows": rows}
        for stage, at, rows in (
            ("convert", 1.0, 70),
            ("write", 2.0, 0),
            ("convert", 2.5, 30),
            ("convert", 2.6, 50),
            ("write", 4.0, 0),
        )
    ]
    assert steady(calls) == 40.0
    assert steady(calls[:2]) == 0.0


@pytest.mark.slow
def test_a_topic_into_a_database_is_measured(tmp_path: Path) -> None:
    """Probe, broker and MariaDB work together, and all rows arrive: the benchmark counts them."""
    figures = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks.topic_to_database", "--smoke", "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, env=QUICKLY, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = json.loads(figures.read_text())["figures"]
    assert found["mixed"] > 0
    assert 0 < found["visible p50_ms"] <= found["visible p99_ms"]


@pytest.mark.slow
def test_the_main_path_is_measured(tmp_path: Path) -> None:
    """`make bench BENCH_ARGS=--smoke`, its part with a broker: both probes and Kafka's own tool run, all rows
    arrive. The other parts differ in what is read from the same processes."""
    figures = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks.run", "b", "--smoke", "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, env=QUICKLY, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert json.loads(figures.read_text())
