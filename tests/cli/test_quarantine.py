"""`tidegate quarantine`: what was set aside can be found, read and judged, whatever it holds."""

from __future__ import annotations

import contextlib
import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_usage import used
from tests.consumer.memory_topic import consume, consume_into
from tests.consumer.mysql.reading import forget
from tests.consumer.one_table import KEY_FLAGS, Mark, OneTable, topic
from tests.consumer.topics import Event
from tests.pipeline.test_integrity import SealedFeed, checked
from tidegate.consumer.applying.apply import QUARANTINE, Applier
from tidegate.consumer.delta.target import FOLDER
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress
from tidegate.sink import quarantine
from tidegate.sink.quarantine import Quarantine
from tidegate.tidb import keys
from tidegate.workload.definitions import ColumnSpec

SOURCE = "kafka://127.0.0.1:1/t?protocol=open-protocol"
HOSTILE = "\x1b[2J[red]\r\n\u202e\x00\x9bend"
ID = ColumnSpec("id", 8, 20, flag=KEY_FLAGS)
COLUMNS = [ID, ColumnSpec("e", 247, 1, text=True)]
TWO = OneTable.of(COLUMNS, {"e": ["red", "green"]})
NINE = OneTable.of(COLUMNS, {"e": ["red", "green", *"abcdef", "it's"]})
AFTER = TWO.ddl(120, 12, "alter table items modify column e enum(...)", NINE.info)


def kept(folder: Path, *entries: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    Quarantine(folder / QUARANTINE).append(entries)
    return folder


def message(number: int, name: str = "t", **more: Any) -> dict[str, Any]:
    where = {"topic": name, "partition": 0, "offset": number}
    return {"where": where, "why": "it is not JSON", "key": b"k", "value": b"v" * 10, **more}


def row(table: str) -> dict[str, Any]:
    where = {"table": table, "partition": 1, "offset": 5, "seq": 0, "commit_ts": 1 << 60}
    return {"where": where, "why": "column e: number 9", "op": 1, "row": {"n.id": 1, "n.e": 9}}


def lines(*words: str | Path) -> list[dict[str, Any]]:
    code, text = used("quarantine", *words, "--json")
    assert code == 0, text
    return [json.loads(line) for line in text.splitlines()]


def test_a_list_says_where_when_how_large_and_why_and_can_be_narrowed(tmp_path: Path) -> None:
    folder = kept(tmp_path, message(4), row("shop.items"), message(7, "u"), row("shop.orders"))
    code, text = used("quarantine", "list", "--folder", folder)
    assert code == 0
    heads = [line.split()[:4] for line in text.splitlines()]
    assert heads[0] == ["ENTRY", "WHERE", "TABLE", "WHEN"]
    assert heads[1] == ["1", "t/0@4", "-", "-"]
    assert heads[2] == ["2", "1@5", "shop.items", "2109-05-15T07:35:11.104"]
    assert "it is not JSON" in text
    assert [one["entry"] for one in lines("list", "--folder", folder, "--table", "shop.orders")] == [4]
    assert [one["entry"] for one in lines("list", "--folder", folder, "--topic", "u")] == [3]
    assert [(one["entry"], one["bytes"]) for one in lines("list", "--folder", folder, "--limit", "1")] == [
        (1, 11)
    ]
    assert "and 2 more" in used("quarantine", "list", "--folder", folder, "--limit", "2")[1]


def test_an_empty_quarantine_and_a_torn_line_are_said(tmp_path: Path) -> None:
    assert "nothing is in quarantine" in used("quarantine", "list", "--folder", tmp_path)[1]
    kept(tmp_path, message(1), message(2))
    file = tmp_path / QUARANTINE
    file.write_bytes(file.read_bytes()[:-9] + b"\n")
    kept(tmp_path, message(3))
    found = lines("list", "--folder", tmp_path)
    assert [one["entry"] for one in found] == [1, 2, 3]
    assert found[1]["why"].startswith("torn line: ")
    code, text = used("quarantine", "show", "2", "--folder", tmp_path)
    assert (code, "the line is torn" in text) == (2, True)
    assert used("quarantine", "show", "9", "--folder", tmp_path)[0] == 2


@pytest.mark.parametrize("words", [["list"], ["show", "1"], ["show", "2"], ["replay"]])
def test_hostile_content_is_printed_escaped(tmp_path: Path, words: list[str]) -> None:
    entry = message(1, HOSTILE, why=HOSTILE, key=HOSTILE.encode() + b"\xff", value=b"\x1b]0;x\x07" * 200)
    shown = row(f"shop.{HOSTILE}") | {"row": {f"n.{HOSTILE}": HOSTILE}}
    kept(tmp_path, entry, shown)
    code, text = used("quarantine", *words, "--folder", tmp_path)
    assert code == 0, text
    assert [sign for sign in text if not sign.isprintable() and sign != "\n"] == []
    assert "\\x1b[2J[red]" in text, "it is shown as it is, and is no markup"


def test_secrets_in_a_reason_are_hidden(tmp_path: Path) -> None:
    folder = kept(tmp_path, message(1, why="http://joe:hush@registry/?token=hush"))
    for words in (["list"], ["show", "1"], ["list", "--json"], ["show", "1", "--json"]):
        assert "hush" not in used("quarantine", *words, "--folder", folder)[1]


def test_an_entry_is_shown_with_its_bytes_in_hex_and_as_text(tmp_path: Path) -> None:
    value = "grün".encode() + bytes(range(16)) + b"z" * 100
    folder = kept(tmp_path, message(1, value=value), row("shop.items"))
    code, text = used("quarantine", "show", "1", "--folder", folder, "--bytes", "32")
    assert code == 0
    assert "topic      t\npartition  0\noffset     1\nwhy        it is not JSON" in text
    assert "00000000  67 72 c3 bc 6e 00 01 02 03 04 05 06 07 08 09 0a  |gr..n...........|" in text
    assert f"value: {len(value)} bytes" in text
    assert f"and {len(value) - 32} bytes more" in text
    assert "as text: grün\\x00" in text
    (whole,) = lines("show", "1", "--folder", folder)
    assert quarantine.from_json(whole)["value"] == value
    assert "new        e = 9" in used("quarantine", "show", "2", "--folder", folder)[1]


def test_whose_quarantine_is_meant_must_be_said(tmp_path: Path) -> None:
    both: list[str | Path] = ["--folder", tmp_path, "--data-dir", tmp_path]
    for words in ([], both):
        code, text = used("quarantine", "list", *words)
        assert (code, "no quarantine is named" in text) == (2, True)
    assert "give --changefeed-id" in used("quarantine", "list", "--data-dir", tmp_path)[1]
    code, text = used("quarantine", "list", "--data-dir", tmp_path, "-c", "no")
    assert (code, "there is no such changefeed" in text) == (2, True)
    (tmp_path / QUARANTINE).mkdir()
    code, text = used("quarantine", "list", "--folder", tmp_path)
    assert (code, "the quarantine cannot be read" in text) == (2, True)
    code, text = used("quarantine", "list", "--folder", tmp_path / "no")
    assert (code, "there is no such folder" in text) == (2, True)


# --- a changefeed's


@pytest.fixture
def feed(tmp_path: Path) -> SealedFeed:
    """The bank's log, in whose event store three rows carry wrong checksums."""
    found = SealedFeed(tmp_path)
    worker, _ = found.worker(checked("warn"))
    worker.deliver(found.ranges())
    return found


def of(feed: SealedFeed) -> list[str | Path]:
    return ["--data-dir", feed.folder, "-c", feed.name]


def test_a_row_of_a_changefeed_is_decoded_by_its_table_as_it_was_then(feed: SealedFeed) -> None:
    whole = [
        (table, one)
        for table, rows in feed.rows.items()
        if table < 1 << 40
        for one in rows
        if one[4] and (one[0], one[3]) not in feed.lost
    ]
    newest = max(whole, key=lambda pair: pair[1][0])[1]
    commit_ts, _, _, key, value, old = newest
    where = {"span": "s", "commit_ts": commit_ts, "table": "bank.x"}
    entry = {"where": where, "why": "w", "key": key, "value": value, "old_value": old}
    Quarantine(feed.feed_dir / QUARANTINE).append(
        [
            entry,
            {**entry, "value": value[:7]},
            {**entry, "key": b"m"},
            {**entry, "value": b"", "old_value": b""},
        ]
    )
    table_id = keys.parse_record(key).table_id
    assert feed.schemas.table(table_id, feed.start_ts) is None, "only DDL of the log makes it known"
    found = lines("replay", *of(feed))
    assert [one["good"] for one in found] == [False, False, False, True, False, False, True]
    assert "its bytes give checksum" in found[0]["what"]
    (shown,) = found[3]["rows"]
    assert shown["commit_ts"] == commit_ts
    assert shown["schema"] == "bank"
    assert "id" in shown["new"]
    assert found[6]["what"] == "it deletes a row that was not there"
    assert [one["entry"] for one in lines("replay", "4", *of(feed))] == [4]
    code, text = used("quarantine", "replay", "4", "90", "91", *of(feed))
    assert (code, "there is no entry 90, 91" in text) == (2, True)
    code, text = used("quarantine", "replay", *of(feed))
    assert code == 0
    assert "2 can be decoded now, 5 are still bad; no target was written" in text
    assert "tidegate verify" in text


def test_a_message_that_was_not_what_its_row_is_is_not_taken_for_a_row(feed: SealedFeed) -> None:
    where = {"span": "s", "commit_ts": feed.last_ts, "table": "bank.accounts", "column": "balance"}
    entry = {"where": where, "why": "encoded otherwise: it has another value", "key": b"k", "value": b"v"}
    Quarantine(feed.feed_dir / QUARANTINE).append([entry])
    (found,) = lines("replay", "4", *of(feed))
    assert (found["good"], found["rows"]) == (False, [])
    assert found["what"].startswith("it is a message that was not what its row is")


def test_a_row_older_than_all_catalogues_is_decoded_by_the_oldest(feed: SealedFeed) -> None:
    """The report says that the oldest catalogue was used."""
    (entry, *_) = quarantine.read(feed.feed_dir / QUARANTINE)
    entry["where"]["commit_ts"] = feed.start_ts - 1000
    del entry["checksum"]
    Quarantine(feed.feed_dir / QUARANTINE).append([entry])
    found = lines("replay", *of(feed))[-1]
    # Whether that version of the table has such a row or not: what is inexact is said.
    assert f"as it was at ts {feed.start_ts}, for the capture has no catalogue of" in found["what"]


# --- a consumer's


BAD: list[Event] = [
    TWO.created(),
    TWO.change(110, None, (1, 1)),
    TWO.change(111, None, (2, 9)),
    TWO.change(112, (1, 1), (1, 9)),
    Mark(115),
]
GROWN: list[Event] = [*BAD, AFTER, Mark(125)]


def test_a_row_of_a_consumer_is_judged_by_its_table_as_it_is_now(tmp_path: Path) -> None:
    target = tmp_path / "target"
    consume(topic(BAD), target)
    found = lines("replay", "--target", target)
    assert [(one["good"], one["what"]) for one in found] == [
        (False, "column e: number 9, and it has 2 elements")
    ] * 2
    consume(topic(GROWN), target)
    found = lines("replay", "--target", target)
    assert [one["good"] for one in found] == [True, True]
    assert found[0]["rows"] == [
        {"kind": "insert", "schema": "shop", "table": "items", "commit_ts": 111, "old": None,
         "new": {"id": 2, "e": "it's"}}
    ]  # fmt: skip
    assert (found[1]["rows"][0]["kind"], found[1]["rows"][0]["old"]) == ("update", {"id": 1})
    code, text = used("quarantine", "replay", "--target", target)
    assert code == 0
    assert "tidegate verify --pd PD --target TARGET --table SCHEMA.TABLE --repair apply" in text


def test_what_an_entry_of_an_earlier_release_was_is_seen_by_its_images(tmp_path: Path) -> None:
    target = tmp_path / "target"
    consume(topic([*GROWN[:-1], Mark(130)]), target)
    where = {"table": "shop.items", "partition": 0, "offset": 1, "seq": 0, "commit_ts": 140}
    images = [
        {"n.id": 1, "n.e": 2, "o.id": None},
        {"n.id": 1, "n.e": 2, "o.id": 1},
        {"n.id": None, "n.e": None, "o.id": 1},
    ]
    file = target / FOLDER / QUARANTINE
    file.unlink()
    Quarantine(file).append([{"where": where, "why": "w", "row": image} for image in images])
    kinds = [one["rows"][0]["kind"] for one in lines("replay", "--target", target)]
    assert kinds == ["insert", "update", "delete"]


def test_a_message_is_decoded_as_the_source_says_and_fitted_to_its_table(tmp_path: Path) -> None:
    target = tmp_path / "target"
    consume(topic(GROWN), target)
    (sent,) = topic([TWO.change(150, None, (7, 9))]).partitions[0]
    (mark,) = topic([Mark(160)]).partitions[0]
    (ddl,) = topic([AFTER]).partitions[0]
    file = target / FOLDER / QUARANTINE
    file.unlink()
    Quarantine(file).append(
        [
            message(1),
            message(2, key=sent.key, value=sent.value),
            message(3, key=mark.key, value=mark.value),
            message(4, key=ddl.key, value=ddl.value),
        ]
    )
    without = lines("replay", "--target", target)
    assert [one["good"] for one in without] == [False] * 4
    assert "--source is needed" in without[0]["what"]
    found = lines("replay", "--target", target, "--source", SOURCE)
    assert [one["good"] for one in found] == [False, True, True, True]
    assert found[1]["rows"][0]["new"] == {"id": 7, "e": "it's"}
    assert found[2]["what"] == "Resolved 160"
    assert found[3]["what"] == "a DDL at ts 120: alter table items modify column e enum(...)"
    # Without a target a row is as its message has it.
    (raw,) = lines("replay", "2", "--folder", target / FOLDER, "--source", SOURCE)
    assert raw["rows"][0]["new"] == {"id": 7, "e": 9}


def test_a_row_of_a_message_that_does_not_fit_its_table_is_still_bad(tmp_path: Path) -> None:
    target = tmp_path / "target"
    consume(topic(BAD), target)
    (nine,) = topic([TWO.change(150, None, (7, 9))]).partitions[0]
    wide = OneTable.of([*COLUMNS, ColumnSpec("later", 3, 11)])
    (more,) = topic([wide.change(151, None, (8, 1, 5))]).partitions[0]
    file = target / FOLDER / QUARANTINE
    file.unlink()
    Quarantine(file).append(
        [message(1, key=nine.key, value=nine.value), message(2, key=more.key, value=more.value)]
    )
    found = lines("replay", "--target", target, "--source", SOURCE)
    assert [one["what"] for one in found] == [
        "column e: number 9, and it has 2 elements",
        "table shop.items has no column later now",
    ]


def test_apply_is_refused_and_says_what_to_do_instead(tmp_path: Path) -> None:
    target = tmp_path / "target"
    consume(topic(GROWN), target)
    before = sorted((path, path.stat().st_mtime_ns) for path in target.rglob("*"))
    code, text = used("quarantine", "replay", "--target", target, "--apply")
    assert code == 2
    assert "newer change" in text
    assert "--sql FILE" in text
    code, text = used("quarantine", "replay", "--target", target, "--sql", tmp_path / "rows.sql")
    assert code == 2
    assert "SQL is for databases" in text
    assert not (tmp_path / "rows.sql").exists()
    used("quarantine", "replay", "--target", target)
    assert sorted((path, path.stat().st_mtime_ns) for path in target.rglob("*")) == before


@pytest.fixture
def database(mariadb: MySqlServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MySqlAddress]:
    """A consumer whose rows of element 9 are in quarantine, and whose table knows it by now."""
    name = request.node.name[:60]
    forget(mariadb, name, "shop")
    address = MySqlAddress(mariadb, name, tmp_path / "own")
    with address.opened() as target:
        consume_into(topic(GROWN), Applier(target, address.folder), tmp_path / "staging")
    yield address
    forget(mariadb, name, "shop")


@pytest.mark.integration
def test_the_sql_of_a_replay_makes_a_real_database_hold_the_rows(
    database: MySqlAddress, tmp_path: Path
) -> None:
    server, file = database.server, tmp_path / "rows.sql"
    url = f"mysql://{server.user}@{server.host}:{server.port}/"
    words: list[str | Path] = [
        "replay",
        "--target",
        url,
        "--name",
        database.consumer,
        "--folder",
        database.folder,
    ]
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT token FROM tidegate.progress WHERE consumer=%s", (database.consumer,))
        token = cursor.fetchall()
        code, text = used("quarantine", *words, "--sql", file)
        assert code == 0, text
        cursor.execute("SELECT token FROM tidegate.progress WHERE consumer=%s", (database.consumer,))
        assert cursor.fetchall() == token, "the target was taken over"
        assert "2 can be decoded now" in text
        cursor.execute("SELECT id, e FROM shop.items ORDER BY id")
        assert cursor.fetchall() == ((1, "red"),)
        script = re.sub(r"(?m)^--.*\n", "", file.read_text())
        for statement in filter(str.strip, re.split(r";\s", script)):
            cursor.execute(statement)
        cursor.execute("SELECT id, e FROM shop.items ORDER BY id")
        assert cursor.fetchall() == ((1, "it's"), (2, "it's"))
    assert re.search(r"(?m)^-- entry 1, 0@\d+, commit ts 111$", file.read_text())
    assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, "it holds rows"
    code, text = used("quarantine", *words, "--sql", file)
    assert (code, "the file for the statements cannot be made" in text) == (2, True)
