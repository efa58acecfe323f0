"""The writing edge of the event store: append, seal, drop, publish.

`STORE/` belongs to one process at a time, which holds a lock on `STORE/lock`. Rows wait in memory until a
resolved ts covers them. `seal(R)` writes the rows with commit_ts <= R as one sorted segment, names it in the
span's manifest, and only then raises `resolved` to R; `publish` then announces R to readers on the page of
floors. Rows above R stay in memory. When all spans together hold more than `memory_bytes`, the store sorts
the rows of the span that holds most and writes them as a run: a segment above R, which readers merge in when
the resolved ts reaches its rows. `span_store` has the code of one span.

Crash: `durable="process"` (default) leaves files in the page cache and survives kill -9 of the process at any
moment; `durable="fsync"` forces each file to disk before the file that names it, and the page when it is
written. The puller pulls again everything that was not published; `valid_to` hides the rows that a run holds
above the ts of its range. After a loss of power any file may be torn, missing, or older than another. A span
is then complete up to the ts that its own manifest and the undamaged segments prove, or up to a floor that
names exactly this manifest version. The rest is pulled again, and `on_pulled_again` is called.

When `MERGE_COUNT` neighbouring small segments of similar size exist, they are merged, so the number of files
grows with the data, not with the number of seals. A reader whose file was merged away reads the manifest
again.

A tick costs only the changes in it: for a span with rows a segment and a record in its manifest, for an idle
span a number in memory, and for all spans together one write of the page.

Disk space: while segments and runs hold more than `disk_bytes`, or the disk is full, `pressure` returns the
reason, and callers should stop appending. Meanwhile nothing is lost: rows stay in memory, `drop_below` still
works (if it must, its small manifest takes the space of `STORE/reserve`), and `recover` notices free space.
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
from tidegate.eventstore.removed_files import RemovedFiles
from tidegate.eventstore.segment import Durability
from tidegate.eventstore.span_store import SpanStore
from tidegate.log import event
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp

LOG: Final = logging.getLogger(__name__)

RESERVE: Final = "reserve"
RESERVE_BYTES: Final = 1 << 20
"""Disk space held in reserve for manifests that drop segments, which must be writable even on a full disk."""
ROOM_SHARE: Final = 0.8
"""At or below this share of the quota `has_room` is true: dropped data may be pulled again."""
FILLING_SHARE: Final = 0.75
"""Above this share of the quota the store is `filling`: data should be dropped. It is below ROOM_SHARE."""
CROWDED_SHARE: Final = 0.875
"""Above this share of the quota the store is `crowded`: the quota will soon be used up."""


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
        """Open or create the folder.

        Raises Retryable while another process holds its lock, Fatal if an earlier version wrote it.

        `on_pulled_again` is called, in any thread, for each span whose files do not add up.
        `memory_bytes`: the most bytes of rows that wait in memory. `disk_bytes`: the most bytes of segments
        and runs, and of other data that callers `charge`; 0 for no bound except the disk. `keep_free`: bytes
        of the disk that the store leaves to others.
        """
        self.folder: Path = Path(folder)
        self.durable: Durability = durable
        self.memory_bytes, self.disk_bytes = memory_bytes, disk_bytes
        self.keep_free = keep_free
        self.removed = RemovedFiles(disk_bytes)
        self.kv_mode: str = kv_mode
        self.folder.mkdir(parents=True, exist_ok=True)
        # Before anything is read: another process may be writing.
        self._lock_file = _lock(self.folder / "lock")
        try:
            refuse_old_form(self.folder)
        except Fatal:
            os.close(self._lock_file)
            raise
        self._spans: dict[str, SpanStore] = {}
        self._lock = threading.Lock()  # guards _spans, _moved, _held and _disk
        self._open_lock = threading.Lock()
        # Held from reading a claim until it is on the page, because a claim that was withdrawn in between
        # must not be published afterwards.
        self._publish_lock = threading.Lock()
        self._moved: dict[str, SpanStore] = {}  # spans whose claims are not published yet
        self._held = self._disk = 0
        self._full = ""  # why the last write failed, if the disk was full
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
        """Delete the folders without a usable manifest. Returns the bytes on disk of each remaining span.

        A folder has no manifest if the process died during `remove_span`. A torn manifest is reported through
        `pulled_again`, because the span will be pulled again if a feed needs it.
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
        """The store of a span; opens it if it is not open yet. Raises DiskFull."""
        name = span_id(span, self.kv_mode)
        with self._open_lock:
            found = self._spans.get(name)
            if found is None:
                # Within `_open_lock`, because two stores of one span would both write its manifest.
                found = SpanStore(self, span)
                self.charge(disk=-self._closed_disk.pop(name, 0))
                with self._lock:
                    self._spans[name] = found
            return found

    def remove_span(self, span: Span) -> None:
        """Delete all data of a span; if it is opened again, it begins empty. No reader may be using it."""
        name = span_id(span, self.kv_mode)
        with self._open_lock:
            found = self._spans.get(name)
            if found is not None:
                found.close()
            self.charge(disk=-self._closed_disk.pop(name, 0))
            # First the floor, so readers stop using the span; then the manifest, because `_clear_remains`
            # recognises what a crash leaves behind by the missing manifest.
            with self._publish_lock:
                with self._lock:
                    self._moved.pop(name, None)
                self.small(lambda: self._floors.forget(name))
            folder = span_folder(self.folder, span, self.kv_mode)
            (folder / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            damage.forget(self.folder, name)

    def open_spans(self) -> list[SpanStore]:
        """The spans that are open now."""
        with self._lock:
            return list(self._spans.values())

    def publish(self) -> None:
        """Publish the resolved ts of each open span that moved. Writes nothing if no span moved.

        Raises DiskFull; then the next call publishes the same spans.
        """
        with self._publish_lock:
            with self._lock:
                # Emptied before the claims are read: a span that moves from here on is in the new
                # dictionary, and is published next time.
                moved, self._moved = self._moved, {}
            claims = [(span.id, *span.claim) for span in moved.values()]
            try:
                # A claim of 0 was withdrawn, and the page says so already.
                self._floors.put(claim for claim in claims if claim[1] > 0)
            except DiskFull as error:
                with self._lock:
                    # Nothing is lost: spans that moved meanwhile stay, and the others come back.
                    self._moved = moved | self._moved
                self.filled(error)
                raise

    def moved(self, span: SpanStore) -> None:
        """Note that a span's claim differs from what was published; the next `publish` writes it."""
        with self._lock:
            self._moved[span.id] = span

    def withdraw(self, span_id: str) -> None:
        """Withdraw a span's published floor. Called before its data is deleted, because otherwise a crash in
        between would leave a floor without data.
        """
        with self._publish_lock:
            if self._floors.get(span_id)[0]:
                self.small(lambda: self._floors.put([(span_id, 0, 0)]))

    def published(self, span_id: str) -> tuple[Timestamp, int]:
        """The floor last published for a span and the manifest version it names; (0, 0) if there is none."""
        return self._floors.get(span_id)

    def pulled_again(self, notice: Retryable) -> None:
        """Log and report that a span's files do not add up, and that their data is pulled again."""
        event(LOG, logging.WARNING, notice.what, where=notice.where, why=notice.why)
        if self._on_pulled_again is not None:
            self._on_pulled_again(notice)

    def scratch(self) -> kernels.Scratch:
        """The calling thread's memory for one block at a time; the next block reuses it."""
        if not hasattr(self._thread, "scratch"):
            self._thread.scratch = kernels.Scratch()
        found: kernels.Scratch = self._thread.scratch
        return found

    def charge(self, memory: int = 0, disk: int = 0) -> None:
        """Add to the counts of bytes in memory and on disk (negative when they are released).

        Besides the spans, callers that keep other data in the same budgets charge it here.
        """
        with self._lock:
            self._held += memory
            self._disk += disk

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that wait in memory, over all spans."""
        return self._held

    @property
    def used_bytes(self) -> int:
        """Bytes on disk of all segments and runs, and of other data that was charged."""
        return self._disk

    def relieve(self) -> None:
        """While more than `memory_bytes` wait in memory, write the rows of the largest span as a run.

        If the disk is full, the rows stay in memory and `pressure` returns the reason.
        """
        while self._held > self.memory_bytes:
            largest = max(self.open_spans(), key=lambda s: s.pending_bytes)
            # Callers may charge memory that is no span's, so there may be nothing to spill.
            if largest.pending_bytes == 0:
                return
            try:
                largest.spill()
            except DiskFull:
                return

    def forget(self, span: SpanStore) -> None:
        """Remove a closed span from the open ones; its published floor stays."""
        with self._lock:
            if self._spans.get(span.id) is span:
                del self._spans[span.id]
                self._moved.pop(span.id, None)
                self._closed_disk[span.id] = span.disk_bytes

    # --- room on the disk ----------------------------------------------------------------------------

    @property
    def pressure(self) -> str:
        """The reason why callers should stop appending; empty if there is room."""
        if self._full:
            return self._full
        if self.over_quota:
            return f"the event store's disk quota is used up: {self._disk} of {self.disk_bytes} bytes"
        return ""

    @property
    def filling(self) -> str:
        """Why data should be dropped; empty while much of the quota is free, or without a quota."""
        if self.disk_bytes and self._disk > self.disk_bytes * FILLING_SHARE:
            return f"{self._disk} of the {self.disk_bytes} bytes of the event store's disk quota are used"
        return ""

    @property
    def crowded(self) -> str:
        """A warning that the quota will soon be used up; empty while enough of it is free, or without one."""
        if self.disk_bytes and self._disk > self.disk_bytes * CROWDED_SHARE:
            return f"the event store's disk quota is nearly used up: {self._disk} of {self.disk_bytes} bytes"
        return ""

    @property
    def over_quota(self) -> bool:
        """Whether segments and runs take more than `disk_bytes`."""
        return 0 < self.disk_bytes < self._disk

    @property
    def has_room(self) -> bool:
        """Whether enough space is free to pull again what was dropped under pressure."""
        return not self._full and (not self.disk_bytes or self._disk <= self.disk_bytes * ROOM_SHARE)

    def admit(self) -> None:
        """Raise DiskFull while less than `keep_free` bytes of the disk are free: it then counts as full."""
        if not self.keep_free or free_bytes(self.folder) >= self.keep_free:
            return
        self.removed.clear()  # their blocks are free now
        if (free := free_bytes(self.folder)) < self.keep_free:
            raise DiskFull(
                "the disk is full",
                where=str(self.folder),
                why=f"the event store leaves {self.keep_free >> 20} MiB to others, "
                f"and {free >> 20} MiB are free",
                fix="free disk space; changefeeds wait and then continue by themselves",
            )

    def filled(self, error: DiskFull) -> None:
        """Note that a write failed because the disk is full."""
        self.removed.clear()
        self._full = f"{error.what}: {error.why}"

    def tend(self) -> None:
        """Close removed files that are still open, if nobody needs their memory or others need the disk."""
        if self.removed.bytes:
            self.removed.tend(free_bytes(self.folder))

    def recover(self) -> None:
        """Check whether the disk has room again: restore the reserve, and spill rows that wait in memory."""
        path = self.folder / RESERVE
        try:
            self.admit()
            if not path.exists():
                with writing(path):
                    path.write_bytes(bytes(RESERVE_BYTES))
            # One span: if its rows fit, the disk has room again, and the others follow as they seal.
            if self._full and self._held:
                max(self.open_spans(), key=lambda s: s.pending_bytes).spill()
            self._full = ""
        except DiskFull as error:
            self.filled(error)

    def small(self, write: Callable[[], None]) -> None:
        """Run a small write that lets larger files be deleted; on a full disk, free the reserve for it first.

        Raises DiskFull if it fails even then.
        """
        try:
            write()
        except DiskFull:
            (self.folder / RESERVE).unlink(missing_ok=True)
            write()

    def close(self) -> None:
        """Close every span and release the lock on the folder. Nothing is published."""
        for span in list(self._spans.values()):
            span.close()
        self.removed.clear()
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
