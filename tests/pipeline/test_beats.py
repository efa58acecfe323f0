"""Signs of life: numbers in files, one file a process."""

import os

from tidegate.pipeline.exchange import beats
from tidegate.pipeline.exchange.beats import Beats, read_beats


def test_a_beat_is_seen_and_the_next_ones_once_the_interval_has_passed(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(beats.time, "monotonic", lambda: now)
    folder = tmp_path / "spark-1" / "beats"
    ours = Beats(folder)
    assert read_beats(folder) == {}
    ours.beat()
    ours.beat()
    assert read_beats(folder) == {str(os.getpid()): 1}
    now += beats.INTERVAL_S
    ours.beat()
    assert read_beats(folder) == {str(os.getpid()): 3}
    assert (folder / str(os.getpid())).read_bytes() == b"0000000000000003"


def test_a_forked_process_counts_in_a_file_of_its_own(tmp_path):
    ours = Beats(tmp_path)
    ours.beat()
    child = os.fork()
    if child == 0:
        ours.beat()
        os._exit(0)
    os.waitpid(child, 0)
    assert read_beats(tmp_path) == {str(os.getpid()): 1, str(child): 1}


def test_work_continues_when_the_folder_has_been_taken_away(tmp_path):
    folder = tmp_path / "beats"
    ours = Beats(folder)
    folder.rmdir()
    ours.beat()
    assert read_beats(folder) == {}


def test_a_file_that_is_not_written_yet_is_left_out(tmp_path):
    Beats(tmp_path).beat()
    (tmp_path / "1").touch()
    assert list(read_beats(tmp_path)) == [str(os.getpid())]
