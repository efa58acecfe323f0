"""Frozen dataclasses from nested mappings and back; every error names its option."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cache
from types import MappingProxyType
from typing import Any, Final, get_args, get_type_hints

from tidegate.config.ticdc import TO_COME, TUNING
from tidegate.config.values import REDACTED, Secret, nearest, revealed
from tidegate.errors import InvalidInput

DURATION_UNITS: Final = MappingProxyType(
    {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
)
AS_TABLE: Final = "write it as a table of TOML, or an object of JSON"
DURATION_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


def setting(
    default: Any, kind: str = "", key: str = "", older: str = "", *, unit: str = "", ours: bool = False
) -> Any:
    """A field with a kind other than its type's, other names in the file, a unit, or no namesake in TiCDC.

    `unit` and `ours` are only for the reference page; all of `[tidegate]` is ours without them. Kinds:
    `secret`; `duration`, which answers show as nanoseconds; `duration text`, which they show as Go writes it.
    TiCDC's client parses the former as a number and the latter as a string, and refuses other forms.
    """
    metadata = {"kind": kind, "key": key, "older": older, "unit": unit, "ours": ours}
    return field(default=default, repr=kind != "secret", metadata=metadata)


@cache
def hints_of(owner: type) -> Mapping[str, Any]:
    """The types of a dataclass's fields; kept, because Python compiles the text of each one again."""
    return get_type_hints(owner)


def load(owner: type, data: Mapping[str, Any], where: str) -> Any:
    """Read one section into its dataclass, recursively; `where` is the dotted path for messages."""
    if not isinstance(data, Mapping):
        raise InvalidInput(f"'{where}' must be a table", where="changefeed configuration", fix=AS_TABLE)
    fields = {_key(f): f for f in dataclasses.fields(owner)}
    older = {f.metadata["older"]: _key(f) for f in fields.values() if f.metadata.get("older")}
    hints = hints_of(owner)
    values: dict[str, Any] = {}
    for raw, value in data.items():
        name = str(raw).replace("-", "_")
        if name in older:
            # TiCDC's answers contain both names, with the older one empty.
            if value == "" or older[name] in data:
                continue
            name = older[name]
        path = f"{where}.{name}" if where else name
        if name not in fields:
            _check_foreign(path, name, value, fields)
        # A null of JSON is as if the option were left out.
        elif value is not None:
            values[fields[name].name] = _value(hints[fields[name].name], fields[name], value, path)
    return owner(**values)


def _check_foreign(path: str, name: str, value: Any, valid: Iterable[str]) -> None:
    """Accept foreign options with values that request nothing, refuse all others."""
    if name in TUNING:
        return
    if path in TO_COME:
        inert = TO_COME[path]
        inner = {p.rpartition(".")[2]: ok for p, ok in TO_COME.items() if p.startswith(path + ".")}
        asked = [
            k for k, ok in inner.items() if isinstance(value, Mapping) and k in value and value[k] not in ok
        ]
        if not asked and (not inert or value in inert):
            return
        path = f"{path}.{asked[0]}" if asked else path
        raise InvalidInput(
            f"option '{kebab(path)}' is TiCDC's and not supported here yet",
            where="changefeed configuration",
            fix="leave it out",
        )
    raise InvalidInput(
        f"there is no option '{kebab(path)}'",
        where="changefeed configuration",
        fix=nearest(kebab(name), (kebab(v) for v in valid), label="options"),
    )


def _value(hint: Any, f: dataclasses.Field[Any], value: Any, path: str) -> Any:
    """Convert a TOML or JSON value to the field's type."""
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return load(hint, value, path)
    if f.metadata.get("kind") in ("duration", "duration text"):
        return _duration(value, path)
    if f.metadata.get("kind") == "secret":
        return Secret(revealed(value)) if isinstance(value, str) else _refuse_type(path, value, "str")
    if hint is bool or hint is int or hint is str:
        # The exact type, because in Python True is an int.
        return value if type(value) is hint else _refuse_type(path, value, hint.__name__)
    if not isinstance(value, list | tuple):
        _refuse_type(path, value, "list")
    item, _ = get_args(hint)
    if dataclasses.is_dataclass(item):
        assert isinstance(item, type)
        return tuple(load(item, v, path) for v in value)
    return tuple(v if type(v) is item else _refuse_type(path, v, item.__name__) for v in value)


def _refuse_type(path: str, value: Any, wanted: str) -> Any:
    raise InvalidInput(
        f"option '{kebab(path)}' must be {wanted}, not {type(value).__name__}",
        where="changefeed configuration",
        fix="correct the type of its value",
    )


def from_text(hint: Any, f: dataclasses.Field[Any], text: str, name: str) -> Any:
    """Convert a URI parameter to the field's type."""
    readers: dict[Any, Callable[[str], Any]] = {
        bool: _bool,
        int: int,
        str: lambda given: given,  # unchanged, so that a Secret stays one
        float: str,
    }
    if name == "required-acks" and text == "all":
        return -1
    try:
        return readers[hint](text)
    except ValueError as error:
        raise InvalidInput(
            f"option '{name}' must be {hint.__name__}",
            where="sink URI",
            why=str(error),
            fix="correct its value",
        ) from None


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(f"'{text}' is neither true nor false")
    return text.lower() in ("true", "1")


def _duration(value: Any, path: str) -> float:
    """Seconds from Go's text form ("1h30m") or from an integer of nanoseconds."""
    if type(value) is int and value >= 0:
        return value / 1e9
    if isinstance(value, str) and value:
        parts = DURATION_PART.findall(value)
        if "".join(n + u for n, u in parts) == value:
            return float(sum(float(n) * DURATION_UNITS[u] for n, u in parts))
    raise InvalidInput(
        f"option '{kebab(path)}' is not a duration",
        where="changefeed configuration",
        fix='write "10m" or "1.5s"',
    )


def duration_text(seconds: float) -> str:
    """Seconds as Go's `time.Duration.String` writes them: `10s`, `1m30s`, `1h0m0s`, `1.5s`, `250ms`."""
    left = round(seconds * 1e9)
    if left == 0:
        return "0s"
    if left < 1_000_000_000:
        unit, size = next((u, n) for u, n in (("ms", 1_000_000), ("µs", 1_000), ("ns", 1)) if left >= n)
        return f"{_decimal(left, size)}{unit}"
    hours, left = divmod(left, 3600 * 10**9)
    minutes, left = divmod(left, 60 * 10**9)
    text = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{text}{_decimal(left, 10**9)}s"


def _decimal(value: int, unit: int) -> str:
    """`value / unit` exactly, without zeros at the end; `unit` is a power of ten."""
    whole, part = divmod(value, unit)
    digits = f"{part:0{len(str(unit)) - 1}d}".rstrip("0") if part else ""
    return f"{whole}.{digits}" if digits else str(whole)


def dump(config: Any, redact: bool) -> dict[str, Any]:
    """A dataclass as TiCDC's API writes it: snake_case, durations in nanoseconds."""
    out: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value, kind = getattr(config, f.name), f.metadata.get("kind")
        if dataclasses.is_dataclass(value):
            value = dump(value, redact)
        elif kind == "duration":
            value = round(value * 1e9)
        elif kind == "duration text":
            value = duration_text(value)
        elif kind == "secret":
            value = REDACTED if redact and value else revealed(value)
        elif isinstance(value, tuple):
            value = [dump(v, redact) if dataclasses.is_dataclass(v) else v for v in value]
        out[_key(f)] = value
    return out


def snake(data: Any) -> Any:
    """Change kebab-case keys to snake_case at all levels; TiCDC's JSON has one key with hyphens."""
    if isinstance(data, Mapping):
        return {str(k).replace("-", "_"): snake(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [snake(v) for v in data]
    return data


def field_of(owner: type, name: str) -> dataclasses.Field[Any]:
    """A field by name."""
    return next(f for f in dataclasses.fields(owner) if f.name == name)


def _key(f: dataclasses.Field[Any]) -> str:
    return str(f.metadata.get("key") or f.name)


def kebab(path: str) -> str:
    """A name as files write it."""
    return path.replace("_", "-")
