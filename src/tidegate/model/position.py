"""Where in a commit ts a delivery stands, so that a transaction of any size goes out in pieces. Pure.

The event store's order is (commit ts, start ts, class of operation, key), with deletes before updates before
inserts. On its way out an update that changes a unique key becomes a delete and an insert, which take their
places among the others of the transaction. So a delivery goes through the *ranks* of a transaction in turn,
and through its updates up to three times:

    DELETES  OLD_HALVES  UPDATES  NEW_HALVES  INSERTS  DONE

Positions compare in the order in which changes are delivered. Progress records keep them as JSON:
`[commit ts, start ts, rank, key in hex]`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

Place: TypeAlias = tuple[int, int, int] | tuple[int, int, int, bytes]
"""A place in the event store: (commit ts, start ts, class), before all keys of the class, or with a key."""

DELETE_CLASS, UPDATE_CLASS, INSERT_CLASS = range(3)
END_CLASS = 3
"""Behind all changes of a transaction."""


class Rank(IntEnum):
    """What of a transaction goes out, in this order."""

    DELETES = 0
    OLD_HALVES = 1
    """The deletes that updates of unique keys become."""
    UPDATES = 2
    """Those that stay updates."""
    NEW_HALVES = 3
    """The inserts that updates of unique keys become."""
    INSERTS = 4
    DONE = 5
    """Everything of the transaction is out."""
    WHOLE_UPDATES = 6
    """Instead of the three in the middle: in a feed that splits no update."""


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
    """The last change that is out; what follows it in the order of delivery is not."""

    commit_ts: int
    start_ts: int
    rank: Rank
    key: bytes

    @property
    def place(self) -> Place:
        """The change's place in the event store."""
        return self.commit_ts, self.start_ts, _CLASS_OF[self.rank], self.key

    def to_json(self) -> list[Any]:
        """As progress records keep it."""
        return [self.commit_ts, self.start_ts, int(self.rank), self.key.hex()]

    @classmethod
    def from_json(cls, found: list[Any]) -> Position:
        """The inverse of `to_json`."""
        commit_ts, start_ts, rank, key = found
        return cls(commit_ts, start_ts, Rank(rank), bytes.fromhex(key))
