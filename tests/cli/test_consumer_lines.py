"""The output of `tidegate consumer run`, for people and for programs."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli import consistency, consumer
from tidegate.cli.consumer import _JsonLines, _Lines, status
from tidegate.cli.consumer_status import summary, table
from tidegate.codec.registry import canonical
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.consumer import job
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.lag import Partition, applied_lag_s
from tidegate.consumer.running.progress import Listener, Progress
from tidegate.consumer.running.status import Status
from tidegate.consumer.settings import Settings
from tidegate.consumer.targets import DatabaseSettings, address_of
from tidegate.dispatcher.consistency import Ddls, Order, Setting, Visibility
from tidegate.errors import Fatal

QUIET = Progress(
    ts=1 << 40, watermark=0, waiting_rows=0, rows=5, snapshots=1, ddls=0, quarantined=0, bad_dates=0,
    bad_texts=0, missing_deletes=0, guessed=0, trouble="",
)  # fmt: skip
INEXACT = {
    "quarantined": "7 messages or rows set aside",
    "bad_dates": "7 dates of no calendar made NULL",
    "bad_texts": "7 texts that are not UTF-8",
    "missing_deletes": "7 deletes that found no row",
    "guessed": "7 tables guessed from their rows",
    "set_aside": "7 tables set aside",
}


@pytest.mark.parametrize("count", INEXACT)
def test_what_is_not_as_at_the_source_is_shown_everywhere(
    count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = replace(QUIET, **{count: 7})  # type: ignore[arg-type]
    assert INEXACT[count] in status(progress, 0)
    assert INEXACT[count] not in status(QUIET, 0)
    _Lines().stopped(progress)
    assert INEXACT[count] in capsys.readouterr().out
    _JsonLines().report(progress)
    assert json.loads(capsys.readouterr().out)[count] == 7


def test_lag_counts_messages_and_snapshot_has_no_date_without_watermarks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = (Partition("t/0", 0, 0, 5, 9, 12, marked=False), Partition("t/1", 0, 0, 1, 1, 1, marked=False))
    text = status(replace(QUIET, ts=3, partitions=parts), 10**12)
    assert text.startswith("snapshot 3, 7 messages behind, 5 row changes")
    _Lines().stopped(replace(QUIET, ts=3, partitions=parts))
    assert "at snapshot 3:" in capsys.readouterr().out
    found = Status("t", True, False, "runs", 3, applied_lag_s(parts, 10**12), 7, parts, "")
    assert summary(found)[2:] == [
        "snapshot  3",
        "lag       not known in time, for the topic has no watermarks, 7 messages to apply",
    ]
    assert [next(iter(column.cells)).plain for column in table(found, 10**12).columns[1:3]] == ["-", "-"]


@pytest.mark.parametrize(
    ("option", "rule"),
    [
        ("--include", "shop"),
        ("--exclude", "!a.b"),
        ("--route", "a=b"),
        ("--drop-column", "phone"),
        ("--soft-delete", "a.b"),
    ],
)
def test_a_rule_that_cannot_be_read_is_shown(tmp_path: Path, option: str, rule: str) -> None:
    command = ["run", "--source", "kafka://127.0.0.1:1/t?protocol=open-protocol", "--target", str(tmp_path)]
    done = CliRunner().invoke(consumer.app, [*command, option, rule])
    assert done.exit_code == 2
    reported = {"--exclude": "'!a.b' of --exclude", "--route": "the route 'a=b'"}
    words = reported.get(option, f"rule '{rule}'")
    assert words in done.output


def test_what_happens_when_columns_change_is_one_of_three(tmp_path: Path) -> None:
    command = ["run", "--source", "kafka://127.0.0.1:1/t?protocol=open-protocol", "--target", str(tmp_path)]
    done = CliRunner().invoke(consumer.app, [*command, "--schema-changes", "lenient"])
    assert done.exit_code == 2
    assert "'lenient' is not one of" in done.output


def test_how_long_snapshots_stay_is_what_the_options_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Settings] = []

    def run(settings: Settings, *_: object) -> Progress:
        given.append(settings)
        raise Fatal("enough")

    monkeypatch.setattr(job, "run", run)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    command = ["run", "--source", "kafka://k/t?protocol=open-protocol", "--target", str(tmp_path)]
    options = ["--retention-hours", "48", "--keep-all-hours", "2", "--keep-minutes-hours", "12.5"]
    assert CliRunner().invoke(consumer.app, [*command, *options]).exit_code == 1
    assert given[0].upkeep == Upkeep(retention_hours=48, all_hours=2, minute_hours=12.5)


@pytest.mark.parametrize(
    ("target", "lanes", "whole"),
    [
        ("delta:///lake", 4, "whole in each snapshot"),
        ("mysql://u@h:1/", 4, "whole in each table up to --transaction-max-bytes"),
        ("mysql://u@h:1/", 1, "whole for every reader"),
    ],
)
def test_a_start_says_what_its_mode_keeps_in_one_line_or_as_json(
    target: str, lanes: int, whole: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = Topic("kafka://k/t?protocol=open-protocol")
    settings = DatabaseSettings("name", lanes=lanes)
    setting = consistency.of_consumer(topic, address_of(target, Upkeep(), settings))
    _Lines().level(setting, "transaction")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mode transaction (one transaction: {whole}")
    assert line.endswith("a partition that lags: delays everything)")
    _JsonLines().ready(QUIET, setting, "transaction")
    reported = json.loads(capsys.readouterr().out)
    assert (reported["event"], reported["consistency"]["mode"]) == ("ready", "transaction")
    assert reported["consistency"]["keeps"]["changes of one row"] == "in commit order"


def test_on_a_terminal_a_start_shows_the_levels_side_by_side(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    topic, shown = Topic("kafka://k/t?protocol=open-protocol"), _Lines()
    lake = address_of("delta:///lake", Upkeep(), DatabaseSettings())
    shown.level(consistency.of_consumer(topic, lake), "row")
    text = capsys.readouterr().err
    assert "ROW (in use)" in text
    assert "TRANSACTION" in text
    database = address_of("mysql://u@h:1/", Upkeep(), DatabaseSettings("name"))
    shown.level(consistency.of_consumer(topic, database), "transaction")
    text = capsys.readouterr().err
    assert "ROW (" not in text
    assert "row: cannot be had" in " ".join(text.split())


def test_a_run_says_its_level_when_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(settings: Settings, stop: object, listener: Listener) -> Progress:
        listener.ready(QUIET)
        return QUIET

    monkeypatch.setattr(job, "run", run)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    command = ["run", "--source", "kafka://k/t?protocol=open-protocol", "--target", str(tmp_path)]
    assert "mode transaction (one transaction: " in CliRunner().invoke(consumer.app, command).output


def test_at_create_the_changefeeds_own_settings_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    def of(uri: str, **settings: object) -> Setting | None:
        return consistency.of_changefeed(canonical(merge_config(settings, parse_sink_uri(uri))))

    uri = "kafka://k/t?protocol=open-protocol"
    rules = [{"matcher": ["a.*"], "partition": "ts"}, {"matcher": ["b.*"], "topic": "{schema}"}]
    spread = of(uri, sink={"dispatchers": rules}, scheduler={"enable-table-across-nodes": True})
    assert spread == Setting(Order.NOTHING, True, True, True, Ddls.EVERYWHERE, Visibility.UNKNOWN)
    plain = of(uri)
    assert plain == Setting(Order.TABLES, False, False, True, Ddls.EVERYWHERE, Visibility.UNKNOWN)
    assert of("kafka://k/t", tidegate={"kv-mode": "rawkv"}) is None, "keys have no tables"
    unmarked = of("kafka://k/t?protocol=canal-json")
    assert unmarked is not None
    assert not unmarked.marks
    consistency.print_table(unmarked)
    said = capsys.readouterr().err
    assert said.splitlines()[0].split() == ["IF", "APPLIED", "BY", "ROW"]
    assert "transaction: cannot be had: the protocol carries no watermarks" in said
