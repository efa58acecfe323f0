"""A topic whose rows do not name their columns: the definitions are before the place where reading begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.consumer.logs import differences, snapshots
from tests.consumer.test_job import LINE, bank_messages, ended
from tests.consumer.topics import publish
from tidegate.codec.base import Batch
from tidegate.codec.decode import decoder
from tidegate.codec.decoding.opening import Opening
from tidegate.codec.formats.compression import LZ4, compressed
from tidegate.codec.protocols.simple.message import SimpleOptions
from tidegate.codec.protocols.simple.plain_write import SimpleEncoder
from tidegate.consumer.engine.fetched import Range
from tidegate.consumer.reading import fetch as fetching
from tidegate.consumer.reading.fetch import fetch
from tidegate.consumer.reading.offsets import Offsets
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.reading.staging import read_staged
from tidegate.model.message import Message
from tidegate.model.row import RowChange
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_info import table_schema

ENCODER = SimpleEncoder(SimpleOptions())


def table(version: int, of_type: int) -> TableSchema:
    columns = [("id", 3, 3, "binary"), ("v", of_type, 0, "binary" if of_type == 3 else "utf8mb4")]
    cols = [
        {"id": i + 1, "name": {"O": name}, "offset": i, "state": 5,
         "type": {"Tp": code, "Flag": flag, "Flen": 11, "Decimal": 0, "Charset": charset, "Elems": None}}
        for i, (name, code, flag, charset) in enumerate(columns)
    ]  # fmt: skip
    info = {"id": 7, "name": {"O": "t"}, "pk_is_handle": True, "cols": cols, "update_timestamp": version}
    return table_schema("s", info, version + 1)


NUMBERS, TEXTS = table(10, 3), table(20, 15)


def rows(of: TableSchema, ts: int, count: int, encoder: SimpleEncoder = ENCODER) -> list[Message]:
    value = 1 if of is NUMBERS else b"1"
    return encoder.encode_rows([RowChange(of, ts + i, 1, 7, i, None, (i, value)) for i in range(count)])


@pytest.fixture(params=["none", "lz4"])
def topic(
    kafka: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Topic:
    """Definition, 150 rows, another version's definition, 150 rows of it; a reader that knows nothing."""
    encoder = SimpleEncoder(SimpleOptions(large_message_handle_compression=request.param))
    monkeypatch.setattr(fetching, "LOOK_BACK_MESSAGES", 8)
    monkeypatch.setattr(fetching, "_readers", {})
    name = new_topic(1)
    sent = [encoder.encode_definition(NUMBERS), *rows(NUMBERS, 100, 150, encoder)]
    sent += [encoder.encode_definition(TEXTS), *rows(TEXTS, 300, 150, encoder)]
    publish(kafka, name, [(0, message) for message in sent])
    return Topic(f"kafka://{kafka}/{name}?protocol=simple&large-message-handle-compression={request.param}")


@pytest.mark.integration
def test_a_range_that_begins_behind_the_definitions_is_decoded_with_them(
    topic: Topic, tmp_path: Path
) -> None:
    assert Offsets(topic).ends([0]) == {0: 302}
    fetched = fetch(topic, Range(0, 120, 302), tmp_path)
    assert (fetched.bad, fetched.trouble, fetched.next_offset) == ((), "", 302)
    first, second = sorted(fetched.segments, key=lambda segment: segment.first_offset)
    assert [column.type for column in first.columns] == [pa.int64(), pa.int64()]
    assert [column.type for column in second.columns] == [pa.int64(), pa.string()]
    assert (first.rows, second.rows) == (31, 150)
    assert read_staged(second).column("n.v").to_pylist() == ["1"] * 150


@pytest.mark.integration
def test_a_definition_that_is_nowhere_is_named_and_the_row_set_aside(topic: Topic, tmp_path: Path) -> None:
    with_none = Topic(topic.text)
    assert isinstance(topic.options, SimpleOptions)
    unknown = rows(table(30, 3), 500, 1, SimpleEncoder(topic.options))
    publish(topic.uri.bootstrap, topic.name, [(0, message) for message in unknown])
    fetched = fetch(with_none, Range(0, 300, 303), tmp_path)
    (bad,) = fetched.bad
    assert (bad.offset, bad.unknown) == (302, ("s", "t", 30))
    assert "read the topic from further back" in bad.why
    assert sum(segment.rows for segment in fetched.segments) == 2


def test_rows_that_arrive_pieces_before_their_definition_are_decoded() -> None:
    sent = [*rows(NUMBERS, 100, 50), ENCODER.encode_definition(NUMBERS), *rows(NUMBERS, 300, 5)]
    values = [compressed(LZ4, message.value or b"") for message in sent]
    batch = Batch([None] * len(sent), values, range(len(sent)))
    inner = decoder(SimpleOptions())
    found = Opening(inner, LZ4, framed=False, most=2000).decode(batch)
    assert not found.bad
    assert sum(map(len, found.rows)) == 55


def test_rows_that_come_before_their_definition_in_a_batch_wait_for_it() -> None:
    sent = [*rows(NUMBERS, 100, 150), ENCODER.encode_definition(NUMBERS), *rows(NUMBERS, 300, 5)]
    found = decoder(SimpleOptions()).decode(Batch([None] * 156, [m.value for m in sent], range(156)))
    assert found.bad == []
    (decoded,) = found.rows
    assert decoded.offset.tolist() == [*range(150), *range(151, 156)]


@pytest.mark.integration
def test_a_recorded_simple_log_reaches_the_target_and_a_new_reader_resumes(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path, spark: SparkSession
) -> None:
    topic, target = new_topic(3), tmp_path / "target"
    earlier, line = snapshots()[LINE // 2], snapshots()[LINE]
    publish(kafka, topic, bank_messages("simple"))
    uri = f"kafka://{kafka}/{topic}?protocol=simple"
    for text, until in ((uri, earlier), (uri + "&partition-num=3", line)):  # a text of its own: a new decoder
        received = ended(spark, text, target, until.ts)
        assert received.error is None
        assert differences(target, until) == {}
    assert received.end is not None
    assert received.end.quarantined == 0
