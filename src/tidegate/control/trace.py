"""Records the events of a machine and its answers, and replays them. Pure.

    machine --Tap--> lines of JSON --replay--> a fresh machine: does it answer the same?

A machine's decisions depend only on its events. So the events of a real run, given to a fresh machine, must
produce the recorded effects. If they do not, the machine depends on something that is not an event, or the
code or the record has changed.

A segment is a head and the events after it, one JSON object a line:

    {"trace": 6, "release": "1.2.3", "machine": "owner", "name": "default/feed", "state": {...}}
    {"n": 1, "event": "report", "set": {...}, "args": [...], "named": {...}, "gave": ..., "shows": [...]}

    state   all that the machine holds when the segment begins
    set     attributes that were changed from outside since the previous event
    gave    the value that the call returned; or `raised`: the name of the exception
    shows   the attributes that others read after the event (`MachineKind.shows`)

A value without a form in JSON is an object with one member, whose name is the form: `{"tuple": [...]}`,
`{"bytes": "6b"}`, `{"Span": {...}}`. The record contains DDL text, but no rows and no table definitions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import partial
from itertools import chain
from operator import attrgetter
from types import ModuleType
from typing import Any, Final

import numpy as np
import orjson

from tidegate import __version__, errors
from tidegate.control import (
    barrier,
    coming_ddl,
    ddl_agreement,
    ddl_log,
    ended_records,
    granted_ranges,
    grants,
    messages,
    metadata,
    open_spans,
    outbox,
    outlet,
    received,
)
from tidegate.control import owner as owner_machine
from tidegate.control import processor as processor_machine
from tidegate.control.coming_ddl import ComingDdl
from tidegate.control.ddl_agreement import DdlAgreement
from tidegate.control.ddl_log import DdlLog
from tidegate.control.ended_records import EndedRecords
from tidegate.control.granted_ranges import GrantedRanges
from tidegate.control.messages import RangeColumns
from tidegate.control.open_spans import OpenSpans, Received
from tidegate.control.outbox import Outbox
from tidegate.control.owner import Owner
from tidegate.control.processor import Processor
from tidegate.control.received import Inbox
from tidegate.errors import InvalidInput, TidegateError
from tidegate.model import ddl, reports, span

VERSION: Final = 6
"""The version of the lines' form and of the machines' state. Records of another version are refused."""
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MachineKind:
    """A kind of machine, with the methods that are its events."""

    name: str
    type: type[Owner] | type[Processor]
    events: tuple[str, ...]
    """The methods that change it. All others only read."""
    inputs: tuple[str, ...]
    """The attributes that are set from outside."""
    shows: tuple[str, ...]
    """The attributes that others read after an event."""


OWNER: Final = MachineKind(
    "owner",
    Owner,
    events=(
        *("grant", "learn", "receive_ddl", "running", "report", "synced", "tick"),
        *("sink_open", "sink_lost", "ddl_done", "resolved_done", "repartition_done", "ask_repartition"),
        *("load_done", "persisted", "persist_failed"),
    ),
    inputs=("quiet_interval_s",),
    shows=("checkpoint", "persisted_ts", "resolved_sent", "barrier.bound", "agreement.lags"),
)
PROCESSOR: Final = MachineKind(
    "processor",
    Processor,
    events=(
        *("receive", "sync_soon", "raise_to", "confirm", "open", "close", "learn", "passed", "started"),
        *("report", "idle", "resolve", "over", "given_up", "failed", "tick"),
    ),
    inputs=("status", "needs", "ready", "received", "coming", "loads"),
    shows=("spans.is_open", "is_running", "ddl.known", "bound", "reach", "ddl.waiting"),
)
KINDS: Final = {kind.name: kind for kind in (OWNER, PROCESSOR)}

# --- values as JSON ------------------------------------------------------------------------------------

_MODULES: Final = (
    *(barrier, coming_ddl, ddl, ddl_agreement, ddl_log, ended_records, granted_ranges, grants),
    *(messages, metadata, open_spans, outbox, outlet),
    *(owner_machine, processor_machine, received, reports, span),
)
_PARTS: Final = (ComingDdl, DdlAgreement, DdlLog, EndedRecords, GrantedRanges, Inbox, OpenSpans, Outbox)
"""Parts of machines that are no dataclasses; all that they hold is recorded."""
_LEFT_OUT: Final = {"DdlEvent": frozenset({"before", "after"}), "OpenSpans": frozenset({"_shown"})}
"""Members that are not recorded: no machine reads them and they may be large, or they follow from others."""


def _defined_in(module: ModuleType) -> list[type]:
    return [
        one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__
    ]


_DEFINED: Final = {one.__name__: one for module in _MODULES for one in _defined_in(module)}
_ERRORS: Final = {one.__name__: one for one in _defined_in(errors) if issubclass(one, TidegateError)}


def encode(value: Any) -> Any:
    """The JSON form of a value. Raises TypeError for types that no machine holds."""
    match value:
        # Before `str`, of which it is a subclass: a plain string would lose its type.
        case StrEnum():
            if _DEFINED.get(type(value).__name__) is not type(value):
                raise TypeError(f"{type(value).__name__} has no form in a record")
            return {"enum": [type(value).__name__, value.value]}
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": str(value)}
        case bytes():
            return {"bytes": value.hex()}
        case list():
            return [encode(one) for one in value]
        # Columns are recorded by range, like the tuple that they are equal to.
        case tuple() | RangeColumns():
            return {"tuple": [encode(one) for one in value]}
        case deque():
            return {"deque": [encode(one) for one in value]}
        # Before `Set`, which matches it too.
        case frozenset():
            return {"frozenset": _sorted(value)}
        case Set():
            return {"set": _sorted(value)}
        case Mapping():
            return {"map": [[encode(key), encode(one)] for key, one in value.items()]}
        case np.ndarray():
            return {"ts": value.tolist()}
        case Received():
            return {"Received": [list(one) for one in value]}
        case _ if isinstance(value, _PARTS):
            return {type(value).__name__: _members(type(value).__name__, vars(value))}
        case TidegateError():
            parts = [value.what, value.where, value.why, value.fix]
            return {"error": [type(value).__name__, *map(str, parts)]}
    name = type(value).__name__
    if not is_dataclass(value) or _DEFINED.get(name) is not type(value):
        raise TypeError(f"{name} has no form in a record")
    return {name: _members(name, {one.name: getattr(value, one.name) for one in fields(value)})}


def _members(kind: str, members: Mapping[str, Any]) -> Record:
    left_out = _LEFT_OUT.get(kind, frozenset())
    return {name: None if name in left_out else encode(one) for name, one in members.items()}


def decode(form: Any) -> Any:
    """The inverse of `encode`. Raises ValueError for a form that it does not know."""
    if isinstance(form, list):
        return [decode(one) for one in form]
    if not isinstance(form, dict):
        return form
    ((name, body),) = form.items()
    if (build := _BUILDERS.get(name)) is not None:
        return build(body)
    kind = _DEFINED.get(name)
    if kind is None:
        raise ValueError(f"a value of the form {name!r:.80} is not known")
    members = {key: decode(one) for key, one in body.items()}
    return _filled(kind, members) if kind in _PARTS else kind(**members)


def _sorted(values: Iterable[Any]) -> list[Any]:
    """The forms of a set's values in a fixed order, so that equal sets give equal records."""
    return sorted(map(encode, values), key=orjson.dumps)


def _filled(kind: type, members: Mapping[str, Any]) -> Any:
    made: Any = object.__new__(kind)
    vars(made).update(members)
    return made


def _enum(body: list[str]) -> Any:
    name, value = body
    return _DEFINED[name](value)


def _error(body: list[str]) -> TidegateError:
    name, what, where, why, fix = body
    return _ERRORS[name](what, where=where, why=why, fix=fix)


_BUILDERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "enum": _enum,
    "float": float,
    "bytes": bytes.fromhex,
    "tuple": lambda body: tuple(map(decode, body)),
    "deque": lambda body: deque(map(decode, body)),
    "frozenset": lambda body: frozenset(map(decode, body)),
    "set": lambda body: set(map(decode, body)),
    "map": lambda body: {decode(key): decode(one) for key, one in body},
    "error": _error,
    "ts": lambda body: np.array(body, np.uint64),
    "Received": Received.by_name,
}

# --- recording -----------------------------------------------------------------------------------------


class Tap:
    """Records the events of one machine, for the machine's whole life.

    `write` is called with each event after the machine has handled it. A call that the machine makes to
    itself is not an event.
    """

    def __init__(
        self, kind: MachineKind, name: str, machine: Owner | Processor, write: Callable[[Record], None]
    ) -> None:
        assert type(machine) is kind.type
        self._kind, self._name, self._machine, self._write = kind, name, machine, write
        self._number = 0
        self._busy = False
        self._inputs = self._inputs_now()
        for event in kind.events:
            setattr(machine, event, partial(self._call, event, getattr(machine, event)))

    def head(self) -> Record:
        """The first line of a segment that begins now."""
        held = {name: one for name, one in vars(self._machine).items() if name not in self._kind.events}
        what = {"trace": VERSION, "release": __version__, "machine": self._kind.name, "name": self._name}
        return what | {"state": {name: encode(one) for name, one in held.items()}}

    def _inputs_now(self) -> Record:
        return {name: encode(getattr(self._machine, name)) for name in self._kind.inputs}

    def _call(self, event: str, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if self._busy:
            return method(*args, **named)
        # An iterator can be read only once, and it is both recorded and passed on.
        given = [list(one) if isinstance(one, Iterator) else one for one in args]
        before, self._inputs = self._inputs, self._inputs_now()
        self._number += 1
        record: Record = {"n": self._number, "event": event}
        record["set"] = {name: one for name, one in self._inputs.items() if before[name] != one}
        # Encoded before the call, which may change what it is given.
        record["args"] = [encode(one) for one in given]
        record["named"] = {name: encode(one) for name, one in named.items()}
        self._busy = True
        try:
            gave = method(*given, **named)
            record["gave"] = encode(gave)
            return gave
        except Exception as error:
            record["raised"] = type(error).__name__
            raise
        finally:
            self._busy = False
            record["shows"] = _shown(self._kind, self._machine)
            self._write(record)


def _shown(kind: MachineKind, machine: Owner | Processor) -> list[Any]:
    return [encode(attrgetter(name)(machine)) for name in kind.shows]


# --- replaying -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """The first event at which a fresh machine differs from the record."""

    line: int
    """The line in the segment. The head is line 1."""
    event: str
    what: str
    """The part that differs: `effects`, `exception`, or one of `MachineKind.shows`. `number`: events are
    missing before it."""
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of replaying a segment."""

    machine: str
    name: str
    release: str
    """The release that recorded it."""
    events: int
    """How many events gave the recorded result."""
    difference: Difference | None
    torn: bool = False
    """Whether the last line is incomplete, because the process was killed. Such a line is ignored."""


def replay(lines: Iterable[bytes]) -> Replayed:
    """Give the events of a segment to a fresh machine, up to the first difference.

    `lines`: with their line ends. Raises InvalidInput if they are not a record of this version.
    """
    source = iter(lines)
    head, kind = _begun(next(source, b""))
    try:
        machine = _filled(kind.type, {name: decode(one) for name, one in head["state"].items()})
    except Exception as error:  # a file may hold anything
        raise _unreadable(1, error) from error
    done, number, torn = 0, None, False
    found = Replayed(kind.name, str(head.get("name", "")), str(head.get("release", "")), 0, None)
    for line, text in enumerate(source, start=2):
        if not text.endswith(b"\n"):
            torn = True
            break
        record = _parsed(text, line)
        try:
            difference = _missing(record, number, line) or _differs(kind, machine, record, line)
            number = record["n"]
        except Exception as error:  # not one of the machine's own, which `_differs` compares
            raise _unreadable(line, error) from error
        if difference is not None:
            return Replayed(found.machine, found.name, found.release, done, difference)
        done += 1
    return Replayed(found.machine, found.name, found.release, done, None, torn)


def _begun(text: bytes) -> tuple[Record, MachineKind]:
    """The first line of a segment, and its kind of machine. Raises InvalidInput for that of anything else."""
    try:
        head = orjson.loads(text)
    except ValueError:
        head = None
    if not text:
        why = "it is empty"
    elif not isinstance(head, dict):
        why = "its first line is no JSON object" + ("" if text.endswith(b"\n") else ", or was cut off")
    elif head.get("trace") == VERSION and (kind := KINDS.get(str(head.get("machine")))) is not None:
        return head, kind
    else:
        why = f"it says trace {head.get('trace')!r:.40}, machine {head.get('machine')!r:.40}"
    raise InvalidInput(
        "this is not a record of a machine that this release can replay",
        where="line 1",
        why=why,
        fix=f"give files that `tidegate server --record` wrote, of version {VERSION}",
    )


def _missing(record: Record, before: int | None, line: int) -> Difference | None:
    if before is None or record["n"] == before + 1:
        return None
    return Difference(line, record["event"], "number", str(record["n"]), str(before + 1))


def _differs(kind: MachineKind, machine: Any, record: Record, line: int) -> Difference | None:
    """Make one recorded call. Returns the first difference from the record."""
    event = record["event"]
    # The record may be any file, and `getattr` must reach nothing but events.
    if event not in kind.events or not record["set"].keys() <= set(kind.inputs):
        raise ValueError(f"{event!r:.40} is no event of this machine, or sets what is no input of it")
    for name, form in record["set"].items():
        setattr(machine, name, decode(form))
    args, named = decode(record["args"]), {name: decode(one) for name, one in record["named"].items()}
    raised = gave = None
    try:
        gave = encode(getattr(machine, event)(*args, **named))
    except Exception as error:  # compared with the recorded exception below
        raised = type(error).__name__
    shows = zip(kind.shows, record["shows"], _shown(kind, machine), strict=True)
    compared = chain(
        [("exception", record.get("raised"), raised), ("effects", record.get("gave"), gave)], shows
    )
    for what, recorded, replayed in compared:
        if recorded != replayed:
            return Difference(line, event, what, _text(recorded), _text(replayed))
    return None


def _parsed(text: bytes, line: int) -> Record:
    try:
        found = orjson.loads(text)
    except ValueError as error:
        raise _unreadable(line, error) from error
    if not isinstance(found, dict):
        raise _unreadable(line, ValueError("it is no JSON object"))
    return found


def _unreadable(line: int, error: Exception) -> InvalidInput:
    return InvalidInput(
        "a line of the record cannot be read",
        where=f"line {line}",
        why=f"{type(error).__name__}: {error}"[:500],
        fix="give another file: this one was changed or damaged since it was written",
    )


def _text(form: Any) -> str:
    return orjson.dumps(form).decode()
