"""Messages that define a table version's columns, sent before its rows, for protocols whose rows do not.

A table version's rows that become messages together are preceded by one such message in each partition for
which there are any, in the transaction of the rows. So a reader that goes back from a row, in its partition,
finds the definition before it reaches any other rows. The producer need not remember across a restart or an
aborted transaction which ones it has sent.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidegate.codec.base import RECORD_OVERHEAD, CodecOptions
from tidegate.codec.registry import codec_of
from tidegate.errors import InvalidInput
from tidegate.model.message import MessageBlock
from tidegate.model.schema import TableSchema


def definition_block(
    table: TableSchema,
    partition: npt.NDArray[np.int32],
    options: CodecOptions,
    build_ms: int,
    stated: set[int],
) -> MessageBlock | None:
    """The definition of a table version for those of these partitions that are not in `stated`, which then
    has them; None if there are none, or if the protocol needs none.

    Raises InvalidInput if it does not fit a message.
    """
    definitions = codec_of(options).definitions
    if definitions is None:
        return None
    wanted = sorted(set(np.unique(partition).tolist()) - stated)
    if not wanted:
        return None
    stated.update(wanted)
    value = definitions.encode(table, options, build_ms).value
    assert value is not None, "a definition has a value and no key"
    if len(value) + RECORD_OVERHEAD > options.max_message_bytes:
        raise InvalidInput(
            "the definition of a table is larger than one message may be",
            where=f"table {table.name}, {len(table.columns)} columns",
            why=f"it needs {len(value) + RECORD_OVERHEAD} bytes, max-message-bytes is "
            f"{options.max_message_bytes}",
            fix="raise max-message-bytes in the sink URI and max.message.bytes of the topic",
        )
    zeros = np.zeros(len(wanted), dtype=np.int64)
    return MessageBlock(
        data=np.frombuffer(value, dtype=np.uint8),
        key_start=zeros,
        key_length=zeros - 1,
        value_start=zeros,
        value_length=zeros + len(value),
        partition=np.array(wanted, dtype=np.int32),
        rows=np.zeros(len(wanted), dtype=np.int32),
    )
