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
from tidegate.server.captures import recorder
from tidegate.server.captures.recorder import Recorder, segments


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


def test_numbers_continue_after_a_restart_and_names_are_those_of_files(tmp_path: Path) -> None:
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


def test_a_record_that_a_kill_cut_off_is_replayed_up_to_there(tmp_path: Path) -> None:
    owner = owner_in(Recorder(tmp_path))
    owner.tick(1.0)
    owner.tick(2.0)
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    done = CliRunner().invoke(app, ["replay", str(path)])
    assert done.exit_code == 0
    assert "1 events, the same effects, and a line that was cut off" in done.stdout


def is_refused(path: Path, place: str, why: str) -> None:
    """The command says in one error what is wrong, where, why, and what to do."""
    done = CliRunner().invoke(app, ["replay", str(path)])
    assert (done.exit_code, done.stdout) == (2, "")
    what, *parts = done.stderr.splitlines()
    assert what
    assert [part.split(":")[0].strip() for part in parts] == ["where", "why", "to do"]
    assert parts[0].endswith(f"{path}{place}")
    assert why in parts[1]


def test_a_path_without_records_is_refused(tmp_path: Path) -> None:
    is_refused(tmp_path / "missing", "", "No such file or directory")
    (tmp_path / "notes.txt").write_text("no record")
    is_refused(tmp_path, "", "named as records are")
    is_refused(tmp_path / "notes.txt" / "below", "", "Not a directory")
    is_refused(tmp_path / ("x" * 300), "", "File name too long")


HEAD = b'{"trace": 6, "machine": "owner", "state": {}}\n'


@pytest.mark.parametrize(
    ("content", "line", "why"),
    [
        pytest.param(b"", 1, "it is empty", id="nothing"),
        pytest.param(b"# Read me\n", 1, "no JSON object", id="text"),
        pytest.param(bytes(range(256)), 1, "no JSON object", id="bytes"),
        pytest.param(b"[1]\n", 1, "no JSON object", id="a-list"),
        pytest.param(HEAD[:20], 1, "no JSON object, or was cut off", id="half-a-head"),
        pytest.param(b"{}\n", 1, "it says trace None, machine None", id="another-object"),
        pytest.param(b'{"trace": 6, "machine": [1]}\n', 1, "machine [1]", id="another-machine"),
        pytest.param(b'{"trace": 6, "machine": "owner"}\n', 1, "KeyError", id="no-state"),
        pytest.param(HEAD.replace(b"{}", b"[]"), 1, "AttributeError", id="another-state"),
        pytest.param(HEAD + b"# Read me\n", 2, "JSONDecodeError", id="text-behind-a-head"),
        pytest.param(HEAD + b"1\n", 2, "it is no JSON object", id="a-number-behind-a-head"),
        pytest.param(HEAD + b"{}\n", 2, "KeyError", id="an-object-behind-a-head"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, content: bytes, line: int, why: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    is_refused(path, f", line {line}", why)


@pytest.mark.parametrize(
    "change",
    [{"args": {}}, {"set": []}, {"shows": 1}, {"event": "__init__"}],
    ids=lambda change: next(iter(change)),
)
def test_a_damaged_event_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    owner = owner_in(Recorder(tmp_path))
    owner.tick(1.0)
    owner.tick(2.0)
    (path,) = segments(tmp_path)
    head, first, second = path.read_text().splitlines(keepends=True)
    damaged = json.dumps(json.loads(first) | change) + "\n"
    path.write_text(head + damaged + second)
    is_refused(path, ", line 2", "Error")
