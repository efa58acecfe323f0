"""The DDL header carries every field of the event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.codec.base import Batch
from tidegate.codec.formats import ddl_header
from tidegate.codec.protocols.canal_json.plain import CanalJsonEncoder, CanalOptions
from tidegate.codec.protocols.open_protocol.plain import OpenOptions, OpenProtocolDecoder, OpenProtocolEncoder
from tidegate.errors import Undecodable
from tidegate.model.ddl import DdlEvent

EVENT = DdlEvent(
    job_id=7, seq=1, start_ts=1, finished_ts=2, action=5, query="alter table t add x int -- <ä>",
    schema="s", table="t",
    old_schema="s", old_table="t0", schema_version=9, before={"id": 3}, after=None,
    added_ids=(4, 5), removed_ids=(),
)  # fmt: skip


def test_an_event_comes_back_whole() -> None:
    assert ddl_header.decode(ddl_header.encode(EVENT)) == EVENT


def test_the_zone_of_timestamps_travels_with_it_and_may_be_missing() -> None:
    stated = ddl_header.encode(EVENT, "Asia/Shanghai")
    assert ddl_header.timestamp_zone(stated) == "Asia/Shanghai"
    assert ddl_header.decode(stated) == EVENT
    assert ddl_header.timestamp_zone(ddl_header.encode(EVENT)) == ""


def test_both_protocols_attach_it_and_the_decoder_hands_it_on() -> None:
    message = OpenProtocolEncoder(OpenOptions()).encode_ddl(EVENT)
    assert CanalJsonEncoder(CanalOptions()).encode_ddl(EVENT).headers == message.headers
    (ddl,) = OpenProtocolDecoder().decode(Batch([message.key], [message.value], [0], [message.headers])).ddls
    assert ddl.header is not None
    assert ddl_header.decode(ddl.header) == EVENT


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Undecodable):
        ddl_header.decode(data)
