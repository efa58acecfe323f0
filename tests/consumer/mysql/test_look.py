"""A consumer of a real MariaDB as seen from outside; looking at it takes nothing over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.cluster import eventually
from tidegate.consumer.applying.target import TargetStatus
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.mysql.ddl_note import begun_in
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.progress import Progress
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress
from tidegate.errors import Retryable

POSITION = Position(7, "t", "open-protocol", "transaction", {0: PartitionPosition(3, 7, 7)})
NEXT = replace(POSITION, ts=9, partitions={0: PartitionPosition(5, 9, 9)})


@pytest.fixture
def held(mariadb: MySqlServer, request: pytest.FixtureRequest) -> Iterator[Progress]:
    """A consumer of the test's name that has the target."""
    progress = Progress(Hold(mariadb, request.node.name))
    progress.take_over()
    yield progress
    progress.hold.close()


def look(server: MySqlServer, name: str) -> TargetStatus:
    return MySqlAddress(server, name, Path("nowhere")).look()


def test_of_a_consumer_that_there_never_was_nothing_is_seen(mariadb: MySqlServer) -> None:
    assert look(mariadb, "never") == TargetStatus(None)


def test_on_a_server_without_our_tables_nothing_is_seen_and_none_is_made(mariadb: MySqlServer) -> None:
    connection = mariadb.connect()
    with connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS tidegate")
        assert look(mariadb, "never") == TargetStatus(None)
        assert cursor.execute("SHOW DATABASES LIKE 'tidegate'") == 0
    connection.close()


def test_who_writes_how_far_and_what_was_begun(
    mariadb: MySqlServer, held: Progress, request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    found = look(mariadb, name)
    assert found.position is None
    number = held.hold.control.thread_id()
    assert found.holder.startswith(f"connection {number} of {mariadb} from ")
    held.move(POSITION.to_json())
    held.batch.begin(NEXT.to_json(), {0: "a"})
    found = look(mariadb, name)
    assert found.position == POSITION
    assert found.doing == "a write up to ts 9"
    held.batch.end(NEXT.to_json())
    found = look(mariadb, name)
    assert (found.position, found.doing) == (NEXT, "")


def test_a_ddl_that_was_begun_is_seen_until_it_is_over(
    mariadb: MySqlServer, held: Progress, request: pytest.FixtureRequest
) -> None:
    held.record_ddl(
        '{"done":[],"begun":{"name":"n","query":"ALTER TABLE\\n  t ADD x INT","at":0,"evidence":[]}}'
    )
    assert look(mariadb, request.node.name).doing == "a DDL, ALTER TABLE t ADD x INT"
    held.record_ddl('{"done":["n"],"begun":null}')
    assert look(mariadb, request.node.name).doing == ""


@pytest.mark.parametrize("noted", [None, "", "{}", '{"done":[],"begun":null}'])
def test_without_a_statement_that_was_begun_there_is_no_ddl(noted: str | None) -> None:
    assert begun_in(noted) is None


def test_a_dead_consumer_has_no_holder_and_a_position(
    mariadb: MySqlServer, held: Progress, request: pytest.FixtureRequest
) -> None:
    held.move(POSITION.to_json())
    held.hold.close()
    assert look(mariadb, request.node.name) == TargetStatus(POSITION)


def test_looking_takes_nothing_over(
    mariadb: MySqlServer, held: Progress, request: pytest.FixtureRequest
) -> None:
    look(mariadb, request.node.name)
    held.hold.check_lock()
    held.move(POSITION.to_json())  # Fenced if the token were another's


def test_a_look_leaves_no_connection(mariadb: MySqlServer, held: Progress) -> None:
    connection = mariadb.connect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM information_schema.processlist")
        (before,) = cursor.fetchone()
        for _ in range(5):
            look(mariadb, "never")

        def no_more() -> bool:
            """The server ends a connection a moment after its client. Other tests may have some, too."""
            cursor.execute("SELECT COUNT(*) FROM information_schema.processlist")
            return bool(cursor.fetchone()[0] < before + 5)

        eventually("the end of all connections", no_more)
    connection.close()


def test_a_server_that_does_not_answer_is_said(mariadb: MySqlServer) -> None:
    with pytest.raises(Retryable):
        look(replace(mariadb, port=1), "never")
