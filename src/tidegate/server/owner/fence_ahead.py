"""Prepares the fence of the next round while captures still deliver, or the owner has still to open.

    begin: the grants are read, clients connect --> take: the sink that fences with them
                                                --> drop: no round follows, or it has no fence

Nothing is delivered from the end of one incarnation until all writers are fenced
(docs/internals/safety.md#how-long-a-round-takes), and most of a fence is to connect. A prepared fence fences
nobody. It is for the writers by the present grants; if the round finds others, those are fenced unprepared.

A round does without it rather than wait for it: neither for longer than TAKE_S, nor if it has failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tidegate.control.grants import writers_of
from tidegate.errors import TidegateError
from tidegate.server.node import Node
from tidegate.server.owner.record import FeedRecord
from tidegate.sink.base import SharedSink

LOG: Final = logging.getLogger(__name__)
TAKE_S: Final = 2.0
"""How long a round waits for a preparation. Clients are made in milliseconds, but threads may be busy."""


class FenceAhead:
    """The preparation for one changefeed. Lives in one asyncio loop."""

    def __init__(
        self, node: Node, record: FeedRecord, may_be_shared: Callable[[], bool], wake: Callable[[], None]
    ) -> None:
        """`may_be_shared`: whether several captures may write at the same time. `wake`: is called when it is
        done.
        """
        self._node, self._record, self._may_be_shared, self._wake = node, record, may_be_shared, wake
        self._task: asyncio.Task[SharedSink | None] | None = None
        self._began = 0.0

    def begin(self) -> None:
        """Begin, if that has not begun."""
        if self._task is None:
            self._began = self._node.clock.monotonic()
            self._task = asyncio.create_task(self._prepare(), name=f"fence ahead of {self._record.id}")
            self._task.add_done_callback(lambda _: self._wake())

    @property
    def is_done(self) -> bool:
        """Whether it has begun, and is done or has taken too long."""
        late = self._node.clock.monotonic() >= self._began + TAKE_S
        return self._task is not None and (late or self._task.done())

    async def take(self) -> SharedSink | None:
        """The sink that is prepared, as soon as that is done. None: nothing is prepared in time. The next
        `begin` prepares another fence.
        """
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait({task}, timeout=TAKE_S)
        return task.result() if task is not None and task.done() else None

    async def drop(self) -> None:
        """Give up what is prepared."""
        sink = await self.take()
        if sink is not None:
            # In a thread: to end a client takes as long as to make it.
            await asyncio.wait({asyncio.create_task(asyncio.to_thread(sink.connect, {}))}, timeout=TAKE_S)

    async def _prepare(self) -> SharedSink | None:
        # An initial load is delivered by one capture.
        if not self._may_be_shared() or self._record.loading:
            return None
        try:
            sink, writers = self._record.plan.sink, writers_of(await self._node.grants(self._record.id))
            if isinstance(sink, SharedSink):
                # In a thread: each client takes a few milliseconds to make.
                await asyncio.to_thread(sink.connect, writers)
                return sink
        except TidegateError as error:  # the round asks etcd again, and raises what is wrong
            LOG.debug("changefeed %s: its next fence is not prepared: %s", self._record.id, error)
        except Exception:
            LOG.exception("changefeed %s: unexpected error, its next fence is not prepared", self._record.id)
        return None
