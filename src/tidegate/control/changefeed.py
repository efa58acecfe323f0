"""A changefeed's life, as a value: which state follows which, when to try again, when to give up.

            create
              |                       pause                    resume
              v          +---------------------------> stopped --------> (normal)
    +---->  normal ------+
    |         | error that may pass                    target-ts reached: finished
    progress  v                                        user: removed (from any state)
    |      pending -- back-off over --> warning
    +---------|------------------------- |  ^
              |   no progress for `stuck_s`, or an error that cannot pass
              +--------> failed <--------+      (resume: normal)

The reactor keeps one `Life` per feed, runs a pipeline exactly while `runs` says so, and stores `state` and
`error`. Back-off: 1 s, doubled at each failure without progress in between, at most 60 s, each stretched by
up to a tenth. (TiCDC begins at 10 s and ends at 10 min; our restart costs one process, not a rescan.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from tidegate.control.metadata import FeedError
from tidegate.errors import InvalidInput

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
JITTER: Final = 0.1


class State(StrEnum):
    """As stored and as TiCDC names them."""

    NORMAL = "normal"
    WARNING = "warning"
    PENDING = "pending"
    FAILED = "failed"
    STOPPED = "stopped"
    FINISHED = "finished"
    REMOVED = "removed"


class Command(StrEnum):
    """What a user may ask."""

    PAUSE = "pause"
    RESUME = "resume"
    REMOVE = "remove"


COMMANDS: Final = MappingProxyType(
    {
        Command.PAUSE: (State.STOPPED, (State.NORMAL, State.WARNING, State.PENDING, State.STOPPED)),
        Command.RESUME: (
            State.NORMAL,
            (State.NORMAL, State.WARNING, State.PENDING, State.STOPPED, State.FAILED),
        ),
        Command.REMOVE: (State.REMOVED, tuple(State)),
    }
)
"""Command: the state it leads to, and the states it may be given in."""


@dataclass(frozen=True, slots=True)
class Life:
    """Where a feed stands. Times are monotonic seconds handed in by the caller."""

    state: State = State.NORMAL
    error: FeedError | None = None
    failures: int = 0
    """Failures since the last progress."""
    retry_at: float = 0.0
    stuck_since: float | None = None
    """When the first of these failures happened."""

    @property
    def runs(self) -> bool:
        """Whether a pipeline should be running."""
        return self.state in (State.NORMAL, State.WARNING)

    @property
    def ended(self) -> bool:
        """Whether nothing will happen without the user."""
        return self.state in (State.FAILED, State.STOPPED, State.FINISHED, State.REMOVED)

    @classmethod
    def restored(cls, state: str, error: FeedError | None) -> Life:
        """After a restart of the control process: what was waiting is tried at once."""
        known = State(state)
        return cls(State.WARNING if known is State.PENDING else known, error)

    def commanded(self, command: Command) -> Life:
        """Obey the user; raises InvalidInput where the command makes no sense."""
        target, allowed = COMMANDS[command]
        if self.state not in allowed:
            raise InvalidInput(
                f"A {self.state} changefeed cannot be asked to {command}.",
                fix=f"{command} works on feeds that are {', '.join(allowed)}",
            )
        if command is Command.RESUME and self.runs:
            return self
        return Life(target)

    def failed(
        self, error: FeedError, *, retry: bool, now: float, stuck_s: float, jitter: float = 0.0
    ) -> Life:
        """The pipeline or the sink has failed; `jitter` in [0, 1) spreads the retries of many feeds."""
        if self.ended:
            return self
        since = now if self.stuck_since is None else self.stuck_since
        if not retry or now - since > stuck_s:
            return Life(State.FAILED, error)
        wait = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(self.failures, 16))
        return Life(State.PENDING, error, self.failures + 1, now + wait * (1 + JITTER * jitter), since)

    def warned(self, error: FeedError) -> Life:
        """Something the feed needs is in trouble, but its pipeline may go on."""
        return replace(self, state=State.WARNING, error=error) if self.runs else self

    def ticked(self, now: float) -> Life:
        """The passing of time."""
        if self.state is State.PENDING and now >= self.retry_at:
            return replace(self, state=State.WARNING)
        return self

    def progressed(self) -> Life:
        """The checkpoint has moved and the sink has taken it: whatever was wrong is over."""
        return Life() if self.state in (State.NORMAL, State.WARNING) else self

    def finished(self) -> Life:
        """The target ts is delivered."""
        return Life(State.FINISHED) if not self.ended else self
