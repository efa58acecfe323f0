"""A PD and a TiKV that serve a table of any size to scans: the rows of a recorded table, repeated.

    python -m benchmarks.scan_server LOG --rows 10000000

LOG is a recorded change log (`tests/golden/changelog/*.jsonl.gz`). Row n of the table has handle n and the
value of the log's row n modulo the log's number of rows. Pages of ScanResponse are encoded once; to serve
one, a piece is copied and its handles are patched, so that the server needs little CPU compared with the
client. Catalogue keys are those of the log.

Prints one JSON line when ready: {"pd": "host:port", "table_id": n, "rows": n}. Ends with SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from benchmarks.feed_server import (
    SIGN,
    Cluster,
    Feed,
    Log,
    Settings,
    read_log,
    sized_field,
    start,
    table_prefix,
)
from benchmarks.rows import BLOCK

from tidegate.tidb.memcomparable import encode_bytes

KEY_SIZE: Final = 19


@dataclass(frozen=True, slots=True)
class Raw:
    """A response that is already serialised."""

    data: bytes

    def SerializeToString(self) -> bytes:
        """The bytes. The name is that of protobuf messages."""
        return self.data


class Table(Cluster):
    """The table's rows, in addition to the catalogue that `Cluster` serves."""

    def __init__(self, log: Log, rows: int, regions: int) -> None:
        feed = Feed(log, Settings(0, 1, 1, regions, 0))
        super().__init__(feed)
        self._rows, self._prefix = rows, table_prefix(log.table_id) + b"_r"
        starts = [rows * at // regions for at in range(1, regions)]
        inner = [encode_bytes(self._prefix + (SIGN | handle).to_bytes(8, "big")) for handle in starts]
        feed.bounds[1:-1] = [encode_bytes(self._prefix), *inner, encode_bytes(self._prefix[:-1] + b"s")]
        values = [change.value for change in log.changes if change.put][-BLOCK:]
        pairs = [sized_field(2, sized_field(2, bytes(KEY_SIZE)) + sized_field(3, value)) for value in values]
        self._values = len(values)
        # The rows twice, so that a page may begin at any row.
        self._data = np.frombuffer(b"".join(pairs) * 2, np.uint8)
        self._ends = np.concatenate([[0], np.cumsum([len(pair) for pair in pairs] * 2)])
        heads = [
            len(pair) - len(sized_field(3, value)) - KEY_SIZE
            for pair, value in zip(pairs, values, strict=True)
        ]
        self._keys_at = self._ends[:-1] + np.array(heads * 2)

    def scan(self, request: Any) -> Any:
        """A page of rows, or of the catalogue."""
        if not request.start_key.startswith(self._prefix):
            return super().scan(request)
        first = min(self._number(request.start_key), self._rows)
        count = min(request.limit, self._values, self._number(request.end_key) - first)
        at = first % self._values
        begin, end = self._ends[at], self._ends[at + count]
        page = self._data[begin:end].copy()
        keys = self._keys_at[at : at + count] - begin
        handles = np.arange(first, first + count, dtype=np.uint64) | np.uint64(SIGN)
        prefix = np.frombuffer(self._prefix, np.uint8)
        page[keys[:, None] + np.arange(len(prefix))] = prefix
        page[keys[:, None] + len(prefix) + np.arange(8)] = handles.byteswap().view(np.uint8).reshape(-1, 8)
        return Raw(page.tobytes())

    def _number(self, key: bytes) -> int:
        """The number of the first row at or after a key, at most the number of rows."""
        handle = key[len(self._prefix) :] if key.startswith(self._prefix) else b"\xff" * 8
        number = int.from_bytes(handle[:8].ljust(8, b"\0"), "big") + (len(handle) > 8)
        return min(max(number - SIGN, 0), self._rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--regions", type=int, default=8)
    parser.add_argument("--addr", default="127.0.0.1:0")
    options = parser.parse_args()
    log = read_log(options.log)
    server, address = start(Table(log, options.rows, options.regions), options.addr)
    print(json.dumps({"pd": address, "table_id": log.table_id, "rows": options.rows}), flush=True)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    ended.wait()
    server.stop(0.2)


if __name__ == "__main__":
    main()
