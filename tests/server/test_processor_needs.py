"""A processor says at once which history it needs, and that it has given up its ranges."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.clock import SystemClock
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import Dispatch, DispatchResponse, FromProcessor, Header, Sync, Wish, to_json
from tidegate.control.metadata import FeedId
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX
from tidegate.server.processor.processor import FeedProcessor
from tidegate.server.pulling.pulse import Pulse


def asked(sequence: int, wish: Wish, *, checkpoint: int, needed: int, incarnation: int = 0) -> bytes:
    ranges = [GrantedRange(Span(b"", b""), (0, 0))] if wish is not Wish.REST else []
    header = Header(1, "default/one", "i", 1, "a", 1, sequence)
    message = Dispatch(header, wish, incarnation, ranges, 900, checkpoint, False, needed=needed, safe_point=1)
    return json.dumps(to_json(message)).encode()


def needs(said: list[FromProcessor]) -> list[tuple[int, int]]:
    return [(one.last_sequence, one.needs) for one in said if isinstance(one, Sync)]


def never_open(said: list[FromProcessor]) -> FeedProcessor:
    """A processor that waits for the metadata store for ever. `said`: gets its messages."""
    node: Any = SimpleNamespace(
        cluster=1, capture="a", shared="", epoch=1, pulse=Pulse(), clock=SystemClock()
    )
    node.application = SimpleNamespace(working=SimpleNamespace(workers=0))
    node.router = SimpleNamespace(to_owner=said.append)

    async def never(key: str) -> None:
        await asyncio.sleep(3600)

    node.read = never
    return FeedProcessor(node, FeedId("default", "one"))


def test_all_that_is_held_is_needed_from_the_first_sync_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With this Sync the owner takes the Dispatch as received, and holds only what the Sync says."""
    monkeypatch.setattr("tidegate.control.outbox.SYNC_S", 0.0)
    said: list[FromProcessor] = []
    processor = never_open(said)

    async def steps() -> None:
        processor.box.put(asked(1, Wish.PREPARE, checkpoint=500, needed=300))
        await processor._step()
        assert needs(said) == [(1, 300)], "a base of the catalogue may be from there"
        processor.box.put(asked(2, Wish.PREPARE, checkpoint=600, needed=400))
        await processor._step()
        assert needs(said)[-1] == (2, 300), "it still opens what it was first asked for"
        processor.box.put(asked(3, Wish.REST, checkpoint=600, needed=400))
        await processor._step()
        await asyncio.sleep(0)
        await processor._step()
        assert needs(said)[-1] == (3, MAX)

    asyncio.run(steps())


def test_ranges_are_given_up_before_the_next_ones_are_opened() -> None:
    """The owner waits for this answer, and nothing of the changefeed is delivered meanwhile."""
    said: list[FromProcessor] = []
    processor = never_open(said)

    async def steps() -> None:
        processor.box.put(asked(1, Wish.PREPARE, checkpoint=500, needed=300))
        await processor._step()
        processor._wake.clear()
        await asyncio.sleep(0)
        assert processor._wake.is_set(), "the answer would wait until all is open"
        await processor._step()
        assert [one.answers for one in said if isinstance(one, DispatchResponse)] == [1]
        await processor._end_work()

    asyncio.run(steps())


def test_the_grant_is_read_while_catalogue_and_spans_are_opened() -> None:
    """Nothing of the changefeed is delivered meanwhile, and neither needs the other."""
    processor, asked_for = never_open([]), list[FeedId]()

    async def read_grant(feed: FeedId) -> None:
        asked_for.append(feed)

    processor.node.read_grant = read_grant  # type: ignore[method-assign]

    async def steps() -> None:
        processor.box.put(asked(1, Wish.RUN, checkpoint=500, needed=300, incarnation=1))
        await processor._step()
        await asyncio.sleep(0.01)
        assert asked_for == [processor.id]
        await processor._end_work()

    asyncio.run(steps())
