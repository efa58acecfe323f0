"""How long each step of a round takes, from the end of one incarnation to the next: for logs and users.

    begin --> reached: given up --> granted --> fenced --> sink open --> all ranges are delivered

docs/internals/safety.md#how-long-a-round-takes says what each step waits for.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tidegate.clock import Clock


class Step(StrEnum):
    """The steps of a round, in order; each is named after its end."""

    GIVEN_UP = "given_up_ms"
    GRANTED = "granted_ms"
    FENCED = "fenced_ms"
    SINK_OPEN = "sink_open_ms"
    DELIVERED = "delivered_ms"


class HandOver:
    """The steps of one changefeed's rounds, one round after the other."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None
        """When the last step ended; None: no round is under way."""
        self._took: dict[str, int] = {}
        self.last_gap_s: float | None = None
        """How long nothing was delivered when the key space was last divided again; None: it was not."""
        self._paused_at: float | None = None
        """When the incarnation ended for another division that is under way; None: none is."""

    def pause(self, *, divides: bool) -> None:
        """An incarnation ends. `divides`: so that the key space is divided again. A pause for another reason
        says nothing about the next division.
        """
        self._paused_at = self._clock.monotonic() if divides else None

    def begin(self) -> None:
        """A round begins: nothing is delivered from now on."""
        self._since, self._took = self._clock.monotonic(), {}

    def reached(self, step: Step) -> None:
        """A step has ended. If none has begun, this is the first one."""
        if self._since is None:
            self.begin()
        assert self._since is not None
        now = self._clock.monotonic()
        self._took[step], self._since = round(1000 * (now - self._since)), now

    def end(self) -> Mapping[str, int]:
        """All ranges are delivered, which ends the round: the milliseconds of each step."""
        self.reached(Step.DELIVERED)
        if self._paused_at is not None:
            self.last_gap_s = self._clock.monotonic() - self._paused_at
            self._paused_at = None
        took, self._since, self._took = self._took, None, {}
        return took
