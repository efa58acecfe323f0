"""`tidegate server` with a clock around its ticks.

    python -m benchmarks.control_probe FILE [--played] server ...

For each tick of an owner and a processor it measures the CPU of the loop's thread, and writes the sums to
FILE: `{"owner": [ticks, seconds, longest], "processor": [...]}`. With `--played` the owner's sink keeps
nothing, and `benchmarks.player` takes the place of the changefeeds' pipelines. Everything else is `tidegate
server`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tidegate.cli.main import app
from tidegate.model.ddl import DdlEvent
from tidegate.model.progress import Journal
from tidegate.server import capture
from tidegate.server.capture import Options
from tidegate.server.delivery.plan import FeedPlan
from tidegate.server.owner.replication import Replication
from tidegate.server.processor.processor import FeedProcessor
from tidegate.sink.base import OwnerSink

WRITE_S: Final = 0.2


class _Timed:
    """Awaits some work, and adds up the CPU of this thread that the work itself takes."""

    def __init__(self, work: Coroutine[Any, Any, None], add: Callable[[float], None]) -> None:
        self._work, self._add = work, add

    def __await__(self) -> Generator[Any, Any, None]:
        inner, spent = self._work.__await__(), 0.0
        advance = partial(inner.send, None)
        while True:
            began = time.thread_time()
            try:
                waits_for = advance()
            except StopIteration:
                return self._add(spent + time.thread_time() - began)
            spent += time.thread_time() - began
            try:
                yield waits_for
                advance = partial(inner.send, None)
            except BaseException as error:
                advance = partial(inner.throw, error)


class TickClock:
    """For each kind of tick: the number, their CPU seconds, and those of the longest."""

    def __init__(self) -> None:
        self.ticks: dict[str, list[float]] = {}

    def add(self, kind: str, seconds: float) -> None:
        """Count a tick. Called in the loop's thread."""
        count, total, longest = self.ticks.get(kind, (0, 0.0, 0.0))
        self.ticks[kind] = [count + 1, total + seconds, max(longest, seconds)]

    def wrap(self) -> None:
        """Put the clock around the ticks of owners and processors."""
        tick, step = Replication._tick, FeedProcessor._step

        def timed_tick(replication: Replication) -> None:
            began = time.thread_time()
            tick(replication)
            self.add("owner", time.thread_time() - began)

        async def timed_step(processor: FeedProcessor) -> None:
            await _Timed(step(processor), partial(self.add, "processor"))

        for owner, name, timed in ((Replication, "_tick", timed_tick), (FeedProcessor, "_step", timed_step)):
            setattr(owner, name, timed)

    def write(self, path: Path) -> None:
        """Write the sums repeatedly, until the process ends."""
        while True:
            time.sleep(WRITE_S)
            partial = path.with_suffix(".tmp")
            partial.write_text(json.dumps(dict(self.ticks)))
            partial.replace(path)


def between(before: dict[str, Any], after: dict[str, Any], seconds: float) -> dict[str, dict[str, float]]:
    """For each kind: the mean CPU of a tick in ms, and the number of ticks per second."""
    found = {}
    for kind, (count, total, _) in after.items():
        had, had_s, _ = before.get(kind, (0, 0.0, 0.0))
        ticks = count - had
        found[kind] = {
            "ms": round(1000 * (total - had_s) / max(1, ticks), 3),
            "a_second": round(ticks / seconds, 1),
        }
    return found


class NoSink:
    """The owner's side of a sink that keeps nothing."""

    def __init__(self) -> None:
        self.journal = Journal()

    def use(self, topics: Iterable[str]) -> None:
        """Does nothing: every topic exists."""

    def send_ddl(self, event: DdlEvent, build_ms: int = 0, topic: str = "") -> None:
        """Accept and drop it."""

    def send_resolved(self, ts: int, build_ms: int = 0) -> None:
        """Accept and drop it."""

    def forget(self, keys: Iterable[str]) -> None:
        """Does nothing: nothing is kept."""

    def close(self) -> None:
        """Does nothing: nothing is open."""


def no_sink(plan: FeedPlan) -> OwnerSink:
    """A sink that is never opened."""
    return NoSink()


def played(**given: Any) -> Options:
    """The options of a capture whose pipelines and sinks are played."""
    nothing = {"application_command": lambda *_: ["sleep", "infinity"], "open_sink": no_sink}
    return Options(**{**given, **nothing})


def main() -> None:
    """The command line."""
    path = Path(sys.argv.pop(1))
    if sys.argv[1] == "--played":
        del sys.argv[1]
        vars(capture)["Options"] = played
    clock = TickClock()
    clock.wrap()
    threading.Thread(target=clock.write, args=(path,), name="tick-clock", daemon=True).start()
    app()


if __name__ == "__main__":
    main()
