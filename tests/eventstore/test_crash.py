"""kill -9 at random moments: nothing announced is lost, nothing is doubled."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidegate.eventstore import kernels, reader, store_view
from tidegate.eventstore.order import Entry, block_of, entries_of
from tidegate.eventstore.store import EventStore
from tidegate.model.span import Span, span_id

SPAN = Span(b"a", b"z")
START = 1000


def change(ts: int) -> Entry:
    """Every ts from START + 1 on has exactly this change."""
    return Entry(ts, ts - 1, 1, b"key%d" % (ts % 17), b"value%d" % ts, b"old" if ts % 3 else b"")


def feed(folder: Path, seed: int) -> None:
    """The child: pulls from the resolved ts on, in shuffled portions, and seals behind them, for ever."""
    generator = random.Random(seed)
    kernels.warm()
    store = EventStore(folder, memory_bytes=20_000)
    span = store.open_span(SPAN)
    span.begin(START)
    arrived = span.resolved
    print("ready", flush=True)
    while True:
        fresh = [change(ts) for ts in range(arrived + 1, arrived + generator.randint(2, 60))]
        arrived = fresh[-1].commit_ts
        again = [change(ts) for ts in range(max(span.resolved + 1, arrived - 5), arrived)]
        generator.shuffle(fresh)
        span.append(block_of(fresh + again))
        if generator.random() < 0.6:
            span.seal(max(span.resolved, arrived - generator.randint(0, 200)))
            store.publish()


@pytest.mark.integration
def test_a_store_killed_at_random_serves_every_announced_change_once(tmp_path: Path) -> None:
    generator = random.Random(7)
    announced = START
    for round_ in range(5):
        command = [sys.executable, "-m", "tests.eventstore.test_crash", str(tmp_path), str(round_)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            while store_view.read_frontier(tmp_path).get(span_id(SPAN), START) <= announced + 200:
                assert child.poll() is None
                time.sleep(0.001)
            time.sleep(generator.uniform(0.0, 0.4))  # the moment of the kill, not a synchronisation
            os.kill(child.pid, signal.SIGKILL)
        resolved = store_view.read_frontier(tmp_path).get(span_id(SPAN), START)
        assert resolved >= announced
        announced = resolved
        found = [e for b in reader.read(tmp_path, span_id(SPAN), START, announced) for e in entries_of(b)]
        assert found == [change(ts) for ts in range(START + 1, announced + 1)]
    assert announced > START + 1000


if __name__ == "__main__":
    feed(Path(sys.argv[1]), int(sys.argv[2]))
