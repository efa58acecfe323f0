"""Slots across processes and cut files: a producer is used again only while nobody else can have had it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.config import merge_config, parse_sink_uri
from tidegate.pipeline.feed import FeedSpec
from tidegate.pipeline.slots import Slot
from tidegate.sink.base import Writer

pytestmark = pytest.mark.integration


@pytest.fixture
def spec(kafka: str, new_topic: Callable[..., str], tmp_path: Path) -> FeedSpec:
    uri = parse_sink_uri(f"kafka://{kafka}/{new_topic(1)}?protocol=open-protocol")
    nowhere = tmp_path / "nowhere"
    config = merge_config({}, uri)
    return FeedSpec(
        1, "default", uri.topic, uri, config, (1, 1), "f00d", 1, 2, nowhere, tmp_path, nowhere, nowhere
    )


class Opened(Slot):
    """Counts producers, and proves nothing: there is no metadata store."""

    opened = 0

    def _open(self, number: int) -> Writer:
        self.opened += 1
        return self._sink.writer(number, lambda: None)


@pytest.mark.parametrize("left", [0, 3, -1], ids=["all", "most", "the last byte"])
def test_a_slot_whose_file_was_cut_gets_a_new_producer(spec: FeedSpec, left: int) -> None:
    slots = Opened(spec, spec.sink)
    with slots.writer() as first:
        pass
    with slots.writer() as again:
        assert again is first
    assert slots.opened == 1
    (path,) = (spec.feed_dir / "slots").iterdir()
    path.write_text(path.read_text()[:left])
    with slots.writer() as after:
        assert after is not first
    assert slots.opened == 2
    with slots.writer() as last:
        assert last is after
