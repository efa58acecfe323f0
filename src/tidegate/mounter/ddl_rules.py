"""How each kind of DDL job is replicated: the table that both the code and `docs/formats/ddl.md` use.

There is one `Rule` for each action code of TiDB (`pkg/meta/model/job.go`). F is the job's FinishedTS: the
commit ts of the write that finished it. Rows with commit_ts <= F have the schema before the job, later rows
the schema after it. We send every kind of DDL that TiCDC sends: `EMITTED_BY_TICDC` lists the kinds, and
golden `filters` compares them with TiCDC.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.tidb.ddl_job import DELETE_ONLY, PUBLIC, WRITE_REORGANIZATION


class Handling(StrEnum):
    """How a kind of job changes the catalogue, and which event it gives."""

    CREATE_SCHEMA = "create schema"
    DROP_SCHEMA = "drop schema"
    ALTER_SCHEMA = "alter schema"
    RECOVER_SCHEMA = "recover schema"
    CREATE_TABLES = "create tables"
    DROP_TABLE = "drop table"
    REPLACE = "replace"
    """The job carries the table's new definition: create, alter, rename, truncate, recover, partitions."""
    RENAME_TABLES = "rename tables"
    EXCHANGE = "exchange partition"
    VIEW = "view"
    IGNORE = "ignore"
    REFUSE = "refuse"

    @property
    def outcome(self) -> DdlOutcome:
        """How a changefeed handles such a job."""
        return {Handling.IGNORE: DdlOutcome.IGNORED, Handling.REFUSE: DdlOutcome.REFUSED}.get(
            self, DdlOutcome.EVENT
        )

    @property
    def query(self) -> str:
        """The statement in the event, described in words. It is the same as TiCDC's."""
        return _QUERIES.get(self, "as written")


class DdlOutcome(StrEnum):
    """How a changefeed handles a kind of job."""

    EVENT = "event"
    IGNORED = "ignored"
    REFUSED = "refused"


_QUERIES: Final = {
    Handling.DROP_TABLE: "`DROP TABLE` with full names",
    Handling.RENAME_TABLES: "one `RENAME TABLE` a table, with full names",
    Handling.CREATE_TABLES: "one event a table, each with its own statement",
    Handling.EXCHANGE: "rebuilt with full names",
    Handling.VIEW: "as written; a drop rebuilt with full names",
    Handling.IGNORE: "",
    Handling.REFUSE: "",
}


class Spans(StrEnum):
    """The key ranges of rows that a feed follows after the job. Each value is a sentence for people."""

    SAME = "the same"
    NEW = "the table's spans (one a partition) are followed from F on"
    GONE = "the table's spans end at F"
    REPLACED = "old spans end at F, new ones are followed from F on"
    BY_NAME = "the same while both names pass the filter; one renamed out of it ends at F"
    SWAPPED = "the same two: from F on each holds the other table's rows"
    PARTS_NEW = "the new partitions' spans are followed from F on"
    PARTS_MOVED = "old spans end at E, new ones are followed from E on"
    PARTS_GONE = "the dropped partitions' spans end at E"
    PARTS_REPLACED = "the partitions' old spans end at E, the new ones are followed from E on"
    BACK = "the spans that had ended are followed again from F on"


@dataclass(frozen=True, slots=True)
class Rule:
    """How one action is handled."""

    name: str
    handling: Handling
    spans: Spans = Spans.SAME
    rows: str = ""
    """Its effect on rows, in words. Empty: none."""
    note: str = ""
    """Why the job is ignored, or what the user can do when it is refused."""
    early: int = 0
    """The schema state at which the job takes effect for rows, at E. 0: when it is done."""


def _replace(name: str, rows: str = "", spans: Spans = Spans.SAME, *, early: int = 0) -> Rule:
    return Rule(name, Handling.REPLACE, spans, rows, early=early)


def _ignore(name: str, why: str) -> Rule:
    return Rule(name, Handling.IGNORE, note=why)


def _refuse(name: str, fix: str, rows: str, *, early: int = 0) -> Rule:
    return Rule(name, Handling.REFUSE, rows=rows, note=fix, early=early)


_RENAMED: Final = "later ones have the new name; a rename into the filter stops the feed"
_KEY_LOST: Final = "a table that loses its last key stops the feed, unless force-replicate"
_KEY_GAINED: Final = "a table that had no key is followed from F on, its earlier rows are not sent"
_INGESTED: Final = "rows that are ingested meanwhile (import, restore) are no changes for any feed"
_COLUMNS: Final = "later ones have the new columns"
_CONVERTED: Final = (
    "later ones have the new type, with new data from E on; a rewrite of rows sends no row events"
)
_NO_ROW_EVENTS: Final = "no row events for what the statement itself removes"
_NO_EVENTS_OF_MOVED: Final = "no row events for those that move"
_COPIES: Final = "the copies TiDB makes are no changes; changes up to E come from the old partitions"
_BACK: Final = "what comes back is not sent again: a target must be able to run the statement itself"
_ENFORCED: Final = "the upstream has enforced the constraint already"
_PLACEMENT: Final = "placement concerns the upstream only"
_UPSTREAM: Final = "it concerns the upstream only"
_SEQUENCE: Final = "sequences hold no rows"
RECREATE: Final = "remove the changefeed and create it again with a start-ts after this job"

RULES: Final[dict[int, Rule]] = {
    1: Rule("create schema", Handling.CREATE_SCHEMA),
    2: Rule("drop schema", Handling.DROP_SCHEMA, Spans.GONE, _NO_ROW_EVENTS),
    3: _replace("create table", spans=Spans.NEW),
    4: Rule("drop table", Handling.DROP_TABLE, Spans.GONE, _NO_ROW_EVENTS),
    5: _replace("add column", _COLUMNS),
    6: _replace("drop column", _COLUMNS),
    7: _replace("add index"),
    8: _replace("drop index", _KEY_LOST),
    9: _replace("add foreign key"),
    10: _replace("drop foreign key"),
    11: _replace("truncate table", _NO_ROW_EVENTS, Spans.REPLACED),
    12: _replace("modify column", _CONVERTED, early=PUBLIC),
    13: _replace("rebase auto_increment id"),
    14: _replace("rename table", _RENAMED, Spans.BY_NAME),
    15: _replace("set default value"),
    16: _ignore("shard row id", _UPSTREAM),
    17: _replace("modify table comment"),
    18: _replace("rename index"),
    19: _replace("add partition", spans=Spans.PARTS_NEW),
    20: _replace("drop partition", _NO_ROW_EVENTS, Spans.PARTS_GONE, early=DELETE_ONLY),
    21: Rule("create view", Handling.VIEW, rows="views hold none"),
    22: _replace("modify table charset and collate"),
    23: _replace("truncate partition", _NO_ROW_EVENTS, Spans.PARTS_REPLACED, early=DELETE_ONLY),
    24: Rule("drop view", Handling.VIEW, rows="views hold none"),
    25: _replace("recover table", _BACK, Spans.BACK),
    26: Rule("modify schema charset and collate", Handling.ALTER_SCHEMA),
    27: _ignore("lock table", _UPSTREAM),
    28: _ignore("unlock table", _UPSTREAM),
    29: _refuse("repair table", RECREATE, "the definition they were written with was wrong"),
    30: _ignore("set TiFlash replica", _UPSTREAM),
    31: _ignore("update TiFlash replica status", _UPSTREAM),
    32: _replace("add primary key", _KEY_GAINED),
    33: _replace("drop primary key", _KEY_LOST),
    34: _ignore("create sequence", _SEQUENCE),
    35: _ignore("alter sequence", _SEQUENCE),
    36: _ignore("drop sequence", _SEQUENCE),
    37: _replace("add columns", _COLUMNS),
    38: _replace("drop columns", _COLUMNS),
    39: _ignore("modify auto id cache", _UPSTREAM),
    40: _ignore("rebase auto_random id", _UPSTREAM),
    41: _replace("alter index visibility"),
    42: Rule("exchange partition", Handling.EXCHANGE, Spans.SWAPPED, _NO_EVENTS_OF_MOVED),
    43: _ignore("add check constraint", _ENFORCED),
    44: _ignore("drop check constraint", _ENFORCED),
    45: _ignore("alter check constraint", _ENFORCED),
    46: _ignore("alter partition (a kind TiDB has removed)", _UPSTREAM),
    47: Rule(
        "rename tables",
        Handling.RENAME_TABLES,
        Spans.BY_NAME,
        _RENAMED,
    ),
    48: _replace("drop indexes"),
    49: _ignore("alter table attributes", _PLACEMENT),
    50: _ignore("alter partition attributes", _PLACEMENT),
    51: _ignore("create placement policy", _PLACEMENT),
    52: _ignore("alter placement policy", _PLACEMENT),
    53: _ignore("drop placement policy", _PLACEMENT),
    54: _ignore("alter partition placement", _PLACEMENT),
    55: _ignore("modify schema default placement", _PLACEMENT),
    56: _ignore("alter table placement", _PLACEMENT),
    57: _ignore("cache table", _UPSTREAM),
    58: _ignore("alter statistics options", _UPSTREAM),
    59: _ignore("nocache table", _UPSTREAM),
    60: Rule("create tables", Handling.CREATE_TABLES, Spans.NEW),
    61: _replace("multi-schema change", f"{_COLUMNS}; a modified one as in 12", early=PUBLIC),
    62: _refuse(
        "flashback cluster",
        RECREATE,
        "all go back in time, and so do the tables: the feed stops at E, before that",
        early=WRITE_REORGANIZATION,
    ),
    63: Rule("recover schema", Handling.RECOVER_SCHEMA, Spans.BACK, _BACK),
    64: _replace("reorganize partition", _COPIES, Spans.PARTS_MOVED, early=PUBLIC),
    65: _replace("alter TTL", "what TTL deletes later are ordinary deletes"),
    67: _replace("remove TTL"),
    68: _ignore("create resource group", _UPSTREAM),
    69: _ignore("alter resource group", _UPSTREAM),
    70: _ignore("drop resource group", _UPSTREAM),
    71: _replace("alter table partition by", _COPIES, Spans.PARTS_MOVED, early=PUBLIC),
    72: _replace("remove partitioning", _COPIES, Spans.PARTS_MOVED, early=PUBLIC),
    73: _ignore("add columnar index", _UPSTREAM),
    74: _ignore("modify engine attribute", _UPSTREAM),
    75: _ignore("alter table mode", _INGESTED),
    76: _refuse("refresh meta", RECREATE, "tables were restored behind the back of the job table"),
    77: _ignore("modify schema read only", _UPSTREAM),
    78: _ignore("alter table affinity", _PLACEMENT),
}
"""TiDB's actions. An action that is not here is refused, because its meaning in a newer TiDB is not known."""

SILENT: Final = frozenset(
    action for action, rule in RULES.items() if rule.rows in (_NO_ROW_EVENTS, _BACK, _NO_EVENTS_OF_MOVED)
)
"""Actions that remove rows or bring them back without row events."""

EMITTED_BY_TICDC: Final = frozenset(
    {*range(1, 16), *range(17, 27), 32, 33, 37, 38, 41, 42, 47, 60, 61, 64, 65, 67, 71, 72}
)
"""The kinds in the whitelist of classic TiCDC (tiflow `pkg/filter/utils.go`). We also send 48 and 63. TiCDC
itself fails at the next DDL after a *recover schema*, because it has forgotten the schema."""

EARLY: Final = {action: rule.early for action, rule in RULES.items() if rule.early}
"""Actions that take effect before they are done, each with the schema state at which it does."""
