"""A puller that closes under pressure must not let later marks rise above rows that it could not append."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from tidegate.errors import Retryable
from tidegate.puller.match.matched import Matched
from tidegate.puller.puller import Puller


def test_rows_that_wait_for_room_end_their_stream_when_the_puller_closes() -> None:
    closing = threading.Event()
    closing.set()
    advanced: list[Any] = []
    crowded = SimpleNamespace(
        may_wait=False,
        _closing=closing,
        _store=SimpleNamespace(pressure=True),
        _upkeep=SimpleNamespace(backpressure=SimpleNamespace(waits=True, shedding=False)),
        _spans=SimpleNamespace(advance=lambda *marks: advanced.append(marks)),
    )
    block = pa.record_batch({"key": [b"k"]})
    none = np.zeros(0, np.int64)
    matched = Matched([(1, block)], [], none, none.astype(np.uint64), 1, 1)
    with pytest.raises(Retryable, match="closes"):
        Puller.matched(cast(Puller, crowded), cast(Any, None), matched)
    assert not advanced
