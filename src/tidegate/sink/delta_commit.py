"""The options that all commits to the Delta tables of a target share, and the properties of tables.

A commit must fail if another process has committed the same version. By default delta-rs retries an append
after the other commit, so that two writers of one table would both succeed. Therefore delta-rs must not retry
any commit made here.

The cleanup of logs is switched off both in the hooks and in the tables. It looks only at the age of files,
and would delete the log of versions that snapshots still name.

Statistics are written for integer and date columns only: delta-rs cuts decimals to 64 bits and timestamps
to milliseconds in them, and a merge that skips files by such bounds would miss rows.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, PostCommitHookProperties

MARK: Final = "tidegate.target"
"""The table property with the identity of the target to which a table belongs."""
WRITER: Final = "tidegate.writer"
"""The property of the table of snapshots that names the process that may write the target: see `takeover`."""
HOOKS: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""Actions of delta-rs after a commit. `slot_files` deletes old files of the log instead of delta-rs."""
ONCE: Final = CommitProperties(max_commit_retries=0)
"""A commit fails if another process has committed the same version."""
_STATS_SAFE: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32())
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMITTED_BY_ANOTHER: Final = ("already exists", "Invalid table version")


def configuration(schema: pa.Schema) -> dict[str, str]:
    """The properties of a table with these columns, except the mark."""
    safe = [f.name for f in schema if f.type in _STATS_SAFE and _PLAIN_NAME.fullmatch(f.name)]
    settings = {"delta.enableExpiredLogCleanup": "false", "delta.dataSkippingNumIndexedCols": "0"}
    return settings | ({"delta.dataSkippingStatsColumns": ",".join(safe)} if safe else {})


def committed_by_another(error: Exception) -> bool:
    """Whether an error of delta-rs that has no class of its own says that a commit exists or was skipped."""
    return any(sign in str(error) for sign in _COMMITTED_BY_ANOTHER)
