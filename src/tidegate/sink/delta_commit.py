"""What every commit to a Delta table of a target has in common: its options, and the properties of tables.

A commit fails if somebody else was first. By default delta-rs puts an append behind any other commit, and
two writers of one table would then both succeed: no commit here may be tried again by delta-rs.

The cleanup of logs is switched off both in the hooks and in the tables. It goes by age alone, and would
delete the log of versions that snapshots still name.

Statistics are written for integer and date columns only: delta-rs cuts decimals to 64 bits and timestamps
to milliseconds in them, and a merge that skips files by such bounds would miss rows.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, PostCommitHookProperties

MARK: Final = "tidegate.target"
"""The table property that says to which target a table belongs."""
WRITER: Final = "tidegate.writer"
"""The table property of the table of snapshots that says who may write the target: see `takeover`."""
HOOKS: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""After a commit: `slot_files` deletes old files of the log instead."""
ONCE: Final = CommitProperties(max_commit_retries=0)
"""A commit fails if somebody else was first."""
_STATS_SAFE: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32())
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMITTED_BY_ANOTHER: Final = ("already exists", "Invalid table version")


def configuration(schema: pa.Schema) -> dict[str, str]:
    """The properties of a table with these columns, without the mark."""
    safe = [f.name for f in schema if f.type in _STATS_SAFE and _PLAIN_NAME.fullmatch(f.name)]
    settings = {"delta.enableExpiredLogCleanup": "false", "delta.dataSkippingNumIndexedCols": "0"}
    return settings | ({"delta.dataSkippingStatsColumns": ",".join(safe)} if safe else {})


def committed_by_another(error: Exception) -> bool:
    """Whether an error of delta-rs without a class of its own says that a commit exists or was skipped."""
    return any(sign in str(error) for sign in _COMMITTED_BY_ANOTHER)
