"""A stored changefeed that this version cannot read: settings of a later version, or a damaged value.

It does not run, while the others do. Nothing that it may need later is released: upstream's history and the
event store are kept as for a readable one. For that, numbers that can be read from its values are used, and
for missing ones a safe default. A later version continues it from its stored state; otherwise a user removes
it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from tidegate.control.changefeed import State
from tidegate.control.metadata import FeedId
from tidegate.errors import TidegateError
from tidegate.log import redact
from tidegate.server.changefeeds.new_feed import Refused

NOT_KNOWN: Final = 1
"""The ts from which history is needed if its values do not say: PD then holds all that it still has."""


@dataclass(frozen=True, slots=True)
class UnreadableFeed:
    """The known facts about it."""

    id: FeedId
    why: str
    """Why it cannot be read, in one line; without its settings, which may contain secrets."""
    checkpoint: int
    """The ts from which its history is needed."""
    scope: int | None
    """The keyspace whose history it needs, -1: that of the cluster; None: it may be any."""
    ended_ms: int
    """When it was last stopped or failed, by upstream's time; 0: it runs, or the time is not known."""
    is_over: bool
    """Whether it is finished, so that it needs nothing."""

    @classmethod
    def of(cls, feed: FeedId, info: bytes, status: bytes | None, error: Exception) -> UnreadableFeed:
        """Collects what its values say; neither need be readable. `error`: why it cannot be read."""
        wanted, reached = _object(info), _object(status or b"")
        own = wanted.get("config")
        own = own.get("tidegate") if isinstance(own, dict) else None
        scope = own.get("keyspace_id") if isinstance(own, dict) else None
        state = wanted.get("state")
        words = str(error) if isinstance(error, TidegateError) else f"{type(error).__name__}: {error}"
        ended = state in (State.STOPPED, State.FAILED)
        return cls(
            feed,
            redact(" ".join(words.split())),
            _number(reached, "checkpoint_ts") or _number(wanted, "start_ts") or NOT_KNOWN,
            scope if type(scope) is int else None,
            _number(wanted, "ended_ms") if ended else 0,
            state == State.FINISHED,
        )

    def is_held(self, now_ms: int, gc_ttl_s: int) -> bool:
        """Whether history is held for it: not if it is finished, or was stopped for longer than gc-ttl."""
        return not self.is_over and (not self.ended_ms or now_ms - self.ended_ms <= gc_ttl_s * 1000)

    def refused(self) -> Refused:
        """The error for a request that would read or change it."""
        return Refused(
            "CDC:ErrChangefeedUnreadable",
            f"[CDC:ErrChangefeedUnreadable]this version cannot read changefeed {self.id}",
            why=self.why,
            fix="start the version that wrote it, or remove it; its history is held meanwhile",
        )


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _number(body: dict[str, Any], name: str) -> int:
    value = body.get(name)
    return value if type(value) is int and value > 0 else 0
