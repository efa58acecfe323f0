"""The page of floors: up to which ts each span of a store is complete, in one small file written in place.

`STORE/floors` is an array of entries of 32 bytes, little-endian:

| u64 | u64 | u64 | u64 |
|---|---|---|---|
| "tgfloors" | 1 | 0 | check |
| span id | floor | manifest's version | check |
| 0 | 0 | 0 | 0: free |

The first entry identifies the file. The check is a hash of the three words before it. If a reader finds a
wrong check, the writer was writing that entry, and the reader reads it again. An entry whose check stays
wrong is damaged and counts as free. A floor is valid only for the manifest version that it names
(`manifest`), so correctness never depends on the page. But between two writes of a manifest the floor of an
idle span rises only here.

The writer publishes all floors that moved in a tick with one write, of all entries up to the last that
moved. The next tick therefore repairs damaged entries. The writer does not map the file: on a full disk a
write fails with an error, but storing into a hole of a mapped file kills the process (SIGBUS). When all
entries are taken, a larger file replaces this one; when the file was deleted, one of the same size does.
Readers map the file, and check at each read that the path still leads to the file they have mapped.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.disk import writing
from tidegate.eventstore.manifest import StoreFrontier
from tidegate.eventstore.records import replace_file
from tidegate.eventstore.segment import Durability
from tidegate.model.timestamp import Timestamp
from tidegate.model.ts_by_span import PlacesOf

FLOORS: Final = "floors"
ENTRY_BYTES: Final = 32
_FIRST_ENTRIES: Final = 128
_LOOKS: Final = 100
"""How often an entry with a wrong check is read again: writing one takes nanoseconds."""

_MAGIC: Final = int.from_bytes(b"tgfloors", "little")
_FORMAT: Final = 1
_FACTORS: Final = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F)))
_HALF: Final = np.uint64(32)

NOTHING: Final = StoreFrontier(PlacesOf({}), np.zeros(1, np.uint64), np.zeros(1, np.uint64))
"""The frontier while there is no page."""

Entries = npt.NDArray[np.uint64]
"""[entries, 4]: id, floor, version, check."""


def _checks(entries: Entries) -> npt.NDArray[np.uint64]:
    """The check that each entry must have; 0 for a free entry."""
    state = np.zeros(len(entries), dtype=np.uint64)
    for column, factor in enumerate(_FACTORS):
        state = (state ^ entries[:, column]) * factor
        state ^= state >> _HALF
    return state


def _name(number: int) -> str:
    return f"{number:016x}"


@dataclass(frozen=True, slots=True)
class _Mapped:
    """A page file that a reader has mapped."""

    inode: int
    entries: Entries
    """The mapped file itself."""
    ids: npt.NDArray[np.uint64]
    places: PlacesOf
    """Span id -> index of its entry, at the time `ids` was copied."""


@dataclass(frozen=True, slots=True)
class PageMark:
    """The contents of a page at one moment."""

    inode: int
    entries: bytes

    def changed_since(self, before: PageMark | None) -> frozenset[str] | None:
        """The spans whose manifest version changed since an earlier mark: new rows may have arrived for them.

        Returns None if new rows may have arrived for any span. If only a span's floor rose, it is left out,
        because an idle span has no new rows.
        """
        if before is None or (before.inode, len(before.entries)) != (self.inode, len(self.entries)):
            return None
        now, then = _entries(self.entries), _entries(before.entries)
        others = (now[:, 0] != then[:, 0]) | (now[:, 2] != then[:, 2])
        return frozenset(map(_name, now[others, 0].tolist()))


class FloorReader:
    """Reads a store's floors repeatedly. Thread-safe."""

    def __init__(self, store: Path) -> None:
        self._path = store / FLOORS
        self._name = str(self._path)
        self._mapped: _Mapped | None = None
        self._read: tuple[int, bytes, StoreFrontier] | None = None
        """The inode and bytes of the page that was read last, and the frontier made from it."""

    def read(self) -> StoreFrontier:
        """All floors, in one pass over memory; empty while there is no page."""
        mapped = self._current()
        if mapped is None:
            return NOTHING
        page = mapped.entries.tobytes()
        before = self._read
        if before is not None and before[0] == mapped.inode and before[1] == page:
            return before[2]  # a hundred changefeeds read the same page once or twice each
        entries = settled(mapped.entries)
        places = mapped.places
        # A span was added or removed; only then is the index made again.
        if not np.array_equal(entries[:, 0], mapped.ids):
            places = self._remember(mapped, entries[:, 0].copy()).places
        floors, versions = entries[:, 1].copy(), entries[:, 2].copy()
        floors[0] = 0  # of the entry that identifies the file, where spans without an entry are looked up
        found = StoreFrontier(places, floors, versions)
        if entries.tobytes() == page:  # otherwise a writer was active, and `found` is newer than `page`
            self._read = mapped.inode, page, found
        return found

    def mark(self) -> PageMark | None:
        """The page's contents. If they equal an earlier mark, nothing was published in between.

        The mark may contain half of a write that is under way; then the next mark differs from it.
        """
        mapped = self._current()
        return None if mapped is None else PageMark(mapped.inode, mapped.entries.tobytes())

    def versions(self, span_ids: Iterable[str]) -> object:
        """The manifest versions that the floors of these spans name, to compare with an earlier result:
        if the two are equal, no rows of these spans have arrived in between.
        """
        mapped = self._current()
        if mapped is None:
            return None
        places = [mapped.places.by_name.get(span_id, 0) for span_id in span_ids]
        # Some spans have no entry, or one that this reader has not seen yet. They will use an entry that was
        # free, so the result must change when the id of any entry changes.
        others = b"" if all(places) else mapped.entries[:, 0].tobytes()
        return mapped.inode, mapped.entries[places, 2].tobytes(), others

    def of(self, span_id: str) -> StoreFrontier:
        """The floor of one span; usually reads only its entry."""
        mapped = self._current()
        if mapped is None:
            return NOTHING
        place = mapped.places.by_name.get(span_id)
        # The entry may have been freed and taken by another span since the index was made.
        if place is None or _name(int(mapped.entries[place, 0])) != span_id:
            return self.read()
        entry = settled(mapped.entries[place : place + 1])
        floors, versions = np.array([0, entry[0, 1]], np.uint64), np.array([0, entry[0, 2]], np.uint64)
        return StoreFrontier(PlacesOf({span_id: 1}), floors, versions)

    def _current(self) -> _Mapped | None:
        """The page that the path leads to now; None if there is none."""
        known = self._mapped
        try:
            status = os.stat(self._name)  # noqa: PTH116 - thousands a second, and Path.stat costs twice as much
        except FileNotFoundError:
            return None
        # As long as a file is mapped, no other file can get its inode number.
        if known is not None and known.inode == status.st_ino:
            return known
        try:
            with self._path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                entries = _entries(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (FileNotFoundError, ValueError):  # ValueError: it is empty
            return None
        if not _is_page(entries):
            return None
        return self._remember(
            _Mapped(inode, entries, np.empty(0, np.uint64), PlacesOf({})), entries[:, 0].copy()
        )

    def _remember(self, mapped: _Mapped, ids: npt.NDArray[np.uint64]) -> _Mapped:
        places = {_name(number): place for place, number in enumerate(ids.tolist()) if place and number}
        found = _Mapped(mapped.inode, mapped.entries, ids, PlacesOf(places))
        self._mapped = found
        return found


def _entries(data: mmap.mmap | bytes) -> Entries:
    whole = len(data) // ENTRY_BYTES
    return np.frombuffer(data, "<u8", whole * 4).reshape(-1, 4)


def _is_page(entries: Entries) -> bool:
    head = entries[:1].copy()
    return (
        len(head) == 1 and head[0, 0] == _MAGIC and head[0, 1] == _FORMAT and head[0, 3] == _checks(head)[0]
    )


def settled(mapped: Entries) -> Entries:
    """A copy of the entries in which no entry is half written; damaged entries are set to free."""
    found = mapped.copy()
    wrong = np.flatnonzero(_checks(found) != found[:, 3])
    for _ in range(_LOOKS):
        if not len(wrong):
            break
        found[wrong] = mapped[wrong]
        wrong = wrong[_checks(found[wrong]) != found[wrong, 3]]
    # An entry that stays wrong is damaged. Free is the safe reading: the manifest's own ranges count.
    found[wrong] = 0
    return found


class FloorPage:
    """The writer of a store's page; a store has only one. Thread-safe."""

    def __init__(self, store: Path, durable: Durability) -> None:
        """Continue the existing page. If the file is missing or not a page, the first `put` makes one."""
        self._path, self._durable = store / FLOORS, durable
        self._lock = threading.Lock()
        self._file = -1
        self._places: dict[str, int] = {}
        self._unused: list[int] = []
        self._entries = np.zeros((0, 4), dtype="<u8")
        self.damage = ""
        """The damage of the existing page, in words; empty if it had none."""
        self._take_over()

    def _take_over(self) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        entries = _entries(data).copy()
        if not _is_page(entries) or len(data) % ENTRY_BYTES:
            self.damage = f"it has {len(data)} bytes, or does not begin as one"
            return
        wrong = _checks(entries) != entries[:, 3]
        if wrong.any():
            self.damage = f"the check of {int(wrong.sum())} entries does not match their bytes"
            # They count as free: until its span is published again the manifest's own floor counts, which is
            # lower.
            entries[wrong] = 0
        self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._lay_out(entries)

    def _lay_out(self, entries: Entries) -> None:
        ids = entries[:, 0].tolist()
        self._entries = entries
        self._places = {_name(number): place for place, number in enumerate(ids) if place and number}
        # Backwards, because `pop` takes the last one: low places keep the writes of `_write` short.
        self._unused = [place for place in range(len(ids) - 1, 0, -1) if not ids[place]]

    def get(self, span_id: str) -> tuple[Timestamp, int]:
        """The floor and manifest version last published for a span; (0, 0) if there are none."""
        with self._lock:
            place = self._places.get(span_id)
            if place is None:
                return 0, 0
            floor, version = self._entries[place, 1:3].tolist()
            return floor, version

    def put(self, floors: Iterable[tuple[str, Timestamp, int]]) -> None:
        """Publish (span id, floor, version of its manifest) of each span; a floor of 0 withdraws it.

        When this returns, they are as durable as the store is (`Durability`). Raises DiskFull; then readers
        may see some of them.
        """
        with self._lock:
            given = list(floors)
            if not given:
                return
            fresh = sum(1 for span_id, _, _ in given if span_id not in self._places)
            # A page that was deleted must be replaced: readers would never see what is written to the old
            # file.
            if fresh > len(self._unused) or not self._is_there():
                self._replace(fresh)
            places = [self._place(span_id) for span_id, _, _ in given]
            self._entries[places, 1] = [floor for _, floor, _ in given]
            self._entries[places, 2] = [version for _, _, version in given]
            self._write(places)

    def forget(self, span_id: str) -> None:
        """Free the entry of a span that was removed. Raises DiskFull."""
        with self._lock:
            place = self._places.get(span_id)
            if place is None:
                return
            # The check of a free entry is 0 as well, so readers need no exception for it.
            self._entries[place] = 0
            self._write([place])
            # After the write: if it fails, the span keeps its entry, and the call can be repeated.
            del self._places[span_id]
            self._unused.append(place)

    def close(self) -> None:
        """Close the file. Readers still see the floors that were published."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _place(self, span_id: str) -> int:
        place = self._places.get(span_id)
        if place is None:
            place = self._places[span_id] = self._unused.pop()
            self._entries[place] = (int(span_id, 16), 0, 0, 0)
        return place

    def _write(self, places: list[int]) -> None:
        self._entries[places, 3] = _checks(self._entries[places])
        data = self._entries[: max(places) + 1].tobytes()
        with writing(self._path, keep=True):
            # A short write is how a full disk shows when a part still fitted.
            if os.pwrite(self._file, data, 0) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._durable == "fsync":
                os.fdatasync(self._file)

    def _is_there(self) -> bool:
        """Whether the path still leads to the file that this object has open."""
        if self._file < 0:
            return False
        with suppress(FileNotFoundError):
            there = self._path.stat()
            return there.st_ino == os.fstat(self._file).st_ino and there.st_size == self._entries.nbytes
        return False

    def _replace(self, fresh: int) -> None:
        """Replace the page by one with room for `fresh` more spans, or create the first page."""
        count = max(_FIRST_ENTRIES, len(self._entries))
        while count - 1 - len(self._places) < fresh:
            count *= 2
        entries = np.zeros((count, 4), dtype="<u8")
        entries[: len(self._entries)] = self._entries
        entries[0, :2] = (_MAGIC, _FORMAT)
        # The other checks are still right: entries move to the new file unchanged.
        entries[0, 3] = _checks(entries[:1])[0]
        replace_file(self._path, entries.tobytes(), self._durable)
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._lay_out(entries)
