"""A capture as the owner of the changefeeds, from one election to the next.

    begin: elected --> the reactor runs --> asked to resign: step_down --> stands by --> elected again ...
                                        --> the session or the process ends: end

To resign, a capture gives up only the ownership. Session, application, pullers and processors stay. So all
captures deliver until the next owner fences them, and continue under it at once. Nothing moves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tidegate.errors import TidegateError
from tidegate.log import event
from tidegate.server.captures.candidacy import Candidacy
from tidegate.server.captures.membership import Resigned
from tidegate.server.changefeeds.reactor import Reactor
from tidegate.server.changefeeds.readers import Readers
from tidegate.server.node import Node
from tidegate.server.processor.registry import ProcessorRegistry

LOG: Final = logging.getLogger(__name__)

STEP_DOWN_S: Final = 5.0
"""How long the owner's work may take to end when the capture resigns. Otherwise its session ends."""


class Tenure:
    """One session's terms as owner. Lives in one asyncio loop."""

    def __init__(
        self,
        node: Node,
        processor_registry: ProcessorRegistry,
        candidacy: Candidacy | None,
        *,
        elsewhere: bool,
    ) -> None:
        """`candidacy`: None if no other capture can be the owner. `elsewhere`: `Options.elsewhere`."""
        self._node, self._processor_registry, self._candidacy = node, processor_registry, candidacy
        self._elsewhere = elsewhere
        self._sweep: asyncio.Task[None] | None = None
        self.reactor, self.readers = self._new()

    def _new(self) -> tuple[Reactor, Readers]:
        """The reactor of the next term: nothing that the last one believed may be used again."""
        reactor = Reactor(self._node, self._processor_registry.clear)
        return reactor, Readers(reactor, elsewhere=self._elsewhere)

    async def begin(self) -> None:
        """Run the changefeeds as their owner, as soon as this capture is elected."""
        if self._candidacy is not None:
            owner = await self._candidacy.until_elected()
            self._node.owner_key, self._node.owner_rev = owner.key, owner.revision
            self._processor_registry.take_over()
        await self.reactor.start()
        self._sweep = asyncio.create_task(self.readers.sweep(), name="readers without a query")

    async def end(self) -> None:
        """End the owner's work; the stored state stays."""
        if self._sweep is not None:
            self._sweep.cancel()
        await self.reactor.stop()

    async def step_down(self, requests: Callable[[], Awaitable[None]]) -> None:
        """Let another capture be elected, and return when this one is the owner again.

        `requests`: waits for the end of requests that began under this term. Raises Fenced if they or the
        owner's work do not end in time, or the capture is lost; Retryable if etcd does not answer.
        """
        candidacy, node = self._candidacy, self._node
        assert candidacy is not None
        event(LOG, logging.INFO, "the capture resigns", capture=node.capture, owner_rev=node.owner_rev)
        ending = asyncio.create_task(self._end_of_term(requests), name="end of the owner's work")
        try:
            # It is not cancelled when it is late: a feed that ends leaves no process behind.
            done, _ = await asyncio.wait({ending}, timeout=STEP_DOWN_S)
            if not done:
                raise Resigned("the capture was asked to resign", where=node.address)
            await ending
            await candidacy.step_down(node.owner_rev)
        except TidegateError as error:
            # Now, so that whatever still runs of this term is refused by `Node.write`, and so that the
            # session ends before the work does (`Capture.end_session`).
            node.lost(error)
            raise
        node.forget_ownership()
        self.reactor, self.readers = self._new()
        self._processor_registry.stand_by()
        await self.begin()

    async def _end_of_term(self, requests: Callable[[], Awaitable[None]]) -> None:
        # Before the feeds end: a request that is under way would act for this term under the next one, and
        # `Node.over`, which refuses late requests of a session that is lost, says nothing here.
        await requests()
        self._node.steps_down = True
        # Before the key is deleted, because each changefeed stores its last checkpoint.
        await self.end()
