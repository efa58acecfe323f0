"""`tidegate quarantine`: what a changefeed or a consumer has set aside, and what can be made of it now.

    list    one line an entry, in a stream: a file may hold a GiB
    show    one entry whole: where, why, its bytes
    replay  what this release makes of it

An entry is named by its line in the file, which it keeps. All that is printed is escaped: messages are
anybody's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate.cli.client import JsonOption, reported
from tidegate.cli.escaped import as_text, escaped, hex_dump
from tidegate.cli.peek import cell, plain
from tidegate.errors import InvalidInput
from tidegate.log import redact

if TYPE_CHECKING:
    from rich.table import Table

    from tidegate.consumer.replay import Replayed, Tables
    from tidegate.consumer.target import Address
    from tidegate.consumer.topic_decoder import TopicDecoder
    from tidegate.sink.quarantine import Kept, Outcome

app = typer.Typer(help="Look into what could not be decoded.", no_args_is_help=True)

FILE: Final = "quarantine.jsonl"
IMAGES: Final = ("key", "value", "old_value")
WHY_SHOWN: Final = 100
"""Characters of a reason in a list."""
WIDTH: Final = 200
"""Of a table where no terminal says it."""
JSON_LINES: Final = "Print JSON lines, one for each entry."

DataDirOption = Annotated[
    Path | None, typer.Option(help="For a changefeed: the --data-dir of its capture's server.")
]
FeedOption = Annotated[str, typer.Option("--changefeed-id", "-c", help="The changefeed.")]
NamespaceOption = Annotated[str, typer.Option("--namespace", "-n", help="The changefeed's namespace.")]
TargetOption = Annotated[str, typer.Option(help="For a consumer: its --target.")]
NameOption = Annotated[str, typer.Option(help="For a consumer of a database: its --name.")]
FolderOption = Annotated[
    Path | None,
    typer.Option(help="For a consumer of a database: its --folder, if it was given one."),
]
TableOption = Annotated[str, typer.Option(help="Only entries of this table, SCHEMA.TABLE.")]
TopicOption = Annotated[str, typer.Option(help="Only entries of this topic.")]
LimitOption = Annotated[int, typer.Option(min=1, help="Entries shown at most; the others are counted.")]


@app.callback()
def group() -> None:
    """Look into what could not be decoded: the quarantine of a changefeed or of a consumer."""


@contextmanager
def _reported() -> Iterator[None]:
    """As `reported`; files that cannot be read are named, and a pipe may end."""
    with reported():
        try:
            yield
        except BrokenPipeError:
            sys.stderr.close()
        except OSError as error:
            raise InvalidInput(
                "the quarantine cannot be read",
                where=str(error.filename or ""),
                why=error.strerror or str(error),
                fix="run it as the user of the server or of the consumer, on its machine",
            ) from error


@dataclass(frozen=True, slots=True)
class Place:
    """Whose quarantine it is."""

    file: Path
    address: Address | None
    """Of a consumer's target; None: it is a changefeed's, or only the consumer's folder is known."""
    data_dir: Path | None
    """Of a changefeed's capture."""


def place_of(
    data_dir: Path | None, changefeed: str, namespace: str, target: str, name: str, folder: Path | None
) -> Place:
    """The quarantine that the options name; InvalidInput when they name none, or two."""
    if (data_dir is not None) == bool(target or folder):
        raise InvalidInput(
            "it is not said whose quarantine is meant",
            fix="give --data-dir and --changefeed-id of a changefeed, or --target (with --name, if it is a "
            "database) or --folder of a consumer",
        )
    if data_dir is not None:
        from tidegate.pipeline.replay import quarantine_of

        if not changefeed:
            raise InvalidInput("it is not said which changefeed is meant", fix="give --changefeed-id")
        return Place(quarantine_of(data_dir, namespace, changefeed), None, data_dir)
    if not target:
        assert folder is not None
        return Place(_in(folder), None, None)
    from tidegate.consumer.targets import DatabaseSettings, address_of
    from tidegate.consumer.upkeep import Upkeep

    address = address_of(target, Upkeep(), DatabaseSettings(name, folder))
    return Place(_in(address.folder), address, None)


def _in(folder: Path) -> Path:
    if not folder.is_dir():
        raise InvalidInput(
            "there is no such folder",
            where=str(folder),
            why="a consumer keeps in its folder what it sets aside",
            fix="give the --target, --name and --folder that the consumer runs with",
        )
    return folder / FILE


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries."""

    table: str = ""
    topic: str = ""
    numbers: frozenset[int] = frozenset()
    """Empty: any."""

    def __call__(self, kept: Kept) -> bool:
        """Whether it is one of them; a torn line is, unless something is asked of it."""
        if self.numbers:
            return kept.number in self.numbers
        where = kept.entry["where"] if kept.entry is not None else {}
        return all(
            not asked or where.get(name) == asked
            for name, asked in (("table", self.table), ("topic", self.topic))
        )


@app.command("list")
def show_all(
    data_dir: DataDirOption = None,
    changefeed_id: FeedOption = "",
    namespace: NamespaceOption = "default",
    target: TargetOption = "",
    name: NameOption = "",
    folder: FolderOption = None,
    table: TableOption = "",
    topic: TopicOption = "",
    limit: LimitOption = 50,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_LINES)] = False,
) -> None:
    """List what was set aside: where it stood, when, how large it is and why."""
    from tidegate.sink import quarantine

    with _reported():
        place = place_of(data_dir, changefeed_id, namespace, target, name, folder)
        found = filter(Wanted(table, topic), quarantine.entries(place.file))
        if as_json:
            _each(found, limit, lambda kept: print(json.dumps(brief(kept), default=plain)))
            return
        rows: list[dict[str, Any]] = []
        more = _each(found, limit, lambda kept: rows.append(brief(kept)))
        if not rows:
            print(f"nothing is in quarantine: {escaped(str(place.file))}")
            return
        _print_table(_table(rows))
        if more:
            print(f"and {more:,} more; see --limit, --table and --topic")


def _each(found: Iterable[Kept], limit: int, do: Callable[[Kept], object]) -> int:
    """Do it with the first ones; how many more there are."""
    more = 0
    for at, kept in enumerate(found):
        if at < limit:
            do(kept)
        else:
            more += 1
    return more


def brief(kept: Kept) -> dict[str, Any]:
    """An entry without its bytes, as JSON; texts are the entry's own, without secrets."""
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


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    shown = Table("ENTRY", "WHERE", "TABLE", "WHEN (UTC)", box=None, pad_edge=False, header_style="bold")
    shown.add_column("BYTES", justify="right")
    shown.add_column("WHY")
    for row in rows:
        where, why = row["where"], escaped(" ".join(row["why"].split()))
        cells = [str(row["entry"]), _place(where), str(where.get("table", "-")), row.get("when", "-")[:23]]
        cells += [f"{row['bytes']:,}", why if len(why) <= WHY_SHOWN else f"{why[:WHY_SHOWN]}..."]
        shown.add_row(*(Text(escaped(cell)) for cell in cells))
    return shown


def _place(where: dict[str, Any]) -> str:
    """Where an entry stood, in one word or two."""
    if "partition" in where:
        topic = f"{where['topic']}/" if where.get("topic") else ""
        return f"{topic}{where['partition']}@{where.get('offset', '?')}"
    return f"span {where['span']}" if "span" in where else "-"


def _print_table(table: Table) -> None:
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(table)


@app.command()
def show(
    entry: Annotated[int, typer.Argument(min=1, help="Its number, as `list` shows it.")],
    data_dir: DataDirOption = None,
    changefeed_id: FeedOption = "",
    namespace: NamespaceOption = "default",
    target: TargetOption = "",
    name: NameOption = "",
    folder: FolderOption = None,
    most: Annotated[
        int, typer.Option("--bytes", min=16, help="The most bytes of each image that are shown.")
    ] = 1024,
    as_json: JsonOption = False,
) -> None:
    """Show one entry: where it stood, why it is here, its bytes or its row.

    --json has all of its bytes, in Base64.
    """
    from tidegate.sink import quarantine

    with _reported():
        place = place_of(data_dir, changefeed_id, namespace, target, name, folder)
        kept = next((one for one in quarantine.entries(place.file) if one.number == entry), None)
        if kept is None or kept.entry is None:
            raise InvalidInput(
                f"there is no entry {entry}",
                where=str(place.file),
                why=f"the line is torn: {kept.why}" if kept is not None else "the file has fewer lines",
                fix="choose one of `tidegate quarantine list`",
            )
        if as_json:
            print(json.dumps({**kept.entry, **brief(kept)}, default=plain))
        else:
            print("\n".join(_described(kept, kept.entry, most)))


def _described(kept: Kept, entry: dict[str, Any], most: int) -> Iterator[str]:
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
    """A value for people; of one that is long only its beginning."""
    if isinstance(value, str | bytes) and len(value) > most:
        return f"{value[:most]!r} and {len(value) - most:,} more"
    return cell(value)


@app.command()
def replay(
    entries: Annotated[
        list[int] | None, typer.Argument(help="Their numbers, as `list` shows them; none: all.")
    ] = None,
    data_dir: DataDirOption = None,
    changefeed_id: FeedOption = "",
    namespace: NamespaceOption = "default",
    target: TargetOption = "",
    name: NameOption = "",
    folder: FolderOption = None,
    source: Annotated[
        str, typer.Option(help="For a consumer: its --source, which says how messages are written.")
    ] = "",
    time_zone: Annotated[str, typer.Option(help="For a consumer: its --time-zone.", show_default=False)] = "",
    table: TableOption = "",
    topic: TopicOption = "",
    limit: LimitOption = 50,
    sql: Annotated[
        Path | None,
        typer.Option(
            help="For a consumer of a database: a new file for SQL that writes the good rows by hand."
        ),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", hidden=True)] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_LINES)] = False,
) -> None:
    """Decode entries again with this release, and say what each is now, or why it is still bad.

    A changefeed's rows by the tables that its capture knows; a consumer's messages as --source says, and rows
    by the target's tables as they are now. Nothing is written to the target.
    """
    from tidegate.sink import quarantine

    with _reported():
        if apply:
            raise _unsafe()
        place = place_of(data_dir, changefeed_id, namespace, target, name, folder)
        wanted = Wanted(table, topic, frozenset(entries or ()))
        found = filter(wanted, quarantine.entries(place.file))
        replayed = _of_capture(place.data_dir) if place.data_dir else _of_consumer(place, source, time_zone)
        counts, missing = {True: 0, False: 0}, set(wanted.numbers)
        with _statements(sql, place) as write:

            def one(kept: Kept) -> None:
                outcome = replayed(kept)
                missing.discard(kept.number)
                counts[outcome.outcome.good] += 1
                write(kept, outcome)
                print(_as_json(kept, outcome.outcome) if as_json else _in_words(kept, outcome.outcome))

            more = _each(found, limit, one)
        if missing and not more:
            raise InvalidInput(
                f"there is no entry {', '.join(map(str, sorted(missing)))}",
                where=str(place.file),
                fix="choose some of `tidegate quarantine list`",
            )
        if not as_json:
            print("\n".join(_summary(counts, more, place, sql)))


def _unsafe() -> InvalidInput:
    return InvalidInput(
        "--apply is refused: nobody can tell whether it would undo a newer change",
        why="a target does not keep the commit ts of its rows, and a later change of the same row may have "
        "been applied since, or be in quarantine, too",
        fix="leave --apply out; for a database, `--sql FILE` writes the statements for you to run after a "
        "look at the rows; Delta tables are made equal to the source by `tidegate verify --repair apply`",
    )


def _of_capture(data_dir: Path) -> Callable[[Kept], Replayed]:
    from tidegate.consumer.replay import Replayed
    from tidegate.pipeline.replay import Catalogue
    from tidegate.pipeline.replay import replay as decode
    from tidegate.sink.quarantine import still_bad

    catalogue = Catalogue(data_dir)

    def one(kept: Kept) -> Replayed:
        return Replayed(decode(kept.entry, catalogue) if kept.entry is not None else still_bad(kept.why))

    return one


def _of_consumer(place: Place, source: str, time_zone: str) -> Callable[[Kept], Replayed]:
    from tidegate.consumer.replay import Replayed
    from tidegate.consumer.replay import replay as decode
    from tidegate.sink.quarantine import still_bad

    decoder = _decoder(source, time_zone)
    tables = _tables(place.address, source, time_zone) if place.address is not None else None

    def one(kept: Kept) -> Replayed:
        return (
            decode(kept.entry, decoder, tables) if kept.entry is not None else Replayed(still_bad(kept.why))
        )

    return one


def _decoder(source: str, time_zone: str) -> TopicDecoder | None:
    if not source:
        return None
    from tidegate.consumer.source import Topic
    from tidegate.consumer.topic_decoder import TopicDecoder

    return TopicDecoder(Topic(source, time_zone))


def _tables(address: Address, source: str, time_zone: str) -> Tables:
    """What the target keeps of its tables, and the zone in which the consumer reads."""
    from tidegate.consumer.replay import Tables
    from tidegate.consumer.source import Topic

    position = address.look().position
    zone = time_zone if position is None else position.zone_from(time_zone)
    if source:
        zone = Topic(source, time_zone).zone or zone
    return Tables(address.definitions(), address.by_hand().values, zone)


@contextmanager
def _statements(file: Path | None, place: Place) -> Iterator[Callable[[Kept, Replayed], None]]:
    """What writes the good rows' SQL into a new file; without one nothing does."""
    if file is None:
        yield lambda kept, replayed: None
        return
    by_hand = place.address.by_hand() if place.address is not None else None
    if by_hand is None or not by_hand.head:
        raise InvalidInput(
            "there is no SQL for these rows",
            where=str(place.file),
            why=f"SQL is for databases; here: {by_hand.advice}" if by_hand else "their target is not known",
            fix="leave --sql out, or give the --target and --name of a database's consumer",
        )
    with _new(file) as out:
        out.write(b"-- Look first whether each row has changed at the target since its commit ts.\n")
        out.write(by_hand.head + b"\n")

        def write(kept: Kept, replayed: Replayed) -> None:
            texts = [text for changes in replayed.changes for text in by_hand.statements(changes)]
            if texts and kept.entry is not None:
                times = ", ".join(str(row["commit_ts"]) for row in replayed.outcome.rows)
                title = f"entry {kept.number}, {_place(kept.entry['where'])}, commit ts {times}"
                out.write(f"\n-- {escaped(title)}\nBEGIN;\n".encode())
                out.write(b"".join(text + b";\n" for text in texts) + b"COMMIT;\n")

        yield write


def _new(file: Path) -> IO[bytes]:
    """A file that only its owner can read: it holds rows."""
    try:
        return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise InvalidInput(
            "the file for the statements cannot be made",
            where=str(file),
            why=error.strerror or str(error),
            fix="name one that is not there yet, in a folder that can be written",
        ) from error


def _as_json(kept: Kept, outcome: Outcome) -> str:
    body = {**brief(kept), "good": outcome.good, "what": redact(outcome.what), "rows": outcome.rows}
    return json.dumps(body, default=plain)


def _in_words(kept: Kept, outcome: Outcome) -> str:
    where = kept.entry["where"] if kept.entry is not None else {}
    head = f"entry {kept.number}  {escaped(_place(where))}"
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


def _summary(counts: dict[bool, int], more: int, place: Place, sql: Path | None) -> Iterator[str]:
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


if __name__ == "__main__":
    app()
