"""Fields of rows that a protocol's options need, apart from values, reach the messages."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from tests.pipeline.recorded import RecordedFeed
from tests.pipeline.test_job import BANK, UPTO
from tests.pipeline.test_topics import Sorter

from tidegate.model.timestamp import physical_ms
from tidegate.pipeline.exchange.feed import Bounds, FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.deliver import Worker
from tidegate.tidb import keys


def delivered(folder: Path, options: str) -> list[bytes]:
    """The values of the messages of a feed in the new flavour."""
    feed = RecordedFeed(folder, BANK, f"kafka://127.0.0.1:1/own?{options}", UPTO)
    spec = FeedSpec.load(feed.write(settings={"tidegate": {"flavour": "new"}}))
    sorter = Sorter()
    spans = Bounds.load(feed.feed_dir / "bounds.json").spans
    Worker(LocalAccess(spec), lambda topic: 2, sorter).deliver(
        [Range(span, ts, feed.last_ts) for span, ts in spans.items()]
    )
    return [message.value or b"" for messages in sorter.places.values() for message in messages]


def test_the_keys_of_rows_are_sent(tmp_path: Path) -> None:
    values = delivered(tmp_path, "protocol=canal-json&enable-tidb-extension=true&output-row-key=true")
    found = [json.loads(value) for value in values]
    handles = [
        keys.parse_record(base64.b64decode(one["_tidb"]["rowkey"])).int_handle
        for one in found
        if one["table"] == "accounts"
    ]
    assert handles == [int(one["data"][0]["id"]) for one in found if one["table"] == "accounts"]
    assert len(handles) > 10


@pytest.mark.parametrize("extension", ["", "&enable-tidb-extension=true"])
def test_the_start_ts_of_transactions_are_sent(tmp_path: Path, extension: str) -> None:
    values = delivered(tmp_path, f"protocol=debezium&debezium-include-start-ts=true{extension}")
    for source in (json.loads(value)["payload"]["source"] for value in values):
        assert source["start_ts"] < source["commit_ts"]
        assert physical_ms(source["commit_ts"] - source["start_ts"]) < 60_000
    assert len(values) > 10
