"""How far a consumer is and what it waits for: in words, in its folder, as metrics, and from outside."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.test_consumer_lines import QUIET
from tidegate.access import AccessToken
from tidegate.api.listening import address_of, listen
from tidegate.api.metrics_page import serving
from tidegate.cli.consumer import _JsonLines
from tidegate.cli.consumer import status as live_line
from tidegate.cli.consumer_status import PARTITIONS_SHOWN, as_dict, summary, table
from tidegate.consumer.applying.target import TargetStatus
from tidegate.consumer.delta.lock import target_lock
from tidegate.consumer.engine.assembler import StagedRun
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.flow import Flow
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.lakehouse.directory_lock import lock_holder
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.gauges import Gauges
from tidegate.consumer.running.lag import (
    UNKNOWN,
    Partition,
    applied_lag_s,
    held_back_by,
    messages_behind,
    partitions_of,
    slowest_first,
    span,
)
from tidegate.consumer.running.status import (
    STATUS,
    STUCK_S,
    Observation,
    StatusReport,
    StatusWriter,
    received,
    status_of,
)
from tidegate.consumer.targets import DatabaseSettings
from tidegate.consumer.targets import address_of as target_of
from tidegate.errors import InvalidInput, TidegateError
from tidegate.model.timestamp import compose

NOW_MS = 1_700_000_000_000
TOPIC = Topic("kafka://127.0.0.1:9092/t?protocol=open-protocol")
PLAINLY: Any = {"trust_env": False, "timeout": 60.0}
"""Options of a request. On a busy machine a thread may take longer than httpx waits by itself."""


def ago(seconds: float) -> int:
    return compose(NOW_MS - round(seconds * 1000))


def part(number: int, watermark_s: float, read: int = 10, end: int = 10, applied_s: float = 1) -> Partition:
    return Partition(f"t/{number}", ago(watermark_s), ago(applied_s), 5, read, end)


FRESH = part(0, 1)
POSITION = Position(
    ago(20), "t", "open-protocol", "transaction", {n: PartitionPosition(5, ago(20), ago(15)) for n in (0, 1)}
)


def said(silent_s: float = 0.5, running: bool = True, trouble: str = "", *parts: Partition) -> StatusReport:
    return StatusReport(
        NOW_MS - round(silent_s * 1000), "here", 7, running, trouble, parts or (FRESH, part(1, 1))
    )


def seen(
    found: TargetStatus | None = None,
    last: StatusReport | None = None,
    lives: bool | None = True,
    ends: dict[int, int] | None = {0: 10, 1: 10},  # noqa: B006
    broker: str = "",
) -> Observation:
    return Observation("target", found or TargetStatus(POSITION, "process 7"), last, lives, ends, broker)


# --- words


VERDICTS = {
    "keeps up": (seen(last=said()), "running (process 7 on here), waits for nothing: it keeps up", True),
    "no snapshot": (
        seen(TargetStatus(None, "process 7"), said()),
        "running (process 7 on here), waits for its first snapshot",
        True,
    ),
    "no watermark": (
        seen(last=said(0.5, True, "", replace(part(0, 1), watermark=0, read=3))),
        "waits for a first watermark of t/0; 7 messages are not read yet",
        True,
    ),
    "reads a backlog": (
        seen(last=said(0.5, True, "", part(0, 1), part(1, 50, 4))),
        "waits for a newer watermark of t/1: the last is 50 s old, 6 messages are not read yet",
        True,
    ),
    "the feed does not advance": (
        seen(last=said(0.5, True, "", part(0, 1), part(1, 50))),
        "a newer watermark of t/1: the last is 50 s old, and no message follows it",
        True,
    ),
    "trouble": (
        seen(last=said(trouble="no watermark")),
        "waits for a problem to end: no watermark",
        False,
    ),
    "trouble with a partition": (
        seen(last=said(0.5, True, "no watermark", part(0, 1), part(1, 50))),
        "waits for a problem to end: no watermark; it needs a newer watermark of t/1: the last is 50 s",
        False,
    ),
    "no broker": (
        seen(last=said(), ends=None, broker="it does not answer"),
        "waits for the broker: it does not answer",
        False,
    ),
    "a long write": (
        seen(TargetStatus(POSITION, "c 1", "a write"), said(20)),
        "running (process 7 on here), waits for a write; it has reported nothing for 20 s",
        True,
    ),
    "the consumer hangs": (
        seen(last=said(STUCK_S + 1)),
        "waits for the end of a long step; it has reported nothing for 61 s",
        False,
    ),
    "elsewhere": (
        seen(TargetStatus(POSITION, "connection 3 from there"), said(5000), lives=False),
        "running (connection 3 from there), waits for a newer watermark of t/0: the last is 15 s old, "
        "5 messages are not read yet",
        True,
    ),
    "died": (
        seen(TargetStatus(POSITION), said(200), lives=False),
        "not running: process 7 on here died; its last report is 3 min old",
        False,
    ),
    "died just now": (
        seen(TargetStatus(POSITION), said(1), lives=False),
        "not running: process 7 on here died",
        False,
    ),
    "ended": (
        seen(TargetStatus(POSITION), said(30, running=False)),
        "not running: process 7 on here ended 30 s ago in order",
        False,
    ),
    "failed": (
        seen(TargetStatus(POSITION), said(30, False, "the topic is gone")),
        "not running: process 7 on here ended 30 s ago with an error: the topic is gone",
        False,
    ),
    "nobody": (seen(TargetStatus(POSITION)), "not running: nobody runs it", False),
    "never": (seen(TargetStatus(None)), "not running: nobody runs it, and nothing was ever committed", False),
    "half a write": (
        seen(TargetStatus(POSITION, "", "a write up to ts 7")),
        "not running: nobody runs it; a write up to ts 7 is to be completed",
        False,
    ),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_the_verdict_says_what_it_waits_for_and_whether_somebody_must_act(case: str) -> None:
    asked, verdict, fine = VERDICTS[case]
    found = status_of(TOPIC, asked, NOW_MS)
    assert verdict in found.verdict
    assert found.fine == fine
    assert summary(found)[0] == found.verdict
    assert json.loads(json.dumps(as_dict(found)))["fine"] == fine


def test_rows_that_no_snapshot_names_do_not_count_as_applied() -> None:
    parts = {0: PartitionPosition(3, 10, 10), 1: PartitionPosition(4, 10, 10)}
    kept = replace(POSITION, ts=10, partitions=parts)
    flow = Flow(kept, Mode.ROW, (), None)
    rows = StagedRun(0, "s", "t", (), "file", 0, 0, 6, 20, 20, first_offset=5)
    flow.take([Fetched(0, 9, resolved=[(20, 8)], segments=[rows])])
    waiting = partitions_of(["t"], flow, None, {0: 12, 1: 2})
    assert waiting == (Partition("t/0", 20, 10, 5, 9, 12), Partition("t/1", 10, 10, 4, 4, 4))
    flow.assembler.take({0: 20})
    written = partitions_of(["t"], flow, kept, {0: 12})[0]
    assert (written.applied, written.offset, written.read) == (10, 3, 9)
    named = partitions_of(["t"], flow, None, {0: 12})[0]
    assert (named.applied, named.offset, named.to_apply) == (20, 9, 3)


def test_json_lines_have_no_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    _JsonLines().report(replace(QUIET, partitions=(FRESH,)))
    assert "partitions" not in json.loads(capsys.readouterr().out)


def test_a_dead_consumer_is_as_far_as_its_target_and_not_as_far_as_it_said() -> None:
    found = status_of(TOPIC, seen(TargetStatus(POSITION), said(1), lives=False), NOW_MS)
    assert [one.applied for one in found.partitions] == [ago(20), ago(20)]
    assert found.lag_s == pytest.approx(20, abs=0.01)
    assert found.messages == 10


def test_a_running_consumer_is_as_far_as_it_says() -> None:
    found = status_of(TOPIC, seen(last=said()), NOW_MS)
    assert found.lag_s == pytest.approx(1, abs=0.01)


def test_without_a_broker_the_messages_are_unknown_and_the_rest_is_shown() -> None:
    found = status_of(TOPIC, seen(TargetStatus(POSITION), ends=None, broker="away"), NOW_MS)
    assert found.messages is None
    assert [one.end for one in found.partitions] == [UNKNOWN, UNKNOWN]
    assert summary(found)[3:] == [
        "lag       20 s behind, an unknown number of messages to apply",
        "broker    away",
    ]


def test_lags_of_partitions() -> None:
    behind, unknown = part(1, 50, 4, applied_s=60), replace(FRESH, end=UNKNOWN)
    assert messages_behind([FRESH, behind]) == 10
    assert messages_behind([FRESH, unknown]) is None
    assert applied_lag_s([FRESH, behind], NOW_MS) == pytest.approx(60, abs=0.01)
    assert applied_lag_s([FRESH, replace(FRESH, applied=0)], NOW_MS) is None
    assert slowest_first([FRESH, behind])[0] is behind
    assert held_back_by([FRESH], NOW_MS) == held_back_by([], NOW_MS) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.25, "4.2 s"), (95, "95 s"), (720, "12 min"), (111_600, "31 h"), (800_000, "9 days")],
)
def test_a_time_is_shown_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_the_live_line_names_the_partition_that_holds_the_watermark_back() -> None:
    behind = replace(QUIET, partitions=(FRESH, part(1, 50, 4)))
    assert "t/1 holds the watermark back (50 s, 6 to read)" in live_line(behind, NOW_MS)
    assert "holds" not in live_line(replace(QUIET, partitions=(FRESH,)), NOW_MS)


def test_a_table_of_very_many_partitions_shows_those_that_are_behind() -> None:
    parts = [part(number, 1) for number in range(1000)] + [part(1000, 90)]
    found = replace(status_of(TOPIC, seen(), NOW_MS), partitions=tuple(parts))
    shown = table(found, NOW_MS)
    assert shown.row_count == PARTITIONS_SHOWN
    assert str(next(iter(shown.columns[0].cells))) == "t/1000"


# --- the folder


def test_what_a_consumer_says_is_read_back(tmp_path: Path) -> None:
    assert received(tmp_path) is None
    StatusWriter(tmp_path, pytest.fail).write(NOW_MS, True, "why", (FRESH,))
    found = received(tmp_path)
    assert found == StatusReport(NOW_MS, socket.gethostname(), os.getpid(), True, "why", (FRESH,))
    assert found.lives()
    assert replace(found, host="another").lives() is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format":1}', '{"format":2,"partitions":[]}', "\xff"])
def test_a_file_that_nobody_understands_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / STATUS).write_text(text, encoding="latin-1")
    assert received(tmp_path) is None


def test_a_full_disk_is_said_once_until_there_is_room_again(tmp_path: Path) -> None:
    warnings: list[TidegateError] = []
    status_writer = StatusWriter(tmp_path, warnings.append)
    status_writer.write(1, True, "", ())
    part = (tmp_path / STATUS).with_suffix(".part")
    for times in (1, 2):
        part.symlink_to("/dev/full")
        for _ in range(3):
            status_writer.write(2, True, "", ())
        assert len(warnings) == times
        found = received(tmp_path)
        assert found is not None
        assert found.at_ms == 1, "the old file stays whole"
        part.unlink()
        status_writer.write(1, True, "", ())
    assert "No space left" in warnings[0].why


# --- a Delta target's lock


def test_the_holder_of_a_target_is_seen(tmp_path: Path) -> None:
    assert lock_holder(tmp_path) is None
    code = (
        "import sys; from pathlib import Path; from tidegate.consumer.delta.lock import target_lock\n"
        "with target_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert lock_holder(tmp_path) == holder.pid
        looked = target_of(tmp_path, Upkeep(), DatabaseSettings()).look()
        assert looked == TargetStatus(None, f"process {holder.pid} on this machine")
        holder.kill()
    assert lock_holder(tmp_path) is None


def test_looking_takes_no_lock_that_could_turn_a_consumer_away(tmp_path: Path) -> None:
    """Not even for a moment: Python reports each call that locks a file."""
    locks: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event.startswith("fcntl."):
            locks.append(event)

    sys.addaudithook(watch)
    with target_lock(tmp_path):
        assert locks == ["fcntl.flock"]
    assert target_of(tmp_path, Upkeep(), DatabaseSettings()).look() == TargetStatus(None)
    with target_lock(tmp_path):
        assert target_of(tmp_path, Upkeep(), DatabaseSettings()).look().holder
    assert locks == ["fcntl.flock"] * 2
    watching = False


# --- metrics


def test_metrics_of_each_partition_and_of_the_whole() -> None:
    gauges = Gauges(lambda: NOW_MS)
    assert gauges.render() == b""
    silent = replace(part(2, 1), watermark=0, applied=0)
    progress = replace(
        QUIET, ts=ago(30), rows=5, ddls=2, quarantined=3, waiting_rows=4, partitions=(part(1, 50, 4), silent)
    )
    gauges.update(progress)
    lines = gauges.render().decode().splitlines()
    assert {
        "tidegate_consumer_rows_total 5.0",
        "tidegate_consumer_snapshots_total 1.0",
        "tidegate_consumer_ddls_total 2.0",
        "tidegate_consumer_quarantined 3.0",
        "tidegate_consumer_waiting_rows 4.0",
        "tidegate_consumer_trouble 0.0",
        "tidegate_consumer_report_age_seconds 0.0",
        "tidegate_consumer_snapshot_ts_lag_seconds 30.0",
        'tidegate_consumer_resolved_ts_lag_seconds{partition="1",topic="t"} 50.0',
        'tidegate_consumer_applied_ts_lag_seconds{partition="1",topic="t"} 1.0',
        'tidegate_consumer_messages_behind{partition="1",topic="t"} 5.0',
        'tidegate_consumer_messages_unread{partition="1",topic="t"} 6.0',
    } <= set(lines)
    assert not [line for line in lines if "_ts" in line and 'partition="2"' in line], "no ts, no lag"


def test_lags_grow_while_the_driver_reports_nothing() -> None:
    now = [NOW_MS]
    gauges = Gauges(lambda: now[0])
    gauges.update(replace(QUIET, ts=ago(30)))
    now[0] += 7000
    text = gauges.render().decode()
    assert "tidegate_consumer_snapshot_ts_lag_seconds 37.0" in text
    assert "tidegate_consumer_report_age_seconds 7.0" in text


def test_the_port_of_metrics_can_only_be_read() -> None:
    listener = listen("127.0.0.1:0")
    page = f"http://{address_of(listener)}/metrics"
    with serving(listener, lambda: b"x 1\n", None):
        found = httpx.get(page, **PLAINLY)
        assert (found.status_code, found.content) == (200, b"x 1\n")
        assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
            assert httpx.request(method, page, **PLAINLY).status_code == 405, method
        assert httpx.get(page.replace("metrics", "status"), **PLAINLY).status_code == 404
    with pytest.raises(httpx.ConnectError):
        httpx.get(page, **PLAINLY)


def test_an_address_that_will_not_do_is_refused_by_the_options_name() -> None:
    with listen("127.0.0.1:0") as taken, pytest.raises(InvalidInput, match="--metrics"):
        listen(address_of(taken), "--metrics")


def test_with_a_token_metrics_are_for_those_who_send_it() -> None:
    listener, token = listen("127.0.0.1:0"), AccessToken("s" * 16)
    page = f"http://{address_of(listener)}/metrics"
    with serving(listener, lambda: b"x 1\n", token):
        assert httpx.get(page, **PLAINLY).status_code == 401
        assert httpx.get(page, **PLAINLY, headers=token.header).status_code == 200
