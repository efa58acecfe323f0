"""The consumer as a process: real broker, real Spark, kill -9."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.consumer.logs import BANK, differences, snapshots
from tests.consumer.test_apply import TOTAL, bank_sums
from tests.consumer.topics import events_of, messages_of, publish
from tidegate.codec.registry import codec_options
from tidegate.consumer.source import Offsets, Topic, check_retained
from tidegate.errors import Fatal, InvalidInput
from tidegate.sink import quarantine

pytestmark = pytest.mark.integration
SRC = Path(__file__).parents[2] / "src"


def start(source: str, target: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tidegate.cli.consumer", "run", "--source", source]
    command += ["--target", f"delta://{target}", "--json", *options]
    path = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )


def event(process: subprocess.Popen[str], wanted: str, timeout_s: float = 120) -> dict[str, object]:
    """The next event of that name on stdout; fails with the process's stderr."""
    assert process.stdout is not None
    watchdog = threading.Timer(timeout_s, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            found: dict[str, object] = json.loads(line)
            if found["event"] != "progress":
                break
        else:
            assert process.stderr is not None
            pytest.fail(f"no '{wanted}': {process.stderr.read()[-3000:]}")
    finally:
        watchdog.cancel()
    assert found["event"] == wanted
    return found


@pytest.fixture
def bank_source(kafka: str, new_topic: Callable[..., str]) -> str:
    topic, options = new_topic(3), codec_options({"protocol": "open-protocol"})
    messages = list(messages_of(events_of(BANK, until=snapshots()[9].ts), options, 3))
    # One message that no decoder understands, in the middle of partition 1.
    middle = len(messages) // 2
    publish(kafka, topic, messages[:middle])
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(topic, b"\x00not open protocol", b"\x00key", partition=1)
    assert producer.flush(30) == 0
    publish(kafka, topic, messages[middle:])
    return f"kafka://{kafka}/{topic}?protocol=open-protocol"


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_equal_and_every_named_sum_is_right(
    bank_source: str, tmp_path: Path
) -> None:
    target, line, chance = tmp_path / "target", snapshots()[9], random.Random(7)
    for _ in range(2):
        process = start(bank_source, target, "--commit-interval", "0.05", "--commit-rows", "200")
        event(process, "ready")
        time.sleep(chance.uniform(0.8, 4.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
    process = start(bank_source, target, "--until", str(line.ts), "--commit-rows", "2000")
    event(process, "ready")
    end = event(process, "stopped")
    assert process.wait(30) == 0
    assert end["ts"] == line.ts
    assert differences(target, line) == {}
    assert set(bank_sums(target)) == {TOTAL}
    bad = quarantine.read(target / "_tidegate" / "quarantine.jsonl")
    assert [entry["value"] for entry in bad] == [b"\x00not open protocol"], "once, with its bytes"
    assert bad[0]["where"]["partition"] == 1


def test_it_ends_cleanly_on_sigterm_and_refuses_a_second_writer(bank_source: str, tmp_path: Path) -> None:
    first = start(bank_source, tmp_path / "target")
    event(first, "ready")
    second = start(bank_source, tmp_path / "target")
    assert second.wait(60) == 2
    assert second.stderr is not None
    assert "another consumer writes this target" in second.stderr.read()
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 0


def test_a_missing_topic_and_a_wrong_option_are_named(kafka: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        Offsets(Topic(f"kafka://{kafka}/no-such-topic?protocol=open-protocol")).partitions()
    with pytest.raises(InvalidInput):
        Topic(f"kafka://{kafka}/t?protocol=open-protokol")


def test_messages_deleted_before_they_were_read_stop_it() -> None:
    topic = Topic("kafka://127.0.0.1:1/t?protocol=open-protocol")
    check_retained(topic, {0: 5}, {0: 5})
    with pytest.raises(Fatal, match="no longer holds"):
        check_retained(topic, {0: 5}, {0: 6})
