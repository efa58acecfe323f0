"""Turns the frames of a server's response into batches for Spark; runs in tasks.

`GET /readers/changes` returns a piece as frames, with all numbers big endian:

    8 bytes   n, which rises from frame to frame; 0 ends the response
    8 bytes   length of the body
    length    an Arrow IPC stream

A response without the final frame 0 is incomplete: the task then requests the frames after the last n that it
has.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import Fatal, Retryable
from tidegate.sink.reader.changes import COMMIT_TS
from tidegate.tables.patience import Patience

MERGED_BYTES: Final = 1 << 20
"""Small pieces are merged up to this size, because each batch costs Spark about a millisecond."""

FRAME: Final = struct.Struct(">QQ")
FRAME_BYTES_MAX: Final = 1 << 30
"""A longer body cannot be a frame: the server makes frames of 4 MiB, or of one row."""
_VERSIONS: Final = "use the same version of Tidegate for the query and the server"


class Readable(Protocol):
    """A source of bytes."""

    def read(self, count: int, /) -> bytes:
        """The next `count` bytes, fewer only at the end."""


def frames(answer: Readable) -> Iterator[tuple[int, bytes]]:
    """(n, body) of each frame until the final one. Raises Retryable when that is missing."""
    while True:
        n, length = FRAME.unpack(_exactly(answer, FRAME.size))
        if n == 0:
            return
        if length > FRAME_BYTES_MAX:
            raise Fatal(
                "the server's answer cannot be read", why=f"a frame of {length:,} bytes", fix=_VERSIONS
            )
        yield n, _exactly(answer, length)


def _exactly(answer: Readable, count: int) -> bytes:
    found = answer.read(count)
    if len(found) < count:
        raise Retryable("the server's answer broke off", why=f"{len(found)} bytes came instead of {count}")
    return found


def complete(ask: Callable[[int], Iterable[tuple[int, bytes]]]) -> Iterator[bytes]:
    """Bodies of all frames, each once: after a break `ask` is called with the last n received.

    Raises Retryable after PATIENCE_S without a new frame, Fatal for frames out of order.
    """
    past, patience = 0, Patience()
    while True:
        try:
            for n, body in ask(past):
                if n <= past:
                    raise Fatal(
                        "the server's answer cannot be read",
                        why=f"frame {n} came after {past}",
                        fix=_VERSIONS,
                    )
                # Before it is yielded: no later attempt may bring a frame that the caller has.
                past = n
                yield body
                # Only after the yield: the time that Spark takes for a body must not count as silence of the
                # server.
                patience.succeeded()
            return
        except Retryable as error:
            patience.failed(error)


def unpacked(bodies: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """The batches of Arrow IPC streams."""
    for body in bodies:
        with pa.ipc.open_stream(body) as stream:
            yield from stream


def between(batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """Rows with start < commit ts <= end."""
    ts = batch.column(COMMIT_TS)
    wanted = pc.and_(pc.greater(ts, start), pc.less_equal(ts, end))
    # Most pieces are wanted as a whole, and then nothing is copied.
    return batch if pc.all(wanted).as_py() else batch.filter(wanted)


def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least MERGED_BYTES, except the last."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= MERGED_BYTES:
            yield pa.concat_batches(held)
            held, size = [], 0
    if held:
        yield pa.concat_batches(held)
