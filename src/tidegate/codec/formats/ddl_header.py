"""The header `tidegate-ddl`: a whole DdlEvent as JSON, in addition to the protocol's own DDL message.

A consumer builds the DDL for its target from the TableInfo in it, instead of trusting SQL text
(docs/formats/ddl.md#in-a-header). Members are the fields of `model.ddl.DdlEvent`; `format` is 1.
`timestamp_zone` is the changefeed's: the time zone of the TIMESTAMP texts on its topics, which most protocols
do not send. It, `time_zone` and `moved_to` may be missing: topics that an earlier release has begun contain
headers without them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import orjson

from tidegate.codec.base import DDL_HEADER
from tidegate.errors import Undecodable
from tidegate.model.ddl import DdlEvent

FORMAT: Final = 1
ZONE: Final = "timestamp_zone"
_NAMES: Final = tuple(field.name for field in fields(DdlEvent))
_LATER: Final = {"time_zone": "", "moved_to": ""}
"""Members that may be missing in this format, and the values that they have then."""
_TEXTS: Final = ("query", "schema", "table", "old_schema", "old_table", "time_zone", "moved_to")
_INFOS: Final = ("before", "after")
_IDS: Final = ("added_ids", "removed_ids")


def encode(event: DdlEvent, timestamp_zone: str = "") -> bytes:
    """The header's bytes; `timestamp_zone`: that of the topic's TIMESTAMP texts; empty leaves it out."""
    zone = {ZONE: timestamp_zone} if timestamp_zone else {}
    return orjson.dumps({"format": FORMAT} | {name: getattr(event, name) for name in _NAMES} | zone)


def headers(event: DdlEvent, timestamp_zone: str) -> tuple[tuple[str, bytes], ...]:
    """The headers of a DDL message."""
    return ((DDL_HEADER, encode(event, timestamp_zone)),)


def timestamp_zone(header: bytes) -> str:
    """The zone of the topic's TIMESTAMP texts; empty: the header lacks it. `decode` must accept it."""
    found = orjson.loads(header).get(ZONE, "")
    return found if isinstance(found, str) else ""


def decode(header: bytes) -> DdlEvent:
    """The event. Raises Undecodable if the bytes are not such a header."""
    try:
        found = orjson.loads(header)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError(f"not an object of format {FORMAT}")
        found = _LATER | found
        return DdlEvent(**{name: _checked(name, found[name]) for name in _NAMES})
    except (ValueError, KeyError) as error:
        raise Undecodable(
            "a DDL header cannot be read",
            where=f"header {DDL_HEADER}",
            why=str(error),
            fix="check that the topic was written by this release",
        ) from error


def _checked(name: str, value: Any) -> Any:
    if name in _IDS:
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise ValueError(f"{name} is not a list of integers")
        return tuple(value)
    wanted = str if name in _TEXTS else (dict, type(None)) if name in _INFOS else int
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise ValueError(f"{name} is {type(value).__name__}")
    return value
