"""The quarantine under full disks, cut writes and kills: what was kept can be read, what is torn is named."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tidegate.disk import DiskFull
from tidegate.errors import Fatal
from tidegate.sink.quarantine import Quarantine, entries, read

ENTRY = {"where": {"partition": 0, "offset": 1}, "value": bytes(range(256))}


def other(number: int) -> dict[str, Any]:
    return {"where": {"partition": 1, "offset": number}, "value": b"x" * 50}


@pytest.mark.parametrize("at", [1, 9, 40, -2, -1])
def test_a_line_torn_by_a_kill_is_named_and_what_follows_is_read(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Quarantine(tmp_path / "q")
    kept.append([ENTRY])
    whole = kept.path.read_bytes()
    kept.append([other(1)])
    line = kept.path.read_bytes()[len(whole) :]
    kept.path.write_bytes(whole + line[:at])
    kept.append([other(2), other(3)])
    # Without its end of line only, an entry is whole.
    assert read(kept.path) == [ENTRY] + ([other(1)] if at == -1 else []) + [other(2), other(3)]
    assert "torn quarantine line ended" in caplog.text
    assert ("torn quarantine line left out" in caplog.text) == (at != -1)


def test_a_torn_last_line_does_not_stop_a_start(tmp_path: Path) -> None:
    kept = Quarantine(tmp_path / "q")
    kept.append([ENTRY, other(1)])
    kept.path.write_bytes(kept.path.read_bytes()[:-5] + bytes(3))
    assert read(kept.path) == [ENTRY]


def test_writes_that_are_cut_short_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))
    kept = Quarantine(tmp_path / "q")
    assert kept.append([ENTRY, other(1)]) == 2
    assert read(kept.path) == [ENTRY, other(1)]


def test_what_a_disk_has_no_room_for_is_taken_back_whole(tmp_path: Path) -> None:
    """A limit on file sizes cuts a write exactly as a full disk does: first short, then refused."""
    kept = Quarantine(tmp_path / "q")
    kept.append([ENTRY])
    whole = kept.path.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 100, before[1]))
    try:
        with pytest.raises(DiskFull, match="disk is full"):
            kept.append([other(1), other(2), other(3)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert kept.path.read_bytes() == whole
    kept.append([other(4)])
    assert read(kept.path) == [ENTRY, other(4)]


def test_lines_of_several_processes_never_mix_despite_short_writes(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib\n"
        "from tidegate.sink.quarantine import Quarantine\n"
        "write = os.write\n"
        "os.write = lambda handle, data: write(handle, data[:11])\n"
        "kept = Quarantine(pathlib.Path(sys.argv[1]))\n"
        "for n in range(40):\n"
        "    kept.append([{'where': {'partition': int(sys.argv[2]), 'offset': n}, 'value': b'x' * 50}])\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "q")]
    writers = [subprocess.Popen([*command, str(number)]) for number in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    places = [(entry["where"]["partition"], entry["where"]["offset"]) for entry in read(tmp_path / "q")]
    assert sorted(places) == [(number, n) for number in range(3) for n in range(40)]


def test_a_full_quarantine_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    kept = Quarantine(tmp_path / "q", limit_bytes=200)
    kept.append([other(1)])
    with pytest.raises(Fatal, match="full"):
        kept.append([other(2)])
    assert read(kept.path) == [other(1)]
    assert "restart the consumer" in str(_refused(kept))


def _refused(kept: Quarantine) -> Fatal:
    with pytest.raises(Fatal) as caught:
        kept.append([other(3)])
    return caught.value


def test_a_file_is_read_entry_by_entry_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    kept = Quarantine(tmp_path / "q")
    for number in range(40):
        kept.append([{"where": {"offset": number}, "value": b"x" * 400_000}])
    tracemalloc.start()
    numbers = [one.number for one in entries(kept.path)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert numbers == list(range(1, 41))
    assert peak < 8 * 400_000, "a few copies of one entry, not forty"


@pytest.mark.parametrize("line", [b"[1]", b'{"where": 3}', b"{}", b"\xff", b"[" * 100_000])
def test_a_line_that_is_no_entry_is_torn_whatever_it_holds(tmp_path: Path, line: bytes) -> None:
    kept = Quarantine(tmp_path / "q")
    kept.append([ENTRY])
    kept.path.write_bytes(line + b"\n" + kept.path.read_bytes())
    found = list(entries(kept.path))
    assert [(one.number, one.entry) for one in found] == [(1, None), (2, ENTRY)]
    assert read(kept.path) == [ENTRY]
