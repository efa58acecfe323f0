"""A worker's messages as the host takes them: of a worker that lives, of one that it has killed, and of one
that it has asked to give up.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.errors import Fenced, Retryable, TidegateError
from tidegate.model.reports import Failed
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.exchange.work import Deliver, Reached, to_json
from tidegate.pipeline.host.connected_worker import ConnectedWorker, Work
from tidegate.pipeline.host.conversation import Conversation
from tidegate.pipeline.host.timetable import WorkKind
from tidegate.pipeline.worker.worker import failed


class Line:
    """The line of a worker that sends some messages, by default those of one whose sink acknowledges rows,
    and which then ends.
    """

    def __init__(self, *messages: Reached | Failed) -> None:
        self.victim: ConnectedWorker | None = None
        """Killed as soon as it has its piece, while its message is under way."""
        self.sent: list[dict[str, Any]] = []
        self._left = [to_json(each) for each in messages or [Reached({"span": 20})]]

    def send_message(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        if self.victim is not None:
            self.victim.kill()

    def offer_message(self, message: dict[str, Any]) -> bool:
        self.sent.append(message)
        return True

    def receive(self) -> dict[str, Any] | None:
        return self._left.pop(0) if self._left else None

    def close(self) -> None:
        """Nothing is held."""


class Hosted:
    """The host of one worker, with one piece for it. It notes what it learns."""

    def __init__(self, line: Line, *, over: bool = False) -> None:
        self.answered: list[bool] = []
        self.durable: list[Mapping[str, int]] = []
        idle = dict.fromkeys(
            ("join", "release", "leave", "end_leases", "fail", "back"), lambda *_, **__: None
        )
        host: Any = {name: SimpleNamespace(**idle) for name in ("timetable", "workforce", "incarnations")}
        host["timetable"].answered = lambda key, *, well: self.answered.append(well)
        host["incarnations"].durable = lambda one, found: self.durable.append(found.spans)
        process: Any = SimpleNamespace(pid=1, kill=lambda: None, wait=lambda: None, close=lambda: None)
        self.worker = ConnectedWorker(line, process)  # type: ignore[arg-type]
        one: Any = SimpleNamespace(
            key="one",
            spec=SimpleNamespace(token="t", changefeed="one"),
            given_up=False,
            over=over,
            backlog=None,
        )
        piece = Deliver("spec", (Range("span", 10, 30),))
        self.worker.give(Work(one, piece, WorkKind.DELIVER, "rows"), 0.0)
        threads: Any = SimpleNamespace(changed=threading.Condition())
        self._conversation = Conversation(threads=threads, **host)

    def serve(self) -> None:
        self.worker.pieces.put(None)
        self._conversation.serve_worker(self.worker)


@pytest.mark.parametrize(("killed", "expected"), [(False, [True]), (True, [])])
def test_a_message_of_a_killed_worker_does_not_prove_its_address(killed: bool, expected: list[bool]) -> None:
    """It was killed because it was silent, and the message is older than that. Otherwise more workers would
    go to a sink that does not answer. The rows are durable in any case.
    """
    line = Line()
    hosted = Hosted(line)
    line.victim = hosted.worker if killed else None
    hosted.serve()
    assert hosted.answered == expected
    assert hosted.durable == [{"span": 20}]


@pytest.mark.parametrize(
    ("raised", "over", "expected"),
    [
        (Fenced("over"), True, []),
        (Fenced("another"), False, [True]),
        (Retryable("the sink is gone"), True, [False]),
    ],
)
def test_a_worker_that_gives_up_says_nothing_of_its_address(
    raised: TidegateError, over: bool, expected: list[bool]
) -> None:
    """It may have waited for a sink that does not answer, which would count as proven."""
    hosted = Hosted(Line(failed(raised)), over=over)
    hosted.serve()
    assert hosted.answered == expected


@pytest.mark.parametrize("over", [False, True])
def test_a_piece_whose_incarnation_ends_before_it_is_sent_is_given_up(over: bool) -> None:
    """A message that came before the piece would be ignored."""
    line = Line()
    Hosted(line, over=over).serve()
    assert [message["type"] for message in line.sent] == ["deliver", *["give_up"] * over]
