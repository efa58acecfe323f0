"""Topics without watermarks into Delta: the end is what SQL saw, whatever is killed, sent again or cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.codec.test_avro import _Registry
from tests.consumer.logs import BANK, PARTITIONS, snapshots
from tests.consumer.memory_topic import MemoryTopic, consume_by_offset
from tests.consumer.one_table import KEY_FLAGS, OneTable
from tests.consumer.recorded import messages_of_log
from tests.consumer.test_job import LINE, PATIENCE_S, bank_messages
from tests.consumer.topics import Event, publish
from tests.contracts.maxwell_writer import MaxwellWriter
from tidegate.codec.base import CodecOptions, DdlMessage
from tidegate.codec.protocols.avro.schema import AvroOptions
from tidegate.codec.protocols.maxwell.plain import MaxwellOptions
from tidegate.codec.registry import codec_of, codec_options, encoder
from tidegate.codec.schema_book import SchemaBook, register_missing
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.job import run
from tidegate.consumer.reading.offsets import Offsets
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.checks import check_no_ddls, check_one_topic
from tidegate.consumer.running.progress import Listener, Progress
from tidegate.consumer.settings import Settings
from tidegate.consumer.snapshots import open_snapshot
from tidegate.consumer.sql_text import sql_rows
from tidegate.errors import Fatal, InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange
from tidegate.model.timestamp import compose
from tidegate.workload.changelog import SnapshotLine, snapshot_diff
from tidegate.workload.definitions import ColumnSpec

ITEMS = OneTable.of([ColumnSpec("id", 3, 11, flag=KEY_FLAGS), ColumnSpec("n", 3, 11)])
TRUNCATE = 11


def wrong(target: Path, line: SnapshotLine) -> dict[str, list[str]]:
    """How the target differs from what SQL saw."""
    found = open_snapshot(target)
    assert found.tables.keys() == line.tables.keys()
    result = {}
    for name, rows in ((name, table.to_arrow()) for name, table in found.tables.items()):
        types = line.tables[name].types
        diff = snapshot_diff(line.tables[name], sql_rows(rows, types), columns=rows.column_names)
        result |= {name: diff} if diff else {}
    return result


def items(target: Path) -> list[dict[str, object]]:
    rows = open_snapshot(target).tables["shop.items"].to_arrow().select(["id", "n"]).to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def at(ms: int) -> int:
    return compose(1_700_000_000_000 + ms)


def put(ms: int, id_: int, n: int | None, old: int | None = None) -> RowChange:
    return ITEMS.change(at(ms), None if old is None else (id_, old), None if n is None else (id_, n))


def truncated(ms: int) -> DdlEvent:
    event = ITEMS.ddl(at(ms), TRUNCATE, "TRUNCATE TABLE items", ITEMS.info | {"id": 71})
    return replace(event, added_ids=(71,), removed_ids=(70,))


def canal(events: Iterable[Event], *, header: bool) -> MemoryTopic:
    options = codec_options({"protocol": "canal-json"})
    encode, messages = encoder(options), list[tuple[int, Message]]()
    for event in events:
        if isinstance(event, RowChange):  # rows go by their key
            id_ = (event.new or event.old or (0,))[0]
            assert isinstance(id_, int)
            messages += [(id_ % PARTITIONS, message) for message in encode.encode_rows([event])]
        elif isinstance(event, DdlEvent):
            message = encode.encode_ddl(event)
            assert message is not None
            messages.append((0, message if header else replace(message, headers=())))
    return MemoryTopic(options, PARTITIONS, messages)


@pytest.mark.parametrize(("protocol", "last"), [("canal-json", -1), ("debezium", 5)])
def test_the_bank_log_ends_as_sql_saw_it(tmp_path: Path, protocol: str, last: int) -> None:
    options, line = codec_options({"protocol": protocol}), snapshots()[last]
    topic = MemoryTopic(options, PARTITIONS, messages_of_log(BANK, options, PARTITIONS, line.ts))
    for rounds in (3, 1 << 30):
        consume_by_offset(topic, tmp_path / "target", size=1500, rows=2000, rounds=rounds)
    assert wrong(tmp_path / "target", line) == {}


@pytest.mark.parametrize("header", [True, False])
def test_a_truncate_on_one_partition_removes_earlier_rows_but_no_later_row(
    tmp_path: Path, header: bool
) -> None:
    before = [put(n, n, n) for n in range(1, 30)]
    after = [put(100 + n, n, -n) for n in range(10, 25)]
    topic = canal([ITEMS.created(), *before, truncated(99), *after], header=header)
    assert {len(messages) > 3 for messages in topic.partitions.values()} == {True}
    consume_by_offset(topic, tmp_path / "target", size=4, rows=3)
    assert items(tmp_path / "target") == [{"id": n, "n": -n} for n in range(10, 25)]


@pytest.mark.parametrize("header", [True, False])
def test_what_is_sent_again_behind_a_ddl_changes_nothing(tmp_path: Path, header: bool) -> None:
    """The producer died after the DDL and has sent the rows before it, and the DDL, once more."""
    before = [put(n, n, n) for n in range(1, 20)]
    after = [put(100, 3, 33), put(101, 3, 34, old=33)]
    topic = canal([ITEMS.created(), *before, truncated(99), after[0]], header=header)
    again = canal([*before, truncated(99), *after], header=header)
    for number, messages in again.partitions.items():
        topic.partitions[number] += messages
    consume_by_offset(topic, tmp_path / "target", size=5, rows=3)
    assert items(tmp_path / "target") == [{"id": 3, "n": 34}]


WIDE = OneTable.of([ColumnSpec("id", 3, 11, flag=KEY_FLAGS), ColumnSpec("n", 3, 11), ColumnSpec("b", 3, 11)])


def wide(ms: int, id_: int) -> RowChange:
    return WIDE.change(at(ms), None, (id_, id_, 5))


def sent_again(events: Sequence[Event], more: Sequence[Event], *, header: bool) -> MemoryTopic:
    """The producer dies after the events and sends all of them again, and more."""
    topic = canal(events, header=header)
    for number, messages in canal([*events, *more], header=header).partitions.items():
        topic.partitions[number] += messages
    return topic


def without_b() -> DdlEvent:
    event = WIDE.ddl(at(50), 6, "ALTER TABLE items DROP COLUMN b", ITEMS.info)
    return replace(event, before=WIDE.info)


def dropped(ms: int) -> DdlEvent:
    event = ITEMS.ddl(at(ms), 4, "DROP TABLE items", None)
    return replace(event, removed_ids=(70,))


def created_again(ms: int) -> DdlEvent:
    made = ITEMS.info | {"id": 72}
    event = replace(ITEMS.ddl(at(ms), 3, "CREATE TABLE items (id int primary key, n int)", made), before=None)
    return replace(event, added_ids=(72,))


@pytest.mark.parametrize("header", [True, False])
def test_rows_of_an_older_table_that_are_sent_again_change_nothing(tmp_path: Path, header: bool) -> None:
    """A column is gone; the table is gone; another one has its name."""
    made = WIDE.created()
    altered = [made, *(wide(n, n) for n in range(1, 9)), without_b(), put(60, 1, 6, old=1)]
    more = sent_again(altered, [put(70, 9, 9)], header=header)
    consume_by_offset(more, tmp_path / "altered", size=3, rows=2)
    assert items(tmp_path / "altered") == [{"id": n, "n": 6 if n == 1 else n} for n in range(1, 10)]
    gone = [ITEMS.created(), *(put(n, n, n) for n in range(1, 9)), dropped(50)]
    other = replace(ITEMS.created(), schema="shop", table="other", query="create table other (id int)")
    kept = [
        replace(
            other, finished_ts=at(60), after=ITEMS.info | {"id": 80, "name": {"O": "other", "L": "other"}}
        )
    ]
    consume_by_offset(sent_again(gone, kept, header=header), tmp_path / "gone", size=3, rows=2)
    assert "shop.items" not in open_snapshot(tmp_path / "gone").tables
    again = [*gone, created_again(60), put(61, 2, 22)]
    consume_by_offset(sent_again(again, [put(70, 3, 33)], header=header), tmp_path / "again", size=3, rows=2)
    assert items(tmp_path / "again") == [{"id": 2, "n": 22}, {"id": 3, "n": 33}]


def test_several_topics_are_read_only_where_there_is_no_ddl(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read together"):
        run(Settings("kafka://127.0.0.1:1/a,b?protocol=canal-json", tmp_path, mode=Mode.ROW))
    registry = "&schema-registry=http%3A%2F%2F127.0.0.1%3A1"
    topics = Topic(f"kafka://127.0.0.1:1/a,b?protocol=avro{registry}", by_offset=True)
    check_one_topic(topics)
    ddl = DdlMessage(5, "truncate table t", None, "s", "t", None, 3)
    with pytest.raises(Fatal, match="one of several topics"):
        check_no_ddls(topics, [Fetched(0, 4, ddls=(ddl,))])


def test_the_newest_commit_ts_of_a_key_wins_within_a_step(tmp_path: Path) -> None:
    """An old writer is late: its row is behind a newer one."""
    topic = canal([ITEMS.created(), put(1, 1, 10), put(5, 1, 50, old=10), put(3, 1, 30, old=10)], header=True)
    consume_by_offset(topic, tmp_path / "target")
    assert items(tmp_path / "target") == [{"id": 1, "n": 50}]


def test_changes_of_one_millisecond_stay_in_the_order_of_the_topic(tmp_path: Path) -> None:
    gone = ITEMS.change(at(5) + 1, (1, 10), None)
    topic = canal([ITEMS.created(), put(5, 1, 10), gone, put(6, 2, 1)], header=True)
    consume_by_offset(topic, tmp_path / "target")
    assert items(tmp_path / "target") == [{"id": 2, "n": 1}]


@pytest.mark.parametrize("extension", [False, True])
def test_avro_goes_by_its_offsets_alone_since_deletes_have_no_ts(tmp_path: Path, extension: bool) -> None:
    changes = [put(1, 1, 10), put(2, 2, 20), put(3, 1, 11, old=10), put(4, 2, None, old=20), put(5, 3, 30)]
    options, book = AvroOptions(enable_tidb_extension=extension), SchemaBook()
    codec = codec_of(options)
    assert codec.schemas is not None
    placed: CodecOptions = codec.schemas.placed(options, "t", "default", book)
    register_missing(book, _Registry(), codec.schemas.needed(ITEMS.schema, placed))
    messages = codec.encoder(placed).encode_rows(changes)
    topic = MemoryTopic(placed, 1, ((0, message) for message in messages))
    consume_by_offset(topic, tmp_path / "target")
    rows = open_snapshot(tmp_path / "target").tables
    (found,) = rows.values()
    assert sorted((row["id"], row["n"]) for row in found.to_arrow().to_pylist()) == [(1, 11), (3, 30)]


def test_maxwell_rows_are_applied_without_keys_and_with_whole_seconds(tmp_path: Path) -> None:
    """Maxwell messages name no key columns and have timestamps in seconds."""
    options = MaxwellOptions()
    changes = [put(1, 1, 10), put(2, 2, 20), put(3, 1, 11, old=10), put(4, 2, None, old=20), put(5, 3, 30)]
    messages = MaxwellWriter(options).encode_rows(changes)
    topic = MemoryTopic(options, 1, ((0, message) for message in messages))
    consume_by_offset(topic, tmp_path / "target", size=2)
    assert items(tmp_path / "target") == [{"id": 1, "n": 11}, {"id": 3, "n": 30}]


def plain_bank() -> list[tuple[int, Message]]:
    return bank_messages("canal-json", extension=False)


def run_until_all_is_in(settings: Settings, count: int) -> Progress:
    reported: list[Progress] = []

    def all_in() -> bool:
        parts = reported[-1].partitions if reported else ()
        return sum(one.end for one in parts) >= count and all(one.to_apply == 0 for one in parts)

    return run(settings, all_in, Listener(report=reported.append))


@pytest.mark.integration
def test_a_topic_of_a_broker_is_followed_and_one_kind_of_progress_is_kept(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, messages, target = new_topic(3), plain_bank(), tmp_path / "target"
    source, line = f"kafka://{kafka}/{topic}?protocol=canal-json", snapshots()[LINE]
    half = len(messages) // 2
    settings = Settings(source, target, mode=Mode.ROW, commit_s=0.05, commit_rows=500, master="workers[1]")
    # The producer dies, and sends its last messages again.
    for count, part in ((half, messages[:half]), (len(messages) + 200, messages[half - 200 :])):
        publish(kafka, topic, part)
        end = run_until_all_is_in(settings, count)
        assert end.trouble == ""
        assert end.waiting_rows == 0
    assert wrong(target, line) == {}
    assert {one.marked for one in end.partitions} == {False}
    with pytest.raises(InvalidInput, match="another kind of progress"):
        run(replace(settings, mode=Mode.TRANSACTION))
    with pytest.raises(InvalidInput, match="--until needs watermarks") as caught:
        run(replace(settings, until=line.ts))
    assert "enable-tidb-extension=true" in caught.value.fix


@pytest.mark.integration
def test_the_end_of_what_is_written_counts_what_is_not_committed(
    kafka: str, new_topic: Callable[..., str]
) -> None:
    name = new_topic(1)
    offsets = Offsets(Topic(f"kafka://{kafka}/{name}?protocol=canal-json"))
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b"{}")
    assert producer.flush(PATIENCE_S) == 0
    assert (offsets.ends([0]), offsets.ends_written([0])) == ({0: 0}, {0: 1})
    producer.abort_transaction()
