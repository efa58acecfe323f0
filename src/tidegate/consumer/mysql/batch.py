"""The batch that is being written: which lanes have it, with which rows, and how far each of them is.

    begin   progress: batch n-1 -> n, its position; lanes: their digests
    lane    START TRANSACTION; lanes: batch -> n where token and batch < n; rows; COMMIT
    end     progress: position, nothing begun, where token and batch n

A lane's transaction begins with that update, so its rows and the fact that it has written them are committed
together. `progress` says what each row holds, and why an earlier consumer updates none.

A batch that was begun is written again after a crash, with the same rows. If a lane's digest differs, it has
other rows than in the first attempt, and lanes that are committed already may have them too. Then nothing is
written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.consumer.mysql.fence import guarded, unmatched
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.session import SCHEMA, Connection
from tidegate.errors import Fatal

OPEN: Final = "open"
"""Instead of a lane's digest: it has not committed the batch, and gets other rows than it began with."""
WRITING: Final = "writing"
"""Instead of a lane's digest while it writes some of its parts; never committed."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a lane is that writes a batch in parts, in the form of `lanes.digest`."""

    parts: int
    """How many of its parts are committed."""
    digest: str
    """The digest of their rows."""

    def __str__(self) -> str:
        return f"{self.parts}/{self.digest}"

    @classmethod
    def from_text(cls, text: str) -> Reached:
        """Parse what `__str__` returns."""
        parts, _, digest = text.partition("/")
        return cls(int(parts), digest)


@dataclass(slots=True)
class _Lanes:
    """The rows of `lanes`, by lane: as found at the last takeover, and as changed by `begin`."""

    batch: dict[int, int] = field(default_factory=dict)
    digest: dict[int, str] = field(default_factory=dict)
    """Empty: the lane has no rows in the batch that was begun."""


class Batch:
    """The batch of one consumer. `lane`, `part_begins` and `part_ends` may be called from several threads."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._batch = 0
        self._lanes = _Lanes()
        self._begun = False

    def read(self, number: int, *, begun: bool) -> None:
        """Read how far the lanes are, after a takeover. `number`: the last batch, `begun`: it has not ended.

        To be called once the token is raised: from then on no earlier lane commits, so this is final.
        """
        lanes = self._hold.rows(
            f"SELECT lane, batch, digest FROM `{SCHEMA}`.`lanes` WHERE consumer=%s", self._hold.consumer
        )
        self._lanes = _Lanes({n: b for n, b, _ in lanes}, {n: d for n, _, d in lanes})
        self._batch, self._begun = number, begun

    @property
    def last(self) -> int:
        """The number of the last batch that was begun."""
        return self._batch

    @property
    def number(self) -> int:
        """The number of the batch that was begun, otherwise of the next one."""
        return self._batch if self._begun else self._batch + 1

    def has_ended(self, number: int) -> bool:
        """Whether a batch's position was committed, as seen at the last takeover."""
        return self._batch >= number and not self._begun

    @property
    def begun_digests(self) -> list[str]:
        """The digests that are stored for the batch that was begun; empty if none is begun."""
        return list(self._lanes.digest.values()) if self._begun else []

    def begin(self, reached: str, digests: Mapping[int, str]) -> list[int]:
        """Store durably what the next batch holds, by lane. Returns the lanes that must write.

        `reached`: the position after the batch. After an interruption the batch is the one that was begun:
        Fatal when a lane has other rows than before, and nothing is written. Fenced when another consumer has
        the target.
        """
        if self._begun:
            # All lanes are compared before any of them writes. If a table came to another lane, its rows
            # could otherwise be written twice.
            self._compare(digests)
            self._close_open(digests)
            return [lane for lane in digests if self._lanes.batch.get(lane, 0) < self._batch]
        number = self._batch + 1
        with self._hold.transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET batch=%s, begun=%s"
                " WHERE consumer=%s AND token=%s AND batch=%s AND begun IS NULL",
                *(number, reached, self._hold.consumer, self._hold.token, number - 1),
            )
            # A lane that is known keeps its batch and token, and gets only the digest. All of it is one
            # transaction with `begun`.
            for lane, digest in digests.items():
                self._hold.execute(
                    f"INSERT INTO `{SCHEMA}`.`lanes` (consumer, lane, token, batch, digest)"
                    " VALUES (%s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE digest=VALUES(digest)",
                    *(self._hold.consumer, lane, self._hold.token, number - 1, digest),
                )
        self._batch, self._begun = number, True
        self._lanes = _Lanes(
            self._lanes.batch | {lane: number - 1 for lane in digests if lane not in self._lanes.batch},
            dict(digests),
        )
        return list(digests)

    def begin_parts(self, reached: str, lanes: Sequence[int]) -> dict[int, Reached]:
        """Like `begin`, for lanes that write in parts. Returns how far each one is, in the order of its
        parts.

        The caller must compare the committed parts with the planned ones, because only it can render them
        again. Fatal when other lanes had rows in the interrupted write.
        """
        fresh = str(Reached(0, ""))
        if not self._begun:
            self.begin(reached, dict.fromkeys(lanes, fresh))
        held = {lane: text for lane, text in self._lanes.digest.items() if text}
        # Then the interrupted write had other lanes, or did not write in parts, and the comparison raises.
        if held.keys() != set(lanes) or not all("/" in text for text in held.values()):
            self._compare(dict.fromkeys(lanes, fresh))
        return {lane: Reached.from_text(held[lane]) for lane in lanes}

    def part_begins(self, lane: int, connection: Connection, at: Reached) -> None:
        """The first statement of a transaction with some of a lane's parts. Fenced when it may not write.

        The transaction ends with `part_ends`.
        """
        # The row changes, because a TiDB 8.4 ends when a session is killed whose transaction has only locked
        # rows.
        with connection.cursor() as cursor:
            matched = cursor.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET digest=%s"
                " WHERE consumer=%s AND lane=%s AND token=%s AND batch<%s AND digest=%s",
                (WRITING, self._hold.consumer, lane, self._hold.token, self._batch, str(at)),
            )
        if not matched:
            raise unmatched(self._hold, self._batch, connection)

    def part_ends(self, lane: int, connection: Connection, at: Reached, *, last: bool) -> None:
        """The last statement of that transaction: stores how far the lane is; `last`: it is complete."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET digest=%s, batch=%s WHERE consumer=%s AND lane=%s",
                (str(at), self._batch if last else self._batch - 1, self._hold.consumer, lane),
            )

    def _compare(self, digests: Mapping[int, str]) -> None:
        held = {lane: digest for lane, digest in self._lanes.digest.items() if digest}
        differ = sorted(
            lane for lane in held.keys() | digests.keys() if held.get(lane) not in (OPEN, digests.get(lane))
        )
        if differ:
            first = differ[0]
            raise self.differs(differ, held.get(first, ""), digests.get(first, ""))

    def differs(self, lanes: Sequence[int], had: str, has: str) -> Fatal:
        """The error when rows changed since an interrupted write; `had`, `has`: the first lane's digests."""
        return Fatal(
            "a write that was interrupted cannot be completed: its rows are others now",
            where=f"{self._hold}, lane {', '.join(map(str, lanes))}",
            why=f"lane {lanes[0]} had {had or 'nothing'}, and has {has or 'nothing'}: a setting or the "
            "release has changed, the topic was compacted, or a row is gone upstream that its message only "
            "names",
            fix="start again as it was, or begin a new target",
        )

    def lane(self, lane: int, connection: Connection) -> None:
        """The first statement of a lane's transaction, in its connection. Fenced when it may not write."""
        with connection.cursor() as cursor:
            # docs/guarantees.md#each-change-is-in-a-target-once: the guard is in the transaction of the rows,
            # so rows of a replaced consumer are rolled back with it.
            matched = cursor.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET batch=%s"
                " WHERE consumer=%s AND lane=%s AND token=%s AND batch<%s",
                (self._batch, self._hold.consumer, lane, self._hold.token, self._batch),
            )
        if not matched:
            raise unmatched(self._hold, self._batch, connection)

    def end(self, position: str) -> None:
        """All lanes are committed: move the position. Fenced when another consumer has the target."""
        with self._hold.transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET position=%s, begun=NULL"
                " WHERE consumer=%s AND token=%s AND batch=%s",
                *(position, self._hold.consumer, self._hold.token, self._batch),
            )
            # In the same transaction as the position: a digest that stayed would count as a lane of the next
            # batch after a restart.
            self._hold.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET digest='' WHERE consumer=%s", self._hold.consumer
            )
        self._begun = False

    # --- lanes with other rows than they began with

    def through(self, lane: int) -> bool:
        """Whether a lane has committed the batch that was begun, as seen at the last takeover."""
        return self._begun and self._lanes.batch.get(lane, 0) >= self._batch

    def open(self, lanes: Iterable[int]) -> None:
        """Store that these lanes get other rows in this batch. Part of a transaction with a guard."""
        self._store_digests(dict.fromkeys(lanes, OPEN))

    def _close_open(self, digests: Mapping[int, str]) -> None:
        """Store the digests of lanes that are `OPEN`."""
        if found := {n: digests.get(n, "") for n, held in self._lanes.digest.items() if held == OPEN}:
            with self._hold.transaction():
                self._guarded(
                    f"UPDATE `{SCHEMA}`.`progress` SET batch=%s WHERE consumer=%s AND token=%s AND batch=%s",
                    *(self._batch, self._hold.consumer, self._hold.token, self._batch),
                )
                self._store_digests(found)

    def _store_digests(self, digests: Mapping[int, str]) -> None:
        for lane, digest in digests.items():
            self._hold.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET digest=%s WHERE consumer=%s AND lane=%s",
                *(digest, self._hold.consumer, lane),
            )
            self._lanes.digest[lane] = digest

    def _guarded(self, statement: str, *values: Any) -> None:
        guarded(self._hold, self._batch, statement, *values)
