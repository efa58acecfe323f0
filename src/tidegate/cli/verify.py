"""`tidegate verify`: finds rows of large tables that differ between source and target, and repairs them."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.peek import cell, cells, plain
from tidegate.errors import InvalidInput, TidegateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.consumer.snapshots import Snapshot, TableSnapshot
    from tidegate.verify.differences import Difference
    from tidegate.verify.job import Verification

APPLY = "apply"


def verify(
    pd: Annotated[str, typer.Option(help="Address of the source's PD.")],
    target: Annotated[str, typer.Option(help="Delta target: delta:///absolute/directory.")],
    table: Annotated[list[str], typer.Option("--table", help="SCHEMA.TABLE, may be repeated.")],
    at: Annotated[
        str, typer.Option(help="A ts, or 'latest': the target's newest snapshot up to it.")
    ] = "latest",
    keys: Annotated[
        str, typer.Option(help="LOW:END: only rows with LOW <= integer key < END (clustered tables).")
    ] = "",
    repair: Annotated[
        str,
        typer.Option(
            help="'apply': make the target equal. A path: write Spark SQL that makes it equal to this "
            "file; '-': print it."
        ),
    ] = "",
    limit: Annotated[int, typer.Option(min=0, help="Differing rows shown per table.")] = 20,
    most: Annotated[
        int, typer.Option(min=1, help="End the search when this many differing rows are known.")
    ] = 10_000,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find rows of large tables that differ, by sums over ranges.

    Source and target are compared at one timestamp. Exit 0: equal, or made equal by --repair apply; 1: they
    differ.
    """
    from tidegate.consumer.snapshots import check_comparable, open_snapshot
    from tidegate.kvclient.pd import PdClient
    from tidegate.tables.catalogue import history_held, tables_at
    from tidegate.verify.job import SearchLimits, Verification
    from tidegate.verify.repair import check_repairable
    from tidegate.verify.side import Shape

    try:
        wanted, chosen = None if at == "latest" else _number(at, "--at"), _handles(keys)
        snapshot = open_snapshot(target, wanted)
        check_comparable(target)
        for name in table:
            _check_held(snapshot, name)
        outcomes = []
        with PdClient(pd) as client, history_held(client, snapshot.ts):
            found = tables_at(client, snapshot.ts, table)
            if repair:
                for name, one in found.items():
                    check_repairable(name, Shape.of(one.parsed()))
            with _spark(master) as spark:
                for name, one in found.items():
                    held = snapshot.tables[name]
                    search = Verification(spark, client, one, held, SearchLimits(differences=most), chosen)
                    outcomes.append(_outcome(search, held, repair))
    except TidegateError as error:
        print(error.render(), file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    good = all(outcome["equal"] or outcome["repaired"] for outcome in outcomes)
    whole = {"ts": snapshot.ts, "equal": all(outcome["equal"] for outcome in outcomes), "tables": outcomes}
    print(json.dumps(whole, default=plain) if as_json else "\n".join(text_of(o, limit) for o in outcomes))
    raise typer.Exit(0 if good else 1)


def _number(text: str, option: str) -> int:
    if not text.removeprefix("-").isdigit():
        raise InvalidInput(f"{option} is not a number", where=text, fix="give an integer")
    return int(text)


def _handles(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    low, colon, end = text.partition(":")
    if not colon or _number(low, "--keys") >= _number(end, "--keys"):
        raise InvalidInput("--keys is not a range", where=text, fix="write LOW:END with LOW below END")
    return int(low), int(end)


@contextmanager
def _spark(master: str) -> Iterator[SparkSession]:
    from tidegate.spark.session import open_session
    from tidegate.verify.job import DAEMON

    with tempfile.TemporaryDirectory(prefix="tidegate-verify-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        spark = open_session("tidegate verify", master, work, DAEMON, log=work / "spark.log")
        try:
            yield spark
        finally:
            spark.stop()


def _check_held(snapshot: Snapshot, name: str) -> None:
    if name not in snapshot.tables:
        raise InvalidInput(
            f"the target has no table {name}",
            where=f"snapshot {snapshot.ts}",
            why="its tables are " + ", ".join(sorted(snapshot.tables)[:20]),
            fix="write --table SCHEMA.TABLE",
        )


def _outcome(search: Verification, held: TableSnapshot, repair: str) -> dict[str, Any]:
    """Run a search, and repair what it finds."""
    from tidegate.verify.repair import apply, statements

    verdict = search.run()
    written = 0
    if repair and verdict.differences:
        if repair == APPLY:
            apply(held.directory.parents[1], verdict.ts, held, search.shape, verdict.differences)
        else:
            lines = list(statements(held.directory, search.shape, verdict.differences))
            written = len(lines)
            _write("".join(f"{line}\n" for line in lines), repair)
    repaired = repair == APPLY and bool(verdict.differences) and verdict.complete and not verdict.undecodable
    return {
        "table": verdict.table,
        "ts": verdict.ts,
        "equal": verdict.equal,
        "source_rows": verdict.source_rows,
        "target_rows": verdict.target_rows,
        "ranges": verdict.ranges,
        "differing_ranges": verdict.differing_ranges,
        "differing": len(verdict.differences),
        "complete": verdict.complete,
        "undecodable": verdict.undecodable,
        "note": verdict.note,
        "key": list(search.shape.key),
        "differences": [_shown(difference) for difference in verdict.differences],
        "repaired": repaired,
        "statements": written,
    }


def _write(text: str, where: str) -> None:
    if where == "-":
        print(text, end="")
        return
    try:
        with Path(where).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidInput(
            "the statements cannot be written",
            where=where,
            why=str(error),
            fix="name a file that can be written",
        ) from None


def _shown(difference: Difference) -> dict[str, Any]:
    return {
        "kind": difference.kind,
        "key": difference.key,
        "columns": difference.columns,
        "source": list(difference.source),
        "target": list(difference.target),
    }


def text_of(outcome: dict[str, Any], limit: int) -> str:
    """The outcome of one table in words."""
    rows = f"{outcome['source_rows']:,} rows at the source, {outcome['target_rows']:,} at the target"
    many = outcome["differing"]
    verdict = outcome["note"] or (
        "equal"
        if outcome["equal"]
        else f"{many:,} row{'s' if many != 1 else ''} differ{'' if many != 1 else 's'}"
    )
    lines = [f"{outcome['table']} at {outcome['ts']}: {rows}: {verdict}"]
    lines += [f"    {_line(difference)}" for difference in outcome["differences"][:limit]]
    if many > limit:
        lines.append(f"    {limit} of {many:,} shown; see --limit")
    if not outcome["complete"]:
        lines.append("    and more: the search has ended early; see --most")
    if outcome["undecodable"]:
        lines.append(f"    {outcome['undecodable']:,} rows of the source cannot be decoded")
    if outcome["repaired"]:
        lines.append("    repaired: the snapshot names the source's rows now")
    if outcome["statements"]:
        lines.append(f"    {outcome['statements']:,} statements written")
    return "\n".join(lines)


def _line(difference: dict[str, Any]) -> str:
    name, columns = cells(difference["key"]), difference["columns"]
    if not columns:
        times = _times(difference["source"], difference["target"])
        row = (difference["source"] or difference["target"])[0]
        return f"{difference['kind']:8} {cells(row) if difference['kind'] != 'changed' else name}{times}"
    one, other = difference["source"][0], difference["target"][0]
    texts = (f"{column}: {cell(one[column])} -> {cell(other[column])}" for column in columns)
    return f"changed  {name}  {', '.join(texts)}   (source -> target)"


def _times(source: Sequence[Any], target: Sequence[Any]) -> str:
    if max(len(source), len(target)) <= 1:
        return ""
    return f"   ({len(source)} at the source, {len(target)} at the target)"
