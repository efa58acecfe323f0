"""Rows with values that their table's definition does not allow: each is kept once, even if read twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tidegate.consumer.applying.changes import BadRow
from tidegate.sink import quarantine
from tidegate.sink.quarantine import Quarantine

BadPlace: TypeAlias = tuple[str, int, int, int]
"""Topic, partition, offset, and number within the message; the number -1 is the whole message."""


class BadRows:
    """The quarantine file of one consumer's rows; may be called from several threads."""

    def __init__(self, file: Path, place: Callable[[int], tuple[str, int]]) -> None:
        """`place`: maps a partition's number to topic and partition; the topic is empty if there is one."""
        self._quarantine, self._place = Quarantine(file), place
        self._known = {row_place(entry) for entry in quarantine.sound_entries(file)}
        self._lock = threading.Lock()

    def add(self, name: tuple[str, str], rows: Sequence[BadRow]) -> int:
        """Append rows of the table `name` (schema, table). Returns how many were not in the file before."""
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
            # After the append: if that fails, the next attempt must not take the rows for known ones.
            self._known |= {(topic, partition, row.offset, row.seq) for topic, partition, row in fresh}
            return len(fresh)


def row_place(entry: Mapping[str, Any]) -> BadPlace:
    """Where the row or message of a quarantine entry is on the topic."""
    where = entry["where"]
    return where.get("topic", ""), where["partition"], where["offset"], where.get("seq", -1)
