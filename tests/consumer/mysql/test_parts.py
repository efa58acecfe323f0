"""Transactions that do not fit into memory, at a real MariaDB: in parts, each of them once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.memory_topic import MemoryTopic, consume_into
from tests.consumer.mysql.mortal import Killed, MortalServer
from tests.consumer.mysql.reading import forget
from tests.consumer.one_bag import END, FIRST, after_all, bag_topic
from tests.consumer.one_bag import before as bag_before
from tests.consumer.one_table import CREATED, KEY_FLAGS, Mark, OneTable, Row, topic
from tidegate.consumer.applying.apply import Applier, Sizes
from tidegate.consumer.engine.position import Position
from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.digest import EarlierDigest
from tidegate.consumer.mysql.session import Connection, MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress, MySqlTarget
from tidegate.errors import Fatal, Fenced
from tidegate.workload.definitions import NOT_NULL, ColumnSpec

NAME, ROWS = "parts", 3000
SIZES = Sizes(step=20_000, part=8_000)


def shape() -> OneTable:
    """shop.items with a primary key and a unique index over another column."""
    made = OneTable.of([ColumnSpec("id", 3, 11, flag=KEY_FLAGS), ColumnSpec("u", 3, 11, flag=NOT_NULL)])
    index = {
        "id": 1, "idx_name": {"O": "u", "L": "u"}, "tbl_name": {"O": "", "L": ""}, "state": 5,
        "idx_cols": [{"name": {"O": "u", "L": "u"}, "offset": 1, "length": -1}],
        "backfill_state": 0, "comment": "", "index_type": 1, "is_unique": True, "is_primary": False,
        "is_invisible": False, "is_global": False, "mv_index": False, "vector_index": None,
        "inverted_index": None, "full_text_index": None, "condition_expr_string": "",
    }  # fmt: skip
    made.info.update(index_info=[index], max_idx_id=1)
    return made


ITEMS = shape()


def before() -> list[Row]:
    return [(at, at) for at in range(ROWS)]


def after(seed: int = 1) -> list[Row]:
    """Every unique value is another row's."""
    values = list(range(ROWS))
    random.Random(seed).shuffle(values)
    return list(zip(range(ROWS), values, strict=True))


def swaps(seed: int = 1, ts: int = 300) -> MemoryTopic:
    """All rows come in one transaction, and all change places in another."""
    events: list[Any] = [ITEMS.created(), Mark(CREATED)]
    events += [ITEMS.change(200, None, row) for row in before()]
    events += [Mark(200)]
    events += [ITEMS.change(ts, old, new) for old, new in zip(before(), after(seed), strict=True)]
    return topic([*events, Mark(ts)], partitions=2)


def address(
    server: MySqlServer, folder: Path, lanes: int = 2, transaction: int | None = None
) -> MySqlAddress:
    return MySqlAddress(server, NAME, folder / "own", lanes, transaction_bytes=transaction)


def consume(
    where: MySqlAddress,
    reported: MemoryTopic,
    until: int,
    prepare: Callable[[MySqlTarget], None] = lambda target: None,
    sizes: Sizes = SIZES,
) -> Position:
    with where.opened() as target:
        prepare(target)
        applier = Applier(target, where.folder, sizes=sizes)
        return consume_into(reported, applier, where.folder / "staging", until=until, size=500, rows=10_000)


def held(server: MySqlServer, columns: str = "id, u") -> list[Row]:
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM shop.items")
        found = sorted(cursor.fetchall())
    connection.close()
    return found


@pytest.fixture
def server(mariadb: MySqlServer) -> MySqlServer:
    forget(mariadb, NAME, "shop")
    return mariadb


def committed(server: MySqlServer) -> list[int]:
    """By lane that writes in parts, how many are in."""
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT digest FROM tidegate.lanes WHERE consumer=%s AND digest LIKE '%%/%%'", (NAME,))
        found = [int(text.partition("/")[0]) for (text,) in cursor.fetchall()]
    connection.close()
    return found


def digests(server: MySqlServer) -> list[str]:
    """The digests that are stored for a write that was begun."""
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT digest FROM tidegate.lanes WHERE consumer=%s AND digest<>''", (NAME,))
        found = [text for (text,) in cursor.fetchall()]
    connection.close()
    return found


@pytest.mark.parametrize(("lanes", "transaction"), [(1, None), (2, None), (2, 1)])
def test_unique_values_that_change_places_over_parts_never_meet(
    server: MySqlServer, dialect: Dialect, tmp_path: Path, lanes: int, transaction: int | None
) -> None:
    if dialect is Dialect.TIDB and lanes == 1:
        pytest.skip("a TiDB holds a transaction in its memory, so parts are refused with one lane")
    consume(address(server, tmp_path, lanes), swaps(), 200)
    assert consume(address(server, tmp_path, lanes, transaction), swaps(), 300).ts == 300
    assert held(server) == after()


@pytest.mark.parametrize("transaction", [None, 1])
def test_readers_see_parts_only_where_a_transaction_may_not_be_so_large(
    server: MySqlServer, dialect: Dialect, tmp_path: Path, transaction: int | None
) -> None:
    """At TiDB it may never be: a transaction is held in its memory."""
    consume(address(server, tmp_path), swaps(), 200)
    seen = set[int]()

    def watch(target: MySqlTarget) -> None:
        ends = target._progress.batch.part_ends

        def look_and_end(*arguments: Any, **named: Any) -> None:
            seen.add(len(held(server)))
            ends(*arguments, **named)

        target._progress.batch.part_ends = look_and_end  # type: ignore[method-assign]

    consume(address(server, tmp_path, transaction=transaction), swaps(), 300, watch)
    assert held(server) == after()
    if transaction is None and dialect is not Dialect.TIDB:
        assert seen == {ROWS}
    else:
        assert min(seen) == 0, "all that is deleted goes before anything is inserted"
        assert len(seen) > 5


def test_all_rows_are_converted_before_anything_is_begun(server: MySqlServer, tmp_path: Path) -> None:
    """Errors in them are found then, and an unknown table is looked up while nobody writes."""
    cut: list[bool] = []

    def watch(target: MySqlTarget) -> None:
        begin = target._progress.batch.begin_parts

        def look_and_begin(*arguments: Any) -> Any:
            files = list(tmp_path.rglob("parts-*.arrow"))
            cut.append(bool(files) and all(file.stat().st_size > ROWS for file in files))
            return begin(*arguments)

        target._progress.batch.begin_parts = look_and_begin  # type: ignore[method-assign]

    consume(address(server, tmp_path), swaps(), 200, watch)
    assert cut == [True]


def dying(
    server: MySqlServer,
    folder: Path,
    reported: MemoryTopic,
    until: int,
    deaths_at: Iterable[int],
    sizes: Sizes,
) -> None:
    """Consume in several lives, each of which dies at one of its writes, but the last."""
    deaths, reached = 0, set[int]()
    for dies_at in deaths_at:
        mortal = address(MortalServer.at(server, dies_at), folder, transaction=1)
        try:
            consume(mortal, reported, until, sizes=sizes)
            break
        except Killed:
            deaths += 1
            reached.update(committed(server))
    assert deaths > 2
    assert len(reached) > 2, "some of them were in the midst of the parts"


def test_death_between_parts_and_in_them(server: MySqlServer, tmp_path: Path) -> None:
    consume(address(server, tmp_path), swaps(), 200)
    dying(server, tmp_path, swaps(), 300, count(40, 17), SIZES)
    assert held(server) == after()


def test_a_transaction_of_parts_has_changed_a_row_before_it_writes_any(
    server: MySqlServer, tmp_path: Path
) -> None:
    """A TiDB 8.4 ends when a session is killed whose transaction has only locked rows."""
    consume(address(server, tmp_path), swaps(), 200)
    changed: list[bool] = []

    def watch(target: MySqlTarget) -> None:
        begins = target._progress.batch.part_begins

        def begin_and_look(lane: int, connection: Connection, at: Any) -> None:
            begins(lane, connection, at)
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT digest FROM tidegate.lanes WHERE consumer=%s AND lane=%s", (NAME, lane)
                )
                changed.append(cursor.fetchone()[0] != str(at))

        target._progress.batch.part_begins = begin_and_look  # type: ignore[method-assign]

    consume(address(server, tmp_path, transaction=1), swaps(), 300, watch)
    assert len(changed) > 2
    assert all(changed)
    assert held(server) == after()
    assert digests(server) == []


def test_death_between_parts_of_a_table_without_a_key(server: MySqlServer, tmp_path: Path) -> None:
    """Each of its equal rows is counted once."""
    sizes, bag = Sizes(step=2_000, part=2_000), bag_topic("shop")
    consume(address(server, tmp_path, transaction=1), bag, FIRST, sizes=sizes)
    assert held(server, "n, what") == sorted(bag_before())
    dying(server, tmp_path, bag, END, count(20, 23), sizes)
    assert held(server, "n, what") == sorted(after_all())


def test_parts_that_are_in_are_not_written_again(server: MySqlServer, tmp_path: Path) -> None:
    consume(address(server, tmp_path), swaps(), 200)
    with pytest.raises(Killed):
        consume(address(MortalServer.at(server, 60), tmp_path, transaction=1), swaps(), 300)
    (done,) = committed(server)
    assert done > 1
    written: list[int] = []

    def watch(target: MySqlTarget) -> None:
        ends = target._progress.batch.part_ends

        def note_and_end(lane: int, connection: Connection, at: Any, *, last: bool) -> None:
            written.append(at.parts)
            ends(lane, connection, at, last=last)

        target._progress.batch.part_ends = note_and_end  # type: ignore[method-assign]

    other = Sizes(SIZES.step // 2, SIZES.part // 3)  # the parts are those that were begun
    consume(address(server, tmp_path, transaction=1), swaps(), 300, watch, other)
    assert written == list(range(done + 1, done + 1 + len(written)))
    assert held(server) == after()


def test_other_rows_than_those_of_the_parts_that_are_in_stop_the_consumer(
    server: MySqlServer, tmp_path: Path
) -> None:
    consume(address(server, tmp_path), swaps(), 200)
    with pytest.raises(Killed):
        consume(address(MortalServer.at(server, 90), tmp_path, transaction=1), swaps(), 300)
    (done,), left = committed(server), held(server)
    assert done > 1
    with pytest.raises(Fatal, match="its rows are others now"):
        consume(address(server, tmp_path, transaction=1), _fewer(), 300)
    assert committed(server) == [done]
    assert held(server) == left
    consume(address(server, tmp_path, transaction=1), swaps(), 300)
    assert held(server) == after()


@pytest.mark.parametrize("whole", [False, True])
def test_a_write_that_an_earlier_release_began_is_completed(
    server: MySqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """It has stored digests of another kind, and the rows are compared by these."""

    def killed(*arguments: Any) -> None:
        raise Killed

    def die(target: MySqlTarget) -> None:
        target._progress.batch.lane = killed  # type: ignore[method-assign]

    def alive(target: MySqlTarget) -> None:
        pass

    sizes = Sizes() if whole else SIZES
    consume(address(server, tmp_path), swaps(), 200)
    # The first dies in the midst of its parts, the other one before a lane is committed.
    mortal = server if whole else MortalServer.at(server, 60)
    with monkeypatch.context() as patch:
        patch.setattr("tidegate.consumer.mysql.row_writer.kind_of", lambda held: EarlierDigest)
        with pytest.raises(Killed):
            consume(address(mortal, tmp_path, transaction=1), swaps(), 300, die if whole else alive, sizes)
    (digest,) = digests(server)
    assert ":" in digest
    consume(address(server, tmp_path, transaction=1), swaps(), 300, sizes=sizes)
    assert held(server) == after()
    assert digests(server) == []


def _fewer() -> MemoryTopic:
    """The same without some rows of the second transaction, marks and offsets as they were."""
    reported = swaps()
    other = topic([Mark(1)], partitions=1).partitions[0][0]
    for messages in reported.partitions.values():
        # Its place is taken by a mark far below, which says nothing.
        at = max(at for at, message in enumerate(messages) if message.key != messages[-1].key)
        messages[at] = other
    return reported


def test_a_zombie_between_two_parts_is_fenced(server: MySqlServer, tmp_path: Path) -> None:
    consume(address(server, tmp_path), swaps(), 200)
    taken = []

    def take_over(target: MySqlTarget) -> None:
        ends = target._progress.batch.part_ends

        def take_and_end(lane: int, connection: Connection, at: Any, *, last: bool) -> None:
            ends(lane, connection, at, last=last)
            if at.parts == 3:
                connection.commit()
                with address(server, tmp_path / "other").opened() as other:
                    other.recover()
                    taken.extend(held(server))

        target._progress.batch.part_ends = take_and_end  # type: ignore[method-assign]

    with pytest.raises(Fenced):
        consume(address(server, tmp_path, transaction=1), swaps(), 300, take_over)
    assert taken
    assert held(server) == taken, "nothing was written after the takeover"
    consume(address(server, tmp_path, transaction=1), swaps(), 300)
    assert held(server) == after()


def test_a_zombie_whose_connection_lives_matches_no_row(server: MySqlServer, tmp_path: Path) -> None:
    """The token alone keeps it out: its lane's connection was not ended."""
    consume(address(server, tmp_path), swaps(), 200)
    raised = []

    def raise_token(target: MySqlTarget) -> None:
        begins = target._progress.batch.part_begins

        def raise_and_begin(lane: int, connection: Connection, at: Any) -> None:
            if at.parts == 3:
                connection.commit()
                other = server.connect()
                other.query(b"UPDATE tidegate.progress SET token=token+1, taker='x' WHERE consumer='parts'")
                other.query(b"UPDATE tidegate.lanes SET token=token+1 WHERE consumer='parts'")
                other.close()
                raised.extend(held(server))
                connection.begin()
            begins(lane, connection, at)

        target._progress.batch.part_begins = raise_and_begin  # type: ignore[method-assign]

    with pytest.raises(Fenced):
        consume(address(server, tmp_path, transaction=1), swaps(), 300, raise_token)
    assert held(server) == raised


def test_one_lane_refuses_what_is_larger_than_a_transaction_may_be(
    server: MySqlServer, dialect: Dialect, tmp_path: Path
) -> None:
    # At TiDB only what fits into the consumer's memory is one transaction.
    sizes = Sizes() if dialect is Dialect.TIDB else SIZES
    consume(address(server, tmp_path, lanes=1), swaps(), 200, sizes=sizes)
    limit = "TiDB should hold in its memory" if dialect is Dialect.TIDB else "--transaction-max-bytes"
    with pytest.raises(Fatal, match=f"larger than {limit}") as refused:
        consume(address(server, tmp_path, lanes=1, transaction=1), swaps(), 300)
    assert ("--transaction-max-bytes" in refused.value.fix) == (dialect is not Dialect.TIDB)
    assert "--atomicity table" in refused.value.fix
    assert held(server) == before()
    consume(address(server, tmp_path, lanes=1), swaps(), 300, sizes=sizes)
    assert held(server) == after()


def test_what_one_lane_refuses_several_write_at_the_same_target(server: MySqlServer, tmp_path: Path) -> None:
    """Nothing of it was begun, so the atomicity may change. No new target is needed."""
    consume(address(server, tmp_path, lanes=1), swaps(), 200, sizes=Sizes())
    with pytest.raises(Fatal, match="larger than"):
        consume(address(server, tmp_path, lanes=1, transaction=1), swaps(), 300)
    consume(address(server, tmp_path, lanes=3, transaction=1), swaps(), 300)
    assert held(server) == after()


def test_connections_that_break_between_parts_are_taken_over(server: MySqlServer, tmp_path: Path) -> None:
    broken: Sequence[int] = (2, 5, 7)

    def break_some(target: MySqlTarget) -> None:
        ends, left = target._progress.batch.part_ends, set(broken)

        def end_and_break(lane: int, connection: Connection, at: Any, *, last: bool) -> None:
            ends(lane, connection, at, last=last)
            if at.parts in left:
                left.discard(at.parts)
                connection._force_close()

        target._progress.batch.part_ends = end_and_break  # type: ignore[method-assign]

    consume(address(server, tmp_path, transaction=1), swaps(), 300, break_some)
    assert held(server) == after()
