"""A small file that grows by records: a base with the complete content, and behind it the changes since.

```
"tgrecord" | nonce u64 | CRC32C of both u32 | 0 u32 | base | record | record | ...
a record:  length u32 | CRC32C u32 of the length's bytes and the payload | payload, a multiple of 8 bytes
```

An append writes only its own record, not the whole file. When the tail has become larger than the base, the
next write is a new base: a new file that replaces the old one. Each base has a random *nonce*; the nonce plus
the number of records is the file's *version*, and no other content of this file, or of one that replaces it,
ever has the same version.

If the last record is cut off, it counts as not written: its writer or the machine crashed during the append.
Nothing may be appended behind such a record, because readers stop there and would never see what follows. A
writer therefore begins with a new base, and also writes one after a failed append. Consequently, good records
behind a bad one mean damage (`Torn`), and so does a bad base, because a base is renamed into place as a whole
file.
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
"""Bytes. A tail up to this size never causes a new base, even if the base is smaller."""

_MAGIC: Final = b"tgrecord"
_HEAD: Final = struct.Struct("<8sQII")
_RECORD: Final = struct.Struct("<II")
_FULL: Final = os.strerror(errno.ENOSPC)


class Torn(Retryable):
    """A file of records is corrupt. The process that owns the store replaces it."""


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The position up to which a file was read."""

    nonce: int
    count: int
    """The number of records behind the base."""
    end: int
    """The offset of the byte behind the last of them."""

    @property
    def version(self) -> int:
        """The version of the file when it has exactly these records."""
        return self.nonce + self.count


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of `read`. `records`: those not seen before; if `whole`, all records, the base first."""

    seen: ReadPosition
    records: list[bytes]
    whole: bool
    torn: bool
    """Whether bytes follow that are not a whole record: an append under way, or one that was cut off."""


def read(path: Path, seen: ReadPosition | None = None) -> Reading:
    """The records of a file; only those appended since `seen` if the file still has the same base.

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
    # An append never follows a bad record, so good records behind it prove that the bad one was whole once.
    if torn and _any_behind(data, end):
        raise _torn(path, at + end, "the CRC32C of a record does not match, and good records follow")
    # A base is renamed into place complete, so no crash explains its absence.
    if not same and not records:
        raise _torn(path, at, "its CRC32C does not match its bytes")
    before = seen.count if seen is not None and same else -1
    return Reading(ReadPosition(nonce, before + len(records), at + end), records, not same, torn)


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
        fix="nothing: the puller writes it again, and pulls again what it lacks",
    )


def _split(data: bytes) -> tuple[list[bytes], int]:
    """The whole records at the front of `data`, and the offset behind the last of them."""
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
    # The sum covers the length, too, because a torn length would end the payload at another place.
    if length == 0 or len(payload) < length or crc32c(payload, crc32c(data[at : at + 4])) != crc:
        return None
    return payload


def _any_behind(data: bytes, bad: int) -> bool:
    """Whether a good record begins behind the bad one at offset `bad`; records begin at multiples of 8."""
    lengths = np.frombuffer(data, "<u4", count=(len(data) - bad) // 8 * 2, offset=bad)[::2].astype(np.int64)
    left = len(data) - bad - 8 * np.arange(len(lengths)) - _RECORD.size
    # The lengths are filtered all at once, and only the plausible places cost a CRC.
    plausible = np.flatnonzero((lengths > 0) & (lengths <= left))
    return any(_record_at(data, bad + 8 * int(place)) is not None for place in plausible if place)


class RecordFile:
    """The writer of a file; a file has only one. Not thread-safe."""

    def __init__(self, path: Path, durable: Durability) -> None:
        self._path, self._durable = path, durable
        self._seen: ReadPosition | None = None  # what is on disk; None: the next write must be a base
        self._base_bytes = 0

    @property
    def wants_base(self) -> bool:
        """Whether the next write must be a base."""
        seen = self._seen
        # Appends as large as the base pay for the next one, so on average a write costs about twice its
        # bytes.
        return seen is None or seen.end - self._base_bytes > max(self._base_bytes, TAIL_MIN)

    def begin(self, base: bytes) -> int:
        """Replace the file by a new one; returns its version. Raises DiskFull; then the old file remains."""
        self._seen = None
        nonce = secrets.randbits(62)  # nonce + count must fit in 63 bits
        head = _HEAD.pack(_MAGIC, nonce, 0, 0)[:16]
        data = head + struct.pack("<II", crc32c(head), 0) + _framed(base)
        replace_file(self._path, data, self._durable)
        self._seen, self._base_bytes = ReadPosition(nonce, 0, len(data)), len(data)
        return nonce

    def append(self, record: bytes) -> int:
        """Append a record; returns the new version. Raises DiskFull; then the next write must be a base."""
        # Set again only after the write: behind a record that was cut off nothing may be appended.
        seen, self._seen = self._seen, None
        assert seen is not None, "a base is due"
        data = _framed(record)
        with writing(self._path, keep=True):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                # One write call: readers see a prefix of the record or all of it, and they stop at a
                # prefix.
                if os.write(descriptor, data) < len(data):
                    raise OSError(errno.ENOSPC, _FULL)
                if self._durable == "fsync":
                    os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        self._seen = ReadPosition(seen.nonce, seen.count + 1, seen.end + len(data))
        return self._seen.version


def _framed(payload: bytes) -> bytes:
    """A JSON text as a record, padded with spaces to a multiple of 8 bytes."""
    payload += b" " * (-len(payload) % 8)
    length = struct.pack("<I", len(payload))
    return length + struct.pack("<I", crc32c(payload, crc32c(length))) + payload


def replace_file(path: Path, data: bytes, durable: Durability) -> None:
    """Replace the file at `path`: readers see the old bytes or the new, never a mixture. Raises DiskFull."""
    partial = path.with_name(path.name + ".tmp")
    with writing(partial):
        partial.write_bytes(data)
        # The bytes before the name. Otherwise a loss of power could leave the new name with an empty file,
        # and the old bytes would be gone.
        if durable == "fsync":
            sync(partial)
    partial.replace(path)
    # A rename is durable only with its folder.
    if durable == "fsync":
        sync(path.parent)
