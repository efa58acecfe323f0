"""Scripts of the guard of upstream's history: `testdata/gc/*.txt`. PD answers as the script says.

guard [ttl=60s]                 a new one; nothing is known of holds of an earlier process
needs a=500 b=300               from which ts each changefeed may still read, from now on
tick now=0s [force]             what PD is asked; `force`: even if it was asked a moment ago
answer least=400                PD answers the last request with its least safepoint
fail                            PD does not answer it
earliest-start least=300        the least start ts of a new changefeed under that safepoint
"""

from __future__ import annotations

from tests.control.words import check, seconds
from tests.scripts import Command

from tidegate.control.gc import TTL_S, GcGuard, Hold, earliest_start
from tidegate.control.metadata import FeedId


class GcScript:
    """One guard, and the changefeeds that it works for."""

    def __init__(self) -> None:
        self._guard: GcGuard | None = None
        self._needs: dict[FeedId, int] = {}
        self._asked: Hold | None = None

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        match command.name, command.words:
            case "guard", ():
                check(command, ("ttl",))
                self._guard = GcGuard(round(seconds(command, "ttl", TTL_S)))
                self._needs, self._asked = {}, None
                return ""
            case "earliest-start", ():
                return f"earliest start ts: {earliest_start(command.number('least'))}"
        guard = self._guard
        assert guard is not None, "a scenario begins with 'guard'"
        match command.name, command.words:
            case "needs", ():
                self._needs = {FeedId("default", name): int(ts) for name, ts in command.options.items()}
                return ""
            case "tick", words if words in ((), ("force",)):
                check(command, ("now",))
                hold = guard.tick(self._needs, seconds(command, "now"), force=bool(words))
                self._asked = hold or self._asked
                return f"{command.options['now']}: {_shown(hold)}"
            case "answer", ():
                check(command, ("least",))
                assert self._asked is not None, "PD was asked nothing"
                taken = guard.answered(self._asked, command.number("least"))
                return "PD holds it" if taken else "PD holds nothing: ask again"
            case "fail", ():
                guard.failed()
                return ""
        raise ValueError(f"{command.where}: a guard does not know '{command.name}'")


def _shown(hold: Hold | None) -> str:
    if hold is None:
        return "nothing"
    if not hold.ttl_s:
        return "release the hold"
    return f"hold what is above {hold.safe_point} for {hold.ttl_s}s; needed from {hold.needed} on"
