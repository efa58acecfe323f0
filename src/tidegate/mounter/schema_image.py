"""A catalogue at one ts as a file: an index that is read at once, and definitions that are read when needed.

    "TGSS" | format u32 | CRC32C of what follows up to the definitions u32 | index size u64
    index: JSON
    definitions, one after another, each packed with its own checksum (`table_version`)

Little-endian. The definitions stay in the mapped file, so the processes of a capture share one copy of them;
only the index is in the memory of each process. Pure, except `map_file`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from crc32c import crc32c

from tidegate.errors import Undecodable
from tidegate.mounter.table_version import Packed, Parsed, TableVersion

MAGIC: Final = b"TGSS"
FORMAT: Final = 3
"""Another number is refused: a reader that missed a mark of `ddl_early` would emit a DDL a second time."""
_HEAD: Final = 20
_ELIGIBLE, _VIEW = 1, 2
_FIX: Final = (
    "stop the capture, remove the folder catalogue of its data and start it: upstream is asked again"
)


@dataclass(frozen=True, slots=True)
class Dropped:
    """The tables of a schema when it was dropped, kept in case it is recovered."""

    ts: int
    tables: tuple[TableVersion, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """A catalogue at one ts: all that is needed for later rows and jobs."""

    ts: int
    schemas: list[tuple[int, str]]
    tables: list[TableVersion]
    dropped: dict[int, Dropped] = field(default_factory=dict)
    done: list[tuple[int, int]] = field(default_factory=list)
    """(ts, job id) of the last jobs."""
    ignored: dict[str, int] = field(default_factory=dict)


def chunks(image: Image) -> Iterator[Packed]:
    """The bytes of the file, in pieces."""
    gone = [table for entry in image.dropped.values() for table in entry.tables]
    body = orjson.dumps(
        {
            "ts": image.ts,
            "schemas": image.schemas,
            "tables": _columns(image.tables),
            "dropped": [[key, entry.ts, len(entry.tables)] for key, entry in image.dropped.items()],
            "dropped_tables": _columns(gone),
            "dropped_names": [table.schema for table in gone],
            "done": image.done,
            "ignored": image.ignored,
        }
    )
    tail = len(body).to_bytes(8, "little")
    # The length as well: a damaged one would make the reader take definitions for the index. Each definition
    # has its own sum, so that a mapped file need not be read whole.
    checksum: int = crc32c(body, crc32c(tail))
    yield MAGIC + FORMAT.to_bytes(4, "little") + checksum.to_bytes(4, "little") + tail
    yield body
    for table in (*image.tables, *gone):
        yield table.packed


def _columns(tables: Iterable[TableVersion]) -> dict[str, list[Any]]:
    """One list for each attribute: half the size of one object for each table, and faster to read."""
    found = list(tables)
    return {
        "id": [t.id for t in found],
        "schema_id": [t.schema_id for t in found],
        "table": [t.table for t in found],
        "from": [t.valid_from for t in found],
        "physical": [0 if t.physical_ids == (t.id,) else t.physical_ids for t in found],
        "flags": [t.eligible * _ELIGIBLE + t.is_view * _VIEW for t in found],
        "size": [len(t.packed) for t in found],
    }


def map_file(path: Path) -> memoryview:
    """Map a file: its bytes are read from disk when they are accessed. The file may be replaced meanwhile."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            # An empty file cannot be mapped. `parse` reports it as damaged.
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def is_of_this_format(path: Path) -> bool:
    """Whether a file begins as an image of this format. Its content may still be damaged. Raises OSError."""
    with path.open("rb") as file:
        return file.read(8) == MAGIC + FORMAT.to_bytes(4, "little")


def parse(data: Packed, cache: Parsed) -> Image:
    """The image in a file's bytes. Raises Undecodable if its index is damaged or of another format.

    The definitions are views of `data`. A damaged definition raises only when it is used.
    """
    view = memoryview(data)
    if len(view) < _HEAD or view[:4].tobytes() != MAGIC:
        raise Undecodable("a schema snapshot is damaged", why="it does not begin as one", fix=_FIX)
    # The format before the checksum: another format may have its checksum over other bytes.
    version = int.from_bytes(view[4:8], "little")
    if version != FORMAT:
        raise Undecodable("a schema snapshot has an unknown format", why=f"version {version}", fix=_FIX)
    size = int.from_bytes(view[12:_HEAD], "little")
    if size > len(view) - _HEAD or crc32c(view[12 : _HEAD + size]) != int.from_bytes(view[8:12], "little"):
        raise Undecodable("a schema snapshot is damaged", why="its checksum does not match", fix=_FIX)
    try:
        return _image(orjson.loads(view[_HEAD : _HEAD + size]), view[_HEAD + size :], cache)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise Undecodable(
            "a schema snapshot is damaged", why=f"{type(error).__name__}: {error}", fix=_FIX
        ) from None


def _image(index: dict[str, Any], packed: memoryview, cache: Parsed) -> Image:
    schemas = dict(index["schemas"])
    live, gone = index["tables"], index["dropped_tables"]
    ends = sum(live["size"])
    # A file that was cut behind its index has a good checksum.
    if ends + sum(gone["size"]) != len(packed):
        raise ValueError(f"{len(packed)} bytes of definitions, {ends + sum(gone['size'])} were promised")
    names = [schemas[number] for number in live["schema_id"]]
    tables = list(_tables(live, names, packed[:ends], cache))
    left = _tables(gone, index["dropped_names"], packed[ends:], cache)
    dropped = {
        key: Dropped(ts, tuple(next(left) for _ in range(count))) for key, ts, count in index["dropped"]
    }
    done = [(ts, job) for ts, job in index["done"]]
    return Image(index["ts"], list(schemas.items()), tables, dropped, done, index["ignored"])


def _tables(
    columns: dict[str, list[Any]], schemas: list[str], packed: memoryview, cache: Parsed
) -> Iterator[TableVersion]:
    at = 0
    lines = zip(*(columns[name] for name in _NAMES), schemas, strict=True)
    for table_id, schema_id, table, valid_from, physical, flags, size, schema in lines:
        yield TableVersion(
            table_id,
            schema_id,
            schema,
            table,
            valid_from,
            tuple(physical) if physical else (table_id,),
            packed[at : at + size],
            eligible=bool(flags & _ELIGIBLE),
            is_view=bool(flags & _VIEW),
            cache=cache,
        )
        at += size


_NAMES: Final = ("id", "schema_id", "table", "from", "physical", "flags", "size")
