"""The life of a changefeed on its owner: those with rows try again first when many fail at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tidegate.clock import SystemClock
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.changefeed import State
from tidegate.control.metadata import FeedId, FeedInfo, FeedStatus, Put
from tidegate.control.retry_turns import TURN_S, RetryTurns
from tidegate.disk import Ballast
from tidegate.errors import Retryable
from tidegate.model.timestamp import compose
from tidegate.server.captures.message_router import MessageRouter
from tidegate.server.owner.life import FeedLife
from tidegate.server.owner.record import FeedRecord
from tidegate.server.owner.replication import Replication

URI = parse_sink_uri("kafka://h/own?protocol=open-protocol")


async def no_store(put: Put, *, patience_s: float = 0.0) -> None:
    """Stores nothing."""


def node() -> Any:
    return SimpleNamespace(
        address="127.0.0.1:1",
        ballast=Ballast(None),
        capture="a",
        captured=lambda mode: SimpleNamespace(store=Path("events")),
        clock=SystemClock(),
        cluster=1,
        retry_turns=RetryTurns(),
        router=MessageRouter(),
        write=no_store,
    )


class Failing(Replication):
    """A replication that fails at once, of a changefeed that had its last row at a ts."""

    def __init__(self, shared: Any, record: FeedRecord, last_row: int) -> None:
        super().__init__(shared, record)
        self.reports.last_synced_ts = last_row

    async def replicate(self) -> None:
        raise Retryable("the pipeline has ended")


def test_those_with_rows_try_again_before_the_others_have_their_turns() -> None:
    upto, shared = compose(1_000_000), node()
    info = FeedInfo(URI.render(redact=False), merge_config({}, URI).to_json(), 1, 0, 0, "normal", "i")

    async def waits(name: str, last_row: int) -> float:
        record = FeedRecord(shared, FeedId("default", name), info, FeedStatus(upto))
        await FeedLife(shared, record, Failing(shared, record, last_row))._try()
        assert record.life.state is State.PENDING
        return record.life.retry_at

    async def main() -> None:
        began = shared.clock.monotonic()
        without = [await waits(f"without-{number}", 0) for number in range(50)]
        busy = [await waits(f"with-{number}", upto) for number in range(50)]
        ended = shared.clock.monotonic()
        # Each has only its back-off of a second, with its jitter.
        assert all(began + 1 <= at <= ended + 1.1 for at in busy)
        assert max(without) - min(without) >= 49 * TURN_S - 0.001

    asyncio.run(main())
