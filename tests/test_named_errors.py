"""The words of errors that other tests do not reach: what is wrong, where, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pymysql
import pytest

from tests.consumer.mysql.test_warnings import VALUE, Warned
from tidegate.consumer.mysql.found import Found, _obstacle
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.kept_definitions import KeptDefinitions
from tidegate.consumer.mysql.lanes import written
from tidegate.consumer.mysql.server_checks import check_engine
from tidegate.consumer.mysql.session import Connection, MySqlServer, translated
from tidegate.consumer.snapshots import TableSnapshot, open_snapshot
from tidegate.errors import Fatal, InvalidInput, TidegateError
from tidegate.server.changefeeds.readers import Ticket
from tidegate.sink.lakehouse.tables import Lakehouse

SERVER = MySqlServer("db", 3306, "writer", "geheim")


def _other_values() -> None:
    written(cast(Connection, Warned(1, VALUE)), b"INSERT INTO s.t VALUES (1)")


def _refused_user() -> None:
    raise translated(pymysql.err.OperationalError(1045, "Access denied"), SERVER)


def _two_consumers() -> None:
    hold = SimpleNamespace(rows=lambda *_: [("other",)], consumer="mine", server=SERVER)
    KeptDefinitions(cast(Hold, hold)).check_owner("s", "t")


def _own_tables() -> None:
    check_engine(lambda *_: [("lanes", "MyISAM")], str(SERVER))


def _ticket() -> None:
    Ticket.opened("bm90aGluZw==.seal")


def _in_a_bucket() -> None:
    table = TableSnapshot("s", "t", 1, "s3://bucket/lake/s/t", 3, cast(Lakehouse, None), "s/t")
    assert table.directory is None


def _no_snapshot() -> None:
    open_snapshot("iceberg:///lake")


@pytest.mark.parametrize(
    ("run", "kind", "words"),
    [
        (
            _other_values,
            Fatal,
            ("the target would store other values", "INSERT INTO s.t", "truncated", "columns at the target"),
        ),
        (
            _refused_user,
            InvalidInput,
            ("the target database refuses this user", "writer@db", "1045", "rights on the schemas"),
        ),
        (
            _two_consumers,
            InvalidInput,
            ("two consumers write one table", "table s.t", "consumer other has it, and mine", "[filter]"),
        ),
        (
            _own_tables,
            InvalidInput,
            ("the consumer's own tables must be InnoDB", "schema tidegate", "lanes is MyISAM", "convert"),
        ),
        (
            _ticket,
            TidegateError,
            ("the ticket opens nothing here", "was removed", "start the query again"),
        ),
        (
            _in_a_bucket,
            InvalidInput,
            ("targets on the local disk only", "s3://bucket/lake/s/t", "object store", "dataset()"),
        ),
        (
            _no_snapshot,
            InvalidInput,
            ("this target cannot be used", "iceberg:///lake", "consumer.iceberg.snapshots", "--target delta"),
        ),
    ],
)
def test_an_error_says_what_where_why_and_what_to_do(
    run: Callable[[], None], kind: type[TidegateError], words: tuple[str, ...]
) -> None:
    with pytest.raises(kind) as raised:
        run()
    text = raised.value.render()
    assert [word for word in words if word not in text] == []
    assert "geheim" not in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine": "MyISAM"}, "must be an InnoDB table"),
        ({"kind": "VIEW"}, "it is view"),
        ({"expires": True}, "TTL_ENABLE='OFF'"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_with_the_reason(change: Any, words: str) -> None:
    sound = {"engine": "InnoDB", "kind": "BASE TABLE", "columns": (), "generated": (), "uniques": ()}
    assert words in _obstacle(Found(**(sound | {"triggers": ()} | change)))


def test_a_directory_without_a_target_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as raised:
        open_snapshot(tmp_path)
    assert str(tmp_path) in str(raised.value)
