"""Schemas of a registry and their ids, as far as one process knows them. Pure: who has the network fills it.

A message of a protocol with a schema registry names its schema by a number that the registry gave. Before
rows are encoded, the edge registers what `entry.Schemas.needed` asks for (`register_missing`); before
messages are decoded, it looks up the ids they name (`look_up_missing`). The codec itself only reads the book.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")
MAX_SCHEMAS: Final = 4096
"""Schemas one book holds in each direction; the one that was asked for least recently is dropped."""
MAX_ABSENT: Final = 64
"""Answers of a registry that it has no such schema, after which it is asked for no more in the same batch."""


class Subject(NamedTuple):
    """A schema and the subject under which it is registered."""

    name: str
    schema: str
    """Its JSON text."""


class SchemaRegistry(Protocol):
    """The registry, as an edge reaches it."""

    def register(self, subject: str, schema: str) -> int:
        """The id of a schema, registered if it was not. Raises Retryable, or InvalidInput when refused."""
        ...

    def look_up(self, number: int) -> str | None:
        """The schema of an id; None when the registry has no such id. Raises Retryable."""
        ...


class SchemaBook:
    """What is known of one registry. Compared by identity, so that options with it can be cached on."""

    def __init__(self) -> None:
        self._ids: OrderedDict[Subject, int] = OrderedDict()
        self._schemas: OrderedDict[int, str] = OrderedDict()
        self._absent: OrderedDict[int, None] = OrderedDict()
        """Ids that the registry did not have when it was asked."""

    def note(self, number: int, schema: str, subject: str | None = None) -> None:
        """A schema's id, and the subject it is registered under if that is known."""
        _keep(self._schemas, number, schema)
        self._absent.pop(number, None)
        if subject is not None:
            _keep(self._ids, Subject(subject, schema), number)

    def id_of(self, subject: Subject) -> int | None:
        """The id of a schema under a subject; None: not known here."""
        found = self._ids.get(subject)
        if found is not None:
            self._ids.move_to_end(subject)
        return found

    def note_absent(self, number: int) -> None:
        """The registry has no schema of this id, or not yet."""
        _keep(self._absent, number, None)

    def is_absent(self, number: int) -> bool:
        """Whether the registry did not have this id when it was asked last."""
        return number in self._absent

    def schema_of(self, number: int) -> str | None:
        """The schema of an id; None: not known here, or the registry has none."""
        found = self._schemas.get(number)
        if found is not None:
            self._schemas.move_to_end(number)
        return found


class LocalBook(SchemaBook):
    """A book that gives the ids itself, from 1 on: for messages that stay in this process."""

    def __init__(self) -> None:
        super().__init__()
        self._last = 0

    def id_of(self, subject: Subject) -> int | None:
        """The id of a schema, a new one for a new schema."""
        found = super().id_of(subject)
        if found is None:
            self._last = found = self._last + 1
            self.note(found, subject.schema, subject.name)
        return found


LOCAL: Final = LocalBook()
"""The book of options that no edge has given another."""


def register_missing(book: SchemaBook, registry: SchemaRegistry, needed: Iterable[Subject]) -> None:
    """Register what the book has no id for."""
    for subject in needed:
        if book.id_of(subject) is None:
            book.note(registry.register(subject.name, subject.schema), subject.schema, subject.name)


def look_up_missing(book: SchemaBook, registry: SchemaRegistry, numbers: Iterable[int]) -> int:
    """Ask the registry for the ids of a batch that the book has no schema of; how many it was asked for.

    Ids that it did not have before come last, and are asked for again: they may only be late. After
    `MAX_ABSENT` answers that there is none the others of the batch wait: whoever writes garbage costs its
    readers that many calls a batch, and not one a message. Ids that are there cost no such answer, but for
    those behind the garbage of their own batch: their messages are set aside, and name the id.
    """
    missing = [number for number in numbers if book.schema_of(number) is None]
    asked = absent = 0
    for number in sorted(missing, key=book.is_absent):
        if absent == MAX_ABSENT:
            break
        asked += 1
        found = registry.look_up(number)
        if found is None:
            absent += 1
            book.note_absent(number)
        else:
            book.note(number, found)
    return asked


def _keep(held: OrderedDict[K, V], key: K, value: V) -> None:
    held[key] = value
    held.move_to_end(key)
    if len(held) > MAX_SCHEMAS:
        held.popitem(last=False)
