"""The engine of a source with watermarks: scenarios as scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consumer.engine_script import EngineScript
from tests.scripts import run_script, scripts
from tidegate.codec.base import DdlMessage
from tidegate.consumer.fetched import Fetched
from tidegate.consumer.flow import Ddls, Flow
from tidegate.consumer.position import Position
from tidegate.consumer.watermark import Mode


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "engine"))
def test_the_engine_does_what_the_script_says(path: Path, *, rewrite: bool) -> None:
    run_script(path, EngineScript().run, rewrite=rewrite)


def test_a_position_of_an_earlier_release_counts_all_ddls_up_to_its_ts() -> None:
    text = '{"format":1,"ts":6,"topic":"t","protocol":"open-protocol","mode":"transaction","partitions":'
    held = Position.from_json(text + '{"0":{"offset":0,"applied":6,"watermark":6}}}')
    flow = Flow(held, Mode.TRANSACTION, (), None)
    ddls = tuple(DdlMessage(ts, text, 14, "s", "t", None, at) for ts, text, at in ((6, "a", 1), (7, "b", 2)))
    flow.take([Fetched(0, 9, resolved=((8, 5),), ddls=ddls)])
    executed = []
    while (step := flow.next_step(100)) is not None:
        if isinstance(step, Ddls):
            executed += [message.query for message in step.messages]
        else:
            flow.assembler.take(step.bounds)
    assert executed == ["b"]
