"""How far a transaction is delivered, so that a transaction of any size can be delivered in pieces. Pure.

The event store's order is (commit ts, start ts, class of operation, key), with deletes before updates before
inserts. During delivery, an update that changes a unique key becomes a delete and an insert, and these two
are placed among the other deletes and inserts of the transaction. So a delivery goes through the *ranks* of a
transaction in turn, and reads its updates up to three times:

    DELETES  OLD_HALVES  UPDATES  NEW_HALVES  INSERTS  DONE

Positions compare in the order in which changes are delivered. Progress records store them as JSON:
`[commit ts, start ts, rank, key in hex]`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

Place: TypeAlias = tuple[int, int, int] | tuple[int, int, int, bytes]
"""A place in the event store: (commit ts, start ts, class), before all keys of the class, or with a key."""

DELETE_CLASS, UPDATE_CLASS, INSERT_CLASS = range(3)
END_CLASS = 3
"""After all changes of a transaction."""


class Rank(IntEnum):
    """The parts of a transaction, in the order in which they are delivered."""

    DELETES = 0
    OLD_HALVES = 1
    """The deletes made from updates that change a unique key."""
    UPDATES = 2
    """The updates that change no unique key."""
    NEW_HALVES = 3
    """The inserts made from updates that change a unique key."""
    INSERTS = 4
    DONE = 5
    """The whole transaction is delivered."""
    WHOLE_UPDATES = 6
    """Used instead of the three ranks in the middle by a feed that splits no updates."""


_CLASS_OF = {
    Rank.DELETES: DELETE_CLASS,
    Rank.OLD_HALVES: UPDATE_CLASS,
    Rank.UPDATES: UPDATE_CLASS,
    Rank.NEW_HALVES: UPDATE_CLASS,
    Rank.WHOLE_UPDATES: UPDATE_CLASS,
    Rank.INSERTS: INSERT_CLASS,
    Rank.DONE: END_CLASS,
}


class Position(NamedTuple):
    """The last change that is delivered; no change after it, in the order of delivery, is delivered."""

    commit_ts: int
    start_ts: int
    rank: Rank
    key: bytes

    @property
    def place(self) -> Place:
        """The change's place in the event store."""
        return self.commit_ts, self.start_ts, _CLASS_OF[self.rank], self.key

    def to_json(self) -> list[Any]:
        """The form in progress records."""
        return [self.commit_ts, self.start_ts, int(self.rank), self.key.hex()]

    @classmethod
    def from_json(cls, found: list[Any]) -> Position:
        """The inverse of `to_json`."""
        commit_ts, start_ts, rank, key = found
        return cls(commit_ts, start_ts, Rank(rank), bytes.fromhex(key))
