"""`tidegate peek`: a topic's messages, decoded."""

from __future__ import annotations

import json
import signal
import sys
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from typing import Annotated, Any

import typer

from tidegate.errors import TidegateError


def peek(
    source: Annotated[
        str,
        typer.Argument(
            help="Topic or topics, e.g. 'kafka://127.0.0.1:9092/topic,other?protocol=open-protocol'."
        ),
    ],
    from_beginning: Annotated[
        bool, typer.Option(help="Start with the oldest message instead of the next one.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many rows, marks and DDLs.")
    ] = None,
    follow: Annotated[
        bool | None, typer.Option(help="Wait for more at the end; the default unless --from-beginning.")
    ] = None,
    time_zone: Annotated[str, typer.Option(help="Time zone of TIMESTAMP texts in the topic.")] = "UTC",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Show a topic's messages, decoded: rows, Resolved marks, DDLs.

    Messages that cannot be decoded are shown with the reason.
    """
    from tidegate.consumer.peek import peek as messages
    from tidegate.consumer.reading.source import Topic

    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: stopping.append(number))
    try:
        keep_on = not from_beginning if follow is None else follow
        topic, shown, bad = Topic(source, time_zone), 0, 0
        found = messages(topic, from_beginning=from_beginning, follow=keep_on, stop=lambda: bool(stopping))
        for item in islice(found, limit):
            print(json.dumps(item, default=plain) if as_json else readable(item), flush=True)
            shown, bad = shown + 1, bad + (item["kind"] == "bad")
        if not shown and from_beginning and not stopping:
            print(f"topic {topic.name} has no messages", file=sys.stderr)
        elif shown == bad > 1:
            print(f"nothing here is {topic.options.protocol}: is protocol=... right?", file=sys.stderr)
    # The reader of the pipe, such as `head`, has enough. Python would print an error to standard error when
    # it flushes its output at the end, so that is closed.
    except BrokenPipeError:
        sys.stderr.close()
    except TidegateError as error:
        print(error.render(), file=sys.stderr)
        raise typer.Exit(error.exit_code) from error


def plain(value: Any) -> Any:
    """Convert values that JSON does not have: bytes to base64, decimals and times to text."""
    if isinstance(value, bytes):
        from base64 import b64encode

        return {"base64": b64encode(value).decode()}
    if isinstance(value, Decimal | date | datetime):
        return str(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def readable(item: dict[str, Any]) -> str:
    """A message in one line."""
    from tidegate.model.timestamp import readable as moment

    where = f"{item['topic']} " if "topic" in item else ""
    where += f"p{item['partition']}@{item['offset']}"
    ts = item.get("ts", item.get("commit_ts"))
    when = f"{ts} ({moment(ts)})" if ts is not None else ""
    match item["kind"]:
        case "resolved":
            return f"{where}  resolved {when}"
        case "ddl":
            return f"{where}  ddl      {when}  {item['query']}"
        case "bad":
            return f"{where}  BAD      {item['why']}  key {item['key']!r}  value {item['value']!r}"
        case kind:
            table = f"{item['schema']}.{item['table']}"
            return f"{where}  {kind:8} {when}  {table}  {_images(item['old'], item['new'])}"


def _images(old: dict[str, Any] | None, new: dict[str, Any] | None) -> str:
    if old is None or new is None:
        return cells(new if new is not None else old or {})
    changed = {name: value for name, value in new.items() if old.get(name) != value}
    same = {name: value for name, value in new.items() if name not in changed}
    moved = " ".join(f"{name}: {cell(old.get(name))} -> {cell(value)}" for name, value in changed.items())
    return f"{cells(same)}  {moved}".strip()


def cells(row: dict[str, Any]) -> str:
    """A row as `name=value` texts."""
    return " ".join(f"{name}={cell(value)}" for name, value in row.items())


def cell(value: Any) -> str:
    """A value for people: text in quotes, NULL, numbers and times as in SQL."""
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, Decimal | date | datetime) else repr(value)


if __name__ == "__main__":
    typer.run(peek)
