"""The text of a DDL on its way to targets: restored as TiCDC restores it.

The one place where the statement that a user wrote becomes the one that targets read. Filters have seen the
user's; every protocol sends what leaves here.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from tidegate.log import event
from tidegate.model.ddl import DdlEvent
from tidegate.tidb import sql

LOG = logging.getLogger(__name__)
SHOWN: Final = 500
"""Characters of a statement in the log."""


def for_targets(ddl: DdlEvent, charset: str, sql_mode: int) -> DdlEvent:
    """The event with its statement restored; one that cannot be read stays as it is, with a warning."""
    outgoing = sql.outgoing(ddl.query, charset=charset, sql_mode=sql_mode)
    if outgoing.problem:
        event(
            LOG,
            logging.WARNING,
            "a DDL goes out as it was written",
            finished_ts=ddl.finished_ts,
            job=ddl.job_id,
            table=f"{ddl.schema}.{ddl.table}",
            why=outgoing.problem,
            statement=ddl.query[:SHOWN],
        )
    return replace(ddl, query=outgoing.text)
