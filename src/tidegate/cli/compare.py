"""`tidegate compare`: source and target at one ts, equal or the differing rows."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from tidegate.cli.peek import cell, cells, plain
from tidegate.errors import InvalidInput, TidegateError


def compare(
    pd: Annotated[str, typer.Option(help="Address of the source's PD.")],
    target: Annotated[
        str, typer.Option(help="Delta target: delta:///directory or delta+s3://bucket/prefix.")
    ],
    at: Annotated[str, typer.Option(help="A ts, or 'latest': the target's newest snapshot.")] = "latest",
    rules: Annotated[
        list[str] | None, typer.Option("--filter", help="A table rule as in the changefeed; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Differing rows shown per table.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare every table at one timestamp. Exit 0: equal; 1: they differ, and the rows are shown."""
    from tidegate.consumer.comparison import Source
    from tidegate.consumer.comparison import compare as verdicts
    from tidegate.consumer.snapshots import check_comparable, open_snapshot
    from tidegate.kvclient.pd import PdClient
    from tidegate.tidb.table_filter import TableFilter

    try:
        wanted = None if at == "latest" else _ts(at)
        snapshot = open_snapshot(target, wanted)
        check_comparable(target)
        ts = snapshot.ts if wanted is None else wanted
        table_filter = TableFilter(rules, case_sensitive=False) if rules else None
        with PdClient(pd) as client:
            source = Source(client, ts)
            results = list(verdicts(source, snapshot, table_filter, limit))
    except TidegateError as error:
        print(error.render(), file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    equal = all(result.equal for result in results) and not source.undecodable
    outcome = {
        "ts": ts,
        "snapshot_ts": snapshot.ts,
        "equal": equal,
        "undecodable_source_rows": source.undecodable,
        "tables": [dataclasses.asdict(result) | {"equal": result.equal} for result in results],
    }
    print(json.dumps(outcome, default=plain) if as_json else text_of(outcome))
    raise typer.Exit(0 if equal else 1)


def _ts(text: str) -> int:
    if not text.isdigit():
        raise InvalidInput("--at is not a timestamp", where=text, fix="give a TSO number or 'latest'")
    return int(text)


def text_of(outcome: dict[str, Any]) -> str:
    """The outcome as a table, with the differing rows below their table."""
    lines = [f"{'table':40} {'source':>10} {'target':>10}"]
    for result in outcome["tables"]:
        verdict = "equal" if result["equal"] else result["note"] or "NOT equal"
        lines.append(
            f"{result['table']:40} {result['source_rows']:>10} {result['target_rows']:>10}  {verdict}"
        )
        lines += [f"    {line}" for line in _differences(result["differences"], result["key"])]
        shown = len(result["differences"])
        if shown < result["differing"]:
            lines.append(f"    {shown} of {result['differing']} differing rows shown; see --limit")
    if outcome["undecodable_source_rows"]:
        lines.append(f"{outcome['undecodable_source_rows']} source rows could not be decoded")
    if outcome["snapshot_ts"] != outcome["ts"]:
        lines.append(f"the target's snapshot is at {outcome['snapshot_ts']}, below {outcome['ts']}")
    lines.append(f"{'equal' if outcome['equal'] else 'NOT equal'} at ts {outcome['ts']}")
    return "\n".join(lines)


def _differences(found: Sequence[dict[str, Any]], key: Sequence[str]) -> Iterator[str]:
    """A row that exists on one side only, or the values that differ in a row of both sides."""
    left = list(found)
    while left:
        one, row = left[0]["side"], left[0]["row"]
        name = cells({column: row[column] for column in key})
        same = len(left) > 1 and left[1]["side"] != one and all(left[1]["row"][k] == row[k] for k in key)
        if key and same and one == "source":
            other = left[1]["row"]
            changed = [column for column in row if row[column] != other[column]]
            texts = (f"{column}: {cell(row[column])} -> {cell(other[column])}" for column in changed)
            yield f"source -> target  {name}  {', '.join(texts)}"
            del left[:2]
            continue
        yield f"only at the {one}  {cells(row)}"
        del left[0]


if __name__ == "__main__":
    typer.run(compare)
