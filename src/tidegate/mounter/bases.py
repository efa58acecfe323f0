"""The base files of an upstream's catalogue: which there are, and which one serves whom.

A base holds the catalogue as of a stretch of time without DDL, from `since` to `ts`, which its name says:

    <event store>/../catalogue/SINCE-TS.bin            format: `schema_image`

The jobs after `ts` are those of the DDL span of the event store; base and jobs together are the catalogue at
any later ts. A base serves whoever needs the catalogue from a ts at or above `since` on; of several, the last
such one is taken. A base is right as of its stretch for every changefeed: where a job was refused, the bases
after it are read from upstream (`server.catalogues`), so that nobody who begins behind the job misses what
it did.

The control process writes and removes bases; each process of a capture maps them. Pure but for reading files.
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
"""How often the folder is looked through because the base that was chosen has just gone."""
_NAME: Final = re.compile(r"(\d+)-(\d+)\.bin")


class Base(NamedTuple):
    """A base file; both ts inclusive."""

    since: int
    ts: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.since}-{self.ts}.bin"


def folder_of(store: Path) -> Path:
    """Where the bases lie that continue in the DDL span of an event store."""
    return store.parent / "catalogue"


def found(folder: Path) -> list[Base]:
    """The bases there are, in order; empty without the folder."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(Base(int(m[1]), int(m[2])) for m in map(_NAME.fullmatch, names) if m is not None)


def serving(bases: Sequence[Base], ts: int) -> Base | None:
    """The last base that holds the catalogue at `ts`, or from which it follows with the jobs up to there."""
    return next((base for base in reversed(bases) if base.since <= ts), None)


def load(folder: Path, base: Base) -> SchemaStore:
    """A base's catalogue, resolved up to its `ts`. Raises Undecodable, FileNotFoundError."""
    store = SchemaStore.load(map_file(folder / base.name))
    store.advance(base.ts)
    return store


def load_for(folder: Path, ts: int) -> SchemaStore:
    """The catalogue to begin with for rows after `ts`, in a process that does not write bases.

    Where no base serves `ts`, the changefeed's checkpoint has passed it, and the least base serves that.
    Raises Undecodable when the file is damaged, Retryable when there is none.
    """
    for _ in range(LOOKS):
        bases = found(folder)
        if not bases:
            break
        try:
            return load(folder, serving(bases, ts) or bases[0])
        except FileNotFoundError:
            continue  # renamed or removed since: another one is there
    raise Retryable(
        "The catalogue is not there.",
        where=str(folder),
        why="no base file of it can be opened",
        fix="nothing: the capture reads it from upstream when the changefeed starts again",
    )
