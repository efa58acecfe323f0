"""The messages of a processor to its owner: what was sent, and what has to be sent or repeated.

A message may be lost. So a Sync repeats everything every `SYNC_S`, and the response to a Dispatch is repeated
when the owner repeats the Dispatch. A Checkpoint has only what has changed since the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tidegate.control.messages import (
    Dispatch,
    DispatchResponse,
    FromProcessor,
    Header,
    ProcessorStatus,
    RangeProgress,
    Wish,
)
from tidegate.model.span import Span

SYNC_S: Final = 5.0
"""Seconds between two Sync."""


class Outbox:
    """The messages of one processor. Not thread-safe, no I/O."""

    def __init__(self, header: Header) -> None:
        self.header = header
        """The header of the last message sent."""
        self._ranges: dict[Span, RangeProgress] = {}
        """The progress last sent of each range."""
        self._status = ProcessorStatus()
        """The status last sent."""
        self._response: DispatchResponse | None = None
        """The response to send at the next tick."""
        self._answered: DispatchResponse | None = None
        """The last response to the present goal."""
        self._sync_at = float("-inf")

    def forget_ranges(self) -> None:
        """Report the progress of all ranges again, because it is that of other spans from now on."""
        self._ranges.clear()

    def begin_goal(self) -> None:
        """The owner wants something else, to which nothing was answered yet."""
        self._ranges.clear()
        self._answered = None

    def answer(self, response: DispatchResponse) -> None:
        """Send this response at the next tick."""
        self._response = self._answered = response

    def answer_again(self, dispatch: Dispatch) -> None:
        """Repeat the last response, because it may have been lost. (Each Sync says whether a range runs.)"""
        answered = self._answered
        if answered is not None and (answered.error is not None or dispatch.wish is not Wish.RUN):
            self._response = replace(answered, answers=dispatch.header.sequence)

    def sync_soon(self) -> None:
        """Send a Sync at the next tick."""
        self._sync_at = float("-inf")

    def begins_sync(self, now: float) -> bool:
        """Whether a Sync is due; the next one is due `SYNC_S` later then."""
        if now - self._sync_at < SYNC_S:
            return False
        self._sync_at = now
        return True

    @property
    def has_response(self) -> bool:
        """Whether a response is to be sent at the next tick."""
        return self._response is not None

    def take_response(self) -> list[DispatchResponse]:
        """The response to send now, if there is one."""
        found, self._response = self._response, None
        return [] if found is None else [found]

    def changed(self, ranges: Iterable[RangeProgress], status: ProcessorStatus) -> list[RangeProgress] | None:
        """The ranges whose progress has changed, to be sent now. None: not even the status has changed."""
        moved = [one for one in ranges if self._ranges.get(one.id) != one]
        if not moved and status == self._status:
            return None
        # A message may be lost. The next Sync repeats everything, so nothing is sent twice for that reason.
        self._ranges |= {one.id: one for one in moved}
        self._status = status
        return moved

    def stamped(self, message: FromProcessor, owner_rev: int, instance: str) -> FromProcessor:
        """The message with the next header."""
        sequence = self.header.sequence + 1
        self.header = replace(self.header, sequence=sequence, owner_rev=owner_rev, instance=instance)
        return replace(message, header=self.header)
