"""From what the flow allows to a named snapshot: rows, DDLs, rows, and then the commit point.

One `commit` ends at the first snapshot it names, so that a long backlog becomes many consistent snapshots
of about `rows` changes each. A snapshot is named only where all partitions stand at one ts and no DDL of
that ts waits; in row mode that may be some calls later. Without watermarks every state can be named.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tidegate.consumer.apply import Applier
from tidegate.consumer.flow import Ddls, Flow
from tidegate.consumer.offset_flow import OffsetFlow
from tidegate.consumer.position import Position


class Committer:
    """Drives an applier by a flow; `position` is that of the newest snapshot."""

    def __init__(
        self, flow: Flow | OffsetFlow, applier: Applier, position: Position, rows: int, idle_s: float
    ) -> None:
        """`rows`: about how many changes one snapshot takes; `idle_s`: see `commit`."""
        self.position = position
        self.unpublished = False
        """Whether tables hold changes that no snapshot names yet."""
        self._flow, self._applier, self._rows, self._idle_s = flow, applier, rows, idle_s
        self._published_at = 0.0

    def commit(self, now: float) -> bool:
        """Apply what is allowed, up to one snapshot; whether one was named. `now` is a monotonic time.

        When the topic only moves on in time, a snapshot is named every `idle_s` seconds, and at `until`.
        """
        while (step := self._flow.next_step(self._rows)) is not None:
            if isinstance(step, Ddls):
                self._applier.ddl(step.messages)
                self._applier.target.advance(self._reached())
                self.unpublished = True
                continue
            pieces = self._flow.assembler.take(step.bounds)
            self._applier.rows(pieces, self._reached())
            self.unpublished = self.unpublished or bool(pieces)
            for file in self._flow.assembler.release():
                Path(file).unlink(missing_ok=True)
            if pieces and self._publish(now):
                return True
        return self._publish(now)

    def age(self, now: float) -> float:
        """Seconds since the newest snapshot of this run, or since its first commit."""
        self._published_at = self._published_at or now
        return now - self._published_at

    def _reached(self) -> Position:
        """What is in when the step that was taken last is; no snapshot is named by it."""
        return self._at(self.position.ts)

    def _at(self, ts: int) -> Position:
        applier = self._applier
        return replace(
            self._flow.position(ts),
            time_zone=applier.zone,
            sources=applier.sources,
            barriers=applier.barriers,
        )

    def _publish(self, now: float) -> bool:
        ts = self._flow.snapshot(self.position.ts)
        if ts is None:
            return False
        if not self.unpublished and self.age(now) < self._idle_s and ts != self._flow.until:
            return False
        position = self._applier.commit(self._at(ts))
        self.position, self.unpublished = position, False
        self._flow.named()
        self._published_at = now
        return True
