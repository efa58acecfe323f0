"""The tables' definitions, a file for each version, beside the data.

Definitions are numbered as they come to be known. Their ts would not do: what is guessed from rows has the ts
of a row, and a DDL that TiCDC sends after Resolved of its ts is in the next snapshot. A position names the
numbers of its tables' definitions, so that a file is durable before any snapshot needs it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidegate.consumer import definition
from tidegate.consumer.definition import Definition
from tidegate.consumer.journal import write_durably
from tidegate.consumer.position import Position
from tidegate.errors import Fatal
from tidegate.model.path_part import shortened

DEFINITIONS: Final = "_tidegate/definitions"
STEM_MAX: Final = 255 - len(f"@{0:020d}.json")
"""Signs of a definition file's name before its number."""


class DefinitionFiles:
    """Those of one target; may be called from several threads."""

    def __init__(self, root: Path) -> None:
        self._folder = root / DEFINITIONS
        self._lock = threading.Lock()
        self._files: dict[str, dict[int, Path]] = {}
        """By the stem of their names and by their numbers. The folder is listed once."""
        for file in self._folder.glob("*@*.json"):
            self._files.setdefault(_stem_of(file), {})[_number_of(file)] = file
        self._number = max((number for files in self._files.values() for number in files), default=0)
        """Of the newest; those of a crashed run count too, so that none is ever overwritten."""

    def keep(self, path: str, made: Definition) -> int:
        """Keep the definition of the table at `path`; its number."""
        with self._lock:
            self._number += 1
            number = self._number
        self._folder.mkdir(parents=True, exist_ok=True)
        stem = file_stem(path)
        file = self._folder / f"{stem}{number:020d}.json"
        write_durably(file, made.to_json())
        with self._lock:
            self._files.setdefault(stem, {})[number] = file
        return number

    def find(
        self, path: str, holds: Callable[[pa.Schema], bool], columns: Sequence[str], position: Position
    ) -> tuple[Definition, int]:
        """That of a table in the snapshot of `position`; its number.

        `holds`: whether the table's columns are those of a definition; `columns`: their names, for people.
        """
        with self._lock:
            files = dict(self._files.get(file_stem(path), {}))
        if position.definitions is not None:
            numbers = [position.definitions.get(path, 0)]
        else:  # an earlier release numbered them by the ts of their DDL
            numbers = sorted((number for number in files if number <= position.ts), reverse=True)
        for number in numbers:
            known = definition.from_json(files[number].read_bytes()) if number in files else None
            if known is not None and holds(known.arrow_schema):
                return known, number
        raise Fatal(
            "a table's definition is gone, or is not that of its rows",
            where=f"{self._folder}, table {path}",
            why=f"the table has the columns {', '.join(columns)}; definitions kept: {len(files)}",
            fix="restore the directory, or start a new target",
        )


def file_stem(path: str) -> str:
    """How the names of a table's definition files begin; two long folder names do not fit into one."""
    return shortened(path.replace("/", "+"), path, STEM_MAX) + "@"


def _stem_of(file: Path) -> str:
    return file.name.rpartition("@")[0] + "@"


def _number_of(file: Path) -> int:
    return int(file.stem.rpartition("@")[2])
