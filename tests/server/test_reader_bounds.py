"""The bounds of workers are written in another thread, and never after the incarnation has ended."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.disk import Ballast
from tidegate.server.processor.reader_bounds import ReaderBounds


class SlowFile:
    """A file that takes as long to replace as the test says."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.puts = threading.Event(), threading.Event(), list[str]()

    def due(self, bound: int, spans: object, *, raise_starts: bool, idle: bool) -> str:
        return f"{bound}"

    def put(self, change: str) -> None:
        self.begun.set()
        assert self.may_end.wait(60)
        self.puts.append(change)


def test_a_write_under_way_ends_before_its_processor_does() -> None:
    """Otherwise it could replace the file of the next incarnation."""
    node: Any = SimpleNamespace(ballast=Ballast(None), files=None)
    machine: Any = SimpleNamespace(reach=7, spans=SimpleNamespace(tasks={}))
    opening: Any = SimpleNamespace(arrivals=SimpleNamespace(all_idle=False))
    bounds, file = ReaderBounds(node, machine), SlowFile()
    vars(bounds)["_file"] = file

    async def scenario() -> None:
        writing = asyncio.create_task(bounds.write(opening))
        assert await asyncio.to_thread(file.begun.wait, 60)
        writing.cancel()
        await asyncio.sleep(0.01)
        assert not writing.done()
        file.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert file.puts == ["7"]

    asyncio.run(scenario())
