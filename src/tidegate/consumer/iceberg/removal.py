"""Removing what no catalog names, without taking a file from a successor.

A process that was replaced may be paused anywhere. So it lists first, makes sure that it is still the writer,
and only then deletes: all that it has listed is older than its successor, and its successor has begun with
the same catalog. On a disk the lock of the directory keeps other writers out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Final

from tidegate.sink.lakehouse.store import Store

FILES_A_PIECE: Final = 200
FOLDERS: Final = ("data", "metadata")
"""The folders of a table's files."""
_OWN_FOLDER: Final = re.compile(r"-[0-9a-f]{8}$")


def files_before(store: Store, path: str, before: float) -> set[str]:
    """The keys of a table's files that were written before a Unix time."""
    return {
        f"{path}/{folder}/{name}"
        for folder in FOLDERS
        for name, changed in store.files(f"{path}/{folder}").items()
        if changed <= before
    }


def delete(store: Store, keys: Collection[str]) -> Iterator[int]:
    """Delete files in pieces; yields how many each had."""
    names = sorted(keys)
    for at in range(0, len(names), FILES_A_PIECE):
        piece = names[at : at + FILES_A_PIECE]
        store.delete(piece)
        yield len(piece)


def removing(store: Store, path: str, check: Callable[[], object]) -> Iterator[int]:
    """Delete the files of a folder that no catalog will ever name again, in pieces; yields how many each had.

    `check` raises if this process may no longer delete.
    """
    keys = [f"{path}/{name}" for name in store.files_below(path)]
    check()
    yield from delete(store, keys)


def orphans(store: Store, known: Collection[str]) -> list[str]:
    """The folders of tables in a bucket that are not among the `known` paths: a killed process has left them.

    Only folders with names that a consumer makes. Call it only if the catalog names all tables.
    """
    if not store.shared:
        return []
    schemas = [name for name in store.folders("") if not name.startswith((".", "_"))]
    found = [f"{schema}/{table}" for schema in schemas for table in store.folders(schema)]
    return [path for path in found if path not in known and _OWN_FOLDER.search(path)]
