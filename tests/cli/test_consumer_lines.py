"""What `tidegate consumer run` shows of itself, to people and to programs."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli import consumer
from tidegate.cli.consumer import _JsonLines, _Lines, status
from tidegate.cli.consumer_status import summary, table
from tidegate.consumer import job
from tidegate.consumer.delta.maintenance import Upkeep
from tidegate.consumer.job import Progress
from tidegate.consumer.lag import Partition, applied_lag_s
from tidegate.consumer.status import Status
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


def test_without_watermarks_lag_is_in_messages_and_a_numbered_snapshot_has_no_date(
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
    [("--include", "shop"), ("--exclude", "!a.b"), ("--route", "a=b"), ("--drop-column", "phone")],
)
def test_a_rule_that_cannot_be_read_is_shown(tmp_path: Path, option: str, rule: str) -> None:
    command = ["run", "--source", "kafka://127.0.0.1:1/t?protocol=open-protocol", "--target", str(tmp_path)]
    done = CliRunner().invoke(consumer.app, [*command, option, rule])
    assert done.exit_code == 2
    words = {"--exclude": "'!a.b' of --exclude", "--route": "the route 'a=b'"}.get(option, f"rule '{rule}'")
    assert words in done.output


def test_how_long_snapshots_stay_is_what_the_options_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[job.Settings] = []

    def run(settings: job.Settings, *_: object) -> job.Progress:
        given.append(settings)
        raise Fatal("enough")

    monkeypatch.setattr(job, "run", run)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    command = ["run", "--source", "kafka://k/t?protocol=open-protocol", "--target", str(tmp_path)]
    options = ["--retention-hours", "48", "--keep-all-hours", "2", "--keep-minutes-hours", "12.5"]
    assert CliRunner().invoke(consumer.app, [*command, *options]).exit_code == 1
    assert given[0].upkeep == Upkeep(retention_hours=48, all_hours=2, minute_hours=12.5)
