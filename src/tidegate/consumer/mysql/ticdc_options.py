"""Options of TiCDC's MySQL sink URI, and what takes their place here.

Somebody who comes from TiCDC writes its URI as `--target`. Such an option is refused and not ignored, because
it would promise what does not happen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_MANY_ROWS: Final = "a statement always has many rows, and an update is a delete and an insert"
_NO_LIMIT: Final = "a statement has no time limit, and TCP keepalive finds a server that is gone"

REPLACED: Final = {
    "worker-count": "--lanes N is the number of connections that write",
    "max-txn-row": "--transaction-max-bytes N bounds a transaction",
    "max-multi-update-row": _MANY_ROWS,
    "max-multi-update-row-size": _MANY_ROWS,
    "batch-dml-enable": _MANY_ROWS,
    "multi-stmt-enable": _MANY_ROWS,
    "cache-prep-stmts": "values are written into the statements, and none is prepared",
    "tidb-txn-mode": "transactions are always pessimistic, which fences earlier consumers",
    "safe-mode": "each change is written once, after a restart too",
    "time-zone": "--time-zone ZONE is the zone of the topic's TIMESTAMPs; sessions of the target use UTC",
    "timeout": "a connection is tried for 10 seconds",
    "read-timeout": _NO_LIMIT,
    "write-timeout": _NO_LIMIT,
    "has-vector-type": "types are read from the topic and from the target",
}
"""By TiCDC's option, what takes its place. `ssl-ca`, `ssl-cert`, `ssl-key` and `transaction-atomicity` exist
here, too."""


def replaced(names: Iterable[str]) -> list[tuple[str, str]]:
    """The options of TiCDC among these, each with what takes its place."""
    return [(name, REPLACED[name]) for name in names if name in REPLACED]
