"""Which DDL events a changefeed sends, by its table filter and by which tables can be replicated.

`admit` and `concerned` decide about one event or one refused job; pure. The catalogue (`schema_store`)
applies every job, independently of the filters, so that all feeds decode rows with the same schemas.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import InvalidInput
from tidegate.mounter.ddl import RENAME_TABLE
from tidegate.mounter.ddl_transition import EmittedDdl, Refusal
from tidegate.mounter.table_version import TableVersion
from tidegate.tidb.table_filter import TableFilter

_NO_KEY: Final = (
    "give it a primary key or a unique key over NOT NULL columns, set force-replicate, or exclude it"
)


def follows(table: TableVersion, table_filter: TableFilter, *, force_replicate: bool = False) -> bool:
    """Whether a changefeed follows a table's rows."""
    return (
        not table.is_view
        and (table.eligible or force_replicate)
        and table_filter.matches(table.schema, table.table)
    )


def concerned(refusal: Refusal, table_filter: TableFilter) -> bool:
    """Whether a changefeed must stop at a refused job."""
    # It is not known what the job is about, so no changefeed may pass it.
    if not refusal.schema:
        return True
    if not refusal.table:
        return table_filter.matches_schema(refusal.schema)
    return table_filter.matches(refusal.schema, refusal.table)


def admit(emitted: EmittedDdl, table_filter: TableFilter, *, force_replicate: bool = False) -> bool:
    """Whether a changefeed sends an event. Raises InvalidInput if the changefeed must stop.

    It must stop in three cases: a rename brings a table into the filter (its earlier rows were never sent); a
    table loses its last handle key (its rows cannot be identified any more); rows are exchanged with a table
    that is not replicated. Events of tables without a handle key are not sent. A drop is always sent, as
    TiCDC does, because the target may have the table.
    """
    event = emitted.event
    if not event.table:
        return table_filter.matches_schema(event.schema)
    new = table_filter.matches(event.schema, event.table)
    old = emitted.before is not None and table_filter.matches(event.old_schema, event.old_table)
    if emitted.job_names is not None:
        # Only the first and the last name of the job decide: no row is ever written under a name between
        # them. If the table was replicated, every step is sent, so that the target can follow to its last
        # name.
        first, last = emitted.job_names
        old, new = emitted.before is not None and table_filter.matches(*first), table_filter.matches(*last)
    # docs/guarantees.md#nothing-is-lost: a stop, because the rows from before the rename cannot be sent any
    # more.
    if event.action == RENAME_TABLE and new and not old:
        raise InvalidInput(
            "a table was renamed into the filter",
            where=f"{event.old_schema}.{event.old_table} to {_name(emitted)} at {event.finished_ts}",
            why="its rows from before the rename have not been replicated",
            fix="exclude it, or create a changefeed that replicates it from its start",
        )
    if emitted.partner is not None and _apart(emitted, emitted.partner, table_filter):
        raise InvalidInput(
            "rows were exchanged between a table that is replicated and one that is not",
            where=f"{_name(emitted)} and {emitted.partner.name} at {event.finished_ts}",
            why=event.query[:200],
            fix="let the filter match both or neither, and create the changefeed again from after this job",
        )
    # A dropped table has no keys to look at, and with force-replicate tables need none.
    if emitted.after is None or force_replicate:
        return new or old
    if new and not emitted.after.eligible and emitted.before is not None and emitted.before.eligible:
        raise InvalidInput(
            "a table lost its handle key",
            where=f"{_name(emitted)} at {event.finished_ts}",
            why=event.query[:200],
            fix=_NO_KEY,
        )
    return (new or old) and (
        emitted.after.eligible or (emitted.before is not None and emitted.before.eligible)
    )


def _name(emitted: EmittedDdl) -> str:
    return f"{emitted.event.schema}.{emitted.event.table}"


def _apart(emitted: EmittedDdl, partner: TableVersion, table_filter: TableFilter) -> bool:
    mine = table_filter.matches(emitted.event.schema, emitted.event.table)
    return mine != table_filter.matches(partner.schema, partner.table)
