"""Records as files: they are bounded, each can be replayed alone, and a disk that fails ends only them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli.main import app
from tidegate.control.barrier import Barrier
from tidegate.control.owner import Owner
from tidegate.control.trace import OWNER, replay
from tidegate.model.span import Span
from tidegate.server import recorder
from tidegate.server.recorder import Recorder, segments


def owner_in(record: Recorder, name: str = "default/one") -> Owner:
    owner = Owner(100, Barrier(100), Span(b"", b""))
    record.follow(OWNER, name, owner)
    return owner


def replayed(folder: Path) -> list[int]:
    """The events of each segment, all of which replay with the same effects."""
    found = [replay(path.open("rb")) for path in segments(folder)]
    assert all(one.difference is None and not one.torn for one in found)
    return [one.events for one in found]


def test_a_large_segment_is_followed_by_one_that_can_be_replayed_alone(tmp_path: Path) -> None:
    owner = owner_in(Recorder(tmp_path, segment_bytes=1000))
    for number in range(40):
        owner.tick(float(number))
        owner.synced(number)
    events = replayed(tmp_path)
    assert sum(events) == 80
    assert len(events) > 5
    assert all(path.stat().st_size < 3000 for path in segments(tmp_path))


def test_the_oldest_segments_go_when_all_are_too_large(tmp_path: Path) -> None:
    """A machine whose segment went begins another one at its next event."""
    record = Recorder(tmp_path, segment_bytes=1000, total_bytes=5000)
    quiet, busy = owner_in(record, "default/quiet"), owner_in(record, "default/busy")
    for number in range(200):
        busy.tick(float(number))
    assert sum(path.stat().st_size for path in segments(tmp_path)) < 5000 + 3000
    assert not list(tmp_path.glob("*quiet*"))
    quiet.tick(1.0)
    quiet.tick(2.0)
    (again,) = tmp_path.glob("*quiet*")
    assert replay(again.open("rb")).events == 1
    assert all(replayed(tmp_path)[-2:])


def test_numbers_go_on_after_a_restart_and_names_are_those_of_files(tmp_path: Path) -> None:
    for _ in range(2):
        owner_in(Recorder(tmp_path / "made"), "default/../one")
    names = [path.name for path in segments(tmp_path / "made")]
    assert names == ["00000001-owner-default.one.jsonl", "00000002-owner-default.one.jsonl"]


def test_a_disk_that_fails_ends_the_record_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record = Recorder(tmp_path)
    one, other = owner_in(record), owner_in(record, "default/other")

    def fails(path: Path, line: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(recorder, "_append", fails)
        one.tick(1.0)
        other.tick(1.0)
    one.tick(2.0)
    assert owner_in(record).tick(3.0) == []
    assert [one.getMessage() for one in caplog.records] == ["recording ended"]
    assert replayed(tmp_path) == [0, 0]
    (tmp_path / "file").write_text("")
    assert owner_in(Recorder(tmp_path / "file")).tick(1.0) == []


def test_the_command_names_the_first_difference_and_its_place(tmp_path: Path) -> None:
    owner = owner_in(Recorder(tmp_path))
    for number in range(3):
        owner.tick(float(number))
    done = CliRunner().invoke(app, ["replay", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (
        0,
        "00000001-owner-default.one.jsonl: owner of default/one, 3 events, the same effects\n",
    )
    (path,) = segments(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    lines[2] = json.dumps(json.loads(lines[2]) | {"gave": [{"Persist": {"ts": 7}}]}) + "\n"
    path.write_text("".join(lines))
    done = CliRunner().invoke(app, ["replay", str(path)])
    assert done.exit_code == 1
    assert "1 events are the same, then 'tick' of line 3 differs: effects" in done.stdout
    assert '[{"Persist":{"ts":7}}]' in done.stdout
    said = json.loads(CliRunner().invoke(app, ["replay", str(tmp_path), "--json"]).stdout)
    assert (said["file"], said["difference"]["line"]) == (path.name, 3)


def test_what_is_no_record_is_an_error_with_its_place(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["replay", str(tmp_path)]).exit_code == 2
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n")
    done = CliRunner().invoke(app, ["replay", str(path)])
    assert done.exit_code == 2
    assert f"{path}, line 1" in done.stderr
    assert CliRunner().invoke(app, ["replay", str(tmp_path / "missing")]).exit_code == 2
