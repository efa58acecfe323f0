"""The files of table definitions, one for each version, stored next to the data.

Definitions are numbered in the order in which the consumer learns them. A ts would not do as a number: a
guessed definition has the ts of a row, and a DDL that TiCDC sends after Resolved of its ts belongs to the
next snapshot. A position names the numbers of its tables' definitions, so a file is durable before any
snapshot needs it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from tidegate.consumer.engine.position import Position
from tidegate.consumer.table import definition
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal
from tidegate.model.path_part import shortened
from tidegate.sink.lakehouse.store import Store

DEFINITIONS: Final = "_tidegate/definitions"
FILE: Final = re.compile(r".*@\d+\.json", re.DOTALL)
NUMBERS_MAX: Final = 1_000
"""Attempts to find a free number."""
STEM_MAX: Final = 255 - len(f"@{0:020d}.json")
"""Characters of a definition file's name before its number; file systems allow 255 for a name."""


class DefinitionFiles:
    """The definition files of one target; may be called from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._files: dict[str, dict[int, str]] = {}
        """Their names, by stem and number."""
        self._number = 0
        """The newest number. Files of a crashed run count too, so that none is ever overwritten."""

    def read(self) -> None:
        """List the folder. A writer does this once, after earlier writers can no longer name a snapshot."""
        found: dict[str, dict[int, str]] = {}
        for name in self._store.names(DEFINITIONS):
            if FILE.fullmatch(name):
                found.setdefault(_stem_of(name), {})[_number_of(name)] = name
        with self._lock:
            self._files = found
            self._number = max((number for files in found.values() for number in files), default=0)

    def keep(self, path: str, made: Definition) -> int:
        """Store the definition of the table at `path`. Returns its number."""
        stem, data = file_stem(path), made.to_json()
        # Nothing is overwritten: an older snapshot names the file of its own number, and may be restored.
        for _ in range(NUMBERS_MAX):
            with self._lock:
                self._number += 1
                number = self._number
            name = f"{stem}{number:020d}.json"
            # A consumer that was replaced may have used this number after the folder was listed.
            if self._store.create(f"{DEFINITIONS}/{name}", data):
                with self._lock:
                    self._files.setdefault(stem, {})[number] = name
                return number
        raise Fatal(
            "no free number was found for a table's definition",
            where=f"{self._store.uri(DEFINITIONS)}, table {path}",
            why=f"{NUMBERS_MAX} numbers in a row were taken since the consumer has started",
            fix="end what else writes there, and restart the consumer",
        )

    def find(
        self, path: str, holds: Callable[[pa.Schema], bool], columns: Sequence[str], position: Position
    ) -> tuple[Definition, int]:
        """The definition of a table in the snapshot of `position`, and its number.

        `holds`: whether the table's columns are those of a definition; `columns`: their names, for the error.
        """
        with self._lock:
            files = dict(self._files.get(file_stem(path), {}))
        if position.definitions is not None:
            numbers = [position.definitions.get(path, 0)]
        else:  # an earlier release used the ts of the DDL as the number
            numbers = sorted((number for number in files if number <= position.ts), reverse=True)
        for number in numbers:
            data = self._store.get(f"{DEFINITIONS}/{files[number]}") if number in files else None
            known = definition.from_json(data) if data is not None else None
            if known is not None and holds(known.arrow_schema):
                return known, number
        raise Fatal(
            "a table's definition is gone, or is not that of its rows",
            where=f"{self._store.uri(DEFINITIONS)}, table {path}",
            why=f"the table has the columns {', '.join(columns)}; definitions kept: {len(files)}",
            fix="restore the directory, or start a new target",
        )


def file_stem(path: str) -> str:
    """How the names of a table's definition files begin; shortened if the two folder names are too long."""
    return shortened(path.replace("/", "+"), path, STEM_MAX) + "@"


def _stem_of(name: str) -> str:
    return name.rpartition("@")[0] + "@"


def _number_of(name: str) -> int:
    return int(name.removesuffix(".json").rpartition("@")[2])
