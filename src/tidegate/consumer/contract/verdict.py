"""What a check of topics finds: the rules that are broken, and where; what could not be judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tidegate.consumer.contract.partition import Partition

SHOWN: Final = 20
"""Violations that are kept whole; of the others there is a count."""


class Rule(StrEnum):
    """What a topic can break."""

    MOVED = "a row is always on one partition"
    PLACED = "a row is in the topic and on the partition that its dispatcher computes"
    ORDER = "the changes of a row appear first in commit order"
    AFTER_RESOLVED = "after Resolved no row at or below it appears for the first time"
    RESOLVED_BACK = "Resolved never goes back"
    RESOLVED_MISSING = "every Resolved is on every partition"
    DDL_MISSING = "a DDL is on every partition it belongs to"
    DDL_LATE = "a DDL comes before the Resolved of its ts"
    BEFORE_DDL = "no row above a DDL comes before it"
    AFTER_DDL = "after a DDL no row at or below it appears for the first time"
    LAYOUT = "every partition says the same of a change of the number of partitions"
    ALIGNED = "an alignment mark is on every partition, behind the table's older rows, and its epochs rise"
    DECODABLE = "every message can be decoded"


class Unjudged(StrEnum):
    """What could not be judged, and why."""

    NO_MARKS = "there is no Resolved: what comes late, and whether DDL was broadcast, cannot be told"
    BEGINNING = "rows whose first appearance may lie before the oldest message that is left"
    FORGOTTEN = "rows that may be duplicates of forgotten ones: raise --remember"
    LATE_DDL = "DDLs that may have come before, as a restart repeats them"
    UNTIMED = "rows whose messages do not say when they were committed"
    UNDEFINED = "rows of tables whose definition was told in a message that is not there any more"
    KEYLESS = "rows of tables without a key: which of them are the same row nobody can tell"
    REDUCED = "rows that the producer left out because they were too large"
    REPARTITIONED = (
        "rows after the producer has said that it changes the number of partitions: where they are"
    )
    PLACE = "rows whose partition cannot be computed from what the message has"


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where the contract is broken."""

    rule: Rule
    partition: int
    offset: int
    """-1: nothing is where something should be."""
    ts: int
    why: str
    table: str = ""
    """`schema.table`."""
    topic: str = ""


@dataclass(slots=True)
class Verdict:
    """What became of a check."""

    rows: int = 0
    again: int = 0
    """Changes that came once more, on their own partition."""
    resolved: int = 0
    """Messages, each partition's counted."""
    went_back: int = 0
    """Resolved that were below an earlier one, where that is allowed."""
    ddls: int = 0
    """Different ones."""
    lowest_resolved: int = 0
    """Of all partitions: up to here the topic is complete."""
    violations: list[Violation] = field(default_factory=list)
    """The first ones, in the order in which they were found."""
    counts: Counter[Rule] = field(default_factory=Counter)
    unjudged: Counter[Unjudged] = field(default_factory=Counter)
    tables: dict[str, int] = field(default_factory=dict)
    """Rows of each table."""
    dispatchers: dict[str, str] = field(default_factory=dict)
    """What the partitions of a table's rows say about its dispatcher, in words."""

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.counts

    def violated(self, rule: Rule, state: Partition, offset: int, ts: int, why: str, table: str = "") -> None:
        """Count a violation, and keep it if it is one of the first."""
        self.counts[rule] += 1
        if len(self.violations) < SHOWN:
            place = state.partition, offset
            self.violations.append(Violation(rule, *place, ts, why, table, state.topic))
