"""The life of a changefeed, as a value: which state follows which, when to retry, when to stop retrying.

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

The reactor keeps one `Life` for each feed, runs its pipeline exactly while `runs` is true, and stores `state`
and `error`. `TRANSITIONS` has every row; docs/internals/changefeed.md explains them. The back-off is 1 s,
doubles at each failure without progress in between, and is at most 60 s; jitter adds up to a tenth. (TiCDC
uses 10 s to 10 min. Our back-off is shorter, because a restart costs one process, not a rescan.)
`control.retry_turns` adds a wait for changefeeds without rows when many fail at once.
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
    """The states, named as they are stored and as in TiCDC."""

    NORMAL = "normal"
    WARNING = "warning"
    PENDING = "pending"
    FAILED = "failed"
    STOPPED = "stopped"
    FINISHED = "finished"
    REMOVED = "removed"


class Command(StrEnum):
    """The commands of a user."""

    PAUSE = "pause"
    RESUME = "resume"
    REMOVE = "remove"


class On(StrEnum):
    """The events of a changefeed. The first three are the user's `Command`s."""

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
"""States in which the pipeline runs."""
ALIVE: Final = (*RUNNING, State.PENDING)
"""States in which the pipeline runs, or will run again without the user."""

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
    Row(RUNNING, On.WARNING, State.WARNING, effect="the error is shown; the pipeline continues"),
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
"""If a pair of state and event has no row, a command is refused, and any other event changes nothing. So a
late failure of a paused pipeline does not make the changefeed fail.
"""


@dataclass(frozen=True, slots=True)
class Life:
    """The state of a feed, its error and its retries. Times are monotonic seconds, given by the caller."""

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
        """Whether nothing will happen until the user acts."""
        return self.state not in ALIVE

    @classmethod
    def restored(cls, state: str, error: FeedError | None) -> Life:
        """The life after a restart of the control process. A feed that waited for its back-off
        retries now.
        """
        known = State(state)
        # `retry_at` is monotonic time of the earlier process and means nothing here.
        return cls(TRANSITIONS.after(known, On.RESTART) or known, error)

    def commanded(self, command: Command) -> Life:
        """Apply a user's command. Raises InvalidInput if the state does not allow it."""
        on = On(command)
        target = TRANSITIONS.after(self.state, on)
        if target is None:
            raise InvalidInput(
                f"a {self.state} changefeed cannot be asked to {command}",
                fix=f"use {command} on changefeeds that are {', '.join(TRANSITIONS.sources(on))}",
            )
        # A feed that runs keeps its error and its failures: resuming it changes nothing.
        # Otherwise the user has acted, so old failures must not shorten the time that new ones may last.
        return self if on is On.RESUME and target is self.state else Life(target)

    def failed(
        self, error: FeedError, *, retry: bool, now: float, stuck_s: float, jitter: float = 0.0
    ) -> Life:
        """The pipeline or the sink has failed. `jitter`: in [0, 1), spreads the retries of many feeds."""
        # From the first failure on: each later one would otherwise extend the time for which it may be
        # stuck.
        since = now if self.stuck_since is None else self.stuck_since
        on = On.MAY_PASS if retry and now - since <= stuck_s else On.STAYS
        target = TRANSITIONS.after(self.state, on)
        if target is None:
            return self
        if on is On.STAYS:
            return Life(target, error)
        # The exponent is bounded, because failures are not, and a float would overflow.
        wait = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(self.failures, 16))
        return Life(target, error, self.failures + 1, now + wait * (1 + JITTER * jitter), since)

    def warned(self, error: FeedError) -> Life:
        """Something that the feed needs has a problem, but its pipeline may continue."""
        target = TRANSITIONS.after(self.state, On.WARNING)
        return self if target is None else replace(self, state=target, error=error)

    def ticked(self, now: float) -> Life:
        """Time has passed: if the back-off is over, the feed runs again."""
        target = TRANSITIONS.after(self.state, On.BACKOFF_OVER)
        return self if target is None or now < self.retry_at else replace(self, state=target)

    def progressed(self) -> Life:
        """The sink has taken a Resolved of a new checkpoint: forget the error and the failures."""
        target = TRANSITIONS.after(self.state, On.PROGRESS)
        return self if target is None else Life(target)

    def finished(self) -> Life:
        """Everything up to the target ts is delivered."""
        target = TRANSITIONS.after(self.state, On.TARGET)
        return self if target is None else Life(target)
