"""DDLs that wait for the partitions to reach them, and those at the newest ts that are executed. Pure.

A DDL may be read several times: from each partition of a broadcast, after a restart, and because its producer
sent it again. It is executed once. DDLs below the newest executed ts are dropped. At that ts, DDLs are
dropped by their identities, which are stored with the position. The ts alone does not suffice: on TiCDC's
topics a DDL may follow Resolved of its own ts, and several DDLs share one ts (RENAME TABLES).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from tidegate.codec.base import DdlMessage
from tidegate.codec.formats import ddl_header


@dataclass(slots=True)
class _Waiting:
    message: DdlMessage
    copies: list[tuple[int, int]]
    """(partition, offset) of each copy of the broadcast."""


class DdlQueue:
    """The waiting DDLs of one flow."""

    def __init__(self, executed_ts: int, executed: Iterable[str]) -> None:
        """The stored newest ts of an executed DDL, and the identities of those that were executed at it."""
        self.executed_ts = executed_ts
        self._executed = dict.fromkeys(executed)
        self._waiting: dict[tuple[int, str], _Waiting] = {}

    def __len__(self) -> int:
        """How many DDLs wait."""
        return len(self._waiting)

    @property
    def executed(self) -> tuple[str, ...]:
        """The identities of the DDLs that were executed at `executed_ts`."""
        return tuple(self._executed)

    @property
    def first_ts(self) -> int | None:
        """The ts of the first waiting DDL."""
        return min((waiting.message.ts for waiting in self._waiting.values()), default=None)

    def add(self, partition: int, message: DdlMessage, *, is_unreached: bool) -> None:
        """Take a copy of a DDL. It is dropped if it was executed.

        `is_unreached`: the partition joined and has not reached it, so it was not executed for its topic.
        """
        name, ts = identity(message), message.ts
        # docs/guarantees.md#a-ddl-takes-effect-at-a-target-once
        late = ts < self.executed_ts or (ts == self.executed_ts and name in self._executed)
        if late and not is_unreached:
            return
        waiting = self._waiting.setdefault((ts, name), _Waiting(message, []))
        waiting.copies.append((partition, message.offset))

    def take(self, ts: int) -> tuple[DdlMessage, ...]:
        """Take out the DDLs at a ts, which are executed now."""
        due = {key: waiting for key, waiting in self._waiting.items() if key[0] == ts}
        for key in due:
            del self._waiting[key]
        # Identities matter only at the newest ts: `add` drops older DDLs by their ts alone. A DDL of a topic
        # that has just joined may be older than that; then what its topic has applied shows that it is done.
        if ts > self.executed_ts:
            self.executed_ts, self._executed = ts, {}
        if ts == self.executed_ts:
            self._executed |= dict.fromkeys(name for _, name in due)
        return tuple(waiting.message for waiting in due.values())

    def copies_in(self, partition: int) -> tuple[list[int], int | None]:
        """The offsets of the waiting copies in a partition, and the least ts of these DDLs."""
        offsets: list[int] = []
        stamps: list[int] = []
        for waiting in self._waiting.values():
            here = [offset for number, offset in waiting.copies if number == partition]
            offsets += here
            stamps += [waiting.message.ts] if here else []
        return offsets, min(stamps, default=None)


def identity(message: DdlMessage) -> str:
    """A hash that distinguishes DDLs of one ts and is equal for copies: names, text, number in the job."""
    event = ddl_header.decode(message.header) if message.header is not None else None
    part = [event.job_id, event.seq] if event is not None else []
    what = [message.schema, message.table, message.query, *part]
    return hashlib.sha256(orjson.dumps(what)).hexdigest()[:16]
