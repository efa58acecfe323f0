"""When segments may go, and how the load of spans is measured."""

from __future__ import annotations

from tidegate.model.reports import SpanStatus
from tidegate.server.processor.reader_floor import DROP_AFTER_S, FLOOR_S, ReaderFloor
from tidegate.server.processor.span_loads import LOADS_MAX, WEIGH_S, SpanLoads


def test_segments_go_only_after_batches_of_the_earlier_file_ended() -> None:
    floor = ReaderFloor()
    floor.move(0.0, 500, 400)
    assert floor.passed(0) == (0, 0)
    floor.move(DROP_AFTER_S - 1, 700, 600)
    assert floor.passed(0) == (0, 0)
    floor.move(DROP_AFTER_S, 900, 800)
    assert floor.passed(0) == (500, 400)
    assert floor.passed(450) == (50, 0), "what is retained stays"
    floor.reset()
    assert floor.passed(0) == (0, 0)


def test_the_start_ts_of_readers_moves_now_and_then() -> None:
    floor = ReaderFloor()
    assert floor.is_due(100.0)
    assert not floor.is_due(100.0 + FLOOR_S / 2)
    floor.reset()
    assert not floor.is_due(100.0 + FLOOR_S / 2), "the next move keeps its time"
    assert floor.is_due(100.0 + FLOOR_S)


def test_loads_are_rates_averaged_with_those_before() -> None:
    loads = SpanLoads()
    assert loads.is_due(5.0)
    other = SpanStatus("other", bytes=9)

    def lines(count: int) -> list[SpanStatus]:
        return [SpanStatus("a", bytes=count), other]

    assert loads.measure(5.0, {"a"}, lines(1000), {}) == {}, "one count is no rate"
    assert not loads.is_due(5.0 + WEIGH_S / 2)
    count = 1000 + 200 * round(WEIGH_S)
    assert loads.measure(5.0 + WEIGH_S, {"a"}, lines(count), {"a": 60}) == {"a": 130}
    again = loads.measure(5.0 + 2 * WEIGH_S, {"a"}, lines(0), {"a": 130})
    assert again == {"a": 65}, "another puller's process"


def test_only_the_heaviest_spans_are_reported() -> None:
    loads, spans = SpanLoads(), [f"s{number}" for number in range(LOADS_MAX + 1)]
    loads.measure(0.0, spans, [SpanStatus(name) for name in spans], {})
    lines = [SpanStatus(name, bytes=1000 * (number + 1)) for number, name in enumerate(spans)]
    found = loads.measure(WEIGH_S, spans, lines, {})
    assert found.keys() == set(spans[1:])
