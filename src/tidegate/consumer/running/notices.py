"""Reports how the target differs from the source, each kind once, and quarantines undecodable messages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidegate.consumer.applying.known_places import KnownPlaces
from tidegate.consumer.applying.stats import Stats
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.progress import Listener
from tidegate.disk import CONSUMER_ENDS
from tidegate.errors import Undecodable
from tidegate.sink import quarantine
from tidegate.sink.quarantine import Quarantine

GUESSES_SHOWN: Final = 5
"""How many guessed tables are named after a commit; the others are counted."""


class Notices:
    """Quarantines messages, and reports what is inexact at the target."""

    def __init__(self, topic: Topic, file: Path, listener: Listener) -> None:
        """`file`: the quarantine file, for messages and rows."""
        self._topic, self._bad_file, self._listener = topic, file, listener
        self._quarantine = Quarantine(file, fix=CONSUMER_ENDS)
        self._known_bad = KnownPlaces(quarantine.sound_entries(file))
        self._reported_bad = self._reported_bad_row = False
        self._reported_guesses: dict[str, tuple[str, ...]] = {}

    @property
    def quarantined(self) -> int:
        """The number of quarantined messages, and of rows that earlier runs quarantined."""
        return len(self._known_bad)

    def set_aside(self, part: Fetched) -> None:
        """Quarantine messages that cannot be decoded, with their bytes and their places."""
        name, partition = self._topic.place(part.partition)
        # In place of a row's number, -1 means the message as a whole. A restart fetches it again, and it is
        # quarantined once.
        bad = [
            message
            for message in part.bad
            if message.reduced_ts is None and (name, partition, message.offset, -1) not in self._known_bad
        ]
        self._known_bad.add((name, partition, message.offset, -1) for message in bad)
        where = {"topic": name, "partition": partition}
        self._quarantine.append(
            {
                "where": where | {"offset": message.offset},
                "why": message.why,
                "key": message.key,
                "value": message.value,
            }
            for message in bad
        )
        if bad and not self._reported_bad:
            self._reported_bad = True
            self._listener.warn(
                Undecodable(
                    "a message cannot be decoded and is set aside; the others are applied",
                    where=f"{self._topic.where(part.partition)}, offset {bad[0].offset}",
                    why=bad[0].why,
                    fix=f"look at its bytes, and those of any further one, in {self._bad_file}",
                )
            )

    def report_inexact(self, stats: Stats) -> None:
        """Report new differences from the source, each kind once; `Progress` counts them."""
        if stats.bad_rows and not self._reported_bad_row:
            self._reported_bad_row = True
            self._listener.warn(
                Undecodable(
                    "a row holds an enum or set element that its table does not have, and is set aside",
                    where=f"topic {self._topic.name}",
                    why="the target keeps what it held under that key before, if anything",
                    fix=f"look at the row and its place, and those of any further one, in {self._bad_file}",
                )
            )
        for text in stats.ignored:
            self._listener.note(f"a change of columns is ignored: {text}")
        stats.ignored.clear()
        fresh = [name for name, notes in stats.guessed.items() if self._reported_guesses.get(name) != notes]
        for name in fresh[:GUESSES_SHOWN]:
            known = self._reported_guesses.get(name, ())
            notes = [note for note in stats.guessed[name] if note not in known]
            self._listener.note(f"table {name} is guessed from its rows: {'; '.join(notes)}")
        if len(fresh) > GUESSES_SHOWN:
            self._listener.note(f"and {len(fresh) - GUESSES_SHOWN} more tables are guessed from their rows")
        self._reported_guesses |= {name: stats.guessed[name] for name in fresh}
