"""How a worker notices in the middle of a piece that the piece is to be given up.

    host --GiveUp--> the worker's line --> Notice.check --> Fenced, wherever the piece waits for its sink

During a piece nothing else comes on the line, so anything that waits there, or the line's end, means that the
piece is to be given up. The message is not taken from the line: `check` raises again until the piece has
ended, and `worker.work` takes the message then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from tidegate.errors import Fenced
from tidegate.pipeline.exchange.lines import Line
from tidegate.sink.base import Check


class Notice:
    """Watches the line of one worker. Callable from several threads."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def check(self) -> None:
        """Raise Fenced if the piece that the worker has is to be given up. Takes some microseconds."""
        if self._line.waits(0):
            raise Fenced(
                "this incarnation of the changefeed is over",
                where="a worker in the middle of a piece of work",
                why="the application has ended it, or is gone",
                fix="nothing: the worker gives the piece up",
            )


def _never() -> None:
    """There is no line, so nothing is given up."""


_CHECK: Final[ContextVar[Check]] = ContextVar("check", default=_never)


def check_of_thread() -> Check:
    """The check of the worker that runs in this thread. Take it there and pass it on: other threads that work
    for the same piece have none.
    """
    return _CHECK.get()


@contextmanager
def noticed(line: Line) -> Iterator[None]:
    """Within it, `check_of_thread` watches this line."""
    token = _CHECK.set(Notice(line).check)
    try:
        yield
    finally:
        _CHECK.reset(token)
