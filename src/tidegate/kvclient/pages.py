"""Scans of many rows at one timestamp, page by page into Arrow columns, without a Python object for each row.

The next page is fetched while the caller works on the current one. If the answer is not a plain page (errors,
locks, a region that has moved), the page is requested again through `Snapshot`, which handles these.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import grpc
import numpy as np
import pyarrow as pa

from tidegate.kernel import address, buffer
from tidegate.kvclient.channel import beginning
from tidegate.kvclient.page_kernels import take_pairs
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import STORE_TIMEOUT_S
from tidegate.kvclient.snapshot import Snapshot, following
from tidegate.kvclient.stores import StoreGone
from tidegate.model.span import Span
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb

PAGE_SCHEMA: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])
PAGE_BYTES: Final = 8 << 20
"""The target size of a page in bytes, estimated from the rows of the last page."""
FIRST_ROWS: Final = 256
ROWS_MAX: Final = 16_384
_METHOD: Final = "/tikvpb.Tikv/KvScan"


class _PageStub:
    """`KvScan` with the answer as bytes."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.scan = channel.unary_unary(_METHOD, request_serializer=kvrpcpb.ScanRequest.SerializeToString)


def pages(
    pd: PdClient,
    snapshot: Snapshot,
    span: Span,
    *,
    rows_max: int = 0,
    bytes_max: int = 0,
    page_rows: int = ROWS_MAX,
    weigh: Callable[[pa.RecordBatch], int] = lambda page: page.nbytes,
) -> Iterator[pa.RecordBatch]:
    """The pairs of a span in key order as batches of PAGE_SCHEMA; none is empty. Raises as `Snapshot.scan`.

    `rows_max`, `bytes_max`: how many rows and bytes the caller will take, if it knows; 0: all. More than
    that is fetched only when it is asked for. `page_rows`: the most rows of a page. `weigh`: the bytes of a
    page as the caller counts them. Nothing else may use the snapshot meanwhile.
    """
    rows_left, bytes_left = rows_max or sys.maxsize, bytes_max or sys.maxsize
    # One page ahead and no more, so two pages bound the memory.
    with ThreadPoolExecutor(1, thread_name_prefix="page") as ahead:
        rows, wanted = FIRST_ROWS, rows_left
        coming = ahead.submit(_page, pd, snapshot, span, min(rows, wanted))
        while True:
            page, left = coming.result()
            if page.num_rows:
                size = max(page.nbytes, 1)
                fitting = PAGE_BYTES * page.num_rows // size
                # At most four times as many: the estimate comes from one page, whose rows may be unusually
                # small.
                rows = max(min(4 * rows, fitting, page_rows), 1)
                weight = max(weigh(page), 1)
                rows_left, bytes_left = rows_left - page.num_rows, bytes_left - weight
                # Rounded up, so that a page that is only almost enough is followed by another one.
                wanted = min(rows_left, -(-bytes_left * page.num_rows // weight))
            # Before the page is yielded, so that the store reads while the caller works. A page that nobody
            # takes would cost the store as much: a load with a limit of rows per second takes some thousand
            # rows at a time, and the pages grow to more than that.
            is_ahead = wanted > 0
            if left is not None and is_ahead:
                coming = ahead.submit(_page, pd, snapshot, left, min(rows, wanted))
            if page.num_rows:
                yield page
            if left is None:
                return
            if not is_ahead:
                coming = ahead.submit(_page, pd, snapshot, left, rows)


def _page(pd: PdClient, snapshot: Snapshot, span: Span, rows: int) -> tuple[pa.RecordBatch, Span | None]:
    """One page, and the rest of the span (None: the scan is done)."""
    region, request = snapshot.scan_request(span.start, span.end, rows)
    page = None
    # Any other answer than a plain page is requested again through `snapshot.page`, which handles errors.
    with suppress(grpc.RpcError, StoreGone):
        store = pd.store_address(region.leader_store_id)
        with beginning(store):
            response = pd.channels.stub(store, _PageStub).scan(request, timeout=STORE_TIMEOUT_S)
        page = columns_of(response, rows)
    if page is None:
        pairs, at = snapshot.page(span.start, span.end, rows)
        columns = [pa.array(column, pa.binary()) for column in ([k for k, _ in pairs], [v for _, v in pairs])]
        page = pa.RecordBatch.from_arrays(columns, schema=PAGE_SCHEMA)
    else:
        last = page.column(0)[-1].as_py() if page.num_rows else b""
        at = following(last, page.num_rows, page.nbytes, rows, request.end_key, span.end)
    return page, None if at is None else Span(at, span.end)


def columns_of(response: bytes, rows: int) -> pa.RecordBatch | None:
    """The pairs of a ScanResponse; None if it holds anything else, or more than `rows` pairs."""
    data = np.frombuffer(response, np.uint8)
    size = len(data)
    # A column cannot have more bytes than the message.
    keys, values = buffer(size), buffer(size)
    key_ends, value_ends = np.empty(rows + 1, np.int32), np.empty(rows + 1, np.int32)
    n = take_pairs(
        address(data),
        size,
        rows,
        address(keys),
        address(key_ends),
        address(values),
        address(value_ends),
    )
    if n < 0:
        return None
    columns = [
        pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(ends), pa.py_buffer(data)])
        for ends, data in ((key_ends, keys), (value_ends, values))
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PAGE_SCHEMA)
