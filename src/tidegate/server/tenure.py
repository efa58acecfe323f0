"""A capture as the owner of the changefeeds, from one election to the next.

    begin: elected --> the reactor runs --> asked to resign: step_down --> stands by --> elected again ...
                                        --> the session or the process ends: end

To resign, a capture gives up only the ownership. Session, application, pullers and processors stay. So all
captures deliver until the next owner fences them, and continue under it at once. Nothing moves.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

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
        reactor = Reactor(self._node, self._processor_registry.end)
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

    async def step_down(self) -> None:
        """Let another capture be elected, and return when this one is the owner again.

        Raises Fenced if the owner's work does not end in time, or the capture is lost; Retryable if etcd does
        not answer.
        """
        candidacy, node = self._candidacy, self._node
        assert candidacy is not None
        event(LOG, logging.INFO, "the capture resigns", capture=node.capture, owner_rev=node.owner_rev)
        node.steps_down = True
        try:
            # First, because each changefeed stores its last checkpoint, which needs the owner's key.
            async with asyncio.timeout(STEP_DOWN_S):
                await self.end()
        except TimeoutError as error:
            raise Resigned("the capture was asked to resign", where=node.address) from error
        await candidacy.step_down(node.owner_rev)
        node.forget_ownership()
        self.reactor, self.readers = self._new()
        self._processor_registry.stand_by()
        await self.begin()
