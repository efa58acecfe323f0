"""The state that all parts of a simulation share: time, services, captures, disabled guards, measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidegate.control.metadata import FeedId
from tidegate.model.timestamp import Timestamp
from tidegate.simulator.checks import Checks, Writer
from tidegate.simulator.etcd import Etcd
from tidegate.simulator.network import Network
from tidegate.simulator.sink import Sink
from tidegate.simulator.timeline import Timeline
from tidegate.simulator.upstream import Upstream, seconds
from tidegate.simulator.virtual_time import VirtualTime

if TYPE_CHECKING:
    from tidegate.simulator.capture import Capture

CLUSTER: Final = 1
FEED: Final = FeedId("default", "orders")
INSTANCE: Final = "i"
TTL_S: Final = 10
"""The TTL of a capture's session in seconds: the default of `--session-ttl`."""


@dataclass(slots=True)
class Failovers:
    """Measures the time from a death until a checkpoint above the time of the death is stored."""

    owner_s: list[float] = field(default_factory=list)
    capture_s: list[float] = field(default_factory=list)
    _waiting: list[tuple[bool, float]] = field(default_factory=list)

    def died(self, now: float, *, was_owner: bool) -> None:
        """A capture has died that was the owner or delivered."""
        self._waiting.append((was_owner, now))

    def stored(self, now: float, upto_s: float) -> None:
        """A checkpoint is stored; `upto_s` is its ts as a virtual time."""
        for was_owner, died in [one for one in self._waiting if one[1] <= upto_s]:
            (self.owner_s if was_owner else self.capture_s).append(now - died)
            self._waiting.remove((was_owner, died))


@dataclass(slots=True)
class World:
    """All state of one simulation."""

    time: VirtualTime
    timeline: Timeline
    network: Network
    etcd: Etcd
    upstream: Upstream
    sink: Sink
    checks: Checks
    off: frozenset[str] = frozenset()
    """Names of the guards that are disabled (`simulator.guards`)."""
    ttl_s: int = TTL_S
    """The TTL of a capture's session, in seconds."""
    captures: dict[str, Capture] = field(default_factory=dict)
    failovers: Failovers = field(default_factory=Failovers)

    def note(self, who: str, what: str) -> None:
        """Add a line to the timeline."""
        self.timeline.note(self.time.now, who, what)

    def store(self, ts: Timestamp, owner_rev: int) -> None:
        """A checkpoint is stored in etcd."""
        self.checks.stored(ts, owner_rev)
        self.timeline.counts["checkpoints stored"] += 1
        self.failovers.stored(self.time.now, seconds(ts))

    def live_writers(self) -> Iterator[Writer]:
        """The writers that have begun and that the sink accepts, including zombies."""
        for capture in self.captures.values():
            for worker in capture.workers:
                accepted = worker.process.alive and self.sink.accepts(capture.name, worker.epoch)
                if accepted and worker.writes is not None:
                    yield worker.writes

    @property
    def owner(self) -> Capture | None:
        """The capture with the latest owner. It may have been replaced without knowing it. None: no owner."""
        found = [one for one in self.captures.values() if one.control is not None and one.control.owner]
        return max(found, key=lambda one: one.control.owner_rev if one.control else 0, default=None)
