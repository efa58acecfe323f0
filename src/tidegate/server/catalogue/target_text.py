"""Restores the text of a DDL for targets, as TiCDC does.

This is the only place where the user's statement becomes the statement that targets read. Filters use the
user's statement; every protocol sends the restored one.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from tidegate.log import event
from tidegate.model.ddl import DdlEvent
from tidegate.tidb.sql import restore

LOG = logging.getLogger(__name__)
SHOWN: Final = 500
"""The number of characters of a statement in the log."""


def for_targets(ddl: DdlEvent, charset: str, sql_mode: int) -> DdlEvent:
    """The event with its statement restored; a statement that cannot be parsed stays, with a warning."""
    # docs/guarantees.md#a-ddls-text-is-the-one-that-ticdc-sends: a statement that our parser cannot read goes
    # out unchanged, because a changefeed must not stop for a text.
    outgoing = restore.outgoing(ddl.query, charset=charset, sql_mode=sql_mode)
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
