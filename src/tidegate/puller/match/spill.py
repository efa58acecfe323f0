"""Open transactions on disk: the logs of registrations whose rows do not fit in memory.

A registration that holds too much is *spilled*: its open prewrites, and from then on every row and resolved
ts that arrives for it, go to a log in the order of arrival, unmatched. They are matched when a resolved ts
would pass one of its commits. Then the log is played back through the same kernels that match live rows, in
as many passes over parts of its keys as the memory bound requires. Prewrites that are still open afterwards
go back to memory, or begin a new log. An open transaction's lock holds the resolved ts down, so a large
transaction is played back once, at its end.

File: chunks of a header (magic, CRC32C, length; u32, u32, u64 LE) and whole records (`spill_kernels`). A
damaged file costs a scan, because its registration is made again. Files do not outlive their stream; the
folder is emptied when a puller starts.
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
"""Chunks are cut at about this size (bytes), so a playback needs little memory."""


class DamagedLogError(Exception):
    """A log's bytes are not what was written."""


@dataclass(eq=False, slots=True)
class SpillLog:
    """The log of one registration. `state`, `resolved`: those of the registration when the log began."""

    path: Path
    state: int
    resolved: int
    size: int = 0

    def append(self, records: k.U8) -> None:
        """Add whole records. Raises DiskFull; then the log is unchanged."""
        # After a failure the log is cut back to this size. Otherwise the chunks already written would
        # repeat their records when the caller appends again.
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
        """Truncate the log to an earlier size."""
        self.size = size
        if self.path.exists():
            with self.path.open("r+b") as file:
                file.truncate(size)

    def chunks(self) -> Iterator[k.U8]:
        """The appended records, verified, chunk by chunk. Raises DamagedLogError."""
        if self.size == 0:
            return
        try:
            file = self.path.open("rb")
        except FileNotFoundError as error:
            raise DamagedLogError from error
        with file:
            # Only the bytes that were counted: a failed truncation may have left more in the file.
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
        # The length is compared before it is read, so a damaged header allocates no memory.
        if magic != MAGIC or length > left:
            raise DamagedLogError
        data = file.read(length)
        if len(data) != length or crc32c(data) != crc:
            raise DamagedLogError
        return np.frombuffer(data, dtype=np.uint8)

    def remove(self) -> None:
        """Delete the log's file."""
        self.path.unlink(missing_ok=True)


def _cut(records: k.U8) -> Iterator[k.U8]:
    """Cut records into pieces of about CHUNK_BYTES, each of whole records."""
    at = 0
    while at < len(records):
        end = spill_kernels.cut(address(records), at, len(records), CHUNK_BYTES)
        yield records[at:end]
        at = end


@dataclass(eq=False, slots=True, weakref_slot=True)
class SpillFolder:
    """The logs of one stream, by registration number, and the memory where records wait to be written."""

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
        """The bytes of records that fit in memory."""
        return len(self.memory) - PAD

    @property
    def disk_bytes(self) -> int:
        """The bytes of all logs."""
        return sum(log.size for log in self.logs.values())

    def new_log(self, state: int, resolved: int) -> SpillLog:
        """An empty log. The caller puts it in `logs` to assign it to a registration."""
        self._number += 1
        return SpillLog(self.folder / f"{self._number:06d}.spill", state, resolved)

    def flush(self, counts: k.I64, registrations: int) -> None:
        """Write the records in memory to their logs. Raises DiskFull; then nothing has changed."""
        used = int(counts[k.C_LOG])
        if used == 0:
            return
        sizes = np.zeros(registrations, dtype=np.int64)
        spill_kernels.sizes_by_registration(address(self.memory), used, address(sizes))
        # One append for each log, not one for each row.
        ends = np.cumsum(sizes)
        places, grouped = ends - sizes, buffer(used)
        spill_kernels.group_by_registration(address(self.memory), used, address(places), address(grouped))
        # All logs or none: C_LOG stays as it was after a failure, so the next flush writes the same records
        # again.
        before = {number: log.size for number, log in self.logs.items()}
        try:
            for number in np.flatnonzero(sizes).tolist():
                # A registration that was stopped has no log any more, and its records are dropped.
                log = self.logs.get(number)
                if log is not None:
                    log.append(grouped[ends[number] - sizes[number] : ends[number]])
        except BaseException:
            for number, size in before.items():
                self.logs[number].take_back(size)
            raise
        counts[k.C_LOG] = 0

    def make_room(self, counts: k.I64, registrations: int) -> None:
        """Flush the records in memory. If the disk is full, or empty memory is too small, double it.

        This never raises DiskFull, because it is called in the middle of a portion, which must be matched to
        its end.
        """
        used = int(counts[k.C_LOG])
        if used:
            # The disk is full: the records stay in memory until `relieve` reports it.
            with suppress(DiskFull):
                self.flush(counts, registrations)
                return
        self.grow(used)

    def grow(self, used: int) -> None:
        """Double the memory and keep its `used` bytes."""
        longer = buffer(2 * self.room)
        longer[:used] = self.memory[:used]
        self.memory = longer

    def forget(self, number: int) -> None:
        """Remove the log of a registration that no longer needs one."""
        log = self.logs.pop(number, None)
        if log is not None:
            log.remove()

    def close(self) -> None:
        """Remove all files."""
        self.logs.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


_OPEN: Final[weakref.WeakValueDictionary[Path, SpillFolder]] = weakref.WeakValueDictionary()


def bytes_by_registration(folder: Path) -> dict[int, int]:
    """The bytes of each log of the stream that spills to `folder`, by registration number. Thread-safe."""
    found = _OPEN.get(folder)
    return {} if found is None else {number: log.size for number, log in list(found.logs.items())}
