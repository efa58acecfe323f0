"""How a request type is served: its keys, the checks that it needs, its response, its handler. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys
from tidegate.tikv.raft.region import Region
from tidegate.tikv.txn.scheduler import Answer

Serve = Callable[[Region, Any, list[bytes], Answer], None]
"""Serves a checked request. Arguments: region, request, the stored form of its keys, `answer`."""


class Call(NamedTuple):
    """One request type. `keys` or `range` return its keys in the client's form; `stamps` are the fields with
    timestamps that raise max_ts.
    """

    response: Callable[..., Any]
    serve: Serve
    keys: Callable[[Any], Sequence[bytes]] | None = None
    range: Callable[[Any], tuple[bytes, bytes]] | None = None
    raw: bool = False
    stamps: tuple[str, ...] = ()


class RefusalError(Exception):
    """The request is invalid; the text of this error goes into the response."""


def refused(response: Any, text: str) -> Any:
    """The empty response, with an error in the form that its type has."""
    fields = response.DESCRIPTOR.fields_by_name
    error = pb.KeyError(abort=text)
    if "errors" in fields:
        response.errors.append(error)
    elif "error" in fields and fields["error"].message_type is None:
        response.error = text
    elif "error" in fields:
        response.error.CopyFrom(error)
    elif "pairs" not in fields and "kvs" not in fields:
        response.region_error.message = text
    else:
        getattr(response, "pairs" if "pairs" in fields else "kvs").add(error=error)
    return response


def the_key(request: Any) -> Sequence[bytes]:
    """The key of a request for one key."""
    return (request.key,)


def the_keys(request: Any) -> Sequence[bytes]:
    """The keys of a request for several keys."""
    found: Sequence[bytes] = request.keys
    return found


def mutated(request: Any) -> Sequence[bytes]:
    """The keys of a request with mutations."""
    return [mutation.key for mutation in request.mutations]


def the_range(request: Any) -> tuple[bytes, bytes]:
    """The range of a request for one range."""
    return request.start_key, request.end_key


def scan_range(request: Any) -> tuple[bytes, bytes]:
    """The range of a scan as (low, high); a descending scan has its upper bound first."""
    low, high = request.start_key, request.end_key
    return (high, low) if request.reverse else (low, high)


def clip(region: Region, low: bytes, high: bytes) -> tuple[bytes, bytes]:
    """Encoded bounds of raw [low, high) inside the region; an empty `high` is infinity."""
    start = max(region.start, keys.encode(low)) if low else region.start
    if not high:
        return start, region.end
    end = keys.encode(high)
    return start, min(end, region.end) if region.end else end
