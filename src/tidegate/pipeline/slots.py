"""A worker's slot at the sink: leased to it by the host, its writer kept from piece to piece.

Nobody else writes in the slot while the lease stands (`pipeline.leases`). The sink does not know of leases:
the last writer that was opened in a slot fences the others. So one that was opened under another lease is
closed, and opened again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tidegate.errors import TidegateError
from tidegate.model.span import Span
from tidegate.pipeline.access import Access
from tidegate.pipeline.work import NO_LEASE, Lease
from tidegate.sink.base import Sink, Writer


class _Opened(NamedTuple):
    """A writer, and the lease that it was opened under."""

    lease: Lease
    writer: Writer


class _Confirmed:
    """A writer that asks before each commit whether it is still the one."""

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
        self._confirm()
        self._writer.commit(progress)


class Slot:
    """The slot of one incarnation that this process may write in."""

    def __init__(self, access: Access, sink: Sink, lease: Lease = Lease(0, 0)) -> None:
        """`lease`: which it is; the host says with each piece of work which one it is from then on."""
        self._access, self._sink, self.lease = access, sink, lease
        self._opened: _Opened | None = None
        self.granted: tuple[Span, ...] = access.spec.ranges
        """What this incarnation might write when this process last proved itself."""

    @contextmanager
    def writer(self) -> Iterator[Writer]:
        """The writer; nobody else has it until the block ends."""
        if self._opened is None or self._opened.lease != self.lease:
            self.close()
            self._opened = _Opened(self.lease, self._open(self.lease))
        writer = self._opened.writer
        try:
            yield writer
        except BaseException:
            # Committed readers would wait for the rest of the transaction until the sink gives it up.
            with suppress(TidegateError):
                writer.abort()
            raise

    def close(self) -> None:
        """Let go of the writer. It knows this slot, and the slot it: nothing else would free them soon."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.writer.close()

    def _open(self, lease: Lease) -> Writer:
        assert lease != NO_LEASE, "the host leases a slot with each piece of work"

        def prove() -> None:
            self.granted = self._access.granted(lease)

        writer = self._sink.writer(lease.slot, prove, self._access.beat)
        return _Confirmed(writer, lambda: self._access.confirm(lease))
