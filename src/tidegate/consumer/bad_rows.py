"""Rows that hold what their table's definition does not know: each is kept once, however often it is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tidegate.consumer.changes import BadRow
from tidegate.sink import quarantine
from tidegate.sink.quarantine import Quarantine

BadPlace: TypeAlias = tuple[str, int, int, int]
"""Topic, partition, offset and number within the message; the number -1: all of it."""


class BadRows:
    """The quarantine of one consumer's rows; may be called from several threads."""

    def __init__(self, file: Path, place: Callable[[int], tuple[str, int]]) -> None:
        """`place`: the topic and partition that a number means; the topic is empty if there is one."""
        self._quarantine, self._place = Quarantine(file), place
        self._known = {row_place(entry) for entry in quarantine.sound_entries(file)}
        self._lock = threading.Lock()

    def add(self, name: tuple[str, str], rows: Sequence[BadRow]) -> int:
        """Keep rows of the table `name` (schema, table); how many were not kept before."""
        with self._lock:
            placed = [(*self._place(row.partition), row) for row in rows]
            fresh = [one for one in placed if (*one[:2], one[2].offset, one[2].seq) not in self._known]
            self._quarantine.append(
                {
                    "where": ({"topic": topic} if topic else {})
                    | {
                        "table": f"{name[0]}.{name[1]}",
                        "partition": partition,
                        "offset": row.offset,
                        "seq": row.seq,
                        "commit_ts": row.commit_ts,
                    },
                    "why": row.why,
                    "op": row.op,
                    "row": row.values,
                }
                for topic, partition, row in fresh
            )
            self._known |= {(topic, partition, row.offset, row.seq) for topic, partition, row in fresh}
            return len(fresh)


def row_place(entry: Mapping[str, Any]) -> BadPlace:
    """Where what a quarantine entry holds stood."""
    where = entry["where"]
    return where.get("topic", ""), where["partition"], where["offset"], where.get("seq", -1)
