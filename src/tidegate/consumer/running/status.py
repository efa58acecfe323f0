"""The state of a consumer, seen from outside: from its target, its topics and its last report.

    status.json  written by a running consumer every second, in its folder
    target       the position, and who writes it; read without taking the target over
    broker       the ends of the partitions

The target may be on another machine, and the consumer may be dead: then only the position shows how far it
is. Nothing here changes a target or a topic.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from tidegate.consumer.applying import set_aside
from tidegate.consumer.applying.target import Address, TargetStatus
from tidegate.consumer.ddl.schema_changes import SchemaChanges
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.reading.offsets import Offsets
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.lag import (
    UNKNOWN,
    Partition,
    applied_lag_s,
    held_back_by,
    messages_behind,
    span,
)
from tidegate.consumer.selecting.rules import IGNORING
from tidegate.errors import InvalidInput, Retryable, TidegateError

STATUS: Final = "status.json"
"""File name, in the consumer's folder."""
FORMAT: Final = 1
FRESH_S: Final = 5.0
"""Seconds after which a report no longer shows the current state."""
STUCK_S: Final = 60.0
"""Seconds of silence after which a living consumer may be stuck; a single write may take as long."""


@dataclass(frozen=True, slots=True)
class StatusReport:
    """The last report of a consumer."""

    at_ms: int
    host: str
    pid: int
    running: bool
    trouble: str
    """While it runs: why nothing moves. Afterwards: the error that ended it. Empty: nothing is wrong."""
    partitions: tuple[Partition, ...]
    schema_changes: str = ""
    """Its policy for changes of columns; empty: written by a release that did not report it."""
    ignored: tuple[str, ...] = ()
    """Tables whose columns are not the source's, in words (`schema_changes.ignored_words`)."""

    def to_bytes(self) -> bytes:
        """The content of the file."""
        return orjson.dumps({"format": FORMAT, **dataclasses.asdict(self)})

    def silent_s(self, now_ms: int) -> float:
        """Seconds since the report."""
        return max(0.0, (now_ms - self.at_ms) / 1000)

    def lives(self) -> bool | None:
        """Whether its process exists; None: it is on another machine."""
        return Path(f"/proc/{self.pid}").exists() if self.host == socket.gethostname() else None


class StatusWriter:
    """Writes `status.json` of a running consumer. A full or failing disk never stops the consumer."""

    def __init__(self, folder: Path, warn: Callable[[TidegateError], None], schema_changes: str = "") -> None:
        """`warn` gets an error when the file cannot be written: once, until a write succeeds again."""
        self._path, self._warn, self._failing = folder / STATUS, warn, False
        self._schema_changes = schema_changes

    def write(
        self,
        at_ms: int,
        running: bool,
        trouble: str,
        partitions: tuple[Partition, ...],
        ignored: tuple[str, ...] = (),
    ) -> None:
        """Replace the file atomically: a reader finds the old one or the new one."""
        host, pid = socket.gethostname(), os.getpid()
        report = StatusReport(at_ms, host, pid, running, trouble, partitions, self._schema_changes, ignored)
        # A reader that opened the file while it is written would take half a report for a dead consumer.
        part = self._path.with_suffix(".part")
        try:
            part.write_bytes(report.to_bytes())
            # Not synced: after a loss of power the next report replaces the file.
            part.replace(self._path)
        except OSError as error:
            # Once for each outage: the report is written every second, and a full disk may last for hours.
            if not self._failing:
                self._warn(_unwritten(self._path, error))
            self._failing = True
        else:
            self._failing = False


def received(folder: Path) -> StatusReport | None:
    """The last report of the consumer of this folder; None if there is none that can be read."""
    try:
        body: dict[str, Any] = orjson.loads((folder / STATUS).read_bytes())
        # A report of another form is ignored and not guessed at: the target's position shows the same, only
        # less of it.
        if body.pop("format") != FORMAT:
            return None
        partitions = tuple(Partition(**one) for one in body.pop("partitions"))
        ignored = tuple(map(str, body.pop("ignored", ())))
        return StatusReport(**body, partitions=partitions, ignored=ignored)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the report is optional: a torn file, or one of another release, counts as none


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a consumer at one moment."""

    target: str
    running: bool
    stuck: bool
    """Whether it runs and something that does not pass by itself keeps it from moving, or may do so."""
    verdict: str
    """Whether it runs, and why it waits, in one line."""
    ts: int
    """The ts of the newest snapshot; 0: there is none."""
    lag_s: float | None
    """Age in seconds of the ts up to which all rows are at the target; None: there is no such ts yet."""
    messages: int | None
    """Messages that are not applied yet; None: the broker does not answer."""
    partitions: tuple[Partition, ...]
    broker: str
    """Why the broker does not report the ends of its partitions; empty: it does."""
    schema_changes: str = ""
    """The policy for changes of columns upstream; empty: it is not known."""
    ignored: tuple[str, ...] = ()
    """Tables whose columns differ from the source's, in words, from the consumer's last report."""
    set_aside: tuple[str, ...] = ()
    """Tables whose changes are not applied, in words, from the target's position."""

    @property
    def fine(self) -> bool:
        """Whether no one has to do anything."""
        return self.running and not self.stuck and not self.set_aside


@dataclass(frozen=True, slots=True)
class Observation:
    """The information about one consumer from its target, its folder and the broker."""

    target: str
    found: TargetStatus
    report: StatusReport | None
    lives: bool | None
    """Whether the reporting process exists; None: it is not known."""
    ends: Mapping[int, int] | None
    """The end of each partition; None: the broker does not answer."""
    broker: str = ""
    """Why the broker does not answer."""

    def fresh(self, now_ms: int) -> StatusReport | None:
        """A report of a moment ago, by a process that is not known to be dead."""
        report = self.report
        if report is None or not report.running or self.lives is False:
            return None
        return report if report.silent_s(now_ms) <= FRESH_S else None

    def silent(self, now_ms: int) -> float | None:
        """Seconds for which a living process has not reported; None: it reports, or there is none."""
        if self.report is None or not self.report.running or not self.lives or self.fresh(now_ms):
            return None
        return self.report.silent_s(now_ms)


def look(topic: Topic, address: Address, now_ms: int) -> Status:
    """Ask the target and the broker.

    Raises InvalidInput and Retryable if the target does. A broker that does not answer becomes part of the
    status.
    """
    found = address.look()
    _check_topics(topic, found, address)
    report = received(address.folder)
    offsets, ends, broker = Offsets(topic), None, ""
    try:
        ends = offsets.ends(offsets.partitions())
    except Retryable as error:
        broker = f"{error.what}: {error.why}"
    lives = report.lives() if report is not None else None
    return status_of(topic, Observation(str(address), found, report, lives, ends, broker), now_ms)


def status_of(topic: Topic, seen: Observation, now_ms: int) -> Status:
    """Combine what was found. Pure."""
    held = seen.found.position
    position = held.over(topic.names) if held is not None else None
    fresh, silent_s = seen.fresh(now_ms), seen.silent(now_ms)
    partitions = _partitions(topic, seen, position, fresh)
    # Any of three signs, because each can be missing: no lock is seen from another machine, no process
    # either, and a consumer in one long step does not report.
    running = bool(seen.found.holder) or fresh is not None or silent_s is not None
    if running:
        stuck, waits_for = _waits_for(seen, position, partitions, now_ms)
        verdict = f"running ({_who(seen, now_ms)}), waits for {waits_for}"
    else:
        stuck, verdict = False, _not_running(seen, position, now_ms)
    return Status(
        target=seen.target,
        running=running,
        stuck=stuck,
        verdict=verdict,
        ts=position.ts if position is not None else 0,
        lag_s=applied_lag_s(partitions, now_ms),
        messages=messages_behind(partitions) if seen.ends is not None else None,
        partitions=partitions,
        broker=seen.broker,
        schema_changes=_schema_changes(seen, position),
        ignored=seen.report.ignored if seen.report is not None else (),
        set_aside=set_aside.in_words(position.set_aside) if position is not None else (),
    )


def _schema_changes(seen: Observation, position: Position | None) -> str:
    """The policy: `ignore` from the target's rules, the others only from the consumer's report."""
    if position is not None and IGNORING in position.rules:
        return SchemaChanges.IGNORE
    return seen.report.schema_changes if seen.report is not None else ""


def _partitions(
    topic: Topic, seen: Observation, position: Position | None, fresh: StatusReport | None
) -> tuple[Partition, ...]:
    """The partitions as a running consumer reports them; otherwise as the target's position has them."""
    kept = position.partitions if position is not None else {}
    reported = {one.name: one for one in fresh.partitions} if fresh is not None else {}
    found = []
    for number in sorted(seen.ends if seen.ends is not None else kept):
        name = "/".join(map(str, topic.place(number)))
        end = seen.ends[number] if seen.ends is not None else UNKNOWN
        # A running consumer is ahead of its last commit, so its own figures are newer than those of the
        # position.
        if name in reported:
            found.append(dataclasses.replace(reported[name], end=end))
        else:
            at = kept.get(number, PartitionPosition(0, 0, 0))
            marked = position is None or not position.by_offset
            ts = (max(at.watermark, at.applied), at.applied) if marked else (0, 0)
            found.append(Partition(name, *ts, at.offset, at.offset, end, marked))
    return tuple(found)


def _who(seen: Observation, now_ms: int) -> str:
    if seen.report is None or (seen.fresh(now_ms) is None and seen.silent(now_ms) is None):
        return seen.found.holder
    return f"process {seen.report.pid} on {seen.report.host}"


def _waits_for(
    seen: Observation, position: Position | None, partitions: tuple[Partition, ...], now_ms: int
) -> tuple[bool, str]:
    """Whether a running consumer is stuck, and what it waits for."""
    fresh, silent_s, doing = seen.fresh(now_ms), seen.silent(now_ms), seen.found.doing
    behind = held_back_by(partitions, now_ms)
    if fresh is not None and fresh.trouble:
        more = f"; it needs {behind}" if behind else ""
        return True, f"a problem to end: {fresh.trouble}{more}"
    # Before the silence: a consumer that waits for the broker may be in a long call, and the broker is the
    # cause.
    if seen.broker:
        return True, f"the broker: {seen.broker}"
    if silent_s is not None:
        what = doing or "the end of a long step"
        return silent_s > STUCK_S, f"{what}; it has reported nothing for {span(silent_s)}"
    if behind:
        return False, behind
    if doing:
        return False, doing
    return False, "its first snapshot" if position is None else "nothing: it keeps up"


def _not_running(seen: Observation, position: Position | None, now_ms: int) -> str:
    report = seen.report
    if report is None:
        text = "nobody runs it" if position is not None else "nobody runs it, and nothing was ever committed"
    elif report.running:
        ago = span(report.silent_s(now_ms))
        text = f"process {report.pid} on {report.host} died; its last report is {ago} old"
    else:
        ago = span(report.silent_s(now_ms))
        how = f"with an error: {report.trouble}" if report.trouble else "in order"
        text = f"process {report.pid} on {report.host} ended {ago} ago {how}"
    text += f"; {seen.found.doing} is to be completed" if seen.found.doing else ""
    return f"not running: {text}"


def _check_topics(topic: Topic, found: TargetStatus, address: Address) -> None:
    others = set(found.position.topics) - set(topic.names) if found.position is not None else set()
    if others:
        raise InvalidInput(
            "the target is filled from topics that --source does not name",
            where=str(address),
            why=f"its position is in topic {', '.join(sorted(others))}",
            fix="give the --source that the consumer runs with",
        )


def _unwritten(path: Path, error: OSError) -> Retryable:
    return Retryable(
        "the consumer's status cannot be written",
        where=str(path),
        why=error.strerror or str(error),
        fix="make room in its folder; meanwhile the consumer continues, and `consumer status` shows less",
    )
