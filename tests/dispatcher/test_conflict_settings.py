"""Dispatch by conflict is refused where it could not be kept, and what it gives up is said at create."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dispatcher.test_conflict import column as column_of
from tests.dispatcher.test_conflict import table_of
from tidegate.codec.registry import canonical
from tidegate.config.reading import merge_config
from tidegate.config.settings import DispatchRule, ReplicaConfig
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.dispatcher.guarantees import UNREADABLE, weakness
from tidegate.dispatcher.router import Router
from tidegate.errors import InvalidInput
from tidegate.server.changefeeds.new_feed import weak_orders

RULE = {"matcher": ["bank.*"], "partition": "conflict"}


def config(
    options: str = "protocol=open-protocol", rule: dict[str, Any] = RULE, **more: Any
) -> ReplicaConfig:
    uri = parse_sink_uri(f"kafka://127.0.0.1:1/own?{options}")
    return canonical(merge_config({"sink": {"dispatchers": [rule]}} | more, uri))


@pytest.mark.parametrize(
    "options",
    [
        "protocol=open-protocol",
        "protocol=simple",
        "protocol=ticdc-mq",
        "protocol=canal-json&enable-tidb-extension=true",
    ],
)
def test_protocols_with_resolved_take_it(options: str) -> None:
    router = Router.of(config(options), "own")
    assert router.has_conflicts
    assert not Router([], "own").has_conflicts


@pytest.mark.parametrize("options", ["protocol=canal-json", "protocol=debezium"])
def test_protocols_without_resolved_are_refused(options: str) -> None:
    config(options, RULE | {"partition": "table"})
    with pytest.raises(InvalidInput, match="no alignment mark can show readers where to wait") as refused:
        config(options)
    assert "enable-tidb-extension=true" in refused.value.fix


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"scheduler": {"enable-table-across-nodes": True}}, "neither writer sees the conflict"),
        ({"tidegate": {"table-cuts": ["7480000000000000015f720000000000000001"]}}, "neither writer sees"),
        (
            {"sink": {"dispatchers": [RULE], "kafka-config": {"output-raw-change-event": True}}},
            "stop between",
        ),
        ({"sink": {"dispatchers": [RULE | {"index": "u"}]}}, "all unique keys are tracked"),
    ],
)
def test_settings_under_which_a_writer_would_miss_conflicts_are_refused(
    more: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        config(**more)
    by_table = RULE | {"partition": "table"}
    if "sink" not in more:
        config(rule=by_table, **more)


def test_a_topic_unreadable_for_ticdcs_consumer_is_reported_without_tables() -> None:
    (weak,) = weak_orders([], config(), "own")
    assert (weak.dispatcher, weak.what, weak.tables) == ("conflict", UNREADABLE, ("bank.*",))
    assert weak_orders([], config(rule=RULE | {"partition": "index-value"}), "own") == []


def test_what_a_table_gets_of_it_is_said() -> None:
    rule, unique = DispatchRule(partition="conflict"), (("a", -1),)
    assert weakness(table_of([column_of("a")]), rule) == ""
    assert "must wait there" in weakness(table_of([column_of("a")], unique), rule)
    floats = weakness(table_of([column_of("a", 5)], unique), rule)
    assert "go to one partition, as by table, because equal values of a" in floats
