"""A worker's messages as the host takes them, of a worker that lives and of one that it has killed."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.exchange.work import Deliver, Reached, to_json
from tidegate.pipeline.host.connected_worker import ConnectedWorker, Work
from tidegate.pipeline.host.conversation import Conversation
from tidegate.pipeline.host.timetable import WorkKind


class Line:
    """The line of a worker whose sink acknowledges rows, and which then ends."""

    def __init__(self) -> None:
        self.victim: ConnectedWorker | None = None
        """Killed as soon as it has its piece, while its message is under way."""
        self._left: list[dict[str, Any] | None] = [to_json(Reached({"span": 20})), None]

    def send_message(self, message: dict[str, Any]) -> None:
        if self.victim is not None:
            self.victim.kill()

    def receive(self) -> dict[str, Any] | None:
        return self._left.pop(0)

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize(("killed", "expected"), [(False, [True]), (True, [])])
def test_a_message_of_a_killed_worker_does_not_prove_its_address(killed: bool, expected: list[bool]) -> None:
    """It was killed because it was silent, and the message is older than that. Otherwise more workers would
    go to a sink that does not answer. The rows are durable in any case.
    """
    answered, durable = [], []  # type: ignore[var-annotated]
    idle = dict.fromkeys(("join", "release", "leave", "end_leases", "fail", "back"), lambda *_, **__: None)
    line, host = (
        Line(),
        {name: SimpleNamespace(**idle) for name in ("timetable", "workforce", "incarnations")},
    )
    host["timetable"].answered = lambda key, *, well: answered.append(well)
    host["incarnations"].durable = lambda one, found: durable.append(found.spans)
    process: Any = SimpleNamespace(pid=1, kill=lambda: None, wait=lambda: None, close=lambda: None)
    worker = ConnectedWorker(line, process)  # type: ignore[arg-type]
    line.victim = worker if killed else None
    one: Any = SimpleNamespace(
        key="one", spec=SimpleNamespace(token="t", changefeed="one"), given_up=False, over=False, backlog=None
    )
    worker.give(Work(one, Deliver("spec", (Range("span", 10, 30),)), WorkKind.DELIVER, "rows"), 0.0)
    conversation = Conversation(threads=SimpleNamespace(changed=threading.Condition()), **host)  # type: ignore[arg-type]
    conversation.serve_worker(worker)
    assert answered == expected
    assert durable == [{"span": 20}]
