"""A schema change event, as the owner sends it and the consumer applies it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

WITHOUT_VALIDATION: Final = " WITHOUT VALIDATION"
"""The end of an EXCHANGE PARTITION's query if TiDB has not checked that the rows belong to the partition."""


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """One DDL with everything that a target needs; a batch job is split into one event per table.

    Rows with commit_ts <= finished_ts have the schema before it. `before` and `after` are TableInfo
    JSON, None if there is no table before or after it (create, drop, schema DDL).
    """

    job_id: int
    seq: int
    """Number of this event within its job, from 0."""
    start_ts: int
    """The job's start_ts, at which time defaults of added columns are evaluated
    (docs/formats/ddl.md#in-a-header)."""
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
    """The names before a rename, otherwise equal to schema and table."""
    schema_version: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    added_ids: tuple[int, ...]
    """Physical table ids that exist from finished_ts on."""
    removed_ids: tuple[int, ...]
    """Physical table ids that end at finished_ts."""
    time_zone: str = ""
    """Time zone of the session that ran it: `UTC`, a name, or seconds east of UTC as `+28800`. Empty: not
    known.
    """
    moved_to: str = ""
    """The topic of the table's rows from here on, if it differs from the event's own topic. That happens
    after a rename, and after an exchange: the event is in the plain table's topic, and this is the topic of
    the partitioned table."""
