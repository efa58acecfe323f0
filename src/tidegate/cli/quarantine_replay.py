"""Decodes entries of a quarantine again with this release, and writes SQL for the good ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tidegate.cli.escaped import escaped
from tidegate.cli.quarantine_place import Place
from tidegate.cli.quarantine_words import place_words
from tidegate.errors import InvalidInput

if TYPE_CHECKING:
    from tidegate.consumer.applying.target import Address
    from tidegate.consumer.reading.topic_decoder import TopicDecoder
    from tidegate.consumer.replay import Replayed, Tables
    from tidegate.sink.quarantine import QuarantineLine


def of_capture(data_dir: Path) -> Callable[[QuarantineLine], Replayed]:
    """A function that decodes entries of a changefeed, with the tables that its capture knows."""
    from tidegate.consumer.replay import Replayed
    from tidegate.pipeline.worker.replay import Catalogue
    from tidegate.pipeline.worker.replay import replay as decode
    from tidegate.sink.quarantine import still_bad

    catalogue = Catalogue(data_dir)

    def one(kept: QuarantineLine) -> Replayed:
        return Replayed(decode(kept.entry, catalogue) if kept.entry is not None else still_bad(kept.why))

    return one


def of_consumer(place: Place, source: str, time_zone: str) -> Callable[[QuarantineLine], Replayed]:
    """A function that decodes entries of a consumer, with its target's tables if they are known."""
    from tidegate.consumer.replay import Replayed
    from tidegate.consumer.replay import replay as decode
    from tidegate.sink.quarantine import still_bad

    decoder = _decoder(source, time_zone)
    tables = _tables(place.address, source, time_zone) if place.address is not None else None

    def one(kept: QuarantineLine) -> Replayed:
        return (
            decode(kept.entry, decoder, tables) if kept.entry is not None else Replayed(still_bad(kept.why))
        )

    return one


def _decoder(source: str, time_zone: str) -> TopicDecoder | None:
    if not source:
        return None
    from tidegate.consumer.reading.source import Topic
    from tidegate.consumer.reading.topic_decoder import TopicDecoder

    return TopicDecoder(Topic(source, time_zone))


def _tables(address: Address, source: str, time_zone: str) -> Tables:
    """The target's tables as they are now, and the time zone in which the consumer reads."""
    from tidegate.consumer.reading.source import Topic
    from tidegate.consumer.replay import Tables

    position = address.look().position
    zone = time_zone if position is None else position.zone_from(time_zone)
    if source:
        zone = Topic(source, time_zone).zone or zone
    return Tables(address.definitions(), address.by_hand().values, zone)


@contextmanager
def statements(file: Path | None, place: Place) -> Iterator[Callable[[QuarantineLine, Replayed], None]]:
    """A function that writes the SQL of good rows into a new file; without a file it does nothing."""
    if file is None:
        yield lambda kept, replayed: None
        return
    by_hand = place.address.by_hand() if place.address is not None else None
    if by_hand is None or not by_hand.head:
        raise InvalidInput(
            "there is no SQL for these rows",
            where=str(place.file),
            why=f"SQL is for databases; here: {by_hand.advice}" if by_hand else "their target is not known",
            fix="leave --sql out, or give the --target and --name of a database's consumer",
        )
    with _new(file) as out:
        out.write(b"-- Look first whether each row has changed at the target since its commit ts.\n")
        out.write(by_hand.head + b"\n")

        def write(kept: QuarantineLine, replayed: Replayed) -> None:
            texts = [text for changes in replayed.changes for text in by_hand.statements(changes)]
            if texts and kept.entry is not None:
                times = ", ".join(str(row["commit_ts"]) for row in replayed.outcome.rows)
                title = f"entry {kept.number}, {place_words(kept.entry['where'])}, commit ts {times}"
                out.write(f"\n-- {escaped(title)}\nBEGIN;\n".encode())
                out.write(b"".join(text + b";\n" for text in texts) + b"COMMIT;\n")

        yield write


def _new(file: Path) -> IO[bytes]:
    """A new file that only its owner can read, because it will have rows."""
    try:
        return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise InvalidInput(
            "the file for the statements cannot be made",
            where=str(file),
            why=error.strerror or str(error),
            fix="name one that is not there yet, in a folder that can be written",
        ) from error
