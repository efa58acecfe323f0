"""The chain of catalogs in a bucket: which file has the newest metadata of each table.

`_catalog/` holds JSON objects with the numbers 1, 2, 3 and so on:

    {"format": 1, "writer": {…}, "begun": [1, 57], "tables": [["bank", "accounts", "bank/accounts-1a2b3c4d/
    metadata/00041-….metadata.json"], …]}

`tables` has every table: namespace, name, and the key of its metadata below the target's root. The object
with the highest number is the catalog. The commit point is `append`: a conditional put of the next number.
Exactly one process can write a number, so a consumer that was replaced cannot add one: its successor has
taken that number, if only to take the target over (`begin`). No object is ever rewritten.

Objects are removed `upkeep.GRACE_S` after a newer one has replaced them, because a reader may just have
listed them. Those by which a process has taken the target over (`begun`) stay: a process that was replaced
tries to put exactly that number, however late it wakes up, and must find it taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from tidegate.errors import Fatal, Retryable
from tidegate.sink.lakehouse.store import Store, create_own
from tidegate.sink.lakehouse.takeover import TAKEOVERS, Writer, not_taken_over, taken_over

FOLDER: Final = "_catalog"
"""Directly below the root, where other kinds of targets take it for something else and refuse the prefix. No
schema has such a folder (`model.path_part`)."""
FORMAT: Final = 1
_NAME: Final = re.compile(r"(\d{20})\.json")
Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class State:
    """One object of the chain."""

    number: int
    writer: Writer
    begun: tuple[int, ...] = ()
    """The numbers by which processes have taken the target over, this one included."""
    tables: Mapping[Name, str] = field(default_factory=dict, repr=False)
    """By namespace and name, the key of a table's newest metadata."""

    def to_json(self) -> bytes:
        """The object's bytes."""
        tables = [[*name, key] for name, key in sorted(self.tables.items())]
        body = {"format": FORMAT, "writer": self.writer.to_json(), "begun": self.begun, "tables": tables}
        return orjson.dumps(body)


class CatalogChain:
    """The chain of one target. One thread at a time uses it, except for `check_writer`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.newest: State | None = None
        """The last object that this process has put or found; None: not looked yet, or there is none."""

    # --- reading

    def find(self) -> State | None:
        """Read the newest object; None: there is no catalog."""
        last = self._last()
        # A listing may miss the newest ones.
        while self._is_taken(last + 1):
            last += 1
        self.newest = self._read(last) if last else None
        return self.newest

    def _last(self) -> int:
        """The highest number that a listing has; 0: it has none."""
        found = (_NAME.fullmatch(name) for name in self._store.names(FOLDER))
        return max((int(one[1]) for one in found if one is not None), default=0)

    def _is_taken(self, number: int) -> bool:
        return self._store.stamp(key_of(number)) is not None

    def _read(self, number: int) -> State:
        where = self._store.uri(key_of(number))
        data = self._store.get(key_of(number))
        if data is None:
            raise Retryable(
                "a catalog is gone",
                where=where,
                why="newer ones have replaced it since the folder was listed, or somebody has removed it",
                fix="read again; if it stays missing, restore it",
            )
        try:
            body = orjson.loads(data)
            if body["format"] != FORMAT:
                raise ValueError(f"format {body['format']}, this release reads {FORMAT}")
            tables = {(namespace, name): key for namespace, name, key in body["tables"]}
            return State(number, Writer.from_json(body["writer"]), tuple(body["begun"]), tables)
        except (ValueError, KeyError, TypeError) as error:
            raise Fatal(
                "a catalog cannot be read",
                where=where,
                why=str(error),
                fix="use the release that wrote it, or restore the object",
            ) from error

    # --- writing

    def begin(self, writer: Writer) -> State:
        """Put the newest state once more, with this writer. Every earlier writer is fenced from here on.

        InvalidInput if the target is another consumer's. Retryable if others committed first `TAKEOVERS`
        times.
        """
        for _ in range(TAKEOVERS):
            held = self.find() or State(0, writer)
            held.writer.check_name(writer.name, self._store)
            number = held.number + 1
            made = State(number, writer, (*held.begun, number), held.tables)
            # The number may be free because upkeep has removed it, if this process was paused for hours.
            if create_own(self._store, key_of(number), made.to_json()) and self._last() <= number:
                self.newest = made
                return made
        raise not_taken_over(self._store.uri(FOLDER))

    def append(self, tables: Mapping[Name, str]) -> None:
        """The commit point. Fenced if another process has taken the target over."""
        assert self.newest is not None, "`begin` comes first"
        made = replace(self.newest, number=self.newest.number + 1, tables=dict(tables))
        # docs/guarantees.md#in-s3-a-replaced-consumer-names-nothing-and-deletes-nothing-of-its-successors:
        # the number is its successor's, if there is one.
        if not create_own(self._store, key_of(made.number), made.to_json()):
            # It raises Fenced with the writer that has put the number.
            self.check_writer()
            raise AssertionError("a number that is taken has an object")
        self.newest = made

    def check_writer(self) -> None:
        """Fenced if another process has taken the target over."""
        assert self.newest is not None, "`begin` comes first"
        number = self.newest.number + 1
        if self._is_taken(number):
            raise taken_over(self._store, self._read(number).writer)

    # --- upkeep

    def thin(self, before: float) -> int:
        """Remove objects that a newer one of before this Unix time has replaced. Returns how many.

        Those by which a process has taken the target over stay.
        """
        assert self.newest is not None, "`begin` comes first"
        files = self._store.files(FOLDER)
        times = {int(one[1]): files[name] for name in files if (one := _NAME.fullmatch(name))}
        # By the age of the object that replaced it, not by its own: a reader may have opened the older one
        # just before.
        replaced = max((number for number, changed in times.items() if changed < before), default=0)
        gone = [number for number in times if number < replaced and number not in self.newest.begun]
        if gone:
            # After the listing: what a successor has put is not in it, so its takeover is never removed.
            self.check_writer()
            self._store.delete([key_of(number) for number in gone])
        return len(gone)


def key_of(number: int) -> str:
    """The key of an object of the chain."""
    return f"{FOLDER}/{number:020d}.json"
