"""Rows by part in one file, and the gathering of rows before they are cut by part.

Each batch in the file has a schema and a buffer for every column: about 15 KB for 50 columns, however few its
rows are. So rows are gathered until there are many before they are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import pyarrow as pa

from tidegate.disk import CONSUMER_ENDS, writing

GATHERED_BYTES: Final = 16 << 20
"""Rows are gathered until they have this many bytes, with `ROW_BYTES` for each. Cutting them takes several
times as much memory.
"""
ROW_BYTES: Final = 100
"""A row takes so much while it is cut or counted, apart from its values: its place, its hash, its number."""
GATHERED_MAX: Final = 1024
"""At most this many items are gathered: an Arrow batch of few rows takes more memory than its rows."""

T = TypeVar("T")


def gathered(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Items in lists, in their order; a list is as long as `GATHERED_BYTES` and `GATHERED_MAX` allow.

    `size`: the bytes of an item. The last item of a list may exceed the bytes. An iterator is read only as
    far as the list that is yielded.
    """
    held, total = list[T](), 0
    for item in items:
        held.append(item)
        total += size(item)
        if total >= GATHERED_BYTES or len(held) >= GATHERED_MAX:
            yield held
            held, total = [], 0
    if held:
        yield held


class PartFile:
    """Batches of rows by part, in one file. Any thread may read it after `end`."""

    def __init__(self, file: Path, parts: int) -> None:
        """The file is made by the first `add`, and remains until `close`."""
        self._file = file
        self._sink: BinaryIO | None = None
        self._places: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
        """(start, length) of each part's batches."""

    def add(self, part: int, batch: pa.RecordBatch) -> None:
        """Append a batch to a part. Raises DiskFull; then only `close` may follow."""
        with writing(self._file, fix=CONSUMER_ENDS):
            if self._sink is None:
                self._sink = self._file.open("wb")
            start = self._sink.tell()
            with pa.ipc.new_stream(self._sink, batch.schema) as writer:
                writer.write_batch(batch)
            self._places[part].append((start, self._sink.tell() - start))

    def end(self) -> None:
        """All batches are added. Raises DiskFull; then only `close` may follow."""
        if self._sink is not None:
            with writing(self._file, fix=CONSUMER_ENDS):
                self._sink.close()

    def has(self, part: int) -> bool:
        """Whether a part has batches."""
        return bool(self._places[part])

    def read(self, part: int) -> Iterator[pa.RecordBatch]:
        """The batches of a part, in the order of their `add`."""
        for start, length in self._places[part]:
            # A handle for each read: several threads read parts at once, and a handle has one place.
            with self._file.open("rb") as file:
                file.seek(start)
                yield pa.ipc.open_stream(pa.py_buffer(file.read(length))).read_next_batch()

    def close(self) -> None:
        """Remove the file. May be called again."""
        try:
            if self._sink is not None:
                # On a full disk it fails again to write what is still in its buffer, which nobody needs now.
                with suppress(OSError):
                    self._sink.close()
        finally:
            self._file.unlink(missing_ok=True)
