"""Applies what the flow releases, up to a named snapshot: rows, DDLs, rows, and then the commit point.

One `commit` ends at the first snapshot it names, so that a long backlog becomes many consistent snapshots of
about `rows` changes each. A snapshot is named only where all partitions are at one ts and no DDL of that ts
waits; in row and table mode that may take several calls. At a target whose readers see each step, partitions
stay apart in table mode, and a snapshot is the ts up to which all are applied. Without watermarks every state
can be named.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.engine.flow import Ddls, Flow, Rows
from tidegate.consumer.engine.offset_flow import OffsetFlow
from tidegate.consumer.engine.position import Position


class Committer:
    """Passes steps of a flow to an applier."""

    def __init__(
        self, flow: Flow | OffsetFlow, applier: Applier, position: Position, rows: int, idle_s: float
    ) -> None:
        """`rows`: about how many changes one snapshot takes; `idle_s`: see `commit`."""
        self.position = position
        """That of the newest snapshot; if partitions are apart, that of the newest step."""
        self.unpublished = False
        """Whether tables hold changes that no snapshot names yet."""
        self._flow, self._applier, self._rows, self._idle_s = flow, applier, rows, idle_s
        self._published_at = 0.0
        self._before: Position | None = None
        """The position before the DDLs that were handed out last: a restart from it reads them again."""

    def commit(self, now: float) -> bool:
        """Apply what is allowed, up to one snapshot. Returns whether one was named. `now` is a monotonic
        time.

        While the topic brings only Resolved, a snapshot is named every `idle_s` seconds, and at `until`.
        Raises Fatal before a DDL at which the applier stops, after naming a snapshot of what comes before it.
        """
        while (step := self._next()) is not None:
            if isinstance(step, Ddls):
                if (stop := self._applier.ddl_planner.stops_at(step.messages)) is not None:
                    # The changes before the DDL are kept, so the consumer stops with a consistent target.
                    self._publish_before(step.ts)
                    raise stop
                # The DDL first, then the position: if the process dies in between, the DDL is read again.
                # `recover` has then undone it, or `has_done` finds it executed.
                self._applier.ddl(step.messages)
                reached = self._reached()
                self._applier.target.advance(reached)
                self._applied(reached)
                self.unpublished = True
                continue
            pieces = self._flow.assembler.take(step.bounds)
            reached = self._reached()
            self._applier.rows(pieces, reached)
            self._applied(reached)
            self.unpublished = self.unpublished or bool(pieces)
            # Only now: the target reads its pieces from these files until `rows` returns.
            for file in self._flow.assembler.release():
                Path(file).unlink(missing_ok=True)
            if pieces and self._publish(now):
                return True
        return self._publish(now)

    def age(self, now: float) -> float:
        """Seconds since the newest snapshot of this run, or since its first commit."""
        self._published_at = self._published_at or now
        return now - self._published_at

    def _next(self) -> Rows | Ddls | None:
        # The flow counts a DDL as executed when it hands it out, so the position is taken before.
        self._before = self._at(self.position.ts) if self._flow.ddls_waiting else None
        return self._flow.next_step(self._rows)

    def _publish_before(self, ddl_ts: int) -> None:
        """Name the state just before a DDL, if all tables are at that moment."""
        ts = self._flow.snapshot(self.position.ts)
        if not self._flow.by_offset:
            ts = ddl_ts - 1 if ts == ddl_ts else None  # no other transaction has the DDL's ts
        if self._before is None or ts is None or ts <= self.position.ts or not self.unpublished:
            return
        self.position, self.unpublished = self._applier.commit(replace(self._before, ts=ts)), False

    def _reached(self) -> Position:
        """The position once the step that was taken last is applied. It names no snapshot."""
        return self._at(self.position.ts)

    def _applied(self, reached: Position) -> None:
        if self._flow.apart:
            # The target has stored it, and it shows how far partitions are ahead of the snapshot.
            self.position = reached

    def _at(self, ts: int) -> Position:
        applier = self._applier
        return replace(
            self._flow.position(ts),
            time_zone=applier.zone.name,
            sources=applier.sources,
            ddl_floors=applier.ddl_floors.entries,
            set_aside=applier.set_aside.entries,
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
