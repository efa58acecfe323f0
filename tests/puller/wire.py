"""Change data messages for tests, and registrations of a matcher."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.puller.match.matcher import Row


def rows_message(region: int, request: int, rows: Iterable[Row]) -> bytes:
    """One message with one event."""
    message = cdcpb.ChangeDataEvent()
    event = message.events.add(region_id=region, request_id=request)
    event.entries.SetInParent()
    for row in rows:
        event.entries.entries.add(
            type=row.kind,  # type: ignore[arg-type]
            start_ts=row.start_ts,
            commit_ts=row.commit_ts,
            op_type=row.op,  # type: ignore[arg-type]
            key=row.key,
            value=row.value,
            old_value=row.old_value,
            generation=row.generation,
        )
    return message.SerializeToString()


def resolved_message(regions: Sequence[int], request: int, ts: int) -> bytes:
    """A batch of resolved regions."""
    resolved = cdcpb.ResolvedTs(regions=regions, ts=ts, request_id=request)
    return cdcpb.ChangeDataEvent(resolved_ts=resolved).SerializeToString()


def error_message(region: int, request: int, error: cdcpb.Error) -> bytes:
    """An error of one registration."""
    event = cdcpb.Event(region_id=region, request_id=request, error=error)
    return cdcpb.ChangeDataEvent(events=[event]).SerializeToString()
