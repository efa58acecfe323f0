"""A sink that is a map of all keys with their versions, as a TiKV behind an MVCC sink would be.

Only for tests: it is in memory. Keys and values come as TiKV has them. Rows and progress are not one step:
rows first, each under its commit ts, so that writing one again changes nothing; then progress, which is
therefore never ahead. The fence is the grant that the map holds: it is compared at every write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Final

import pyarrow as pa

from tidegate.errors import Fenced
from tidegate.model.block import OP_PUT
from tidegate.model.ddl import DdlEvent
from tidegate.model.progress import JOURNAL_KEY, Journal, journal
from tidegate.sink.base import (
    Check,
    Content,
    Description,
    Domain,
    Form,
    Keys,
    Marks,
    Prove,
    SinkFeed,
    SlotTaken,
    Undecided,
)

OWNER: Final = "owner"


@dataclass
class Versions:
    """The downstream."""

    lock: RLock = field(default_factory=RLock)
    keys: dict[bytes, dict[int, bytes | None]] = field(default_factory=dict)
    """By key and commit ts; None: deleted."""
    written: int = 0
    """Versions that were written, again or not."""
    grants: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    """By feed, and capture or owner."""
    holders: dict[tuple[str, str, int], object] = field(default_factory=dict)
    progress: dict[str, dict[str, bytes]] = field(default_factory=dict)
    ddl: list[str] = field(default_factory=list)

    def at(self, ts: int) -> dict[bytes, bytes]:
        """All keys as of a ts."""
        found = {}
        for key, versions in self.keys.items():
            before = [commit for commit in versions if commit <= ts]
            value = versions[max(before)] if before else None
            if value is not None:
                found[key] = value
        return found


class MapSink:
    """One feed's place in a map."""

    def __init__(self, feed: SinkFeed, versions: Versions) -> None:
        self.feed, self.versions = feed, versions
        self.name = f"{feed.namespace}/{feed.name}"

    def describe(self) -> Description:
        return Description(
            form=Form.ENTRIES,
            domain=Domain.ROW,
            pieces=True,
            writers=0,
            atomic=False,
            fenced_by="the grant that the map holds, compared at every write",
            keys=Keys.ALL,
        )

    def check(self) -> int:
        return 1

    def partitions(self, topic: str) -> int:
        return 1

    def open_owner(self, marks: Marks | None, prove: Prove) -> MapOwner:
        self.take(OWNER)
        prove()
        return MapOwner(self)

    def fence(
        self,
        writers: Mapping[str, int],
        prove: Prove,
        alive: Callable[[], None] = lambda: None,
        check: Check = lambda: None,
    ) -> dict[str, bytes]:
        self.take(self.feed.capture)
        with self.versions.lock:
            for name, capture, slot in self.versions.holders:
                if name == self.name and slot < writers.get(capture, 0):
                    self.versions.holders[name, capture, slot] = None
        prove()
        with self.versions.lock:
            return dict(self.versions.progress.get(self.name, {}))

    def writer(
        self,
        slot: int,
        prove: Prove,
        alive: Callable[[], None] = lambda: None,
        check: Check = lambda: None,
    ) -> MapWriter:
        return MapWriter(self, slot, prove, alive)

    def same_place(self, other: MapSink) -> bool:
        return self.versions is other.versions

    def forget(self) -> None:
        with self.versions.lock:
            self.versions.progress.pop(self.name, None)

    def take(self, whose: str) -> None:
        with self.versions.lock:
            self.check_fence(whose, later=True)
            self.versions.grants[self.name, whose] = self.feed.grant

    def check_fence(self, whose: str, *, later: bool = False) -> None:
        """Raise Fenced unless this feed's grant holds; `later`: or is to hold."""
        holds = self.versions.grants.get((self.name, whose))
        if holds is not None and (holds > self.feed.grant or (not later and holds != self.feed.grant)):
            raise Fenced("another incarnation writes here", why=f"{holds} holds")


class MapWriter:
    """Keeps what is written until the commit."""

    def __init__(self, sink: MapSink, slot: int, prove: Prove, alive: Callable[[], None]) -> None:
        self._sink, self._prove, self._alive = sink, prove, alive
        self._slot = sink.name, sink.feed.capture, slot
        self._held: list[tuple[int, bytes, bytes | None]] = []
        self.loses_answers = False
        self._hold()
        prove()

    @property
    def is_due(self) -> bool:
        return len(self._held) >= 200

    @property
    def room(self) -> int:
        return 1 << 14

    def write(self, contents: Sequence[Content]) -> None:
        self._look()
        (content,) = contents
        assert isinstance(content, pa.RecordBatch)
        columns = [content.column(name).to_pylist() for name in ("commit_ts", "op", "key", "value")]
        for ts, op, key, value in zip(*columns, strict=True):
            self._held.append((ts, key, value if op == OP_PUT else None))
        self._alive()

    def commit(self, progress: Mapping[str, bytes]) -> None:
        downstream = self._sink.versions
        with downstream.lock:
            self._look()
            for ts, key, value in self._held:
                downstream.keys.setdefault(key, {})[ts] = value
                downstream.written += 1
            self._held = []
            if self.loses_answers:
                raise Undecided("the connection ended between rows and progress", where=self._sink.name)
            downstream.progress.setdefault(self._sink.name, {}).update(progress)

    def abort(self) -> None:
        self._held = []

    def close(self) -> None:
        """Nothing is held."""

    def _look(self) -> None:
        with self._sink.versions.lock:
            self._sink.check_fence(self._sink.feed.capture)
            if self._sink.versions.holders[self._slot] is not self:
                self._held = []
                self._prove()
                self._hold()
                raise SlotTaken("the slot was taken, and has been taken back")

    def _hold(self) -> None:
        with self._sink.versions.lock:
            self._sink.versions.holders[self._slot] = self


class MapOwner:
    """DDL is among the keys already: only the journal tells of it."""

    def __init__(self, sink: MapSink) -> None:
        self._sink = sink
        records = sink.versions.progress.get(sink.name, {})
        self.journal = journal(records, sink.feed.instance)

    def use(self, topics: Iterable[str]) -> None:
        """There are none."""

    def send_ddl(self, event: DdlEvent, build_ms: int = 0, topic: str = "") -> None:
        if not self.journal.holds(event):
            reported = self.journal
            self._tell(
                Journal(event.finished_ts, event.seq, reported.resolved_ts, reported.instance), event.query
            )

    def send_resolved(self, ts: int, build_ms: int = 0) -> None:
        assert ts >= self.journal.resolved_ts
        reported = self.journal
        self._tell(Journal(reported.ddl_ts, reported.ddl_seq, ts, reported.instance))

    def forget(self, keys: Iterable[str]) -> None:
        downstream = self._sink.versions
        with downstream.lock:
            self._sink.check_fence(OWNER)
            for key in keys:
                downstream.progress[self._sink.name].pop(key, None)

    def close(self) -> None:
        """Nothing is held."""

    def _tell(self, after: Journal, *said: str) -> None:
        downstream = self._sink.versions
        with downstream.lock:
            self._sink.check_fence(OWNER)
            downstream.ddl += said
            downstream.progress.setdefault(self._sink.name, {})[JOURNAL_KEY] = after.to_bytes()
        self.journal = after
