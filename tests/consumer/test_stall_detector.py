"""Signs that a topic will never move the target: each reported once, each with what to do."""

from __future__ import annotations

from tests.consumer.assembler_script import segment
from tidegate.codec.base import BadMessage
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.running.stall_detector import MANY_BAD, PATIENCE_S, STALL_S, StallDetector

ROWS = (segment(0, 3, 5, 0),)


def stall_detector(protocol: str = "open-protocol", partitions: int = 2, watermark: int = 0) -> StallDetector:
    return StallDetector("t", protocol, dict.fromkeys(range(partitions), watermark), None, began=0.0)


def kinds(found: StallDetector, now: float) -> list[str]:
    """Return the kinds that are newly reported."""
    before = {id(sign) for sign in found.present.values()}
    reported = found.news(now)
    assert all(sign.what and sign.where and sign.why and sign.fix for sign in reported)
    assert not before & {id(sign) for sign in reported}
    return [kind for kind, sign in found.present.items() if sign in reported]


def test_rows_without_a_watermark_are_reported_once_at_the_topic_end() -> None:
    found = stall_detector()
    found.saw([Fetched(0, 5, 5, ROWS)], [0, 1], 1.0)
    assert kinds(found, 1.0) == []
    assert kinds(found, 1.0 + PATIENCE_S) == ["no watermark"]
    assert kinds(found, 2.0 + PATIENCE_S) == []
    assert found.lasting is None, "the changefeed may only be slow"
    found.saw([Fetched(0, 6, 1, resolved=((6, 5),)), Fetched(1, 1, 1, resolved=((6, 0),))], [0, 1], 20.0)
    assert kinds(found, 20.0) == []
    assert found.present == {}


def test_a_long_backlog_is_no_sign() -> None:
    found = stall_detector()
    for second in range(100):
        found.saw([Fetched(0, second + 1, 10, ROWS)], [], float(second))
        assert kinds(found, float(second)) == []


def test_canal_json_without_the_extension_is_reported_at_once_as_hopeless() -> None:
    found = stall_detector("canal-json")
    found.saw([Fetched(0, 5, 5, ROWS, unmarked=True)], [0, 1], 1.0)
    assert kinds(found, 1.0) == ["no extension"]
    assert found.lasting is not None
    assert "enable-tidb-extension=true" in found.lasting.fix
    assert kinds(found, 100.0) == []


def test_partitions_the_changefeed_does_not_write_are_named_with_the_cure() -> None:
    found = stall_detector(partitions=3)
    found.saw([Fetched(0, 5, 5, ROWS, resolved=((6, 5),))], [0, 1, 2], 1.0)
    found.saw([Fetched(1, 5, 5, resolved=((6, 5),))], [0, 1, 2], 1.1)
    assert kinds(found, 2.0) == []
    assert kinds(found, 1.0 + PATIENCE_S) == [], "nobody has looked since"
    found.saw([], [0, 1, 2], 1.0 + PATIENCE_S)
    assert kinds(found, 1.0 + PATIENCE_S) == ["silent partitions"]
    assert found.lasting is not None
    assert "partition 2 " in found.lasting.what
    assert "partition-num=2" in found.lasting.fix


def test_a_broadcast_that_is_readable_in_one_partition_first_is_no_sign() -> None:
    found = stall_detector()
    found.saw([], [0, 1], 1.0)
    # The feed took long to start; its first Resolved is committed while the ends are asked for.
    found.saw([Fetched(0, 1, 1, resolved=((6, 0),))], [0, 1], 2 * PATIENCE_S)
    assert kinds(found, 2 * PATIENCE_S) == []
    found.saw([Fetched(1, 1, 1, resolved=((6, 0),))], [0, 1], 4 * PATIENCE_S)
    assert kinds(found, 4 * PATIENCE_S) == []


def test_a_stalled_watermark_is_reported_again_only_after_it_has_moved() -> None:
    found = stall_detector(watermark=100)
    assert kinds(found, STALL_S - 1) == []
    assert kinds(found, STALL_S) == ["stalled"]
    assert kinds(found, STALL_S * 3) == []
    marks = [Fetched(p, 9, 1, resolved=((200, 8),)) for p in (0, 1)]
    found.saw(marks, [0, 1], STALL_S * 4)
    assert kinds(found, STALL_S * 4) == []
    assert kinds(found, STALL_S * 5) == ["stalled"]
    assert "partition 0, 1 at 200" in found.present["stalled"].where


def test_time_without_the_broker_does_not_count() -> None:
    found = stall_detector(watermark=100)
    found.unreachable(STALL_S)
    assert kinds(found, STALL_S + 1) == []
    silent = stall_detector()
    silent.saw([Fetched(0, 5, 5, ROWS)], [0, 1], 1.0)
    silent.unreachable(PATIENCE_S)
    assert kinds(silent, PATIENCE_S + 2) == []


def test_an_empty_topic_is_reported() -> None:
    found = stall_detector()
    found.saw([], [0, 1], 1.0)
    assert kinds(found, STALL_S) == ["empty"]


def test_only_bad_messages_at_a_fresh_target_mean_another_protocol() -> None:
    def bad(count: int) -> Fetched:
        messages = tuple(BadMessage(at, None, b"x", "no JSON") for at in range(count))
        return Fetched(0, count, count, bad=messages)

    for watermark, reported in ((0, ["unreadable"]), (100, [])):
        found = stall_detector("canal-json", watermark=watermark)
        found.saw([bad(MANY_BAD - 1)], [], 1.0)
        assert kinds(found, 1.0) == []
        found.saw([bad(1)], [], 1.0)
        assert kinds(found, 1.0) == reported
        assert found.unreadable == bool(reported)
    mixed = stall_detector()
    mixed.saw([bad(MANY_BAD * 2), Fetched(1, 1, 1, ROWS)], [], 1.0)
    assert kinds(mixed, 1.0) == []
