"""The page of floors: how far each span of a store is complete, in one small file that is written in place.

`STORE/floors` is a row of slots of 32 bytes, little-endian:

| u64 | u64 | u64 | u64 |
|---|---|---|---|
| "tgfloors" | 1 | 0 | check |
| span id | floor | manifest's version | check |
| 0 | 0 | 0 | 0: free |

The first slot says what the file is. The check is a hash of the three words before it. A reader that finds a
slot's check wrong has met the writer in the midst of it, and looks again; one that stays wrong is damage, and
says nothing. A floor counts only beside the manifest it names (`manifest`): the page is a hint for those who
look often.

All that moved in a tick is one write, of all slots up to the last that did: what was damaged is whole again
with the next tick. The file is not mapped for writing: on a full disk a write fails, where a store to a
mapped hole kills the process. It is replaced by a larger one when all slots are taken, and by one of its size
when it is not there any more; readers map it, and see whether it is still the same.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.disk import writing
from tidegate.eventstore.manifest import Frontier
from tidegate.eventstore.records import replace_file
from tidegate.eventstore.segment import Durability
from tidegate.model.timestamp import Timestamp

FLOORS: Final = "floors"
SLOT_BYTES: Final = 32
_FIRST_SLOTS: Final = 128
_LOOKS: Final = 100
"""How often a slot whose check is wrong is read again: a writer is in the midst of it for nanoseconds."""

_MAGIC: Final = int.from_bytes(b"tgfloors", "little")
_FORMAT: Final = 1
_FACTORS: Final = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F)))
_HALF: Final = np.uint64(32)

Slots = npt.NDArray[np.uint64]
"""[slots, 4]: id, floor, version, check."""


def _checks(slots: Slots) -> npt.NDArray[np.uint64]:
    """The check that each slot should have; 0 for a free one."""
    state = np.zeros(len(slots), dtype=np.uint64)
    for column, factor in enumerate(_FACTORS):
        state = (state ^ slots[:, column]) * factor
        state ^= state >> _HALF
    return state


def _name(number: int) -> str:
    return f"{number:016x}"


@dataclass(frozen=True, slots=True)
class _Mapped:
    """A file as one reader has it."""

    inode: int
    slots: Slots
    """The mapped file itself."""
    ids: npt.NDArray[np.uint64]
    places: Mapping[str, int]
    """Where each of `ids` is."""


@dataclass(frozen=True, slots=True)
class PageMark:
    """What a page held at one moment."""

    inode: int
    slots: bytes

    def stirred_since(self, before: PageMark | None) -> frozenset[str] | None:
        """The spans that name another manifest than at an earlier mark: rows may have come. None: any may.

        Floors that rose alone are left out: nothing but time has come then.
        """
        if before is None or (before.inode, len(before.slots)) != (self.inode, len(self.slots)):
            return None
        now, then = _slots(self.slots), _slots(before.slots)
        others = (now[:, 0] != then[:, 0]) | (now[:, 2] != then[:, 2])
        return frozenset(map(_name, now[others, 0].tolist()))


class FloorReader:
    """Who looks at a store's floors again and again. Any thread may."""

    def __init__(self, store: Path) -> None:
        self._path = store / FLOORS
        self._name = str(self._path)
        self._mapped: _Mapped | None = None
        self._read: tuple[int, bytes, Frontier] | None = None
        """The page that was read last, and what it said."""

    def read(self) -> Frontier:
        """All floors, in one pass over memory; none while there is no page."""
        mapped = self._current()
        if mapped is None:
            return Frontier({}, (), ())
        page = mapped.slots.tobytes()
        before = self._read
        if before is not None and before[0] == mapped.inode and before[1] == page:
            return before[2]  # a hundred changefeeds look at each page once or twice
        slots = settled(mapped.slots)
        places = mapped.places
        if not np.array_equal(slots[:, 0], mapped.ids):
            places = self._remember(mapped, slots[:, 0].copy()).places
        found = Frontier(places, slots[:, 1].tolist(), slots[:, 2].tolist())
        if slots.tobytes() == page:  # else it met a writer, and has something that is newer than the page
            self._read = mapped.inode, page, found
        return found

    def mark(self) -> PageMark | None:
        """What the page holds, to be compared with an earlier one: equal means that nothing was told between.

        A write under way may be met by halves; then the next mark differs.
        """
        mapped = self._current()
        return None if mapped is None else PageMark(mapped.inode, mapped.slots.tobytes())

    def versions(self, span_ids: Iterable[str]) -> object:
        """Which manifests the floors of these spans speak of, to be compared with what this said earlier:
        equal means that no rows of them have come between.
        """
        mapped = self._current()
        if mapped is None:
            return None
        places = [mapped.places.get(span_id, 0) for span_id in span_ids]
        # A span that is not there yet, or not known here yet, takes up a place that was free.
        others = b"" if all(places) else mapped.slots[:, 0].tobytes()
        return mapped.inode, mapped.slots[places, 2].tobytes(), others

    def of(self, span_id: str) -> Frontier:
        """The floor of one span alone; a look at one slot."""
        mapped = self._current()
        if mapped is None:
            return Frontier({}, (), ())
        place = mapped.places.get(span_id)
        if place is None or _name(int(mapped.slots[place, 0])) != span_id:
            return self.read()
        slots = settled(mapped.slots[place : place + 1])
        return Frontier({span_id: 0}, slots[:, 1].tolist(), slots[:, 2].tolist())

    def _current(self) -> _Mapped | None:
        """The page that is there now."""
        known = self._mapped
        try:
            status = os.stat(self._name)  # noqa: PTH116 - thousands a second, and a path's own costs twice that
        except FileNotFoundError:
            return None
        # While it is mapped no other file gets its inode.
        if known is not None and known.inode == status.st_ino:
            return known
        try:
            with self._path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                slots = _slots(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (FileNotFoundError, ValueError):  # ValueError: it is empty
            return None
        if not _is_page(slots):
            return None
        return self._remember(_Mapped(inode, slots, np.empty(0, np.uint64), {}), slots[:, 0].copy())

    def _remember(self, mapped: _Mapped, ids: npt.NDArray[np.uint64]) -> _Mapped:
        places = {_name(number): place for place, number in enumerate(ids.tolist()) if place and number}
        found = _Mapped(mapped.inode, mapped.slots, ids, places)
        self._mapped = found
        return found


def _slots(data: mmap.mmap | bytes) -> Slots:
    whole = len(data) // SLOT_BYTES
    return np.frombuffer(data, "<u8", whole * 4).reshape(-1, 4)


def _is_page(slots: Slots) -> bool:
    head = slots[:1].copy()
    return (
        len(head) == 1 and head[0, 0] == _MAGIC and head[0, 1] == _FORMAT and head[0, 3] == _checks(head)[0]
    )


def settled(mapped: Slots) -> Slots:
    """A copy of which each slot is as it was at one moment; those that are damaged are free."""
    found = mapped.copy()
    wrong = np.flatnonzero(_checks(found) != found[:, 3])
    for _ in range(_LOOKS):
        if not len(wrong):
            break
        found[wrong] = mapped[wrong]
        wrong = wrong[_checks(found[wrong]) != found[wrong, 3]]
    found[wrong] = 0
    return found


class FloorPage:
    """The writing side, of which a store has one. Thread-safe."""

    def __init__(self, store: Path, durable: Durability) -> None:
        """Take over the page that is there; one that is none is replaced by the first `put`."""
        self._path, self._durable = store / FLOORS, durable
        self._lock = threading.Lock()
        self._file = -1
        self._places: dict[str, int] = {}
        self._unused: list[int] = []
        self._slots = np.zeros((0, 4), dtype="<u8")
        self.damage = ""
        """What was wrong with the page that was there."""
        self._take_over()

    def _take_over(self) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        slots = _slots(data).copy()
        if not _is_page(slots) or len(data) % SLOT_BYTES:
            self.damage = f"it has {len(data)} bytes, or does not begin as one"
            return
        wrong = _checks(slots) != slots[:, 3]
        if wrong.any():
            self.damage = f"the check of {int(wrong.sum())} slots does not match their bytes"
            slots[wrong] = 0
        self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._lay_out(slots)

    def _lay_out(self, slots: Slots) -> None:
        ids = slots[:, 0].tolist()
        self._slots = slots
        self._places = {_name(number): place for place, number in enumerate(ids) if place and number}
        self._unused = [place for place in range(len(ids) - 1, 0, -1) if not ids[place]]

    def get(self, span_id: str) -> tuple[Timestamp, int]:
        """What readers were last told of a span: floor and version; (0, 0) for nothing."""
        with self._lock:
            place = self._places.get(span_id)
            if place is None:
                return 0, 0
            floor, version = self._slots[place, 1:3].tolist()
            return floor, version

    def put(self, floors: Iterable[tuple[str, Timestamp, int]]) -> None:
        """Tell readers (span id, floor, version of its manifest) of each; a floor of 0 takes it back.

        Durable when this returns, as the store is. Raises DiskFull; then some may have been told.
        """
        with self._lock:
            given = list(floors)
            if not given:
                return
            fresh = sum(1 for span_id, _, _ in given if span_id not in self._places)
            if fresh > len(self._unused) or not self._is_there():
                self._replace(fresh)
            places = [self._place(span_id) for span_id, _, _ in given]
            self._slots[places, 1] = [floor for _, floor, _ in given]
            self._slots[places, 2] = [version for _, _, version in given]
            self._write(places)

    def forget(self, span_id: str) -> None:
        """The span is gone. Raises DiskFull."""
        with self._lock:
            place = self._places.get(span_id)
            if place is None:
                return
            self._slots[place] = 0
            self._write([place])
            del self._places[span_id]
            self._unused.append(place)

    def close(self) -> None:
        """What was told stays told."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _place(self, span_id: str) -> int:
        place = self._places.get(span_id)
        if place is None:
            place = self._places[span_id] = self._unused.pop()
            self._slots[place] = (int(span_id, 16), 0, 0, 0)
        return place

    def _write(self, places: list[int]) -> None:
        self._slots[places, 3] = _checks(self._slots[places])
        data = self._slots[: max(places) + 1].tobytes()
        with writing(self._path, keep=True):
            if os.pwrite(self._file, data, 0) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._durable == "fsync":
                os.fdatasync(self._file)

    def _is_there(self) -> bool:
        """Whether the path still leads to the file that is written."""
        if self._file < 0:
            return False
        with suppress(FileNotFoundError):
            there = self._path.stat()
            return there.st_ino == os.fstat(self._file).st_ino and there.st_size == self._slots.nbytes
        return False

    def _replace(self, fresh: int) -> None:
        """A page with room for more spans in the place of this one, or the first."""
        count = max(_FIRST_SLOTS, len(self._slots))
        while count - 1 - len(self._places) < fresh:
            count *= 2
        slots = np.zeros((count, 4), dtype="<u8")
        slots[: len(self._slots)] = self._slots
        slots[0, :2] = (_MAGIC, _FORMAT)
        slots[0, 3] = _checks(slots[:1])[0]
        replace_file(self._path, slots.tobytes(), self._durable)
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._lay_out(slots)
