"""Open transactions on disk: the logs of registrations whose rows do not fit in memory.

A registration that holds too much is *spilled*: its open prewrites, and from then on every row and resolved
ts that comes for it, go to a log in the order of arrival, unmatched. They are matched when a resolved ts
would tell of one of its commits: the log is played back, in as many passes over parts of its keys as it takes
to keep to the memory bound, through the very kernels that match live rows. What is still open afterwards is
kept in memory again, or is the beginning of a new log. A lock pins the resolved ts, so a large transaction is
played back once, at its end.

File: chunks of a header (magic, CRC32C, length; u32, u32, u64 LE) and whole records (`spill_kernels`). A
damaged file costs a scan: its registration is made anew. Files do not outlive their stream; the folder is
emptied when a puller starts.
"""

from __future__ import annotations

import shutil
import struct
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from crc32c import crc32c

from tidegate.disk import DiskFull, writing
from tidegate.kernel import PAD, address, buffer
from tidegate.puller.match import spill_kernels
from tidegate.puller.match import table_kernels as k

HEADER: Final = struct.Struct("<IIQ")
MAGIC: Final = 0x54475350
CHUNK_BYTES: Final = 4 << 20
"""Chunks are cut at about this size, so that playing back holds little at once."""


class DamagedLogError(Exception):
    """A log's bytes are not what was written."""


@dataclass(eq=False, slots=True)
class SpillLog:
    """The log of one registration, which began in `state` with `resolved`."""

    path: Path
    state: int
    resolved: int
    size: int = 0

    def append(self, records: k.U8) -> None:
        """Add whole records. Raises DiskFull; then the log is as it was."""
        before = self.size
        try:
            with writing(self.path, keep=True), self.path.open("ab") as file:
                for part in _cut(records):
                    file.write(HEADER.pack(MAGIC, crc32c(part.data), len(part)))
                    file.write(part.data)
                    self.size += HEADER.size + len(part)
        except BaseException:
            self.take_back(before)
            raise

    def take_back(self, size: int) -> None:
        """Cut the log to a former size."""
        self.size = size
        if self.path.exists():
            with self.path.open("r+b") as file:
                file.truncate(size)

    def chunks(self) -> Iterator[k.U8]:
        """What was appended, checked, piece by piece. Raises DamagedLogError."""
        if self.size == 0:
            return
        try:
            file = self.path.open("rb")
        except FileNotFoundError as error:
            raise DamagedLogError from error
        with file:
            left = self.size
            while left > 0:
                chunk = self._chunk(file, left)
                left -= HEADER.size + len(chunk)
                yield chunk

    def _chunk(self, file: BinaryIO, left: int) -> k.U8:
        head = file.read(HEADER.size)
        if len(head) < HEADER.size:
            raise DamagedLogError
        magic, crc, length = HEADER.unpack(head)
        if magic != MAGIC or length > left:
            raise DamagedLogError
        data = file.read(length)
        if len(data) != length or crc32c(data) != crc:
            raise DamagedLogError
        return np.frombuffer(data, dtype=np.uint8)

    def remove(self) -> None:
        """Nobody needs it any more."""
        self.path.unlink(missing_ok=True)


def _cut(records: k.U8) -> Iterator[k.U8]:
    """Whole records in pieces of about CHUNK_BYTES."""
    at = 0
    while at < len(records):
        end = spill_kernels.cut(address(records), at, len(records), CHUNK_BYTES)
        yield records[at:end]
        at = end


@dataclass(eq=False, slots=True, weakref_slot=True)
class SpillFolder:
    """The logs of one stream, by number; and the memory in which records wait to be written to them."""

    folder: Path
    flush_bytes: int
    logs: dict[int, SpillLog] = field(default_factory=dict)
    memory: k.U8 = field(default_factory=lambda: buffer(0))
    _number: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.memory = buffer(self.flush_bytes)
        _OPEN[self.folder] = self

    @property
    def room(self) -> int:
        """Bytes that fit in memory."""
        return len(self.memory) - PAD

    @property
    def disk_bytes(self) -> int:
        """What all logs take."""
        return sum(log.size for log in self.logs.values())

    def new_log(self, state: int, resolved: int) -> SpillLog:
        """An empty log; it becomes a registration's by being put in `logs`."""
        self._number += 1
        return SpillLog(self.folder / f"{self._number:06d}.spill", state, resolved)

    def flush(self, counts: k.I64, registrations: int) -> None:
        """Write the records in memory to their logs. Raises DiskFull; then nothing has changed."""
        used = int(counts[k.C_LOG])
        if used == 0:
            return
        sizes = np.zeros(registrations, dtype=np.int64)
        spill_kernels.sizes_by_registration(address(self.memory), used, address(sizes))
        ends = np.cumsum(sizes)
        places, grouped = ends - sizes, buffer(used)
        spill_kernels.group_by_registration(address(self.memory), used, address(places), address(grouped))
        before = {number: log.size for number, log in self.logs.items()}
        try:
            for number in np.flatnonzero(sizes).tolist():
                log = self.logs.get(number)
                if log is not None:
                    log.append(grouped[ends[number] - sizes[number] : ends[number]])
        except BaseException:
            for number, size in before.items():
                self.logs[number].take_back(size)
            raise
        counts[k.C_LOG] = 0

    def make_room(self, counts: k.I64, registrations: int) -> None:
        """Write the records in memory out; on a full disk, or for a record that is larger, let memory grow.

        It never raises DiskFull: it is called in the middle of a portion, which must be matched to its end.
        """
        used = int(counts[k.C_LOG])
        if used:
            with suppress(DiskFull):
                self.flush(counts, registrations)
                return
        self.grow(used)

    def grow(self, used: int) -> None:
        """Twice the room, with what is there."""
        longer = buffer(2 * self.room)
        longer[:used] = self.memory[:used]
        self.memory = longer

    def forget(self, number: int) -> None:
        """A registration needs no log any more."""
        log = self.logs.pop(number, None)
        if log is not None:
            log.remove()

    def close(self) -> None:
        """Remove all files."""
        self.logs.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


_OPEN: Final[weakref.WeakValueDictionary[Path, SpillFolder]] = weakref.WeakValueDictionary()


def bytes_by_registration(folder: Path) -> dict[int, int]:
    """What the logs of the stream that spills to `folder` take on disk; any thread may ask."""
    found = _OPEN.get(folder)
    return {} if found is None else {number: log.size for number, log in list(found.logs.items())}
