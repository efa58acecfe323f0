"""Which process may write a target in an object store: the newest consumer that has taken it over.

An object store has no lock that a process loses when it dies, and a process that was replaced may wake up at
any time. So each consumer writes a random word of its own, in the table property `tidegate.writer`, into the
log of the table of snapshots. Each commit there must be the next version after one that has the writer's own
word. So a writer that was replaced cannot name a snapshot. It is Fenced at its next check, at the latest when
it commits.

The word is written by a commit that must be the next version. So if two consumers take over at the same time,
one of them succeeds, and the other one finds the first one's word when it retries. A word is never reused: a
consumer that is restarted under the same name has a new one, so its earlier process is fenced like any other.

There is no takeover on a disk, because the consumer holds the lock of the directory.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from typing import Final

import orjson
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tidegate.errors import Fenced, InvalidInput, Retryable
from tidegate.sink.lakehouse.delta_commit import HOOKS, ONCE, WRITER
from tidegate.sink.lakehouse.open_tables import OpenTables, reading
from tidegate.sink.lakehouse.store import SNAPSHOTS, Store, translated

TAKEOVERS: Final = 20
"""Attempts to take a target over while another consumer commits snapshots."""


@dataclass(frozen=True, slots=True)
class Writer:
    """The process that has taken over a target in an object store."""

    name: str
    """The consumer's name."""
    word: str
    """Random, and used by only this process."""
    process: int
    host: str

    @staticmethod
    def of_this_process(name: str) -> Writer:
        """A writer for this process, with a new word."""
        return Writer(name, uuid.uuid4().hex, os.getpid(), socket.gethostname())

    @staticmethod
    def from_json(text: str) -> Writer:
        """Parse the text that `to_json` has made."""
        held = orjson.loads(text)
        return Writer(held["name"], held["word"], held["process"], held["host"])

    def to_json(self) -> str:
        """The writer as one line of JSON."""
        held = {"name": self.name, "word": self.word, "process": self.process, "host": self.host}
        return orjson.dumps(held).decode()

    def check_name(self, name: str, store: Store) -> None:
        """InvalidInput unless this writer, which has taken the target over, is the consumer `name`."""
        if self.name != name:
            raise InvalidInput(
                "another consumer writes this target",
                where=str(store),
                why=f"it belongs to the consumer {self.name}, and this one is {name}",
                fix=f"choose another prefix, or continue with --name {self.name}",
            )

    def __str__(self) -> str:
        return f"consumer {self.name}, process {self.process} on {self.host}"


def taken_over(store: Store, by: Writer | None) -> Fenced:
    """The error of a process that was replaced."""
    return Fenced(
        "this consumer's target was taken over",
        where=str(store),
        why=f"it now belongs to {by}",
        fix="nothing, if the other one is to continue; otherwise end it, and start this one again",
    )


def not_taken_over(where: str) -> Retryable:
    """The error after `TAKEOVERS` attempts."""
    return Retryable(
        "the target could not be taken over",
        where=where,
        why=f"another process committed first {TAKEOVERS} times in a row",
        fix="end the other consumer of this target, and start again",
    )


class Takeover:
    """The word of this process, after it has taken the target over. Safe for threads from then on."""

    def __init__(self, store: Store, tables: OpenTables) -> None:
        """`tables`: the open tables of this target. Taking over makes this process their only writer."""
        self._store, self._tables = store, tables
        self._writer: Writer | None = None

    @property
    def is_taken(self) -> bool:
        """Whether this process has taken the target over. Always False on a disk."""
        return self._writer is not None

    def take(self, name: str) -> None:
        """Make this process the writer, as the consumer `name`. The table of snapshots must exist.

        InvalidInput if the target belongs to another consumer. Retryable if other processes committed first
        `TAKEOVERS` times.
        """
        # docs/guarantees.md#in-s3-a-replaced-consumer-names-nothing-and-deletes-nothing-of-its-successors:
        # a commit must be the next version, so after this one the earlier consumer's next one fails.
        mine = Writer.of_this_process(name)
        for _ in range(TAKEOVERS):
            # A table that is open may be old, and then the commit below would fail each time.
            self._tables.drop(SNAPSHOTS)
            with reading(self._store, SNAPSHOTS):
                table = self._tables.newest(SNAPSHOTS)
            held = _writer_of(table)
            if held is not None:
                held.check_name(name, self._store)
            try:
                with translated(self._store, SNAPSHOTS):
                    table.alter.set_table_properties(
                        {WRITER: mine.to_json()},
                        raise_if_not_exists=False,
                        commit_properties=ONCE,
                        post_commithook_properties=HOOKS,
                    )
            # Another process has committed this version. It may be a takeover of another consumer, so all
            # is read again.
            except CommitFailedError:
                continue
            # With this commit every other writer is fenced, so the table stays the newest state until this
            # process commits.
            self._tables.begin_owned(SNAPSHOTS, table)
            self._writer = mine
            return
        raise not_taken_over(self._store.uri(SNAPSHOTS))

    def check(self) -> None:
        """Fenced if another process has taken over since. Does nothing on a disk."""
        if self._writer is not None:
            with translated(self._store, SNAPSHOTS):
                newest = self._tables.checked(SNAPSHOTS)
            self.refuse_replaced(newest)

    def refuse_replaced(self, table: DeltaTable) -> None:
        """Fenced unless this state of the table of snapshots has the word of this process."""
        held = _writer_of(table)
        if self._writer is not None and held != self._writer:
            raise taken_over(self._store, held)


def _writer_of(table: DeltaTable) -> Writer | None:
    """The process that has taken the target over last, by its table of snapshots; None: there is none."""
    text = table.metadata().configuration.get(WRITER)
    return Writer.from_json(text) if text else None
