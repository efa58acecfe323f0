"""The base files of an upstream's catalogue: which exist, and which one serves a given ts.

A base has the catalogue for an interval without DDL, from `since` to `ts`, which are in its name:

    <event store>/../catalogue/SINCE-TS.bin            format: `schema_image`

The DDL span of the event store has the jobs after `ts`. A base and these jobs together give the catalogue at
any later ts. A base serves every ts at or above its `since`; if there are several, the last one is used.
Within its interval a base is valid for every changefeed: if a job was refused, the next base is read from
upstream (`server.catalogue.catalogues`), so that a changefeed that begins after the job does not miss its
effect.

The control process writes and removes bases; each process of a capture maps them. Pure, except for reading
files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tidegate.errors import Retryable
from tidegate.mounter.schema_image import map_file
from tidegate.mounter.schema_store import SchemaStore

LOOKS: Final = 10
"""How often the folder is listed again because the chosen base was removed meanwhile."""
_NAME: Final = re.compile(r"(\d+)-(\d+)\.bin")


class Base(NamedTuple):
    """A base file. Both ts are inclusive."""

    since: int
    ts: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.since}-{self.ts}.bin"


def folder_of(store: Path) -> Path:
    """The folder of the bases that belong to the DDL span of an event store."""
    return store.parent / "catalogue"


def found(folder: Path) -> list[Base]:
    """The existing bases, in order. Empty without the folder."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(Base(int(m[1]), int(m[2])) for m in map(_NAME.fullmatch, names) if m is not None)


def serving(bases: Sequence[Base], ts: int) -> Base | None:
    """The last base from which the catalogue at `ts` follows, with the jobs up to `ts`. None if there is
    none.
    """
    return next((base for base in reversed(bases) if base.since <= ts), None)


def load(folder: Path, base: Base) -> SchemaStore:
    """The catalogue of a base, resolved up to its `ts`. Raises Undecodable or FileNotFoundError."""
    store = SchemaStore.load(map_file(folder / base.name))
    store.advance(base.ts)
    return store


def load_for(folder: Path, ts: int) -> SchemaStore:
    """The catalogue to start from for rows after `ts`, in a process that does not write bases.

    If no base serves `ts`, the changefeed's checkpoint is above `ts` by now, and the oldest base serves it.
    Raises Undecodable if the file is damaged, and Retryable if there is no base.
    """
    for _ in range(LOOKS):
        bases = found(folder)
        if not bases:
            break
        try:
            return load(folder, serving(bases, ts) or bases[0])
        except FileNotFoundError:
            continue  # it was renamed or removed meanwhile, so there is another one
    raise Retryable(
        "the catalogue is not there",
        where=str(folder),
        why="no base file of it can be opened",
        fix="nothing: the capture reads it from upstream when the changefeed starts again",
    )
