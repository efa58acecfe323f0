"""The fence of a database target: statements that take effect only under our token.

A row of `progress` is updated where it still has our token. If another consumer has raised the token, no row
matches, and the transaction is given up.
"""

from __future__ import annotations

from typing import Any

from tidegate.consumer.applying.target import TargetFailed
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.session import SCHEMA, Connection
from tidegate.errors import Fenced


def guarded(hold: Hold, batch: int, statement: str, *values: Any) -> None:
    """Run an update in the control connection, which must match a row. Otherwise raises `unmatched`."""
    if not hold.execute(statement, *values):
        raise unmatched(hold, batch, hold.control)


def unmatched(hold: Hold, batch: int, connection: Connection) -> Fenced | TargetFailed:
    """Why a guarded statement matched no row: Fenced only if another consumer has raised the token.

    `batch`: the number of the last batch that this process knows.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT token, batch FROM `{SCHEMA}`.`progress` WHERE consumer=%s", (hold.consumer,))
        rows = cursor.fetchall()
    if rows and rows[0][0] != hold.token:
        return hold.fenced()
    return TargetFailed(
        "the target's record of this consumer is not as it was left",
        where=f"{hold.server}, schema {SCHEMA}, consumer {hold.consumer}",
        why=f"batch {rows[0][1]}, and not {batch}, under our token" if rows else "it is gone",
        fix=f"restore all tables of one moment, those of {SCHEMA} too, or start a new target",
    )
