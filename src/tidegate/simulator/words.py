"""Short descriptions of messages between captures, for the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import orjson

from tidegate.control.messages import (
    FROM_OWNER,
    FROM_PROCESSOR,
    Announce,
    Checkpoint,
    Dispatch,
    DispatchResponse,
    RangeProgress,
    RangeState,
    RangeStatus,
    Sync,
    Wish,
    parse,
)
from tidegate.simulator.upstream import short


def words(data: bytes) -> str:
    """Describe one encoded message."""
    message = parse(orjson.loads(data), (*FROM_OWNER, *FROM_PROCESSOR))
    match message:
        case Announce():
            return f"announce of owner {message.header.owner_rev}"
        case Dispatch():
            what = f"{message.wish} {message.incarnation}" if message.wish is Wish.RUN else str(message.wish)
            return f"{what}, up to {short(message.bound)}"
        case Sync():
            return f"sync, {_state(message.ranges)}{_reached(message.checkpoints)}"
        case DispatchResponse():
            failed = f", failed: {message.error.what}" if message.error is not None else ""
            return f"answer of incarnation {message.incarnation}: {_state(message.ranges)}{failed}"
        case Checkpoint():
            return f"checkpoint of incarnation {message.incarnation}{_reached(message.ranges)}"
        case _:
            assert_never(message)


def _state(ranges: Sequence[RangeStatus]) -> str:
    if not ranges:
        return "nothing is held"
    runs = any(one.state is RangeState.RUNNING for one in ranges)
    return (
        f"{len(ranges)} ranges {'run' if runs else 'are prepared'}"
        if len(ranges) > 1
        else ("1 range runs" if runs else "1 range is prepared")
    )


def _reached(ranges: Sequence[RangeProgress]) -> str:
    least = min((one.checkpoint_ts for one in ranges), default=0)
    return f", durable up to {short(least)}" if least else ""
