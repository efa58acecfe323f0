"""The recorded bank log for tests: its topic in memory, SQL's snapshots, how a target differs from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.consumer.memory_topic import MemoryTopic
from tests.consumer.recorded import messages_of_log
from tests.consumer.topics import Event, Mark, events_of
from tidegate.codec.base import CodecOptions
from tidegate.codec.registry import CODECS, codec_options
from tidegate.consumer.snapshots import open_snapshot
from tidegate.consumer.sql_text import sql_rows
from tidegate.model.message import Message
from tidegate.workload.changelog import SnapshotLine, read_log, snapshot_diff

BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
PARTITIONS = 3

_coming, _mounted, _ends = events_of(BANK), list[Event](), dict[int, int]()
"""The events that were not asked for yet, those that were, and how many of these each mark ends."""


@cache
def snapshots() -> list[SnapshotLine]:
    """The states that SQL showed, by ts."""
    return [line for line in read_log(BANK) if isinstance(line, SnapshotLine)]


@cache
def bank_events(last_snapshot: int = -1) -> Sequence[Event]:
    """The events of the bank log up to one of its snapshots. No event is mounted twice in one process."""
    ts = snapshots()[last_snapshot].ts
    if ts not in _ends:
        for event in _coming:
            _mounted.append(event)
            if isinstance(event, Mark):
                _ends[event.ts] = len(_mounted)
                if event.ts == ts:
                    break
    return tuple(_mounted[: _ends[ts]])


def bank_topic(protocol: str, last_snapshot: int = -1) -> MemoryTopic:
    """The bank log up to one of its snapshots as a topic of three partitions.

    It is new for each caller, so no test depends on what another one has let its decoder learn.
    """
    options, messages = _bank_messages(protocol, last_snapshot)
    return MemoryTopic(options, PARTITIONS, messages)


@cache
def _bank_messages(protocol: str, last_snapshot: int) -> tuple[CodecOptions, Sequence[tuple[int, Message]]]:
    extension = CODECS[protocol].unmarked is not None
    options = codec_options({"protocol": protocol, "enable-tidb-extension": extension})
    return options, tuple(messages_of_log(BANK, options, PARTITIONS, snapshots()[last_snapshot].ts))


def differences(
    target: Path | str, line: SnapshotLine, opened: Callable[..., Any] = open_snapshot
) -> dict[str, list[str]]:
    """How the target's snapshot at the line's ts differs from SQL's answer; empty: equal."""
    found = opened(target, at=line.ts)
    assert found.ts == line.ts, f"newest snapshot is {found.ts}"
    wrong = {name: ["missing"] for name in line.tables.keys() - found.tables.keys()}
    wrong |= {name: ["not in SQL"] for name in found.tables.keys() - line.tables.keys()}
    for name in line.tables.keys() & found.tables.keys():
        rows = found.tables[name].to_arrow()
        diff = snapshot_diff(
            line.tables[name], sql_rows(rows, line.tables[name].types), columns=rows.column_names
        )
        wrong |= {name: diff} if diff else {}
    return wrong
