"""How entries of a quarantine are shown, as JSON and in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate.cli.escaped import as_text, escaped, hex_dump
from tidegate.cli.peek import cell, plain
from tidegate.cli.quarantine_place import Place
from tidegate.log import redact

if TYPE_CHECKING:
    from rich.table import Table

    from tidegate.sink.quarantine import DecodeOutcome, QuarantineLine

IMAGES: Final = ("key", "value", "old_value")
WHY_SHOWN: Final = 100
"""Characters of a reason that a list shows."""
WIDTH: Final = 200
"""The width of a table if the output is no terminal."""


def brief(kept: QuarantineLine) -> dict[str, Any]:
    """An entry as JSON, without its bytes; secrets in its texts are hidden."""
    if kept.entry is None:
        return {
            "entry": kept.number,
            "where": {},
            "why": f"torn line: {redact(kept.why)}",
            "bytes": kept.size,
        }
    from tidegate.model.timestamp import readable

    entry = kept.entry
    where = {name: _hidden(value) for name, value in entry["where"].items()}
    ts = where.get("commit_ts")
    when = {"when": readable(ts)} if isinstance(ts, int) and 0 < ts < 1 << 63 else {}
    images = [entry[name] for name in IMAGES if isinstance(entry.get(name), bytes)]
    size = sum(map(len, images)) if images else kept.size
    return {"entry": kept.number, "where": where, **when, "why": _why(entry), "bytes": size}


def _hidden(value: Any) -> Any:
    return redact(value) if isinstance(value, str) else value


def _why(entry: dict[str, Any]) -> str:
    return redact(str(entry.get("why", "")))


def table_of(rows: list[dict[str, Any]]) -> Table:
    """A table of entries, each as `brief` returns it."""
    from rich.table import Table
    from rich.text import Text

    shown = Table("ENTRY", "WHERE", "TABLE", "WHEN (UTC)", box=None, pad_edge=False, header_style="bold")
    shown.add_column("BYTES", justify="right")
    shown.add_column("WHY")
    for row in rows:
        where, why = row["where"], escaped(" ".join(row["why"].split()))
        cells = [
            str(row["entry"]),
            place_words(where),
            str(where.get("table", "-")),
            row.get("when", "-")[:23],
        ]
        cells += [f"{row['bytes']:,}", why if len(why) <= WHY_SHOWN else f"{why[:WHY_SHOWN]}..."]
        shown.add_row(*(Text(escaped(cell)) for cell in cells))
    return shown


def place_words(where: dict[str, Any]) -> str:
    """Where an entry came from, in one word or two."""
    if "partition" in where:
        topic = f"{where['topic']}/" if where.get("topic") else ""
        return f"{topic}{where['partition']}@{where.get('offset', '?')}"
    return f"span {where['span']}" if "span" in where else "-"


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal, or `WIDTH` characters wide."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(table)


def described(kept: QuarantineLine, entry: dict[str, Any], most: int) -> Iterator[str]:
    """The lines that show an entry; `most`: the bytes of each image that are shown."""
    head = brief(kept)
    yield f"entry      {kept.number}"
    for name, value in head["where"].items():
        yield f"{escaped(name):<10} {escaped(str(value))}" + (
            f"  ({head['when']})" if name == "commit_ts" and "when" in head else ""
        )
    lines = _why(entry).splitlines() or [""]
    yield f"why        {escaped(lines[0])}"
    yield from (f"           {escaped(line)}" for line in lines[1:])
    for name, value in entry.get("row", {}).items():
        image, _, column = name.partition(".")
        yield f"{'new' if image == 'n' else 'old'}        {escaped(column)} = {escaped(_short(value, most))}"
    for name in IMAGES:
        data = entry.get(name)
        if isinstance(data, bytes):
            yield f"\n{name}: {len(data):,} bytes"
            yield from hex_dump(data, most)
            yield f"as text: {as_text(data[:most])}"
        elif name in entry:
            yield f"\n{name}: none"


def _short(value: Any, most: int) -> str:
    """A value for people; only the beginning of a long one."""
    if isinstance(value, str | bytes) and len(value) > most:
        return f"{value[:most]!r} and {len(value) - most:,} more"
    return cell(value)


def as_json_line(kept: QuarantineLine, outcome: DecodeOutcome) -> str:
    """Return the entry, decoded again, as one line of JSON."""
    body = {**brief(kept), "good": outcome.good, "what": redact(outcome.what), "rows": outcome.rows}
    return json.dumps(body, default=plain)


def in_words(kept: QuarantineLine, outcome: DecodeOutcome) -> str:
    """Return the entry, decoded again, for people: a line, and one for each row."""
    where = kept.entry["where"] if kept.entry is not None else {}
    head = f"entry {kept.number}  {escaped(place_words(where))}"
    what = escaped(" ".join(redact(outcome.what).split()))
    if not outcome.good:
        return f"{head}  still bad: {what}"
    lines = [f"{head}  can be decoded now" + (f": {what}" if what else "")]
    return "\n".join([*lines, *(f"    {_row(row)}" for row in outcome.rows)])


def _row(row: dict[str, Any]) -> str:
    """A row change in one line."""
    table = f"{row['schema']}.{row['table']}"
    images = [f"{name} ({_cells(row[name])})" for name in ("old", "new") if row[name] is not None]
    return f"{row['kind']} {escaped(table)} at {row['commit_ts']}  {'  '.join(images)}"


def _cells(image: dict[str, Any]) -> str:
    return escaped(", ".join(f"{name}={_short(value, WHY_SHOWN)}" for name, value in image.items()))


def summary(counts: dict[bool, int], more: int, place: Place, sql: Path | None) -> Iterator[str]:
    """The last lines of a replay. `counts`: of entries that can (True) or cannot be decoded."""
    if more:
        yield f"and {more:,} more; see --limit, --table and --topic"
    yield f"{counts[True]:,} can be decoded now, {counts[False]:,} are still bad; no target was written"
    if sql is not None:
        yield f"statements: {escaped(str(sql))}"
    elif counts[True] and place.address is not None:
        yield f"to do: {place.address.by_hand().advice}"
    elif counts[True] and place.data_dir is not None:
        yield (
            "to do: a row that could not be decoded is not on the topic (one with a wrong checksum is): "
            "compare the target by `tidegate verify`, or change the row upstream once more"
        )
