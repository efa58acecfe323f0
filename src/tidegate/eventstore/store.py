"""The writing edge of the event store: append, seal, drop, publish.

`STORE/` belongs to one process at a time (a lock on `STORE/lock`). Rows wait in memory until a resolved ts
covers them; `seal(R)` writes those with commit_ts <= R as one sorted segment, names it in the span's manifest
and only then lets `resolved` say R; `publish` then tells readers, on the page of floors. Rows above R stay;
when all spans together hold more than `memory_bytes`, the span that holds most is sorted and written as a
run: a segment beyond R that readers merge in as the resolved ts reaches its rows. One span: `span_store`.

Crash: `durable="process"` (default) leaves files in the page cache and survives kill -9 of the process at any
moment; `durable="fsync"` forces each file to disk before the one that names it, and the page when it is
written.
What was not published is pulled again; what a run held beyond the ts its range is kept to is hidden by
`valid_to`. After a loss of power any file may be torn, missing, or older than another: a span is complete as
far as its own manifest and the segments that are whole say, or the floor that names that very manifest. The
rest is pulled again, and `on_pulled_again` is told.

Small segments are merged when `MERGE_COUNT` of like size lie together, so the number of files grows with the
data, not with the number of seals. A reader that meets a merged-away file reads the manifest again.

A tick costs what moved in it: a span with rows a segment and a record of its manifest, an idle one a number
in memory, and all of them together one write of the page.

Room: while segments and runs hold more than `disk_bytes`, or the disk is full, `pressure` says so, and
whoever appends should wait. Nothing is lost meanwhile: rows stay in memory, `drop_below` works (its small
manifest takes the room of `STORE/reserve` if it must), and `recover` notices when there is room again.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidegate.disk import DiskFull, free_bytes, lock_file, writing
from tidegate.errors import Fatal, Retryable
from tidegate.eventstore import damage, kernels, records
from tidegate.eventstore.floors import FLOORS, FloorPage
from tidegate.eventstore.manifest import MANIFEST, refuse_old_form, span_folder
from tidegate.eventstore.records import Torn
from tidegate.eventstore.segment import Durability
from tidegate.eventstore.span_store import SpanStore
from tidegate.log import event
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp

LOG: Final = logging.getLogger(__name__)

RESERVE: Final = "reserve"
RESERVE_BYTES: Final = 1 << 20
"""Held back on the disk for the manifests that let segments go when nothing else fits any more."""
ROOM_SHARE: Final = 0.8
"""Below this share of the quota there is room again."""
FILLING_SHARE: Final = 0.75
"""Above this share of the quota, below where there is room again, somebody should let something go."""
CROWDED_SHARE: Final = 0.875
"""Above this share of the quota there will soon be none."""


class EventStore:
    """All spans of one (cluster, kv mode), in one folder, written by one process."""

    def __init__(
        self,
        folder: Path | str,
        *,
        durable: Durability = "process",
        memory_bytes: int = 256 << 20,
        disk_bytes: int = 0,
        kv_mode: str = "tidb",
        keep_free: int = 0,
        on_pulled_again: Callable[[Retryable], None] | None = None,
    ) -> None:
        """Open or create the folder. Raises Retryable while another process has it, Fatal when an earlier
        version wrote it.

        `on_pulled_again` is told of each span whose files do not add up, in any thread.
        `memory_bytes`: of rows that wait; `disk_bytes`: of segments and runs, and of what is charged beside
        them (`charge`), 0 for no bound but the disk's. `keep_free`: bytes of the disk that are left to
        others.
        """
        self.folder: Path = Path(folder)
        self.durable: Durability = durable
        self.memory_bytes, self.disk_bytes = memory_bytes, disk_bytes
        self.keep_free = keep_free
        self.kv_mode: str = kv_mode
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock_file = _lock(self.folder / "lock")
        try:
            refuse_old_form(self.folder)
        except Fatal:
            os.close(self._lock_file)
            raise
        self._spans: dict[str, SpanStore] = {}
        self._lock = threading.Lock()  # guards _spans, _moved, _held and _disk
        self._open_lock = threading.Lock()
        self._publish_lock = threading.Lock()  # held from the look at a claim to its being told
        self._moved: dict[str, SpanStore] = {}  # their claims are to be told
        self._held = self._disk = 0
        self._full = ""  # why the last write failed for want of room
        self._thread = threading.local()
        self._on_pulled_again = on_pulled_again
        self._floors = FloorPage(self.folder, durable)
        if self._floors.damage:
            what = f"{FLOORS}, the page of floors of the event store, is corrupt"
            why = f"{self._floors.damage}, byte 0 to its end; the machine may have lost power"
            fix = "nothing to do: what the manifests do not say for themselves is pulled from TiKV again"
            self.pulled_again(Retryable(what, where=str(self.folder / FLOORS), why=why, fix=fix))
        self._closed_disk = self._clear_remains()
        self._disk = sum(self._closed_disk.values())
        self.recover()

    def _clear_remains(self) -> dict[str, int]:
        """Folders that lost their manifest when a removal was cut off hold nothing anybody knows of.

        Nor do those with a torn one: that is said, because it is pulled again if a feed needs it. Returns the
        bytes on disk of each span there is.
        """
        sizes = {}
        for folder in self.folder.iterdir():
            if not folder.is_dir() or folder.name == damage.DAMAGE:
                continue
            try:
                records.read(folder / MANIFEST)
            except FileNotFoundError:
                shutil.rmtree(folder, ignore_errors=True)
            except Torn as error:
                why = f"{error.why}; the machine may have lost power"
                fix = "nothing to do: the span is pulled from TiKV again from where it is needed"
                self.pulled_again(Retryable(error.what, where=error.where, why=why, fix=fix))
                shutil.rmtree(folder, ignore_errors=True)
            else:
                sizes[folder.name] = sum(e.stat().st_size for e in os.scandir(folder) if e.name != MANIFEST)
        return sizes

    def open_span(self, span: Span) -> SpanStore:
        """The span's store, opened once. Raises DiskFull."""
        name = span_id(span, self.kv_mode)
        with self._open_lock:
            found = self._spans.get(name)
            if found is None:
                found = SpanStore(self, span)
                self.charge(disk=-self._closed_disk.pop(name, 0))
                with self._lock:
                    self._spans[name] = found
            return found

    def remove_span(self, span: Span) -> None:
        """Delete all that is kept of a span; opened again it begins empty. Nobody may be reading it."""
        name = span_id(span, self.kv_mode)
        with self._open_lock:
            found = self._spans.get(name)
            if found is not None:
                found.close()
            self.charge(disk=-self._closed_disk.pop(name, 0))
            # Readers first; then the manifest, so that what a crash leaves behind is known as remains.
            with self._publish_lock:
                with self._lock:
                    self._moved.pop(name, None)
                self.small(lambda: self._floors.forget(name))
            folder = span_folder(self.folder, span, self.kv_mode)
            (folder / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            damage.forget(self.folder, name)

    def open_spans(self) -> list[SpanStore]:
        """Those that are open now."""
        with self._lock:
            return list(self._spans.values())

    def publish(self) -> None:
        """Tell readers how far each open span is sealed. Costs nothing when no span moved."""
        with self._publish_lock:
            with self._lock:
                moved, self._moved = self._moved, {}
            claims = [(span.id, *span.claim) for span in moved.values()]
            try:
                self._floors.put(claim for claim in claims if claim[1] > 0)
            except DiskFull as error:
                with self._lock:
                    self._moved = moved | self._moved
                self.filled(error)
                raise

    def moved(self, span: SpanStore) -> None:
        """A span's claim is another than what was told of it."""
        with self._lock:
            self._moved[span.id] = span

    def withdraw(self, span_id: str) -> None:
        """Take a span's ts back before its data goes, so that a crash cannot leave a ts without data."""
        with self._publish_lock:
            if self._floors.get(span_id)[0]:
                self.small(lambda: self._floors.put([(span_id, 0, 0)]))

    def published(self, span_id: str) -> tuple[Timestamp, int]:
        """What readers were last told about a span, and of which manifest; (0, 0) for nothing."""
        return self._floors.get(span_id)

    def pulled_again(self, notice: Retryable) -> None:
        """Say that files do not add up and what they held is pulled again."""
        event(LOG, logging.WARNING, notice.what, where=notice.where, why=notice.why)
        if self._on_pulled_again is not None:
            self._on_pulled_again(notice)

    def scratch(self) -> kernels.Scratch:
        """The calling thread's memory for one block at a time; used again for the next."""
        if not hasattr(self._thread, "scratch"):
            self._thread.scratch = kernels.Scratch()
        found: kernels.Scratch = self._thread.scratch
        return found

    def charge(self, memory: int = 0, disk: int = 0) -> None:
        """Count bytes that spans hold in memory, and in segments and runs; or others, for which no other
        room is set aside.
        """
        with self._lock:
            self._held += memory
            self._disk += disk

    @property
    def held_bytes(self) -> int:
        """Bytes that wait in memory over all spans."""
        return self._held

    @property
    def used_bytes(self) -> int:
        """Bytes of all segments and runs, and what others were charged with."""
        return self._disk

    def relieve(self) -> None:
        """While more than `memory_bytes` wait in memory, write the largest span's rows as a run.

        Without room on the disk they stay in memory, and `pressure` says so.
        """
        while self._held > self.memory_bytes:
            largest = max(self.open_spans(), key=lambda s: s.pending_bytes)
            if largest.pending_bytes == 0:
                return
            try:
                largest.spill()
            except DiskFull:
                return

    def forget(self, span: SpanStore) -> None:
        """A span was closed; what was published of it stays published."""
        with self._lock:
            if self._spans.get(span.id) is span:
                del self._spans[span.id]
                self._moved.pop(span.id, None)
                self._closed_disk[span.id] = span.disk_bytes

    # --- room on the disk ----------------------------------------------------------------------------

    @property
    def pressure(self) -> str:
        """Why nothing more should be appended, in words; empty when there is room."""
        if self._full:
            return self._full
        if self.over_quota:
            return f"the event store's disk quota is used up: {self._disk} of {self.disk_bytes} bytes"
        return ""

    @property
    def filling(self) -> str:
        """Why there may be no room before long, in words; empty while much is free, or without a quota."""
        if self.disk_bytes and self._disk > self.disk_bytes * FILLING_SHARE:
            return f"{self._disk} of the {self.disk_bytes} bytes of the event store's disk quota are used"
        return ""

    @property
    def crowded(self) -> str:
        """Why there will soon be no room, in words; empty while much of the quota is free, or without one."""
        if self.disk_bytes and self._disk > self.disk_bytes * CROWDED_SHARE:
            return f"the event store's disk quota is nearly used up: {self._disk} of {self.disk_bytes} bytes"
        return ""

    @property
    def over_quota(self) -> bool:
        """Whether segments and runs take more than `disk_bytes`."""
        return 0 < self.disk_bytes < self._disk

    @property
    def has_room(self) -> bool:
        """Whether enough is free for what was given up under pressure to come back."""
        return not self._full and (not self.disk_bytes or self._disk <= self.disk_bytes * ROOM_SHARE)

    def admit(self) -> None:
        """Raises DiskFull while a segment would take what is left to others: the disk counts as full."""
        if self.keep_free and (free := free_bytes(self.folder)) < self.keep_free:
            raise DiskFull(
                "the disk is full",
                where=str(self.folder),
                why=f"the event store leaves {self.keep_free >> 20} MiB to others, "
                f"and {free >> 20} MiB are free",
                fix="free disk space; changefeeds wait and then continue by themselves",
            )

    def filled(self, error: DiskFull) -> None:
        """A write found no room."""
        self._full = f"{error.what}: {error.why}"

    def recover(self) -> None:
        """See whether the disk has room again, for what waits in memory and for the reserve."""
        path = self.folder / RESERVE
        try:
            self.admit()
            if not path.exists():
                with writing(path):
                    path.write_bytes(bytes(RESERVE_BYTES))
            if self._full and self._held:
                max(self.open_spans(), key=lambda s: s.pending_bytes).spill()
            self._full = ""
        except DiskFull as error:
            self.filled(error)

    def small(self, write: Callable[[], None]) -> None:
        """Write a small file by which others go; on a full disk in the place of the reserve."""
        try:
            write()
        except DiskFull:
            (self.folder / RESERVE).unlink(missing_ok=True)
            write()

    def close(self) -> None:
        """Close every span and give the folder free. Nothing is published."""
        for span in list(self._spans.values()):
            span.close()
        self._floors.close()
        os.close(self._lock_file)


def _lock(path: Path) -> int:
    try:
        return lock_file(path)
    except BlockingIOError as error:
        raise Retryable(
            "the event store is in use",
            where=str(path.parent),
            why="another process holds its lock",
            fix="stop the other capture, or give this one a data folder of its own",
        ) from error
