from pathlib import Path

import pytest

from tidegate.config import merge_config, parse_sink_uri
from tidegate.control.metadata import FeedId, Grant, Put, feed_key
from tidegate.errors import Fenced
from tidegate.pipeline.feed import FeedSpec
from tidegate.server.metadata_sqlite import SqliteMetadata
from tidegate.server.processor import FeedPlan, Paths, write_spec

FEED = FeedId("default", "one")


def test_a_feed_made_again_in_a_new_metadata_store_is_not_the_one_that_was_there(tmp_path: Path) -> None:
    """Someone deletes the data folder and starts anew: tokens and incarnations are the same again."""
    uri = parse_sink_uri("kafka://127.0.0.1:1/topic?protocol=canal-json")
    plan = FeedPlan(7, FEED, uri, merge_config({}, uri), "old", Paths(tmp_path, tmp_path / "events"))
    plan.folder.mkdir(parents=True)
    spec = FeedSpec.load(write_spec(plan, Grant("old", (1, 1), 1, 4)))
    store = SqliteMetadata(plan.paths.metadata)
    key = feed_key(7, FEED, "grant")
    store.transact([], [Put(key, Grant("old", (1, 1), 1, 4).to_bytes())])
    spec.prove()
    store.transact([], [Put(key, Grant("new", (1, 1), 1, 4).to_bytes())])
    with pytest.raises(Fenced, match="Another incarnation") as caught:
        spec.prove()
    assert "'new'" in caught.value.why
    assert "'old'" in caught.value.why
    write_spec(plan, Grant("new", (1, 1), 1, 4))
    with pytest.raises(Fenced, match="has been replaced"):
        FeedSpec.load(plan.folder / Grant("old", (1, 1), 1, 4).spec_file)
    store.close()


def test_what_an_incarnation_is_told_goes_when_the_next_is_told(tmp_path: Path) -> None:
    uri = parse_sink_uri("kafka://127.0.0.1:1/topic?protocol=canal-json")
    paths = Paths(tmp_path, tmp_path / "events")
    plan = FeedPlan(7, FEED, uri, merge_config({}, uri), "abc", paths)
    plan.folder.mkdir(parents=True)
    (plan.folder / "spec.json").write_text("as earlier versions named it")
    first = write_spec(plan, Grant("abc", (3, 1), 9, 4))
    spec = FeedSpec.load(first)
    assert (spec.instance, spec.incarnation, spec.token, spec.slots) == ("abc", 9, (3, 1), 4)
    assert first.stat().st_mode & 0o777 == 0o600, "it holds the sink's secrets"
    spec.start_file.write_text("{}")
    (spec.work_dir / "checkpoint").mkdir(parents=True)
    second = write_spec(plan, Grant("abc", (3, 1), 10, 4))
    assert FeedSpec.load(second).incarnation == 10
    assert list(plan.folder.iterdir()) == [second]
    with pytest.raises(Fenced, match="has been replaced") as caught:
        FeedSpec.load(first)
    assert caught.value.where == str(first)
