"""A request for a changefeed is checked against the description of its sink."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import SinkUri, parse_sink_uri, reader_uri
from tidegate.config.values import TABLE_MODE, TXN_MODE
from tidegate.control.metadata import FeedId
from tidegate.errors import InvalidInput
from tidegate.server.changefeeds.new_feed import NewFeed, check_keys
from tidegate.server.delivery.plan import FeedPlan, Paths
from tidegate.sink.base import Description, Domain, Form, Keys

FEED = FeedId("default", "one")
URI = parse_sink_uri("kafka://127.0.0.1:1/t?protocol=kv-json")
TABLES = parse_sink_uri("kafka://127.0.0.1:1/t?protocol=open-protocol")
PATHS = Paths(Path("d"), Path("s"))


@pytest.mark.parametrize("keys", Keys)
@pytest.mark.parametrize(("kv_mode", "uri"), [(TABLE_MODE, TABLES), (TXN_MODE, URI)])
def test_a_feed_of_keys_is_refused_by_a_sink_of_rows(keys: Keys, kv_mode: str, uri: SinkUri) -> None:
    new = NewFeed(FEED, uri, merge_config({"tidegate": {"kv_mode": kv_mode}}, uri), 0, 0)
    sink = FeedPlan.sink_of(1, FEED, uri, new.config, PATHS).describe()
    assert sink.keys is Keys.ALL, "a topic accepts any key"
    if keys is Keys.RECORDS and kv_mode == TXN_MODE:
        with pytest.raises(InvalidInput, match="only rows of tables") as caught:
            check_keys(new, replace(sink, keys=keys))
        assert kv_mode in caught.value.why
    else:
        check_keys(new, replace(sink, keys=keys))


def test_what_a_sink_gives_up_follows_from_what_it_guarantees() -> None:
    strict = Description(Form.ROWS, Domain.ROW, pieces=False, writers=1, atomic=True, fenced_by="a row")
    assert strict.gives_up == ()
    for change, words in (
        ({"pieces": True}, "visible in parts"),
        ({"atomic": False}, "written again"),
        ({"fenced_by": ""}, "the end of its lease"),
        ({"here": True}, "the disk of one capture"),
    ):
        (limit,) = replace(strict, **change).gives_up  # type: ignore[arg-type]
        assert words in limit
    uri = reader_uri("typed", 3600, 1 << 20)
    reader = FeedPlan.sink_of(1, FEED, uri, merge_config({}, TABLES), PATHS).describe()
    assert reader.keys is Keys.RECORDS
    assert len(reader.gives_up) == 1, "a query never sees a part of a transaction: docs/spark-source.md"
