"""The questions of a worker on another machine to its capture, and the answers: one class each. Pure.

    call        worker -> capture                   capture -> worker, or Failed
    Ask         GetSpec, GetDurable, GetBounds      SpecContent, DurableRows, BoundsContent
                GetSpan, GetBase, SetAside          SpanKeys, BaseFound, Kept
                GetGranted, GetBegun                Granted, Begun
    Read        ReadEvents                          events
    Catalogue   ReadBase                            bytes

All classes are JSON objects (`model.wire`). In the answers of Read and Catalogue one byte comes first, which
says whether there is more, or that a Failed follows. Each end parses a message once when it arrives, and
refuses what it does not know.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from tidegate.eventstore.store_view import Wanted
from tidegate.model.position import Place
from tidegate.model.reports import Failed
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.model.wire import FORMS, INT, Form, Wire, listed
from tidegate.mounter.bases import Base
from tidegate.pipeline.exchange.feed import Bounds, DurableBefore, FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.exchange.work import Begun, Lease, LoadedRange
from tidegate.sink import quarantine


@dataclass(frozen=True, slots=True)
class GetSpec:
    """The incarnation's specification. Answer: SpecContent."""


@dataclass(frozen=True, slots=True)
class GetDurable:
    """The rows that earlier incarnations have delivered (`Access.durable`). Answer: DurableRows."""


@dataclass(frozen=True, slots=True)
class GetBounds:
    """Up to which ts each span may be delivered. Answer: BoundsContent."""


@dataclass(frozen=True, slots=True)
class GetSpan:
    """The part of a span's manifest that workers need. Answer: SpanKeys."""

    span: str


@dataclass(frozen=True, slots=True)
class GetBase:
    """The base of the catalogue from which rows after `ts` are decoded. Answer: BaseFound."""

    ts: Timestamp


@dataclass(frozen=True, slots=True)
class SetAside:
    """Append entries to the changefeed's quarantine. Answer: Kept, once they are on disk."""

    entries: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class GetGranted:
    """The ranges that may be written now. Answer: Granted, if the worker still has this lease."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class GetBegun:
    """Where to resume, from the records that the sink keeps. Answer: Begun."""

    records: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class ReadEvents:
    """Events in the store's order, from the first one that is past a place."""

    spans: tuple[Range, ...]
    past: Place | None
    tables: tuple[int, ...] | None
    """Only rows of these tables; None: of all."""


@dataclass(frozen=True, slots=True)
class ReadBase:
    """The bytes of a base file of the catalogue from an offset on."""

    base: Base
    offset: int


@dataclass(frozen=True, slots=True)
class SpecContent:
    """The spec of the incarnation. Its paths mean nothing on the worker's machine."""

    spec: FeedSpec


@dataclass(frozen=True, slots=True)
class DurableRows:
    """None: it is not known."""

    durable: DurableBefore | None


@dataclass(frozen=True, slots=True)
class BoundsContent:
    """The bounds as they are in the file now."""

    bounds: Bounds


@dataclass(frozen=True, slots=True)
class SpanKeys:
    """The keys of a span, and up to which ts its events were dropped."""

    keys: Span
    dropped_to: Timestamp


@dataclass(frozen=True, slots=True)
class BaseFound:
    """None: there is no base yet."""

    base: Base | None


@dataclass(frozen=True, slots=True)
class Kept:
    """The entries are in the quarantine."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The ranges that may be written now."""

    ranges: tuple[Span, ...]


Question = GetSpec | GetDurable | GetBounds | GetSpan | GetBase | SetAside | GetGranted | GetBegun
Answer = SpecContent | DurableRows | BoundsContent | SpanKeys | BaseFound | Kept | Granted | Begun
Fetch = ReadEvents | ReadBase
Kind = TypeVar("Kind")

QUESTIONS: Final[tuple[type[Question], ...]] = (
    GetSpec, GetDurable, GetBounds, GetSpan, GetBase, SetAside, GetGranted, GetBegun
)  # fmt: skip


NOWHERE: Final = Path("/nonexistent")
"""The changefeed's folder, on a machine that has none."""


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object is none")
    return value


def _entries(value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list):
        raise ValueError("a list of entries is none")
    try:
        return tuple(quarantine.from_json(_object(one)) for one in value)
    except (binascii.Error, TypeError) as error:
        raise ValueError(f"the bytes of an entry are not in base64: {error}") from error


def _records(value: Any) -> dict[str, bytes]:
    try:
        return {key: base64.b64decode(text, validate=True) for key, text in _object(value).items()}
    except (binascii.Error, TypeError) as error:
        raise ValueError(f"a record is not in base64: {error}") from error


def _dumped_records(records: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in records.items()}


def _place(value: Any) -> Place | None:
    match value:
        case None:
            return None
        case [commit_ts, start_ts, rank]:
            return INT.load(commit_ts), INT.load(start_ts), INT.load(rank)
        case [commit_ts, start_ts, rank, str(key)]:
            return INT.load(commit_ts), INT.load(start_ts), INT.load(rank), bytes.fromhex(key)
        case _:
            raise ValueError(f"{value!r:.80} is no place in the event store")


def _dumped_place(place: Place | None) -> list[Any] | None:
    return None if place is None else [*place[:3], *(key.hex() for key in place[3:])]


def _tables(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError("a list of table ids is none")
    return tuple(INT.load(one) for one in value)


def _base(value: Any) -> Base:
    match value:
        case [since, ts]:
            return Base(INT.load(since), INT.load(ts))
        case _:
            raise ValueError(f"{value!r:.80} is no base of the catalogue: two ts")


def _spec(value: Any) -> FeedSpec:
    return FeedSpec.from_json(_object(value), NOWHERE)


def _wanted(value: Any) -> dict[str, Wanted]:
    """The bits are in hex, because there may be thousands of them."""
    try:
        return {name: (INT.load(first), int(bits, 16)) for name, (first, bits) in _object(value).items()}
    except TypeError as error:
        raise ValueError(f"wanted tables are a first id, and bits in hex: {error}") from error


def _dumped_wanted(wanted: Mapping[str, Wanted]) -> dict[str, list[Any]]:
    return {name: [first, f"{bits:x}"] for name, (first, bits) in wanted.items()}


def _durable(value: Any) -> DurableBefore | None:
    try:
        return None if value is None else DurableBefore.from_json(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"what is durable has another form: {error!r}") from error


def _option(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else load(value)


_WIRE: Final = Wire(
    {
        "FeedSpec": Form(FeedSpec.to_json, _spec),
        "dict[str, int]": FORMS["Mapping[str, int]"],
        "dict[str, Wanted]": Form(_dumped_wanted, _wanted),
        "Sequence[Mapping[str, Any]]": Form(lambda some: [quarantine.to_json(one) for one in some], _entries),
        "Mapping[str, bytes]": Form(_dumped_records, _records),
        "Place | None": Form(_dumped_place, _place),
        "tuple[int, ...] | None": Form(lambda ids: None if ids is None else list(ids), _tables),
        "Base": Form(list, _base),
        "Base | None": Form(_option(list), _option(_base)),
        "DurableBefore | None": Form(_option(DurableBefore.to_json), _durable),
        "tuple[Span, ...]": listed(FORMS["Span"]),
    },
    separator="-",
)
_WIRE.add({"Bounds": _WIRE.part(Bounds)})
_WIRE.add({"Lease": _WIRE.part(Lease), "tuple[Range, ...]": _WIRE.parts(Range)})
_WIRE.add({"tuple[LoadedRange, ...]": _WIRE.parts(LoadedRange)})
to_json: Final = _WIRE.to_json
parse: Final = _WIRE.parse


def parse_answer(message: Mapping[str, Any], kind: type[Kind]) -> Kind | Failed:
    """Parse an answer of this kind, or the error in place of it. Raises ValueError as `parse`."""
    # First: a Failed may come in place of any answer, and must not be taken for a defect of the capture.
    if isinstance(message, dict) and message.get("type") == "failed":
        return parse(message, [Failed])
    return parse(message, [kind])
