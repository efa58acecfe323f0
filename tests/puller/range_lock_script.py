"""Scripts of a range lock: `testdata/range_lock/*.txt`. A command is a call of `RangeLock`.

span [a,z) resolved=5                                 a new lock; or parts, each from its own ts
  [a,m) resolved=5
lock region=3 version=7 [a,m) [limits=[a,z)]          what the lock answers
unlock region=3 version=7 [a,m) resolved=50           the error, if that is not what is locked
ranges                                                what tiles the span, and the least ts that is free
"""

from __future__ import annotations

from tests.puller.words import span_of, text_of
from tests.scripts import Command
from tidegate.model.span import Span
from tidegate.puller.range_lock import Locked, RangeLock, Stale, Wait


class RangeLockScript:
    """One span's lock, and what regions do to it."""

    def __init__(self) -> None:
        self._lock: RangeLock | None = None

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        if command.name == "span":
            parts = [_part(line) for line in command.body]
            whole = span_of(command.words[0])
            self._lock = RangeLock(whole, parts or command.number("resolved"))
            return ""
        assert self._lock is not None, "a scenario begins with 'span'"
        match command.name, command.words:
            case "lock", (bounds,):
                return self._locked(self._lock, bounds, command)
            case "unlock", (bounds,):
                region, version = command.number("region"), command.number("version")
                try:
                    self._lock.unlock(span_of(bounds), region, version, command.number("resolved"))
                except AssertionError:
                    return f"region {region}: error, this is not what is locked"
                return ""
            case "ranges", ():
                return _ranges(self._lock)
        raise ValueError(f"{command.where}: a range lock does not know '{command.name}'")

    def _locked(self, lock: RangeLock, bounds: str, command: Command) -> str:
        region, limits = command.number("region"), command.options.get("limits")
        try:
            answer = lock.lock(
                span_of(bounds), region, command.number("version"), span_of(limits) if limits else None
            )
        except AssertionError:
            return f"region {region}: error, this is outside the span"
        match answer:
            case Locked(resolved, taken):
                return f"region {region}: locked {text_of(taken)} from {resolved}"
            case Stale(rest):
                return f"region {region}: stale, locate again: {' '.join(map(text_of, rest)) or 'nothing'}"
            case Wait():
                return f"region {region}: wait"


def _part(line: str) -> tuple[Span, int]:
    bounds, resolved = line.split(" resolved=")
    return span_of(bounds), int(resolved)


def _ranges(lock: RangeLock) -> str:
    assert lock.holes == len(lock.free)
    tiles = [(span, f"{text_of(span)} is free at {ts}") for span, ts in lock.free]
    tiles += [(span, f"{text_of(span)} is locked") for span in lock.held]
    least = lock.free_resolved
    found = [text for _, text in sorted(tiles)]
    return "\n".join([*found, "nothing is free" if least is None else f"least free ts: {least}"])
