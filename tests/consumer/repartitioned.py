"""The bank log as a topic whose number of partitions changes on the way, as a changefeed writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tests.consumer.logs import PARTITIONS, bank_events, snapshots
from tests.consumer.memory_topic import MemoryTopic
from tests.consumer.topics import Event, Mark, Places, messages_to
from tidegate.codec.base import CodecOptions
from tidegate.codec.registry import CODECS, codec_options, encoder, marks
from tidegate.dispatcher.router import Router
from tidegate.model.layout import Layout, first_change
from tidegate.model.message import Message
from tidegate.model.row import RowChange


class Layouts(Places):
    """Rows go to the partitions of now; DDL and Resolved to all that there ever were."""

    def __init__(self, partitions: int) -> None:
        super().__init__({"memory": partitions}, Router([], "memory"))
        self._all = partitions

    def change(self, partitions: int) -> None:
        """From here on rows go to so many."""
        self._counts = {"memory": partitions}
        self._all = max(self._all, partitions)

    def ddl(self, event, *, everywhere):  # type: ignore[no-untyped-def]
        sent, numbers = super().ddl(event, everywhere=everywhere)
        return sent, self.mark() if everywhere else numbers

    def mark(self) -> list[int]:
        return list(range(self._all))


def changes_at(*places: tuple[int, int]) -> list[tuple[int, int]]:
    """(ts of the snapshot of a number, partitions): changes of the bank log's topic."""
    return [(snapshots()[number].ts, partitions) for number, partitions in places]


def stretches(events: Iterable[Event], changes: Sequence[tuple[int, int]]) -> Iterator[list[Event]]:
    """The events between two changes, without the marks of these."""
    left, held = [ts for ts, _ in changes], list[Event]()
    for event in events:
        if left and isinstance(event, Mark) and event.ts == left[0]:
            left.pop(0)
            yield held
            held = []
        else:
            held.append(event)
    yield held


def repartitioned(
    events: Iterable[Event],
    options: CodecOptions,
    changes: Sequence[tuple[int, int]],
    first: int = PARTITIONS,
) -> Iterator[list[tuple[int, Message]]]:
    """(partition, message) in sending order, a list for each layout, which begins with its mark."""
    places, layout, encode = Layouts(first), None, encoder(options)
    opening: list[tuple[int, Message]] = []
    coming = iter([*changes, None])
    for held in stretches(events, changes):
        reported = {encode.encode_resolved(event.ts) for event in held if isinstance(event, Mark)}
        yield [
            *opening,
            *(
                (partition, headed(message, layout) if message in reported else message)
                for partition, message in messages_to(places, held, options)
            ),
        ]
        change = next(coming)
        if change is None:
            return
        ts, partitions = change
        before = sum(1 for _ in places._numbers("memory"))
        layout = layout.changed(ts, partitions) if layout else first_change(ts, before, partitions)
        places.change(partitions)
        mark, admin = encode.encode_resolved(ts), marks(options).encode_admin(partitions)
        opening = [
            (partition, headed(message, layout))
            for message in (mark, admin)
            if message is not None
            for partition in places.mark()
        ]


def headed(message: Message, layout: Layout | None) -> Message:
    """A Resolved or Admin as it is sent under a layout."""
    return message if layout is None else replace(message, headers=message.headers + layout.headers)


def options_for(protocol: str) -> CodecOptions:
    """Return options of a protocol, with watermarks."""
    extension = CODECS[protocol].unmarked is not None
    return codec_options({"protocol": protocol, "enable-tidb-extension": extension})


def bank_parts(
    protocol: str, changes: Sequence[tuple[int, int]], last_snapshot: int = -1
) -> list[list[tuple[int, Message]]]:
    """The bank log up to one of its snapshots."""
    return list(repartitioned(bank_events(last_snapshot), options_for(protocol), changes))


def in_memory(parts: Sequence[Sequence[tuple[int, Message]]], options: CodecOptions) -> MemoryTopic:
    """All of it, to be read from its beginning."""
    messages = [one for part in parts for one in part]
    return MemoryTopic(options, 1 + max(partition for partition, _ in messages), messages)


def keys_that_moved(changes: Sequence[tuple[int, int]], first: int = PARTITIONS) -> int:
    """How many rows are on other partitions behind a change than before."""
    places, found, seen = Layouts(first), 0, dict[tuple[object, ...], int]()
    coming = iter([*changes, (0, 0)])
    for held in stretches(bank_events(), changes):
        for row in held:
            if isinstance(row, RowChange):
                image = row.new if row.new is not None else row.old
                assert image is not None
                key = (row.table.name, *(image[at] for at in row.table.handle_key))
                at = places.row(row)
                found += seen.setdefault(key, at) != at
                seen[key] = at
        places.change(next(coming)[1] or 1)
    return found
