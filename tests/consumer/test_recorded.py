"""A log's topic made by batches has what the topic made row by row has."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.consumer.logs import BANK, PARTITIONS, bank_events, snapshots
from tests.consumer.memory_topic import MemoryTopic
from tests.consumer.recorded import messages_of_log
from tests.consumer.topics import messages_of
from tidegate.codec.base import Batch, Decoded, describe
from tidegate.codec.decode import decoder
from tidegate.codec.registry import CODECS, codec_options

LAST = 3


def decoded(topic: MemoryTopic) -> dict[int, Decoded]:
    """Return all that is on each partition."""
    found = {}
    for number, messages in topic.partitions.items():
        keys, values, headers = zip(*((m.key, m.value, list(m.headers)) for m in messages), strict=True)
        found[number] = decoder(topic.options).decode(Batch(keys, values, range(len(keys)), headers))
    return found


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json", "ticdc-mq", "debezium", "simple"])
def test_both_topics_have_the_same_rows_marks_and_ddls(protocol: str) -> None:
    extension = CODECS[protocol].unmarked is not None
    options = codec_options({"protocol": protocol, "enable-tidb-extension": extension})
    until = snapshots()[LAST].ts
    plain = decoded(MemoryTopic(options, PARTITIONS, messages_of(bank_events(LAST), options, PARTITIONS)))
    made = decoded(MemoryTopic(options, PARTITIONS, messages_of_log(BANK, options, PARTITIONS, until)))

    def rows(topic: dict[int, Decoded]) -> Counter[str]:
        found = [one for part in topic.values() for one in describe(part) if "new" in one]
        return Counter(repr({name: one[name] for name in one if name != "offset"}) for one in found)

    assert rows(made) == rows(plain)
    assert rows(made).total() > 1000
    for number in range(PARTITIONS):
        assert [ts for ts, _ in made[number].resolved] == [ts for ts, _ in plain[number].resolved]
        assert [(d.ts, d.query) for d in made[number].ddls] == [(d.ts, d.query) for d in plain[number].ddls]
        assert not made[number].bad
