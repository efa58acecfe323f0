"""Blocks: many raw changes as one Arrow record batch.

The puller emits blocks, the event store keeps them and the mounter decodes them. Rows in the event store are
sorted by (commit_ts, start_ts, delete < update < insert, key); a new block from the matcher is in arrival
order.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

OP_PUT: Final = 1
OP_DELETE: Final = 2

ENTRY_SCHEMA: Final = pa.schema(
    [
        pa.field("commit_ts", pa.uint64(), nullable=False),
        pa.field("start_ts", pa.uint64(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("old_value", pa.binary(), nullable=False),
    ]
)
"""One committed change per row.

op: OP_PUT or OP_DELETE, as in cdcpb. key: raw user key. value: empty for OP_DELETE. old_value: empty if
there was none (a TiDB row value is never empty). int32 offsets: a block holds less than 2 GiB of each column;
makers cut blocks at 8 MiB or 65,536 rows, whichever comes first.
"""

MAX_BLOCK_ROWS: Final = 65_536
MAX_BLOCK_BYTES: Final = 8 << 20
