"""Rows and events put together by hand are what protobuf makes of the same fields."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.proto import cdcpb_pb2 as pb
from tidegate.tikv.cdc import wire

U64 = st.integers(0, (1 << 64) - 1)
ROWS = st.fixed_dictionaries(
    {
        "kind": st.integers(1, 5),
        "op": st.integers(0, 2),
        "start_ts": U64,
        "commit_ts": U64,
        "key": st.binary(max_size=40),
        "value": st.binary(max_size=300),
        "old_value": st.binary(max_size=300),
        "txn_source": U64,
        "generation": U64,
        "expires": U64,
    }
)


@given(rows=st.lists(ROWS, max_size=4), region=st.integers(1, 1 << 63), request=U64, index=U64)
def test_an_event_has_protobufs_bytes(
    rows: list[dict[str, int | bytes]], region: int, request: int, index: int
) -> None:
    made = wire.event(region, request, [wire.row(**row) for row in rows], index)  # type: ignore[arg-type]
    expected = pb.Event(region_id=region, index=index, request_id=request, entries=pb.Event.Entries())
    for row in rows:
        expected.entries.entries.add(
            type=row["kind"],
            op_type=row["op"],
            expire_ts_unix_secs=row["expires"],
            **{k: v for k, v in row.items() if k not in ("kind", "op", "expires")},
        )
    message = pb.ChangeDataEvent(events=[expected])
    assert pb.ChangeDataEvent.FromString(made) == message
    assert made == message.SerializeToString(deterministic=True)


def test_errors_and_resolved_ts_are_whole_messages() -> None:
    error = pb.Event(region_id=3, error=pb.Error(congested=pb.Congested(region_id=3)))
    assert pb.ChangeDataEvent.FromString(wire.framed(error)).events[0] == error
    mark = pb.ResolvedTs(regions=[1, 2], ts=9, request_id=4)
    assert pb.ChangeDataEvent.FromString(wire.resolved(mark)).resolved_ts == mark
    row = pb.Event.Entries.FromString(wire.INITIALIZED).entries[0]
    assert row == pb.Event.Row(type=pb.Event.INITIALIZED)
