"""Topics without watermarks into a real MariaDB: killed anywhere, a row once; other unique keys refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.memory_topic import MemoryTopic, consume_by_offset_into
from tests.consumer.mysql.mortal import Killed, MortalServer
from tests.consumer.mysql.reading import forget
from tests.consumer.test_by_offset import ITEMS, at, canal, put, truncated
from tests.consumer.topics import Event
from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.engine.row_clock import Clock
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress
from tidegate.consumer.targets import DatabaseSettings, address_of
from tidegate.errors import Fatal
from tidegate.model.ddl import DdlEvent

pytestmark = pytest.mark.integration
NAME = "by-offset"
CREATE = "CREATE TABLE `items` (`id` INT PRIMARY KEY, `n` INT)"


def consume(server: MySqlServer, topic: MemoryTopic, folder: Path, rows: int = 7) -> None:
    with MySqlAddress(server, NAME, folder / "own", lanes=2, by_offset=True).opened() as target:
        applier = Applier(target, folder / "own", trust_inserts=False, clock=Clock.MILLISECONDS)
        consume_by_offset_into(topic, applier, folder / "staging", size=5, rows=rows)


def items(server: MySqlServer) -> list[Any]:
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, n FROM shop.items ORDER BY id")
        found = list(cursor.fetchall())
    connection.close()
    return found


def created(query: str = CREATE) -> DdlEvent:
    return replace(ITEMS.created(), query=query)


def story() -> Sequence[Event]:
    """A TRUNCATE in the middle; rows, then their changes, and some of it sent again."""
    old = [put(n, n, n) for n in range(1, 16)]
    new = [
        *(put(100 + n, n, -n) for n in range(8, 20)),
        *(put(200 + n, n, n * 7, old=-n) for n in range(8, 14)),
    ]
    gone = [put(300 + n, n, None, old=-n) for n in range(15, 18)]
    return [created(), *old, truncated(99), *new, *new[:5], *new, *gone]


STORY = [(n, n * 7 if n < 14 else -n) for n in range(8, 20) if not 15 <= n < 18]


@pytest.mark.parametrize("header", [True, False])
def test_death_at_any_write_ends_with_each_row_once(
    mariadb: MySqlServer, tmp_path: Path, header: bool
) -> None:
    topic = canal(story(), header=header)
    forget(mariadb, NAME, "shop")
    deaths = 0
    for dies_at in count(9):
        try:
            mortal = MortalServer.at(mariadb, dies_at + 5 * (dies_at % 7))
            consume(mortal, topic, tmp_path, rows=5 + 6 * (dies_at % 3))
            break
        except Killed:
            deaths += 1
    assert deaths > 5
    assert items(mariadb) == STORY


def test_a_second_unique_index_is_refused_before_a_row_is_written(
    mariadb: MySqlServer, tmp_path: Path
) -> None:
    twice = "CREATE TABLE `items` (`id` INT PRIMARY KEY, `n` INT, UNIQUE KEY `of_n` (`n`))"
    forget(mariadb, NAME, "shop")
    with pytest.raises(Fatal, match="unique index in addition to its key") as caught:
        consume(mariadb, canal([created(twice), put(1, 1, 1)], header=False), tmp_path)
    assert "of_n" in caught.value.where
    assert items(mariadb) == []
    later = replace(ITEMS.ddl(at(50), 7, "ALTER TABLE `items` ADD UNIQUE KEY `of_n` (`n`)", ITEMS.info))
    forget(mariadb, NAME, "shop")
    with pytest.raises(Fatal, match="unique index in addition to its key"):
        consume(mariadb, canal([created(), put(1, 1, 1), later, put(60, 2, 2)], header=False), tmp_path)
    assert items(mariadb) == [(1, 1)]


def test_row_mode_is_for_topics_without_watermarks_only() -> None:
    for by_offset in (True, False):
        settings = DatabaseSettings(name=NAME)
        made = address_of("mysql://root@127.0.0.1:1/", Upkeep(), settings, by_offset=by_offset)
        assert isinstance(made, MySqlAddress)
        assert (made.row_mode, made.by_offset) == (by_offset, by_offset)
