"""The result of a check of topics: broken rules with places, and what could not be checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tidegate.consumer.contract.partition import Partition

SHOWN: Final = 20
"""How many violations are stored; the others are only counted."""


class Rule(StrEnum):
    """The rules that a topic can break."""

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
    """Reasons why something could not be checked."""

    NO_MARKS = "there is no Resolved, so late rows and the broadcast of DDL cannot be checked"
    BEGINNING = "rows whose first appearance may lie before the oldest message that is left"
    FORGOTTEN = "rows that may be duplicates of forgotten ones: raise --remember"
    LATE_DDL = "DDLs that may have come before, as a restart repeats them"
    UNTIMED = "rows whose messages do not say when they were committed"
    UNDEFINED = "rows of tables whose definition was in a message that no longer exists"
    KEYLESS = "rows of tables without a key: it is not known which of them are the same row"
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
    """-1: a message is missing."""
    ts: int
    why: str
    table: str = ""
    """`schema.table`."""
    topic: str = ""


@dataclass(slots=True)
class Verdict:
    """The result of a check."""

    rows: int = 0
    again: int = 0
    """Changes that were repeated, on their own partition."""
    resolved: int = 0
    """Messages, counted in each partition."""
    went_back: int = 0
    """Resolved below an earlier one, if the producer may send such."""
    ddls: int = 0
    """Distinct DDLs."""
    lowest_resolved: int = 0
    """The lowest Resolved over all partitions: up to it the topic is complete."""
    violations: list[Violation] = field(default_factory=list)
    """The first `SHOWN` violations, in the order in which they were found."""
    counts: Counter[Rule] = field(default_factory=Counter)
    unjudged: Counter[Unjudged] = field(default_factory=Counter)
    tables: dict[str, int] = field(default_factory=dict)
    """The number of rows of each table."""
    dispatchers: dict[str, str] = field(default_factory=dict)
    """By table, the dispatcher that fits the places of its rows, in words."""

    @property
    def holds(self) -> bool:
        """Whether no rule is broken."""
        return not self.counts

    def violated(self, rule: Rule, state: Partition, offset: int, ts: int, why: str, table: str = "") -> None:
        """Count a violation, and store it if it is one of the first."""
        self.counts[rule] += 1
        if len(self.violations) < SHOWN:
            place = state.partition, offset
            self.violations.append(Violation(rule, *place, ts, why, table, state.topic))
