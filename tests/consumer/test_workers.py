"""The consumer without Spark: processes of our own fetch, on a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from tools.processes import descendants

from tests.consumer import plain_log
from tests.consumer.each_target import AtDelta
from tests.consumer.logs import differences, snapshots
from tests.consumer.test_apply import TOTAL, bank_sums
from tests.consumer.test_job import LINE, PATIENCE_S, bank_messages
from tests.consumer.test_set_aside import BEGINNING, at_end, history
from tests.consumer.topics import messages_of, publish
from tidegate.codec.base import Batch
from tidegate.codec.decode import decoder
from tidegate.codec.registry import codec_options
from tidegate.consumer.engine.fetched import Fetched, Range
from tidegate.consumer.job import run
from tidegate.consumer.reading import fetch_workers
from tidegate.consumer.reading.fetch_spark import APART_BYTES, APART_RANGES, SparkTasks, carried, landed
from tidegate.consumer.reading.fetch_workers import _Raised, workers
from tidegate.consumer.reading.fetcher import workers_of
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.reading.staging import read_staged, stage
from tidegate.consumer.running.progress import Listener
from tidegate.consumer.settings import Settings
from tidegate.errors import InvalidInput, Retryable, TidegateError

pytestmark = pytest.mark.integration


@pytest.fixture
def source(kafka: str, new_topic: Callable[..., str]) -> str:
    topic = new_topic(3)
    publish(kafka, topic, bank_messages())
    return f"kafka://{kafka}/{topic}?protocol=open-protocol"


def workers_below(pid: int) -> list[int]:
    return [
        child for child, command in descendants(pid) if "tidegate.consumer.reading.fetch_workers" in command
    ]


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def on_request(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call `act` when a worker has a request: a worker that dies without one is replaced in silence."""
    send = fetch_workers._send

    def sent(pipe: IO[bytes], what: object) -> None:
        send(pipe, what)
        act()

    monkeypatch.setattr(fetch_workers, "_send", sent)


def test_a_consumer_without_spark_ends_equal_though_a_worker_dies(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, target = snapshots()[LINE], tmp_path / "target"
    warnings: list[TidegateError] = []
    left, lock = [True], threading.Lock()

    def kill_the_first() -> None:
        with lock:
            if left:
                left.pop()
                os.kill(workers_below(os.getpid())[0], signal.SIGKILL)

    on_request(monkeypatch, kill_the_first)
    settings = Settings(source, target, until=line.ts, commit_s=0.05, commit_rows=200, master="workers[2]")
    end = run(settings, lambda: False, Listener(warn=warnings.append))
    assert [warning.what for warning in warnings] == ["a process that fetches from Kafka has ended"]
    assert end.ts == line.ts
    assert differences(target, line) == {}
    assert set(bank_sums(target)) == {TOTAL}
    assert workers_below(os.getpid()) == []


def test_a_consumer_of_a_change_log_killed_halfway_has_each_change_once(source: str, tmp_path: Path) -> None:
    log, line = tmp_path / "log", snapshots()[LINE]
    settings = [sys.executable, "-m", "tidegate", "consumer", "run", "--source", source, "--json"]
    settings += ["--target", f"parquet://{log}", "--master", "workers[1]", "--until", str(line.ts)]
    settings += ["--commit-interval", "0.05", "--commit-rows", "200"]
    first = subprocess.Popen(settings, stdout=subprocess.DEVNULL)
    until(lambda: len(list(log.glob("_tidegate/changes/*.json"))) > 5)
    first.kill()
    first.wait()
    subprocess.run(settings, stdout=subprocess.DEVNULL, check=True, timeout=PATIENCE_S)
    (found,) = plain_log.replays(log, line.ts)
    assert differences(log, line, lambda target, at: found) == {}
    assert {"before", "delete"} <= plain_log.ops(log), "workers have fetched the rows before changes"


def test_a_killed_worker_fails_one_round_and_another_takes_its_place(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, wanted, sent = Topic(source), [Range(0, 0, 20)], threading.Event()
    on_request(monkeypatch, sent.set)
    with workers(1, tmp_path / "log") as one, ThreadPoolExecutor(1) as pool:
        whole = one.fetch(topic, wanted, tmp_path)[0].messages
        assert whole >= 20
        for cancelled in (False, True):
            (worker,) = workers_below(os.getpid())
            os.kill(worker, signal.SIGSTOP)
            sent.clear()
            asked = pool.submit(one.fetch, topic, wanted, tmp_path)
            assert sent.wait(PATIENCE_S)
            if cancelled:
                one.cancel()
            else:
                os.kill(worker, signal.SIGKILL)
            with pytest.raises(Retryable, match="has ended") as raised:
                asked.result(PATIENCE_S)
            assert raised.value.why == "signal 9"
            assert one.fetch(topic, wanted, tmp_path)[0].messages == whole


def test_workers_end_with_a_consumer_that_is_killed(source: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidegate", "consumer", "run", "--source", source, "--master", "workers"]
    command += ["--target", f"delta://{tmp_path / 'target'}", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until(lambda: workers_below(process.pid))
    found = workers_below(process.pid)
    process.kill()
    process.wait()
    until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in found))


def test_what_a_worker_raises_comes_back_whole() -> None:
    error = InvalidInput("no", where="here", why="so", fix="that")
    again = _Raised.of(error).error()
    assert type(again) is InvalidInput
    assert str(again) == str(error)
    assert "ValueError: bad" in str(_Raised.of(ValueError("bad")).error())


@pytest.mark.parametrize(
    ("master", "count"),
    [("workers", 2), ("workers[7]", 7), ("local[2]", None), ("spark://workers:7077", None)],
)
def test_which_masters_are_no_spark(master: str, count: int | None) -> None:
    assert workers_of(master) == count


def test_the_library_does_not_import_spark() -> None:
    code = "import sys, tidegate.consumer.job; assert not {'pyspark', 'py4j'} & sys.modules.keys()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("master", ["workers[0]", "workers[x]", "workers[100]", "workers(2)"])
def test_a_master_that_is_almost_workers_is_refused_at_once(master: str, tmp_path: Path) -> None:
    settings = Settings("kafka://127.0.0.1:1/t?protocol=open-protocol", tmp_path / "target", master=master)
    with pytest.raises(InvalidInput, match="the number of processes that fetch"):
        run(settings)
    assert not (tmp_path / "target").exists(), "nothing was taken over"


def test_rows_come_back_with_a_tasks_result_whatever_became_of_its_folder(tmp_path: Path) -> None:
    options = codec_options({"protocol": "open-protocol"})
    (partition, message), *_ = [(p, m) for p, m in bank_messages() if p == 1 and b'"u"' in m.value]
    decoded = decoder(options).decode(Batch([message.key], [message.value], [4]))
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    segments = tuple(stage(decoded, partition, theirs / "1-5.arrow"))
    rows = [read_staged(segment) for segment in segments]
    assert rows
    found, files = carried(Fetched(partition, 5, 1, segments))
    (theirs / "1-5.arrow").unlink()
    back = landed(found, files, ours)
    assert [read_staged(segment) for segment in back.segments] == rows
    assert {segment.file for segment in back.segments} == {str(ours / "1-5.arrow")}


def test_a_round_through_the_jvm_is_bounded_and_every_range_gets_its_turn(
    tmp_path: Path,
) -> None:
    asked: list[list[Range]] = []

    class Context:
        def parallelize(self, ranges: list[Range], count: int) -> Context:
            asked.append(ranges)
            return self

        def map(self, task: object) -> Context:
            return self

        def collect(self) -> list[object]:
            return []

    class Session:
        sparkContext = Context()

    tasks = SparkTasks(Session(), tmp_path, lambda: False, apart=True)
    ranges = [Range(number, 0, 1000) for number in range(APART_RANGES + 5)]
    for _ in range(3):
        tasks.fetch(Topic("kafka://127.0.0.1:1/t?protocol=open-protocol"), ranges, tmp_path)
    assert {one.partition for round_ in asked for one in round_} == set(range(len(ranges)))
    for round_ in asked:
        assert sum(one.max_bytes for one in round_) <= APART_BYTES


def test_a_run_that_sets_a_table_aside_continues_with_the_others(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """The consumer that failed has cancelled the workers; the next one of the run needs them again."""
    topic, target, warnings = new_topic(2), tmp_path / "target", list[TidegateError]()
    options = codec_options({"protocol": "open-protocol"})
    publish(kafka, topic, messages_of(history(silently=True), options, 2))
    source = f"kafka://{kafka}/{topic}?protocol=open-protocol"
    settings = Settings(source, target, until=210, commit_s=0.05, master="workers[1]", set_aside=True)
    assert run(replace(settings, until=BEGINNING), lambda: False).set_aside == 0
    end = run(settings, lambda: False, Listener(warn=warnings.append))
    assert (end.ts, end.set_aside) == (210, 2)
    position = AtDelta(target).address().look().position
    assert position is not None
    at_end(AtDelta(target), position)
    assert any("is set aside after ts" in one.what for one in warnings)
