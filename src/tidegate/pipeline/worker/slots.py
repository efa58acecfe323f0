"""A worker's slot at the sink. The host leases it to the worker, which keeps its writer from piece to piece.

No other worker writes in the slot while the lease is valid (`pipeline.host.leases`). The sink does not know
leases: in each slot it fences all writers but the one opened last. A writer that was opened under an earlier
lease may be fenced by now, so the worker closes it and opens another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tidegate.errors import TidegateError
from tidegate.model.span import Span
from tidegate.pipeline.exchange.work import NO_LEASE, Lease
from tidegate.pipeline.worker.access import Access
from tidegate.pipeline.worker.notice import check_of_thread
from tidegate.sink.base import Sink, Writer


class _Opened(NamedTuple):
    """A writer, and the lease under which it was opened."""

    lease: Lease
    writer: Writer


class _Confirmed:
    """A writer that asks before each commit whether its worker may still write."""

    def __init__(self, writer: Writer, confirm: Callable[[], None]) -> None:
        self._writer, self._confirm = writer, confirm
        self.write, self.abort, self.close = writer.write, writer.abort, writer.close

    @property
    def is_due(self) -> bool:
        return self._writer.is_due

    @property
    def room(self) -> int:
        return self._writer.room

    def commit(self, progress: Mapping[str, bytes]) -> None:
        # docs/guarantees.md#a-worker-on-another-machine-that-was-given-up-writes-nothing-that-counts:
        # As late as possible. If the lease ends after this answer, the sink's fence stops the commit.
        self._confirm()
        self._writer.commit(progress)


class Slot:
    """The slot of one incarnation in which this process may write."""

    def __init__(self, access: Access, sink: Sink, lease: Lease = Lease(0, 0)) -> None:
        """`lease`: the slot and its lease. The host sends the lease with each piece of work."""
        self._access, self._sink, self.lease = access, sink, lease
        self._opened: _Opened | None = None
        self._check = check_of_thread()
        """Whether the piece for which the writer is lent is still wanted."""
        self.granted: tuple[Span, ...] = access.spec.ranges
        """The ranges that this incarnation might write when this process last read its grant."""

    @contextmanager
    def writer(self) -> Iterator[Writer]:
        """Lend the writer for the time of the `with` block. On an error the open transaction is aborted."""
        self._check = check_of_thread()
        if self._opened is None or self._opened.lease != self.lease:
            self.close()
            self._opened = _Opened(self.lease, self._open(self.lease))
        writer = self._opened.writer
        try:
            yield writer
        except BaseException:
            # Without this, readers of committed messages would wait for this transaction until the sink times
            # it out.
            with suppress(TidegateError):
                writer.abort()
            raise

    def close(self) -> None:
        """Close the writer. It refers to this slot and is referred to by it: otherwise both would be freed
        only by a later garbage collection.
        """
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.writer.close()

    def _open(self, lease: Lease) -> Writer:
        assert lease != NO_LEASE, "the host leases a slot with each piece of work"

        def prove() -> None:
            self.granted = self._access.granted(lease)

        # The writer is kept from piece to piece, so it asks for the check of the piece that it is lent for.
        writer = self._sink.writer(lease.slot, prove, self._access.beat, lambda: self._check())
        return _Confirmed(writer, lambda: self._access.confirm(lease))
