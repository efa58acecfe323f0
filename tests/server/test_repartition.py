"""A changefeed is asked for another number of partitions: what is carried out, kept, refused, taken back.

The topic is real; what is written goes to a file as well, whose rows say by which number they were placed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from tests.server.test_capture import Running, bank, capture, wait_for, work
from typer.testing import CliRunner

from tidegate.cli.main import app as command_line
from tidegate.control.metadata import FeedId
from tidegate.kvclient.pd import PdClient
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration

__all__ = ["bank", "capture"]


def create(running: Running, kafka: str, topic: str, options: str = "", **more: Any) -> Any:
    """A feed into a real topic."""
    uri = f"kafka://{kafka}/{topic}?protocol=open-protocol&partition-num=3{options}"
    made = running.create(topic, sink_uri=uri, **more)
    assert made["http"] == 200, made
    return made


def ask(running: Running, name: str, partitions: int) -> Any:
    return running.call("POST", f"/changefeeds/{name}/repartition", {"partitions": partitions})


def wait_partitions(running: Running, name: str, partitions: int) -> None:
    def there() -> bool:
        own = running.feed(name)["tidegate"]
        return bool(own["partitions"] == partitions and not own["repartition"])

    wait_for(there, f"{partitions} partitions")


def count(kafka: str, topic: str) -> int:
    found = AdminClient({"bootstrap.servers": kafka}).list_topics(topic, timeout=30)
    return len(found.topics[topic].partitions)


def check_placed(lines: list[dict[str, Any]], numbers: list[int]) -> None:
    """Rows are placed by the number of their time, each once, and none comes behind a Resolved of its ts."""
    switches = [line for line in lines if "partitions" in line]
    assert [line["partitions"] for line in switches] == numbers[1:]
    rows, resolved = set(), 0
    for line in lines:
        resolved = max(resolved, line.get("resolved", 0))
        if "row" in line:
            assert line["row"] > resolved
            assert (line["row"], line["key"]) not in rows
            rows.add((line["row"], line["key"]))
            assert line["by"] == numbers[sum(line["row"] > one["resolved"] for one in switches)]
    assert {line["by"] for line in lines if "row" in line} == set(numbers)


def test_rows_go_by_the_number_of_their_time_through_kills_and_a_restart(
    upstream: EmbeddedUpstream,
    bank: BankWorkload,
    capture: Running,
    pd: PdClient,
    kafka: str,
    new_topic: Callable[..., str],
) -> None:
    name = new_topic(3)
    create(capture, kafka, name)
    work(bank, 100)
    capture.wait_checkpoint(name, pd.tso())
    asked = ask(capture, name, 5)
    assert (asked["http"], count(kafka, name)) == (200, 5)
    wait_partitions(capture, name, 5)
    work(bank, 100)
    capture.wait_checkpoint(name, pd.tso())
    # A sink that is away: the request outlives it, the pipeline and the control process.
    broken = capture.out / f"{name}.broken"
    broken.touch()
    ask(capture, name, 2)
    work(bank, 100)
    assert capture.feed(name)["tidegate"]["repartition"] == 2
    capture.stop()
    broken.unlink()
    again = Running(upstream.pd_addr, capture.data_dir, capture.out)
    try:
        wait_partitions(again, name, 2)
        work(bank, 100)
        again.wait_checkpoint(name, pd.tso())
        check_placed(again.lines(name), [3, 5, 2])
        described = CliRunner().invoke(
            command_line, ["changefeed", "query", "-c", name, "--server", again.address]
        )
        assert "partitions   2" in described.stdout, described.output
    finally:
        again.stop()


def test_a_request_is_taken_back_by_the_number_there_is(
    capture: Running, kafka: str, new_topic: Callable[..., str], pd: PdClient
) -> None:
    name = new_topic(3)
    create(capture, kafka, name)
    wait_partitions(capture, name, 3)
    feed = capture.capture.reactor.feeds[FeedId("default", name)]
    capture.wait_checkpoint(name, pd.tso())
    # While a processor does not report nothing can be switched, as soon as more is known than is durable.
    owner = feed.replication.owner
    assert owner is not None
    owner.report = lambda *_: False  # type: ignore[method-assign]
    known = owner.ranges.durable
    wait_for(lambda: owner.barrier.resolved > known, "more DDL known")
    assert ask(capture, name, 4)["tidegate"]["repartition"] == 4
    words = wait_for(
        lambda: "4 partitions instead of 3" in (w := capture.feed(name)["tidegate"]["waiting_for"]) and w,
        "what is waited for",
    )
    assert "all rows up to ts" in words
    assert ask(capture, name, 3)["tidegate"]["repartition"] == 0
    assert owner.repartition_ts == 0
    assert feed.record.info.repartition == 0


def test_what_cannot_be_done_is_refused_with_the_reason(
    capture: Running, kafka: str, new_topic: Callable[..., str]
) -> None:
    name = new_topic(3)
    create(capture, kafka, name)
    wait_partitions(capture, name, 3)
    for wanted in (0, 10_001):
        refused = ask(capture, name, wanted)
        assert (refused["http"], "between 1 and 10000" in refused["error_msg"]) == (400, True)
    assert capture.call("POST", f"/changefeeds/{name}/pause")["http"] == 200
    refused = ask(capture, name, 5)
    assert (refused["http"], refused["error_code"]) == (400, "CDC:ErrChangefeedUpdateRefused")
    assert "is stopped" in refused["error_msg"]
    assert count(kafka, name) == 3, "a request that is refused adds no partition"

    unmarked = new_topic(3)
    capture.create(unmarked, sink_uri=f"kafka://{kafka}/{unmarked}?protocol=canal-json")
    assert "no Resolved" in ask(capture, unmarked, 5)["error_msg"]
    ruled = new_topic(3)
    rules = {"sink": {"dispatchers": [{"matcher": ["*.*"], "topic": "x_{schema}"}]}}
    create(capture, kafka, ruled, replica_config=rules | {"ignore_ineligible_table": True})
    assert "rules send rows to other topics" in ask(capture, ruled, 5)["error_msg"]


def test_neither_partition_num_nor_the_checkpoint_may_undo_a_change(
    capture: Running, kafka: str, new_topic: Callable[..., str], pd: PdClient
) -> None:
    name, other = new_topic(3), new_topic(3)
    create(capture, kafka, name)
    ask(capture, name, 5)
    wait_partitions(capture, name, 5)
    assert capture.call("POST", f"/changefeeds/{name}/pause")["http"] == 200
    uri = f"kafka://{kafka}/{{}}?protocol=open-protocol&partition-num={{}}"
    path = f"/changefeeds/{name}"
    refused = capture.call("PUT", path, {"sink_uri": uri.format(name, 2)})
    assert (refused["http"], "partition-num cannot be changed" in refused["error_msg"]) == (400, True)
    body = {"overwrite_checkpoint_ts": pd.tso()}
    refused = capture.call("POST", f"{path}/resume", body)
    assert (refused["http"], "was re-partitioned" in refused["error_msg"]) == (400, True)
    assert capture.call("PUT", path, {"sink_uri": uri.format(other, 2)})["http"] == 200, "another topic"
    (info,) = (f.record.info for f in capture.capture.reactor.feeds.values())
    assert (info.partitions, info.repartition) == (0, 0)


def test_the_command_says_what_was_asked_for(
    capture: Running, kafka: str, new_topic: Callable[..., str]
) -> None:
    name = new_topic(3)
    create(capture, kafka, name)
    wait_partitions(capture, name, 3)
    command = ["changefeed", "repartition", "-c", name, "--server", capture.address, "--partitions"]
    said = CliRunner().invoke(command_line, [*command, "4"])
    assert said.exit_code == 0, said.output
    assert f"default/{name} goes over to 4 partitions" in said.stdout
    wait_partitions(capture, name, 4)
    said = CliRunner().invoke(command_line, [*command, "4"])
    assert f"changefeed default/{name} has 4 partitions" in said.stdout
