"""Clocks that jump by hours, either way, while changes flow: TiKV's, the capture's, the puller's."""

from __future__ import annotations

import logging
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.wall_clock import WallClock
from tests.puller.test_backpressure import Control
from tests.puller.test_puller import SPAN, World, eventually
from tests.server.test_capture import Running, check_order, wait_for, work

from tidegate.kvclient.pd import PdClient
from tidegate.model.reports import Watch
from tidegate.model.timestamp import physical_ms
from tidegate.server.pulling.puller_process import store_dir
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration
HOURS = (6, -12, 30, -24)
"""It ends where it began."""


def test_a_process_that_is_started_sees_the_clock_as_it_is_set(wall_clock: WallClock) -> None:
    words = "import sys, time\nfor _ in sys.stdin: print(int(time.time()), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for hours in HOURS:
            wall_clock.jump(hours)
            before = wall_clock.now_ms() // 1000
            process.stdin.write("?\n")
            process.stdin.flush()
            seen = int(process.stdout.readline())
            assert before <= seen <= wall_clock.now_ms() // 1000
        process.stdin.close()


@pytest.fixture
def world(tmp_path: Path, wall_clock: WallClock) -> Iterator[World]:
    """TiKV's own clock is the one that jumps, too: its TSO then jumps, or does not advance."""
    upstream = EmbeddedUpstream(tmp_path / "upstream", regions=5, clock=wall_clock)
    pd = PdClient(upstream.start().pd)
    yield World(upstream, pd, store_dir(tmp_path / "data", pd.cluster_id), random.Random(29))
    pd.close()
    upstream.stop()


def test_a_puller_loses_nothing_when_its_clock_and_tikvs_clock_jump(
    world: World, tmp_path: Path, wall_clock: WallClock
) -> None:
    start = world.pd.tso()
    world.run(10)
    control = Control(tmp_path / "data", world.upstream.pd_addr)
    control.tell(Watch(SPAN, start, True))
    world.check(SPAN, start)
    for hours in HOURS:
        wall_clock.jump(hours)
        world.run(10)
        world.check(SPAN, start)
        world.upstream.cut_streams()
        world.run(10)
        world.check(SPAN, start)
    assert physical_ms(world.pd.tso()) > wall_clock.now_ms() + 20 * 3_600_000, "it never fell"
    eventually(lambda: set(control.spans[0].errors) == {"stream_lost"}, "no error but the cuts")
    assert control.errors == []
    assert control.close() == 0


def lead(words: str) -> int:
    """The hours that the capture's words give in seconds."""
    seconds = re.search(r"(\d+) s (?:ahead|behind)", words)
    assert seconds is not None, words
    return round(int(seconds[1]) / 3600)


def test_a_capture_continues_and_says_which_clock_is_wrong(
    tmp_path: Path, wall_clock: WallClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidegate.server.changefeeds.clock_watch.ASK_S", 0.1)
    monkeypatch.setattr("tidegate.control.upstream_time.JUMP_MS", 2000)
    caplog.set_level(logging.INFO)
    (tmp_path / "pd").mkdir()
    pds = WallClock(tmp_path / "pd" / "clock")
    with (
        EmbeddedUpstream(tmp_path / "upstream", regions=3, clock=pds) as upstream,
        PdClient(upstream.pd_addr) as pd,
    ):
        bank = BankWorkload(upstream.pd_addr, 7, accounts=50, threads=2)
        bank.setup()
        running = Running(upstream.pd_addr, tmp_path / "capture", tmp_path / "out", clock=wall_clock)
        before = bank.stats.rows

        def clock_that_says(word: str) -> str:
            """Wait until the capture's status of clocks has the word, and return the status."""
            said = [""]

            def has_word() -> bool:
                said[0] = str(running.call("GET", "/status")["clock"])
                return word in said[0] if word else not said[0]

            wait_for(has_word, word or "clocks that agree")
            return said[0]

        def clock_when(jumped: WallClock, hours: int, word: str) -> str:
            """The same after a jump, with changes that arrive all the same."""
            jumped.jump(hours)
            work(bank, 40)
            running.wait_checkpoint("one", pd.tso())
            return clock_that_says(word)

        try:
            running.create("one", start_ts=pd.tso())
            clock_when(wall_clock, 0, "")
            assert lead(clock_when(wall_clock, 6, "ahead of PD's time")) == 6
            assert lead(clock_when(wall_clock, -12, "behind PD's time")) == 6
            assert lead(clock_when(pds, 6, "43")) == 12
            stopped = "PD's time does not advance, because its clock was set back; "
            assert clock_when(pds, -6, "does not advance").startswith(stopped)
            pds.jump(6)
            wait_for(
                lambda: "does not advance" not in running.call("GET", "/status")["clock"], "the end of it"
            )
            wall_clock.jump(12)
            clock_that_says("")
            shown = running.feed("one")
            assert (shown["state"], shown["error"]) == ("normal", None)
            assert check_order(running.lines("one"))[0] == bank.stats.rows - before
        finally:
            running.stop()
            bank.close()
    said = [record.message for record in caplog.records if record.name.endswith("clock_watch")]
    assert said.count("this machine's clock differs from PD") >= 2
    # A machine that stops for seconds may look like a jump or a stand of its own.
    stopped_at = len(said) - said[::-1].index("PD time does not advance")
    assert said.index("PD time jumped ahead") < stopped_at
    assert "this machine's clock agrees with PD again" in said[stopped_at:]
