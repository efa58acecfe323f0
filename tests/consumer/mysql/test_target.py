"""Recorded change logs into a real MariaDB: equal to what SQL saw, whatever dies on the way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.consumer.logs import PARTITIONS
from tests.consumer.memory_topic import MemoryTopic, consume_into
from tests.consumer.mysql.mortal import Killed, MortalServer
from tests.consumer.mysql.reading import differences, forget
from tests.consumer.recorded import messages_of_log
from tests.integration.cluster import eventually
from tidegate.codec.registry import CODECS, codec_options
from tidegate.consumer.applying.apply import Applier, Sizes
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.position import Position
from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress
from tidegate.workload.changelog import SnapshotLine, read_log

TINY = Sizes(step=1, part=2000)
"""Every step is one that does not fit into memory."""
LOGS = Path(__file__).parents[2] / "golden" / "changelog"


@cache
def lines_of(log: str) -> list[SnapshotLine]:
    return [line for line in read_log(LOGS / f"{log}.jsonl.gz") if isinstance(line, SnapshotLine)]


def schemas_of(lines: Iterable[SnapshotLine]) -> set[str]:
    return {name.partition(".")[0] for line in lines for name in line.tables}


def consume(
    server: MySqlServer, log: str, topic: MemoryTopic, folder: Path, until: int, rows: int = 2000,
    sizes: Sizes | None = None, transaction: int | None = None,
) -> Position:  # fmt: skip
    address = MySqlAddress(server, log, folder / "own", lanes=3, transaction_bytes=transaction)
    with address.opened() as target:
        applier = Applier(target, folder / "own", sizes=sizes)
        return consume_into(topic, applier, folder / "staging", until=until, size=400, rows=rows)


@cache
def topic_of(log: str, until: int, protocol: str = "open-protocol") -> MemoryTopic:
    extension = CODECS[protocol].unmarked is not None
    options = codec_options({"protocol": protocol, "enable-tidb-extension": extension})
    messages = messages_of_log(LOGS / f"{log}.jsonl.gz", options, PARTITIONS, until, force=True)
    return MemoryTopic(options, PARTITIONS, messages)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log", "sizes"),
    [
        *((log, None) for log in ("bank", "keys", "narrow", "onlineddl", "wide")),
        ("bank", TINY),
        ("keys", TINY),
    ],
)
def test_a_recorded_log_is_at_every_snapshot_as_sql_saw_it(
    mariadb: MySqlServer, tmp_path: Path, log: str, sizes: Sizes | None, request: pytest.FixtureRequest
) -> None:
    """At every tenth one, and at each with `make logs`."""
    lines, every = lines_of(log), request.config.getoption("--every")
    topic = topic_of(log, lines[-1].ts)
    forget(mariadb, log, *schemas_of(lines))
    for line in (*lines[:-1:every], lines[-1]):
        assert consume(mariadb, log, topic, tmp_path, line.ts, sizes=sizes).ts == line.ts
        assert differences(mariadb, line) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("log", "sizes"), [("onlineddl", None), ("keys", TINY)])
def test_death_in_batches_of_changing_size_loses_and_doubles_nothing(
    mariadb: MySqlServer, tmp_path: Path, log: str, sizes: Sizes | None
) -> None:
    """Each life reads other batches than the one before it; `test_every_target` dies at every write."""
    lines = lines_of(log)[:3]
    topic = topic_of(log, lines[-1].ts)
    forget(mariadb, log, *schemas_of(lines))
    deaths = 0
    for dies_at in count(31):
        try:
            mortal = MortalServer.at(mariadb, dies_at + 7 * (dies_at % 13))
            # Batches of a life are random, so each must report the write that the one before it began.
            rows, split = 200 + 170 * (dies_at % 4), 1 if dies_at % 3 else None
            consume(mortal, log, topic, tmp_path, lines[-1].ts, rows, sizes, transaction=split)
            break
        except Killed:
            deaths += 1
    assert deaths > 10
    assert differences(mariadb, lines[-1]) == {}


def test_connections_that_break_are_taken_over_and_the_rest_continues(
    mariadb: MySqlServer, dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody ends all our connections again and again, between writes and in the midst of them."""
    line = lines_of("bank")[4]
    topic = topic_of("bank", line.ts)
    forget(mariadb, "bank", "bank")
    stop = threading.Event()
    ended: list[int] = []
    fetch, half = topic.fetch, {number: len(messages) // 2 for number, messages in topic.partitions.items()}

    def halfway(partition: int, start: int, *rest: Any, **named: Any) -> Fetched:
        """Not too fast for somebody whom a busy machine has stopped. He may find one connection only."""
        if start > half[partition]:
            eventually("a connection that was ended", lambda: ended)
        return fetch(partition, start, *rest, **named)

    monkeypatch.setattr(topic, "fetch", halfway)

    def end_connections() -> None:
        bystander, pause, longer = mariadb.connect(), 0.15, 1.05
        if dialect is Dialect.TIDB:
            # A takeover after a DDL was noted waits two seconds in which it sees no other session.
            pause, longer = 1.0, 1.4
        while not stop.wait(pause):
            pause *= longer  # a slow machine may need longer than the first pause for one attempt
            with bystander.cursor() as cursor:
                cursor.execute("SELECT id FROM information_schema.processlist WHERE id<>CONNECTION_ID()")
                for (one,) in cursor.fetchall():
                    with contextlib.suppress(pymysql.err.MySQLError):
                        cursor.execute(f"KILL {one}")
                        ended.append(one)
        bystander.close()

    thread = threading.Thread(target=end_connections)
    with MySqlAddress(mariadb, "bank", tmp_path / "own", lanes=3).opened() as target:
        applier = Applier(target, tmp_path / "own")
        thread.start()
        try:
            consume_into(topic, applier, tmp_path / "staging", until=line.ts, size=40, rows=100)
        finally:
            stop.set()
            thread.join()
    assert differences(mariadb, line) == {}
