"""A process's cache of a registry's schemas and their ids. Pure: code with network access fills it.

A message of a protocol with a schema registry contains the id that the registry gave to its schema. Before
rows are encoded, the caller registers the schemas that `entry.Schemas.needed` lists (`register_missing`).
Before messages are decoded, it looks up the ids in them (`look_up_missing`). The codec itself only reads the
book.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")
MAX_SCHEMAS: Final = 4096
"""Schemas that one book holds in each direction; beyond that, the least recently used one is dropped."""
MAX_ABSENT: Final = 64
"""After so many answers that there is no such schema, the registry is asked no more for the same batch."""


class Subject(NamedTuple):
    """A schema and the subject under which it is registered."""

    name: str
    schema: str
    """Its JSON text."""


class SchemaRegistry(Protocol):
    """Access to the registry."""

    def register(self, subject: str, schema: str) -> int:
        """The id of a schema, registered if necessary. Raises Retryable, or InvalidInput if refused."""
        ...

    def look_up(self, number: int) -> str | None:
        """The schema of an id; None if the registry has no such id. Raises Retryable."""
        ...


class SchemaBook:
    """The cache of one registry. Compared by identity, so options that contain it can be keys of a cache."""

    def __init__(self) -> None:
        self._ids: OrderedDict[Subject, int] = OrderedDict()
        self._schemas: OrderedDict[int, str] = OrderedDict()
        self._absent: OrderedDict[int, None] = OrderedDict()
        """Ids that the registry did not have when it was asked last."""

    def add(self, number: int, schema: str, subject: str | None = None) -> None:
        """Add a schema's id, and the subject under which it is registered, if known."""
        _keep(self._schemas, number, schema)
        # The id was only late: its producer has registered it since.
        self._absent.pop(number, None)
        if subject is not None:
            _keep(self._ids, Subject(subject, schema), number)

    def id_of(self, subject: Subject) -> int | None:
        """The id of a schema under a subject; None: it is not in the book."""
        found = self._ids.get(subject)
        if found is not None:
            self._ids.move_to_end(subject)
        return found

    def add_absent(self, number: int) -> None:
        """Note that the registry has no schema of this id, or not yet."""
        _keep(self._absent, number, None)

    def is_absent(self, number: int) -> bool:
        """Whether the registry did not have this id when it was asked last."""
        return number in self._absent

    def schema_of(self, number: int) -> str | None:
        """The schema of an id; None: it is not in the book, or the registry has none."""
        found = self._schemas.get(number)
        if found is not None:
            self._schemas.move_to_end(number)
        return found


class LocalBook(SchemaBook):
    """A book that assigns the ids itself, from 1 on: for messages that stay in this process."""

    def __init__(self) -> None:
        super().__init__()
        self._last = 0

    def id_of(self, subject: Subject) -> int | None:
        """The id of a schema, a new one for a new schema."""
        found = super().id_of(subject)
        if found is None:
            self._last = found = self._last + 1
            self.add(found, subject.schema, subject.name)
        return found


LOCAL: Final = LocalBook()
"""The book in options that were given no other book."""


def register_missing(book: SchemaBook, registry: SchemaRegistry, needed: Iterable[Subject]) -> None:
    """Register the schemas for which the book has no id."""
    for subject in needed:
        if book.id_of(subject) is None:
            book.add(registry.register(subject.name, subject.schema), subject.schema, subject.name)


def look_up_missing(book: SchemaBook, registry: SchemaRegistry, numbers: Iterable[int]) -> int:
    """Ask the registry for the ids of a batch whose schemas are not in the book; returns the number of
    requests.

    Ids that the registry did not have before are asked for again, after the others, because they may only be
    late. After `MAX_ABSENT` negative answers the other ids of the batch are not asked for. So a producer of
    garbage costs its readers at most that many useless requests per batch, not one per message. Ids that
    exist cause no negative answers, but some may be left out in a batch with garbage: then their messages are
    quarantined, and the reason contains the id.
    """
    missing = [number for number in numbers if book.schema_of(number) is None]
    asked = absent = 0
    # False sorts first: ids that were never asked for come before those that the registry did not have.
    for number in sorted(missing, key=book.is_absent):
        if absent == MAX_ABSENT:
            break
        asked += 1
        found = registry.look_up(number)
        if found is None:
            absent += 1
            book.add_absent(number)
        else:
            book.add(number, found)
    return asked


def _keep(held: OrderedDict[K, V], key: K, value: V) -> None:
    held[key] = value
    held.move_to_end(key)
    if len(held) > MAX_SCHEMAS:
        held.popitem(last=False)
