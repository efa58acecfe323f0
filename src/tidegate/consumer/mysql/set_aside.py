"""Tables that are set aside in a database: what is stored, and when a table cannot be set aside.

    position   gets their entries, and does not move
    begun      the position of a write that was begun gets them too, so it is completed without these tables
    lanes      their lanes have other rows in that write now: `batch.OPEN` until it is written again
    ddl        a DDL of these tables that was begun is no longer noted as begun

All of it is one transaction. So a restart finds either the failure before it, and meets it again, or the
tables set aside and nothing of them half done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidegate.consumer.applying.target import Name, TableFailed
from tidegate.consumer.engine.position import Position, SetAside
from tidegate.consumer.mysql.ddl_note import begun_in, without_begun
from tidegate.consumer.mysql.progress import Progress, TargetRecord
from tidegate.errors import InvalidInput


def note(
    progress: Progress,
    held: TargetRecord,
    failed: TableFailed,
    begin: Position,
    lanes: Sequence[int],
    attempted: str,
) -> tuple[SetAside, ...]:
    """Store that the tables of a failure are set aside; returns their entries.

    `held`: the record as the last takeover found it. `begin`: the position if there is none. `lanes`: those
    that may have rows of the tables. `attempted`: as in `DdlRun`. Raises the cause if rows of the tables may
    be committed above the position, or if statements of a DDL may have changed them.
    """
    position = Position.from_json(held.position) if held.position is not None else begin
    begun = Position.from_json(held.begun) if held.begun is not None else None
    # A lane writes its rows of a table in one transaction. So before the table's lanes commit, none of its
    # rows are in. A lane that writes in parts may have committed some of them.
    if begun is not None and (begun.parts or any(map(progress.batch.through, lanes))):
        raise failed.cause
    known = any(name in held.definitions for name in failed.names)
    ddl = without_begun(held.ddl, attempted if failed.ddl is not None else "", known=known)
    if ddl is None:
        raise failed.cause
    entries = failed.entries(position)
    after = begun.without_tables(entries).to_json() if begun is not None else None
    open_lanes = lanes if begun is not None else ()
    progress.amend(position.without_tables(entries).to_json(), after, ddl, open_lanes)
    return entries


def take_back(progress: Progress, held: TargetRecord, names: Sequence[Name]) -> None:
    """Remove the entries of these tables, and their definitions.

    InvalidInput if one is not set aside, or if a write or a DDL was begun.
    """
    position = Position.from_json(held.position) if held.position is not None else None
    aside = {one.name for one in position.set_aside} if position is not None else set()
    missing = [".".join(name) for name in names if name not in aside]
    if position is None or missing:
        raise InvalidInput(
            "a table is not set aside",
            where=f"{progress.hold}, table {', '.join(missing)}",
            why=f"set aside: {', '.join(sorted(map('.'.join, aside))) or 'none'}",
            fix="name the table as `tidegate consumer status` shows it",
        )
    if held.begun is not None or begun_in(held.ddl) is not None:
        raise InvalidInput(
            "a table cannot be taken back in the middle of a write",
            where=str(progress.hold),
            why="a write or a DDL was begun, and must end as it began",
            fix="run the consumer, and stop it with SIGTERM",
        )
    left = tuple(one for one in position.set_aside if one.name not in names)
    progress.amend(replace(position, set_aside=left).to_json(), None, held.ddl or "", forgotten=names)
