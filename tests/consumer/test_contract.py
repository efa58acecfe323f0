"""The judge of topics: no topic that keeps the contract is blamed, and each way to break it is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.codec.base import BadMessage, Batch, DdlMessage, Decoded, DecodedTable, WireColumn
from tidegate.codec.entry import DdlTo
from tidegate.config.settings import DispatchRule
from tidegate.consumer.contract.check import Producer, TopicCheck
from tidegate.consumer.contract.verdict import Rule, Unjudged, Verdict
from tidegate.consumer.engine.places import number_of
from tidegate.consumer.reading.mark_headers import MarkHeaders, mark_headers
from tidegate.dispatcher.router import Router
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.layout import Layout, first_change

COLUMNS: Final = (
    WireColumn("id", pa.int64(), 3, True),
    WireColumn("v", pa.string(), 15, False),
)
BY_KEY: Final = Router([DispatchRule(matcher=("*.*",), partition="index-value")], "t")


@dataclass(frozen=True)
class Row:
    """A change, INSERT or UPDATE unless said."""

    id: int
    ts: int
    op: int = UPDATE
    table: str = "a"


@dataclass(frozen=True)
class Mark:
    """Resolved."""

    ts: int


@dataclass(frozen=True)
class Ddl:
    """A DDL."""

    ts: int
    table: str = "a"
    query: str = "alter table"


Message = Row | Mark | Ddl


@dataclass
class Topic:
    """Messages of each partition, in order."""

    partitions: list[list[Message]]

    def all(self, message: Message) -> None:
        """Broadcast."""
        for partition in self.partitions:
            partition.append(message)

    def row(self, row: Row) -> None:
        """To where its key belongs."""
        self.partitions[place(row.table, row.id, len(self.partitions))].append(row)


def place(table: str, row: int, partitions: int) -> int:
    """As TiCDC's index-value."""
    return (crc32(f"s{table}".encode()) ^ crc32(f"id{row}".encode())) % partitions


def decoded(messages: Sequence[Message], first: int) -> Decoded:
    """As a decoder gives them, offsets from `first` on."""
    found = Decoded()
    tables: dict[str, list[tuple[int, Row]]] = {}
    for offset, message in enumerate(messages, first):
        match message:
            case Row():
                tables.setdefault(message.table, []).append((offset, message))
            case Mark(ts):
                found.resolved.append((ts, offset))
            case Ddl(ts, table, query):
                found.ddls.append(DdlMessage(ts, query, None, "s", table, None, offset))
    found.rows.extend(table_of(name, rows) for name, rows in tables.items())
    return found


def table_of(name: str, rows: Sequence[tuple[int, Row]], *, keyed: bool = True) -> DecodedTable:
    """The rows of a table."""
    columns = tuple(replace(column, key=column.key and keyed) for column in COLUMNS)
    image: Any = pa.RecordBatch.from_pydict(
        {"id": pa.array([row.id for _, row in rows], pa.int64()), "v": ["x"] * len(rows)}
    )
    return DecodedTable(
        "s",
        name,
        None,
        columns,
        np.array([row.op for _, row in rows], np.uint8),
        np.array([row.ts for _, row in rows], np.uint64),
        np.array([offset for offset, _ in rows], np.int64),
        np.zeros(len(rows), np.int32),
        image,
        image,
    )


def judged(topic: Topic, chunks: Sequence[tuple[int, int]] = (), **options: Any) -> Verdict:
    """The verdict on a topic that is taken in pieces: (partition, messages), and what is left at the end."""
    check = TopicCheck(range(len(topic.partitions)), **options)
    at = [0] * len(topic.partitions)
    for partition, count in chunks:
        partition %= len(at)
        piece = topic.partitions[partition][at[partition] : at[partition] + count]
        check.take(partition, decoded(piece, at[partition]))
        at[partition] += len(piece)
    for partition, done in enumerate(at):
        check.take(partition, decoded(topic.partitions[partition][done:], done))
    return check.finish()


# --- topics that keep it --------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", [(-1, -2), (0, 2**61 - 1)])
def test_rows_whose_keys_have_equal_hashes_in_python_are_two_rows(pair: tuple[int, int]) -> None:
    assert hash((pair[0],)) == hash((pair[1],))
    topic = Topic([[], []])
    for partition, (row, ts) in zip(topic.partitions, zip(pair, (50, 40), strict=True), strict=True):
        partition.append(Row(row, ts, INSERT))
    topic.all(Mark(60))
    assert judged(topic).holds


@st.composite
def kept(draw: st.DrawFn) -> Topic:
    """Draw a topic that our producer may write: transactions, DDL, Resolved, repeated changes."""
    topic = Topic([[] for _ in range(draw(st.integers(1, 4)))])
    ts, resolved = 10, 0
    above: list[Row] = []
    for step in draw(st.lists(st.sampled_from("rrrrrmdx"), max_size=40)):
        ts += draw(st.integers(1, 3))
        if step == "r":
            for number in draw(st.sets(st.integers(0, 5), min_size=1, max_size=3)):
                op = draw(st.sampled_from([INSERT, UPDATE, DELETE]))
                above.append(Row(number, ts, op, draw(st.sampled_from("ab"))))
                topic.row(above[-1])
        elif step == "m":
            resolved = draw(st.integers(resolved, ts))
            topic.all(Mark(resolved))
            above = [row for row in above if row.ts > resolved]
        elif step == "d":
            topic.all(Ddl(ts, query=f"alter {ts}"))
            above = [row for row in above if row.ts > ts]
        elif above:  # a restart: what is above Resolved once more
            for row in above:
                topic.row(row)
    return topic


CHUNKS: Final = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=30)


@given(
    kept(), CHUNKS, st.sampled_from(Producer), st.sampled_from([None, BY_KEY]), st.sampled_from([4, 10_000])
)
def test_a_topic_that_keeps_it_is_not_blamed_however_it_is_read(
    topic: Topic, chunks: list[tuple[int, int]], producer: Producer, router: Router | None, remember: int
) -> None:
    verdict = judged(topic, chunks, producer=producer, router=router, remember=remember)
    assert verdict.violations == []
    assert verdict.rows == sum(isinstance(m, Row) for p in topic.partitions for m in p)


@given(kept(), st.lists(st.integers(0, 30), min_size=4, max_size=4))
def test_nor_is_one_whose_beginning_is_gone(topic: Topic, gone: list[int]) -> None:
    left = Topic([one[count:] for one, count in zip(topic.partitions, gone, strict=False)])
    lost = [one[:count] for one, count in zip(topic.partitions, gone, strict=False)]
    verdict = judged(left, begun={n: max(m.ts for m in one) for n, one in enumerate(lost) if one})
    assert verdict.violations == []


def test_ticdc_may_send_events_of_a_resolved_ts_after_it_and_go_back() -> None:
    """Rows and DDLs of exactly the resolved ts may follow it, and marks may repeat."""
    topic = Topic([[], []])
    topic.all(Mark(100))
    topic.row(Row(1, 100))
    topic.all(Ddl(100))
    topic.all(Mark(110))
    topic.all(Mark(105))
    topic.row(Row(1, 100))
    topic.row(Row(1, 120, table="b"))
    topic.all(Ddl(115, table="a"))
    verdict = judged(topic, producer=Producer.TICDC)
    assert (verdict.violations, verdict.went_back, verdict.again) == ([], 2, 1)
    assert {Rule.AFTER_RESOLVED, Rule.DDL_LATE, Rule.RESOLVED_BACK, Rule.BEFORE_DDL} <= set(
        judged(topic).counts
    )


# --- topics that break it -------------------------------------------------------------------------------


def sound() -> Topic:
    """Two partitions, of which 0 has the row 3 of a and 1 the row 4."""
    topic = Topic([[], []])
    assert [place("a", number, 2) for number in (3, 4)] == [0, 1]
    for ts in (10, 20, 30):
        topic.row(Row(4, ts))
        topic.row(Row(3, ts))
    topic.all(Mark(30))
    topic.all(Ddl(40))
    topic.row(Row(4, 50))
    topic.all(Mark(60))
    topic.all(Mark(70))
    topic.all(Mark(80))
    return topic


def broken(rule: Rule) -> Topic:
    """`sound`, with one thing wrong."""
    topic = sound()
    zero, one = topic.partitions
    match rule:
        case Rule.MOVED:
            zero.insert(3, Row(4, 30))
            one.remove(Row(4, 30))
        case Rule.PLACED:
            zero.insert(0, Row(4, 5))
        case Rule.ORDER:
            one[0], one[1] = one[1], one[0]
        case Rule.AFTER_RESOLVED:
            one.insert(one.index(Mark(60)) + 1, Row(4, 55))
        case Rule.RESOLVED_BACK:
            one.insert(one.index(Mark(80)), Mark(65))
        case Rule.RESOLVED_MISSING:
            zero.remove(Mark(70))
        case Rule.DDL_MISSING:
            zero.remove(Ddl(40))
        case Rule.DDL_LATE:
            zero.remove(Ddl(40))
            zero.insert(zero.index(Mark(60)) + 1, Ddl(40))
        case Rule.BEFORE_DDL:
            one.remove(Row(4, 50))
            one.insert(one.index(Ddl(40)), Row(4, 50))
        case Rule.AFTER_DDL:
            one.insert(one.index(Ddl(40)) + 1, Row(5, 35))
        case _:
            raise AssertionError(rule)
    return topic


FOUND_ELSEWHERE: Final = (Rule.DECODABLE, Rule.ALIGNED, Rule.LAYOUT)


@pytest.mark.parametrize("rule", [rule for rule in Rule if rule not in FOUND_ELSEWHERE])
def test_each_way_to_break_it_is_found_and_named(rule: Rule) -> None:
    assert judged(sound(), router=BY_KEY).holds
    verdict = judged(broken(rule), router=BY_KEY if rule is Rule.PLACED else None)
    assert rule in verdict.counts
    named = next(one for one in verdict.violations if one.rule is rule)
    assert named.partition in (0, 1)
    assert named.ts


def test_conflict_dispatch_accepts_the_partition_of_the_key_or_the_table() -> None:
    router = Router([DispatchRule(partition="conflict")], "t")
    by_table = crc32(b"sa") % 3
    row = next(number for number in range(9) if place("a", number, 3) != by_table)
    for partition in range(3):
        check = TopicCheck(range(3), router=router)
        check.take(partition, decoded([Row(row, 10)], 0))
        wrong = partition not in (by_table, place("a", row, 3))
        assert check.finish().counts == ({Rule.PLACED: 1} if wrong else {})


def test_conflict_dispatch_lets_a_row_move_between_key_and_table_place() -> None:
    router = Router([DispatchRule(partition="conflict")], "t")
    by_table = crc32(b"sa") % 3
    row = next(number for number in range(9) if place("a", number, 3) != by_table)
    by_key = place("a", row, 3)
    other = next(partition for partition in range(3) if partition not in (by_table, by_key))
    for first, second, wrong in ((by_key, by_table, False), (by_table, by_key, False), (by_key, other, True)):
        check = TopicCheck(range(3), router=router)
        check.take(first, decoded([Row(row, 10)], 0))
        check.take(second, decoded([Row(row, 20)], 0))
        assert (Rule.MOVED in check.finish().counts) is wrong


def test_the_first_violation_has_its_place() -> None:
    (first,) = judged(broken(Rule.ORDER)).violations
    assert (first.rule, first.partition, first.offset, first.ts, first.table) == (Rule.ORDER, 1, 1, 10, "s.a")
    assert first.why == "the row's change of 20 appeared before it"
    (missing,) = judged(broken(Rule.RESOLVED_MISSING)).violations
    assert (missing.partition, missing.offset, missing.ts) == (0, -1, 70)


def test_a_change_that_comes_again_elsewhere_has_moved() -> None:
    topic = sound()
    topic.partitions[0].insert(1, Row(4, 10))
    assert Rule.MOVED in judged(topic).counts


def test_ddl_of_a_protocol_with_one_place_for_it_is_looked_for_there_alone() -> None:
    topic = sound()
    topic.partitions[1].remove(Ddl(40))
    assert judged(topic, ddl_to=DdlTo.FIRST).holds
    assert Rule.DDL_MISSING in judged(sound(), ddl_to=DdlTo.FIRST).counts


def test_a_message_that_cannot_be_decoded_and_one_whose_row_was_left_out() -> None:
    check = TopicCheck([0])
    check.take(0, Decoded(bad=[BadMessage(7, None, b"?", "no JSON"), BadMessage(8, None, b"?", "", 5)]))
    verdict = check.finish()
    assert [(one.rule, one.offset) for one in verdict.violations] == [(Rule.DECODABLE, 7)]
    assert verdict.unjudged == {Unjudged.REDUCED: 1}


def test_a_row_without_definition_is_a_violation_unless_the_start_is_gone() -> None:
    """The start of the topic may be gone by retention; then the row is not judged."""
    waiting = Decoded(bad=[BadMessage(7, None, b"row", "no definition", unknown=("s", "a", 5))])
    whole, cut = TopicCheck([0]), TopicCheck([0], begun={0: 100})
    whole.take(0, waiting)
    cut.take(0, waiting)
    assert [one.rule for one in whole.finish().violations] == [Rule.DECODABLE]
    assert cut.finish().unjudged == {Unjudged.UNDEFINED: 1}


def test_rows_that_do_not_say_when_are_counted_and_not_judged() -> None:
    topic = Topic([[Mark(10), Row(3, 0), Row(3, 0)]])
    assert judged(topic).unjudged == {Unjudged.UNTIMED: 2}


def test_rows_without_a_key_are_counted_and_not_judged() -> None:
    check = TopicCheck([0])
    rows = [(0, Row(1, 20)), (1, Row(1, 10)), (2, Row(1, 10))]
    check.take(0, Decoded(rows=[table_of("a", rows, keyed=False)]))
    verdict = check.finish()
    assert (verdict.holds, verdict.rows, verdict.unjudged[Unjudged.KEYLESS]) == (True, 3, 3)


def test_memory_is_bounded_and_what_was_forgotten_is_said() -> None:
    topic = Topic([[]])
    for ts in range(1, 5_000):
        topic.row(Row(ts % 100, ts))
        if ts % 100 == 0:
            topic.all(Mark(ts))
    topic.row(Row(1, 50))
    check = TopicCheck([0], remember=1_000)
    for at in range(0, len(topic.partitions[0]), 10):
        check.take(0, decoded(topic.partitions[0][at : at + 10], at))
        assert len(check._changes._first_places) <= 1_000 + 10
        assert len(check._changes._newest) <= 1_000 + 10
    verdict = check.finish()
    assert verdict.holds
    assert verdict.unjudged == {Unjudged.FORGOTTEN: 1}
    assert Rule.AFTER_RESOLVED in judged(topic).counts


def test_what_the_rows_say_about_their_dispatcher() -> None:
    topic = Topic([[], [], []])
    for number in range(20):
        topic.row(Row(number, 10))
        topic.partitions[crc32(b"sb") % 3].append(Row(number, 10, table="b"))
        topic.partitions[number % 3].append(Row(number, 10, table="c"))
    assert judged(topic).dispatchers == {
        "s.a": "index-value, as it seems",
        "s.b": "table, as it seems",
        "s.c": "neither table nor index-value",
    }
    by_ts = Router([DispatchRule(matcher=("*.*",), partition="ts")], "t")
    moving = Topic([[Row(1, 10)], [Row(1, 11)]])
    assert judged(moving, router=by_ts).holds
    assert Rule.MOVED in judged(moving).counts


def test_broadcasts_before_a_deleted_topic_start_are_not_missed() -> None:
    topic = sound()
    topic.partitions[0] = topic.partitions[0][topic.partitions[0].index(Mark(70)) + 1 :]
    assert judged(topic, begun={0: 70}).holds
    assert {Rule.RESOLVED_MISSING, Rule.DDL_MISSING} <= set(judged(topic).counts)


def test_a_ddl_that_may_have_come_before_is_not_taken_for_a_late_one() -> None:
    topic = Topic([[Row(3, 90), Ddl(80), Mark(120)]])
    assert judged(topic, begun={0: 100}).unjudged == {Unjudged.LATE_DDL: 1}
    assert Rule.BEFORE_DDL in judged(topic).counts


def test_a_row_is_compared_with_the_latest_of_its_changes() -> None:
    assert judged(Topic([[Row(3, 20), Row(3, 10), Row(3, 15)]])).counts == {Rule.ORDER: 2}


def test_rows_may_move_once_the_number_of_partitions_has_changed() -> None:
    check = TopicCheck([0, 1])
    check.take(0, decoded([Row(3, 10)], 0))
    check.take(1, Decoded(repartitions=[(2, 0)]))
    check.take(1, decoded([Row(3, 20)], 1))
    verdict = check.finish()
    assert verdict.holds
    assert verdict.unjudged[Unjudged.REPARTITIONED] == 1


# --- what headers say ------------------------------------------------------------------------------------


def headed(*marks: tuple[int, dict[str, bytes]]) -> tuple[Decoded, MarkHeaders]:
    """Resolved messages with headers, from offset 0 on, as the check takes them."""
    headers = [list(found.items()) for _, found in marks]
    batch = Batch([None] * len(marks), [b""] * len(marks), range(len(marks)), headers)
    resolved = [(ts, i) for i, (ts, _) in enumerate(marks)]
    return Decoded(resolved=resolved), mark_headers(batch, resolved)


def aligned(epoch: int, name: str = "x") -> dict[str, bytes]:
    """The header of an alignment mark."""
    return {"tidegate-align": b'{"id":"%s","table":"s.a","epoch":%d}' % (name.encode(), epoch)}


def verdict_of(*partitions: list[tuple[int, dict[str, bytes]]]) -> Verdict:
    check = TopicCheck(range(len(partitions)))
    for number, marks in enumerate(partitions):
        check.take(number, *headed(*marks))
    return check.finish()


def test_an_alignment_mark_is_no_resolved_that_goes_back() -> None:
    marks = [
        (10, {}),
        (20, {}),
        (10, aligned(1)),
        (20, aligned(2)),
        (20, aligned(2)),
        (30, aligned(3, "y")),
        (40, {}),
    ]
    assert verdict_of(marks, marks).holds
    assert Rule.RESOLVED_BACK in verdict_of([(20, {}), (10, {"other": b"1"})]).counts


@pytest.mark.parametrize(
    "wrong",
    [
        [(10, aligned(2)), (10, aligned(1)), (10, aligned(3))],
        [(10, aligned(1)), (10, aligned(3))],
        [(10, aligned(1)), (10, aligned(2, "y")), (10, aligned(3))],
    ],
)
def test_alignment_marks_that_differ_or_go_back_are_reported(
    wrong: list[tuple[int, dict[str, bytes]]],
) -> None:
    """Marks must be the same on all partitions."""
    sound = [(10, aligned(1)), (10, aligned(2)), (10, aligned(3))]
    assert verdict_of(sound, sound).holds
    verdict = verdict_of(sound, wrong)
    assert set(verdict.counts) == {Rule.ALIGNED}
    assert verdict.violations[0].table == "s.a"


@pytest.mark.parametrize(("left_out", "sound"), [(50, False), (150, True), (250, False)])
def test_no_alignment_mark_is_missing_where_a_partition_had_no_rows(left_out: int, sound: bool) -> None:
    """From two partitions to one, and back to two."""
    shrunk = first_change(100, 2, 1)
    grown = shrunk.changed(200, 2)
    marks: list[tuple[int, dict[str, bytes]]] = [
        (10, aligned(20)),
        (10, aligned(50)),
        (100, dict(shrunk.headers)),
        (100, aligned(150)),
        (200, dict(grown.headers)),
        (200, aligned(250)),
        (200, aligned(280)),
    ]
    counts = verdict_of(marks, [mark for mark in marks if mark[1] != aligned(left_out)]).counts
    assert counts == ({} if sound else {Rule.ALIGNED: 1})


def test_a_row_below_its_tables_mark_that_comes_behind_the_mark_is_named() -> None:
    for table, ts, wrong in (("a", 19, True), ("a", 20, False), ("b", 19, False)):
        check = TopicCheck([0])
        check.take(0, *headed((0, aligned(20))))
        check.take(0, decoded([Row(3, ts, table=table)], 5))
        assert check.finish().counts == ({Rule.ALIGNED: 1} if wrong else {})


@pytest.mark.parametrize(
    "header",
    [
        {"tidegate-align": b""},
        {"tidegate-align": b"[]"},
        {"tidegate-align": b'{"id":1,"table":"s.a","epoch":1}'},
        {"tidegate-align": b'{"id":"x","table":"s.a","epoch":-1}'},
        {"tidegate-align": b'{"id":"x","table":"s.a","epoch":true}'},
        {"tidegate-epoch": b"one"},
        {"tidegate-epoch": b"9" * 5000},
    ],
)
def test_a_header_that_is_not_sound_is_named(header: dict[str, bytes]) -> None:
    assert verdict_of([(10, header)]).counts == {Rule.DECODABLE: 1}
    assert verdict_of([(10, {}), (0, header)]).counts == {Rule.DECODABLE: 1}, "and it goes back nowhere"


@pytest.mark.parametrize(("first", "second", "may"), [(0, 1, True), (1, 2, True), (1, 1, False)])
def test_rows_may_move_between_epochs_and_not_within_one(first: int, second: int, may: bool) -> None:
    check = TopicCheck([0, 1])
    for number, epoch in enumerate((first, second)):
        check.take(number, decoded([Row(3, 10 + 10 * number)], 0))
        check.take(number, *headed((30, {"tidegate-epoch": b"%d" % epoch} if epoch else {})))
        check.take(1 - number, *headed((30, {"tidegate-epoch": b"%d" % epoch} if epoch else {})))
    check.take(0, decoded([Row(4, 50)], 9))
    check.take(1, decoded([Row(4, 60)], 9))
    moved = [one.ts for one in check.finish().violations if one.rule is Rule.MOVED]
    assert (60 in moved) != may


# --- another number of partitions ------------------------------------------------------------------------


@dataclass(frozen=True)
class Headed:
    """A Resolved that names a change of the number of partitions."""

    ts: int
    layout: Layout


class Growing:
    """A topic that is written by the number of partitions of the time."""

    def __init__(self, first: int) -> None:
        self.partitions: list[list[Row | Mark | Ddl | Headed]] = [[] for _ in range(first)]
        self.count, self.layout = first, None

    def change(self, ts: int, count: int) -> None:
        """Resolved `ts`; rows above it go to so many partitions."""
        self.layout = self.layout.changed(ts, count) if self.layout else first_change(ts, self.count, count)
        self.count = count
        self.partitions += [[] for _ in range(self.layout.all - len(self.partitions))]
        self.mark(ts)

    def mark(self, ts: int) -> None:
        for partition in self.partitions:
            partition.append(Headed(ts, self.layout) if self.layout else Mark(ts))

    def ddl(self, ts: int) -> None:
        for partition in self.partitions:
            partition.append(Ddl(ts))

    def row(self, number: int, ts: int) -> None:
        self.partitions[place("a", number, self.count)].append(Row(number, ts))

    def judged(self, order: Sequence[int] = (), extra: int = 0, size: int = 1000, **options: Any) -> Verdict:
        """The verdict, partitions taken in an order, in pieces; `extra` ones are never written."""
        check = TopicCheck(range(len(self.partitions) + extra), **options)
        for number in order or range(len(self.partitions)):
            messages = self.partitions[number]
            plain = [Mark(one.ts) if isinstance(one, Headed) else one for one in messages]
            layouts = {at: one.layout for at, one in enumerate(messages) if isinstance(one, Headed)}
            epochs = {at: layout.epoch for at, layout in layouts.items()}
            headers = MarkHeaders(epochs=epochs, layouts=layouts)
            for at in range(0, len(plain), size):
                piece = range(at, at + size)
                reported = {offset: one for offset, one in layouts.items() if offset in piece}
                check.take(number, decoded(plain[at : at + size], at), replace(headers, layouts=reported))
        return check.finish()


def growing() -> Growing:
    """From two partitions to five and back to three; each of 40 rows changes in each epoch."""
    topic, ts = Growing(2), 10
    for count in (5, 3, None):
        for number in range(40):
            topic.row(number, ts := ts + 1)
        topic.mark(ts - 5)
        topic.ddl(ts := ts + 1)
        topic.row(1, ts := ts + 1)
        if count:
            topic.change(ts := ts + 1, count)
    topic.mark(ts)
    topic.mark(ts + 1)
    return topic


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4, 1, 3)])
@pytest.mark.parametrize("extra", [0, 2])
def test_a_repartitioned_topic_keeps_the_contract_in_any_reading_order(
    order: tuple[int, ...], extra: int
) -> None:
    topic = growing()
    layouts = [one.layout for one in topic.partitions[0] if isinstance(one, Headed)]
    known = {"": list(dict.fromkeys(layouts))}
    for options in (
        {},
        {"router": BY_KEY},
        {"router": BY_KEY, "layouts": known},
        {"layouts": known, "size": 7},
    ):
        verdict = topic.judged(order, extra, **options)
        assert verdict.violations == []
        assert verdict.lowest_resolved == topic.partitions[0][-1].ts
        assert verdict.dispatchers["s.a"].startswith("index-value")
    assert not topic.judged(order, extra, router=BY_KEY, layouts=known).unjudged, "all of it is judged"


@pytest.mark.parametrize("wrong", ["retired", "early", "moved", "unmarked", "unlike", "order", "no ddl"])
def test_what_a_change_of_the_number_does_not_excuse(wrong: str) -> None:
    topic = growing()
    parts, last = topic.partitions, topic.partitions[0][-1].ts
    first = next(one.layout for one in parts[0] if isinstance(one, Headed))
    layouts = dict.fromkeys(one.layout for one in parts[0] if isinstance(one, Headed))
    match wrong:
        case "retired":  # a row of the last epoch on a partition that has none any more
            parts[4].insert(-1, Row(99, last))
            expected = Rule.PLACED
        case "early":  # a row of before the change on a new partition
            parts[4].insert(0, Row(99, first.ts - 1))
            expected = Rule.PLACED
        case "moved":  # two changes of one row within an epoch on two partitions
            parts[0].insert(-1, Row(99, last))
            parts[1].append(Row(99, last + 5))
            expected = Rule.MOVED
        case "unmarked":  # a retired partition without a Resolved
            parts[4].remove(next(one for one in parts[4] if isinstance(one, Headed) and one.ts > first.ts))
            expected = Rule.RESOLVED_MISSING
        case "unlike":  # two partitions say different things of one change
            at = parts[3].index(Headed(first.ts, first))
            parts[3][at] = Headed(first.ts, replace(first, new=4))
            expected = Rule.LAYOUT
        case "order":  # changes of a row of one epoch in the wrong order
            parts[1].append(Row(99, last + 7))
            parts[1].append(Row(99, last + 6))
            expected = Rule.ORDER
        case _:
            parts[4].remove(next(one for one in parts[4] if isinstance(one, Ddl)))
            expected = Rule.DDL_MISSING
    assert expected in topic.judged(layouts={"": list(layouts)}).counts


def test_rows_compared_with_a_wrong_partition_count_are_not_judged() -> None:
    topic = growing()
    found = topic.judged(router=BY_KEY, size=3)
    assert found.holds
    assert found.unjudged[Unjudged.REPARTITIONED] > 0
    parts = topic.partitions
    parts[0].append(Row(4, parts[0][-1].ts + 5))
    assert place("a", 4, 3) != 0
    assert {Rule.PLACED, Rule.MOVED} <= set(topic.judged(router=BY_KEY, size=3).counts)


# --- several topics --------------------------------------------------------------------------------------

A, B, C = 0, number_of(("a", "b"), "b", 0), number_of(("a", "b"), "b", 1)
"""Topic `a` has one partition, `b` two."""


def together(a: list[Message], b: list[Message], c: list[Message], **options: Any) -> Verdict:
    """The verdict on the contents of the three partitions."""
    check = TopicCheck([A, B, C], topics=("a", "b"), **options)
    for number, messages in ((A, a), (C, c), (B, b)):
        check.take(number, decoded(messages, 0))
    return check.finish()


def test_resolved_is_in_all_topics_from_each_ones_first_on() -> None:
    """A topic comes into use with the table that goes there."""
    early = [Mark(10), Mark(20)]
    late = [Mark(30), Mark(40), Mark(50)]
    verdict = together([*early, *late], late, late)
    assert verdict.holds
    assert verdict.lowest_resolved == 50
    for lacking in (late[1:], [late[0], *late[2:]]):
        found = together([*early, *late], late, lacking)
        assert found.counts == {Rule.RESOLVED_MISSING: 1}
        (one,) = found.violations
        assert (one.topic, one.partition, one.ts) == ("b", 1, 30 if lacking == late[1:] else 40)
    assert together([Mark(10), Mark(50)], late, late).counts == {Rule.RESOLVED_MISSING: 2}


def test_a_ddl_is_in_one_topic_and_there_on_every_partition_it_belongs_to() -> None:
    end = [Mark(50), Mark(60)]
    assert together([Ddl(10), *end], [Ddl(20), *end], [Ddl(20), *end]).holds
    found = together([Ddl(10), *end], [Ddl(20), *end], end)
    assert [(one.rule, one.topic, one.partition) for one in found.violations] == [(Rule.DDL_MISSING, "b", 1)]
    assert together([Ddl(10), *end], [Ddl(20), *end], end, ddl_to=DdlTo.FIRST).holds
    assert together([Ddl(10), *end], end, [Ddl(20), *end], ddl_to=DdlTo.FIRST).counts == {Rule.DDL_MISSING: 1}


def test_a_row_is_in_the_topic_that_its_rule_names_and_in_no_other() -> None:
    router = Router([DispatchRule(("s.a",), "ts", topic="b")], "a")
    there = Row(3, 20)
    assert together([Mark(50)], [there, Mark(50)], [Mark(50)], router=router).holds
    found = together([there, Mark(50)], [Mark(50)], [Mark(50)], router=router)
    (one,) = [one for one in found.violations if "topic" in one.why]
    assert (one.rule, one.topic, one.partition) == (Rule.PLACED, "a", 0)
    assert "topic b" in one.why
    moved = together([there, Mark(50)], [Row(3, 30), Mark(50)], [Mark(50)])
    assert moved.counts == {Rule.MOVED: 1}
    assert "partition 0 of a" in moved.violations[0].why


def test_a_row_is_judged_by_the_number_of_partitions_of_its_topic() -> None:
    router = Router([DispatchRule(("s.*",), "ts")], "a")
    found = together([Row(3, 21), Mark(50)], [Row(4, 20), Mark(50)], [Row(5, 21), Mark(50)], router=router)
    assert found.holds
    found = together([Row(3, 21), Mark(50)], [Row(4, 21), Mark(50)], [Mark(50)], router=router)
    assert [(one.rule, one.topic, one.offset) for one in found.violations] == [(Rule.PLACED, "b", 0)]
