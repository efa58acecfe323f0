"""Finds the keys to split a region at, in its middle or by size; a thread splits regions that grew too large.

The size of a region is that of its write records and long values, which are read once. Split keys are encoded
user keys, so all versions of a key stay in one region. (TiKV: raftstore/src/coprocessor/split_check.)
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Iterator
from typing import Final

from tidegate.errors import TidegateError, Undecodable
from tidegate.tikv import keys, mvcc
from tidegate.tikv.engine import Engine
from tidegate.tikv.pd.operators import Operators
from tidegate.tikv.raft.raftstore import Raftstore
from tidegate.tikv.raft.region import Region

CHECK_S: Final = 1.0
SAMPLES: Final = 1024
SPLIT_BYTES: Final = 256 << 20
"""A region of at least 1.5 times this size is split into parts of this size (TiKV's region-split-size)."""

_log = logging.getLogger(__name__)


def middle(engine: Engine, region: Region) -> bytes | None:
    """The key with about half of the region's bytes below it; None if it has fewer than two keys."""
    samples: list[tuple[bytes, int]] = []
    every, total = 1, 0
    for seen, (key, size) in enumerate(_sizes(engine, region)):
        total += size
        if seen % every == 0:
            samples.append((key, total))
            # Every second sample goes, so their number has a bound whatever the region's size.
            if len(samples) > 2 * SAMPLES:
                samples = samples[::2]
                every *= 2
    return next((key for key, below in samples if below * 2 >= total and key != region.start), None)


def by_size(engine: Engine, region: Region, split_bytes: int) -> list[bytes]:
    """Keys that cut the region into parts of about `split_bytes`; none if it has less than 1.5 parts."""
    found, size, total = [], 0, 0
    for key, more in _sizes(engine, region):
        if size >= split_bytes:
            found.append(key)
            size = 0
        size += more
        total += more
    if total < split_bytes * 3 // 2:
        return []
    # A rest of less than half a part stays with the part before it.
    return found[:-1] if found and size < split_bytes // 2 else found


def _sizes(engine: Engine, region: Region) -> Iterator[tuple[bytes, int]]:
    """The region's keys in order, each once, with the bytes of its records."""
    now, size = b"", 0
    walks = [_records(engine, cf, region) for cf in (mvcc.DEFAULT, mvcc.WRITE)]
    for key, more in heapq.merge(*walks):
        if key != now:
            if now:
                yield now, size
            now, size = key, 0
        size += more
    if now:
        yield now, size


def _records(engine: Engine, cf: int, region: Region) -> Iterator[tuple[bytes, int]]:
    cursor = engine.cursor(cf, upper=region.end)
    cursor.seek(region.start)
    last = b""
    while cursor.valid():
        stored = cursor.key()
        key = stored[: -keys.TS_BYTES]
        if key != last and _is_encoded(key):
            last = key
        if key == last:
            yield key, len(stored) + len(cursor.value())
        cursor.next()


def _is_encoded(key: bytes) -> bool:
    """Whether it is an encoded key (transactional or raw V2), and not a raw V1 key, which has no version."""
    try:
        keys.decode(key)
    except Undecodable:
        return False
    return True


class Splitter:
    """Splits regions after enough was written to them. `split_bytes` 0: never."""

    def __init__(self, raftstore: Raftstore, operators: Operators, split_bytes: int) -> None:
        self._raftstore = raftstore
        self._operators = operators
        self._split_bytes = split_bytes
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="splitter", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        if self._split_bytes:
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(CHECK_S):
            for region_id, written in list(self._raftstore.written.items()):
                if written >= self._split_bytes:
                    self.check(region_id)

    def check(self, region_id: int) -> int:
        """Split a region if it is too large; returns the number of its parts (0: the region is gone)."""
        # Before the region is measured: what is written meanwhile counts for the next check.
        self._raftstore.written.pop(region_id, None)
        region = self._raftstore.regions.by_id.get(region_id)
        if region is None:
            return 0
        at = by_size(self._raftstore.engine, region, self._split_bytes)
        if not at:
            return 1
        try:
            return len(self._operators.split(region_id, at))
        except TidegateError:
            _log.exception("a region was not split", extra={"region_id": region_id})
            return 1
