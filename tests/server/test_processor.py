from pathlib import Path

import pytest

from tidegate.config import merge_config, parse_sink_uri
from tidegate.control.metadata import FeedId, Grant
from tidegate.errors import Fenced
from tidegate.pipeline.feed import FeedSpec
from tidegate.server.processor import FeedPlan, Paths, write_spec


def test_what_an_incarnation_is_told_goes_when_the_next_is_told(tmp_path: Path) -> None:
    uri = parse_sink_uri("kafka://127.0.0.1:1/topic?protocol=canal-json")
    paths = Paths(tmp_path, tmp_path / "events")
    plan = FeedPlan(7, FeedId("default", "one"), uri, merge_config({}, uri), "abc", paths)
    plan.folder.mkdir(parents=True)
    (plan.folder / "spec.json").write_text("as earlier versions named it")
    first = write_spec(plan, Grant((3, 1), 9, 4))
    spec = FeedSpec.load(first)
    assert (spec.incarnation, spec.token, spec.slots) == (9, (3, 1), 4)
    assert first.stat().st_mode & 0o777 == 0o600, "it holds the sink's secrets"
    spec.start_file.write_text("{}")
    (spec.work_dir / "checkpoint").mkdir(parents=True)
    second = write_spec(plan, Grant((3, 1), 10, 4))
    assert FeedSpec.load(second).incarnation == 10
    assert list(plan.folder.iterdir()) == [second]
    with pytest.raises(Fenced, match="has been replaced") as caught:
        FeedSpec.load(first)
    assert caught.value.where == str(first)
