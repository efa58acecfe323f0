"""A pipeline that is stopped, replaced and then continued writes nothing that a committed reader sees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.pipeline.control_end import PATIENCE_S, ControlEnd
from tests.pipeline.recorded import RecordedFeed
from tests.pipeline.test_job import BANK, UPTO, expected, found
from tools.processes import descendants

from tidegate.errors import Fenced
from tidegate.pipeline.exchange.beats import read_beats
from tidegate.pipeline.exchange.feed import FeedSpec
from tidegate.pipeline.exchange.work import Deliver
from tidegate.pipeline.worker.access import Access
from tidegate.pipeline.worker.deliver import Worker
from tidegate.pipeline.worker.kept import with_worker

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def feed(tmp_path: Path, kafka: str, new_topic: Callable[..., str]) -> RecordedFeed:
    return RecordedFeed(
        tmp_path, BANK, f"kafka://{kafka}/{new_topic(3)}?protocol=canal-json&enable-tidb-extension=true", UPTO
    )


@pytest.fixture
def control(feed: RecordedFeed) -> Iterator[ControlEnd]:
    with ControlEnd(feed.folder / "control.sock") as end:
        yield end


def start(spec: Path) -> subprocess.Popen[bytes]:
    log = (spec.parent / "log").open("ab")
    command = [sys.executable, "-m", "tidegate.pipeline.job", str(spec)]
    return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def workers(pid: int) -> list[int]:
    """The processes below a driver that deliver: children of the worker daemon."""
    daemons = [p for p, line in descendants(pid) if "tidegate.pipeline.daemon" in line]
    return daemons[1:]


def stop_while_delivering(spec: Path, driver: int, whole: bool) -> list[int]:
    """SIGSTOP the workers while one delivers, or the driver with everything below it; the pids stopped."""
    beats = FeedSpec.load(spec).beats_dir
    deadline = time.monotonic() + PATIENCE_S
    while not read_beats(beats).keys() - {str(driver)}:
        assert time.monotonic() < deadline, "no worker delivers"
        time.sleep(0.005)
    pids = [driver, *(p for p, _ in descendants(driver))] if whole else workers(driver)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def test_a_task_that_starts_after_its_incarnation_was_replaced_is_fenced(tmp_path: Path) -> None:
    """A driver that wakes up continues with tasks, which learn who they are when they begin."""
    feed = RecordedFeed(tmp_path, BANK, "kafka://127.0.0.1:1/none?protocol=canal-json", UPTO)
    first = feed.write(incarnation=1)
    assert FeedSpec.load(first).incarnation == 1
    second = feed.write(incarnation=2)

    def never(access: Access) -> Worker:
        raise AssertionError(f"a writer for incarnation {access.spec.incarnation}")

    with pytest.raises(Fenced, match="has been replaced"):
        with_worker(Deliver(str(first), ()), lambda worker: None, never)
    assert FeedSpec.load(second).incarnation == 2


@pytest.mark.parametrize("whole", [True, False], ids=["driver", "worker"])
def test_a_zombie_writes_nothing(feed: RecordedFeed, control: ControlEnd, whole: bool) -> None:
    first = feed.write(incarnation=1)
    zombie = start(first)
    stopped = stop_while_delivering(first, zombie.pid, whole)
    rightful = start(feed.write(incarnation=2))
    try:
        control.wait_started(2)
        control.wait_spans(feed.last_ts)
        wanted = expected(feed)
        assert found(feed.sink_uri) == wanted
        for pid in stopped:
            with suppress(ProcessLookupError):  # on a slow machine its driver may have killed it for silence
                os.kill(pid, signal.SIGCONT)
        # The zombie continues until it meets the fence, and ends.
        assert zombie.wait(PATIENCE_S) != 0
        assert found(feed.sink_uri) == wanted
    finally:
        for process in (zombie, rightful):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
