"""A schema change event, as the owner delivers it and the consumer applies it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

WITHOUT_VALIDATION: Final = " WITHOUT VALIDATION"
"""How the query of an EXCHANGE PARTITION ends when TiDB has not checked that the rows belong there."""


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """One DDL with everything a target needs; batch jobs are split into one event a table.

    Rows with commit_ts <= finished_ts have the schema before it. `before` and `after` are TableInfo
    JSON (None where there is none: create, drop, schema DDL).
    """

    job_id: int
    seq: int
    """Number of this event within its job, from 0."""
    start_ts: int
    """The job's start_ts, which time defaults of added columns have (docs/formats/ddl.md#in-a-header)."""
    finished_ts: int
    action: int
    """TiDB's action code: docs/formats/ddl.md#the-jobs."""
    query: str
    """As TiCDC sends it."""
    schema: str
    table: str
    """Empty for schema DDL."""
    old_schema: str
    old_table: str
    """The names before a rename, else equal to schema and table."""
    schema_version: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    added_ids: tuple[int, ...]
    """Physical table ids that exist from finished_ts on."""
    removed_ids: tuple[int, ...]
    """Physical table ids that end at finished_ts."""
    time_zone: str = ""
    """Of the session that ran it: `UTC`, a name, or seconds east of UTC as `+28800`. Empty: not known."""
    moved_to: str = ""
    """The topic of the table's rows from here on, if it is another than the event's own: of a rename; of an
    exchange, which goes to the plain table's topic, that of the partitioned one."""
