"""A small file that grows by records: a base, which says all, and behind it what has changed since.

```
"tgrecord" | nonce u64 | CRC32C of both u32 | 0 u32 | base | record | record | ...
a record:  length u32 | CRC32C u32 of the length's bytes and the payload | payload, a multiple of 8 bytes
```

An append costs its own bytes, not those of the file. When the tail has outgrown the base, the next write is a
new base: a file of its own, put in the old one's place. Each base has a random *nonce*; nonce + records is
the file's *version*, and no other content of that file, or of one in its place, ever has the same.

A record that is cut off at the end was not written: its writer died, or the machine did. Nothing may ever be
written behind one, or a reader would stop before it for ever. So a writer begins with a new base, and writes
one after an append that failed. Good records behind a bad one are therefore damage (`Torn`), and so is a bad
base, which a rename puts there whole.
"""

from __future__ import annotations

import errno
import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from crc32c import crc32c

from tidegate.disk import writing
from tidegate.errors import Retryable
from tidegate.eventstore.segment import Durability, sync

TAIL_MIN: Final = 64 << 10
"""A tail of so many bytes is kept however small the base is."""

_MAGIC: Final = b"tgrecord"
_HEAD: Final = struct.Struct("<8sQII")
_RECORD: Final = struct.Struct("<II")
_FULL: Final = os.strerror(errno.ENOSPC)


class Torn(Retryable):
    """A small file is not what was written. The process that owns the store replaces it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a file was read."""

    nonce: int
    count: int
    """Records behind the base."""
    end: int
    """The byte behind the last of them."""

    @property
    def version(self) -> int:
        """What the file is called with exactly these records."""
        return self.nonce + self.count


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found beyond what had been seen. `records` begin with the base if `whole`."""

    seen: Seen
    records: list[bytes]
    whole: bool
    torn: bool
    """Whether bytes follow that are no record: an append under way, or one that was cut off."""


def read(path: Path, seen: Seen | None = None) -> Reading:
    """The records of a file, or those appended since it was `seen`, if it is still the same.

    Raises FileNotFoundError, Torn.
    """
    with path.open("rb", buffering=0) as file:
        head = file.read(_HEAD.size)
        nonce = _nonce(path, head)
        same = seen is not None and seen.nonce == nonce
        at = seen.end if seen is not None and same else _HEAD.size
        file.seek(at)
        data = file.read()
    records, end = _split(data)
    torn = end < len(data)
    if torn and _any_behind(data, end):
        raise _torn(path, at + end, "the CRC32C of a record does not match, and good records follow")
    if not same and not records:
        raise _torn(path, at, "its CRC32C does not match its bytes")
    before = seen.count if seen is not None and same else -1
    return Reading(Seen(nonce, before + len(records), at + end), records, not same, torn)


def _nonce(path: Path, head: bytes) -> int:
    if len(head) == _HEAD.size:
        magic, nonce, crc, zero = _HEAD.unpack(head)
        if (magic, crc, zero) == (_MAGIC, crc32c(head[:16]), 0):
            return int(nonce)
    raise _torn(path, 0, "its CRC32C does not match its bytes")


def _torn(path: Path, at: int, why: str) -> Torn:
    return Torn(
        f"{path.name} of the event store is corrupt",
        where=f"{path}, byte {at}",
        why=why,
        fix="nothing to do: the puller writes it again, and pulls again what it lacks",
    )


def _split(data: bytes) -> tuple[list[bytes], int]:
    """The records at the front of some bytes, and where the last of them ends."""
    records, at = [], 0
    while (found := _record_at(data, at)) is not None:
        records.append(found)
        at += _RECORD.size + len(found)
    return records, at


def _record_at(data: bytes, at: int) -> bytes | None:
    if at + _RECORD.size > len(data):
        return None
    length, crc = _RECORD.unpack_from(data, at)
    payload = data[at + _RECORD.size : at + _RECORD.size + length]
    if length == 0 or len(payload) < length or crc32c(payload, crc32c(data[at : at + 4])) != crc:
        return None
    return payload


def _any_behind(data: bytes, bad: int) -> bool:
    """Whether a good record begins anywhere behind the place of a bad one; all begin at a multiple of 8."""
    lengths = np.frombuffer(data, "<u4", count=(len(data) - bad) // 8 * 2, offset=bad)[::2].astype(np.int64)
    left = len(data) - bad - 8 * np.arange(len(lengths)) - _RECORD.size
    plausible = np.flatnonzero((lengths > 0) & (lengths <= left))
    return any(_record_at(data, bad + 8 * int(place)) is not None for place in plausible if place)


class RecordFile:
    """The writing side, of which a file has one. Not thread-safe."""

    def __init__(self, path: Path, durable: Durability) -> None:
        self._path, self._durable = path, durable
        self._seen: Seen | None = None  # what is on disk; None: a base is due
        self._base_bytes = 0

    @property
    def wants_base(self) -> bool:
        """Whether the next write is to be a base."""
        seen = self._seen
        return seen is None or seen.end - self._base_bytes > max(self._base_bytes, TAIL_MIN)

    def begin(self, base: bytes) -> int:
        """Put a new file in the old one's place; its version. Raises DiskFull; then the old one is there."""
        self._seen = None
        nonce = secrets.randbits(62)  # so that no sum of it and a count is beyond 63 bits
        head = _HEAD.pack(_MAGIC, nonce, 0, 0)[:16]
        data = head + struct.pack("<II", crc32c(head), 0) + _framed(base)
        replace_file(self._path, data, self._durable)
        self._seen, self._base_bytes = Seen(nonce, 0, len(data)), len(data)
        return nonce

    def append(self, record: bytes) -> int:
        """Write a record behind the others; the version from now on. Raises DiskFull; then a base is due."""
        seen, self._seen = self._seen, None
        assert seen is not None, "a base is due"
        data = _framed(record)
        with writing(self._path, keep=True):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                if os.write(descriptor, data) < len(data):
                    raise OSError(errno.ENOSPC, _FULL)
                if self._durable == "fsync":
                    os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        self._seen = Seen(seen.nonce, seen.count + 1, seen.end + len(data))
        return self._seen.version


def _framed(payload: bytes) -> bytes:
    """A record of a JSON text, to which spaces may be added."""
    payload += b" " * (-len(payload) % 8)
    length = struct.pack("<I", len(payload))
    return length + struct.pack("<I", crc32c(payload, crc32c(length))) + payload


def replace_file(path: Path, data: bytes, durable: Durability) -> None:
    """Put `data` at `path`: a reader finds the old bytes or the new, never a mixture. Raises DiskFull."""
    partial = path.with_name(path.name + ".tmp")
    with writing(partial):
        partial.write_bytes(data)
        if durable == "fsync":
            sync(partial)
    partial.replace(path)
    if durable == "fsync":
        sync(path.parent)
