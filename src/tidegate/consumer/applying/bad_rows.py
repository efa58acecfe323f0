"""Rows with values that their table's definition does not allow: each is kept once, even if read twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from tidegate.consumer.applying.changes import BadRow
from tidegate.consumer.applying.known_places import KnownPlaces
from tidegate.disk import CONSUMER_ENDS
from tidegate.sink import quarantine
from tidegate.sink.quarantine import Quarantine


class BadRows:
    """The quarantine file of one consumer's rows; may be called from several threads."""

    def __init__(self, file: Path, place: Callable[[int], tuple[str, int]]) -> None:
        """`place`: maps a partition's number to topic and partition; the topic is empty if there is one."""
        self._quarantine, self._place = Quarantine(file, fix=CONSUMER_ENDS), place
        self._known = KnownPlaces(quarantine.sound_entries(file))
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
            self._known.add((topic, partition, row.offset, row.seq) for topic, partition, row in fresh)
            return len(fresh)
