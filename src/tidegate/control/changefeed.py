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
`error`. `TRANSITIONS` has every row; docs/internals/changefeed.md explains them. Back-off: 1 s, doubled at
each failure without progress in between, at most 60 s, each stretched by up to a tenth. (TiCDC begins at 10 s
and ends at 10 min; our restart costs one process, not a rescan.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tidegate.control.metadata import FeedError
from tidegate.control.transitions import Row, Transitions
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


class On(StrEnum):
    """What happens to a changefeed. The first three are a user's `Command`."""

    PAUSE = "pause"
    RESUME = "resume"
    REMOVE = "remove"
    RESTART = "restart of the control process"
    MAY_PASS = "failure that may pass"
    STAYS = "failure that stays"
    WARNING = "trouble next to the pipeline"
    BACKOFF_OVER = "back-off over"
    PROGRESS = "progress"
    TARGET = "target ts reached"


RUNNING: Final = (State.NORMAL, State.WARNING)
"""The pipeline runs."""
ALIVE: Final = (*RUNNING, State.PENDING)
"""It runs, or will without the user."""

TRANSITIONS: Final = Transitions(
    Row((*ALIVE, State.STOPPED), On.PAUSE, State.STOPPED, effect="the pipeline ends"),
    Row((State.NORMAL,), On.RESUME, State.NORMAL, effect="none"),
    Row((State.WARNING,), On.RESUME, State.WARNING, effect="none: it runs, and the error stays shown"),
    Row(
        (State.PENDING, State.STOPPED, State.FAILED),
        On.RESUME,
        State.NORMAL,
        effect="the pipeline starts at once; error and back-off are forgotten",
    ),
    Row(tuple(State), On.REMOVE, State.REMOVED, effect="its processors delete what they keep"),
    Row((State.PENDING,), On.RESTART, State.WARNING, effect="the pipeline starts without waiting"),
    Row(
        ALIVE,
        On.MAY_PASS,
        State.PENDING,
        "the error may pass, and no more than `stuck_s` since the first failure without progress",
        "the pipeline ends; the next try waits 1 s, and twice as long after each failure, at most 60 s",
    ),
    Row(
        ALIVE,
        On.STAYS,
        State.FAILED,
        "the error cannot pass, or more than `stuck_s` since the first failure without progress",
        "the pipeline ends; the changefeed waits for the user",
    ),
    Row(RUNNING, On.WARNING, State.WARNING, effect="the error is shown; the pipeline goes on"),
    Row((State.PENDING,), On.BACKOFF_OVER, State.WARNING, "the back-off is over", "the pipeline starts"),
    Row(
        RUNNING,
        On.PROGRESS,
        State.NORMAL,
        "the sink has taken a Resolved",
        "error and failures are forgotten",
    ),
    Row(ALIVE, On.TARGET, State.FINISHED, "all up to the target ts is delivered and stored"),
)
"""A pair that is not there: a command is refused, and anything else changes nothing. So a late failure of a
pipeline that was paused does not make the changefeed fail.
"""


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
        return self.state in RUNNING

    @property
    def ended(self) -> bool:
        """Whether nothing will happen without the user."""
        return self.state not in ALIVE

    @classmethod
    def restored(cls, state: str, error: FeedError | None) -> Life:
        """After a restart of the control process: what was waiting is tried at once."""
        known = State(state)
        return cls(TRANSITIONS.after(known, On.RESTART) or known, error)

    def commanded(self, command: Command) -> Life:
        """Obey the user; raises InvalidInput where the command makes no sense."""
        on = On(command)
        target = TRANSITIONS.after(self.state, on)
        if target is None:
            raise InvalidInput(
                f"A {self.state} changefeed cannot be asked to {command}.",
                fix=f"{command} works on feeds that are {', '.join(TRANSITIONS.sources(on))}",
            )
        return self if on is On.RESUME and target is self.state else Life(target)

    def failed(
        self, error: FeedError, *, retry: bool, now: float, stuck_s: float, jitter: float = 0.0
    ) -> Life:
        """The pipeline or the sink has failed; `jitter` in [0, 1) spreads the retries of many feeds."""
        since = now if self.stuck_since is None else self.stuck_since
        on = On.MAY_PASS if retry and now - since <= stuck_s else On.STAYS
        target = TRANSITIONS.after(self.state, on)
        if target is None:
            return self
        if on is On.STAYS:
            return Life(target, error)
        wait = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(self.failures, 16))
        return Life(target, error, self.failures + 1, now + wait * (1 + JITTER * jitter), since)

    def warned(self, error: FeedError) -> Life:
        """Something the feed needs is in trouble, but its pipeline may go on."""
        target = TRANSITIONS.after(self.state, On.WARNING)
        return self if target is None else replace(self, state=target, error=error)

    def ticked(self, now: float) -> Life:
        """The passing of time."""
        target = TRANSITIONS.after(self.state, On.BACKOFF_OVER)
        return self if target is None or now < self.retry_at else replace(self, state=target)

    def progressed(self) -> Life:
        """The checkpoint has moved and the sink has taken it: whatever was wrong is over."""
        target = TRANSITIONS.after(self.state, On.PROGRESS)
        return self if target is None else Life(target)

    def finished(self) -> Life:
        """The target ts is delivered."""
        target = TRANSITIONS.after(self.state, On.TARGET)
        return self if target is None else Life(target)
