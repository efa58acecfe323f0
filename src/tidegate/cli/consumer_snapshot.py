"""`tidegate consumer snapshot`: the version of each table at a ts, for any engine that reads the tables."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from tidegate.cli.client import JsonOption, reported


def show_snapshot(
    target: Annotated[
        str,
        typer.Option(
            help="The tables: delta:///absolute/directory, iceberg:///absolute/directory, or in a bucket "
            "delta+s3://bucket/prefix or iceberg+s3://bucket/prefix."
        ),
    ],
    at: Annotated[
        int | None,
        typer.Option(
            min=1, help="Show the newest snapshot at or before this ts; default: the newest of all."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show which version of each table belongs to a snapshot.

    Together they are the source at one ts. The command reads the target and changes nothing. Exit 2: there is
    no such snapshot.
    """
    from tidegate.consumer.named_tables import named_tables

    with reported():
        ts, tables = named_tables(target, at)
    if as_json:
        print(json.dumps({"ts": ts, "tables": [dataclasses.asdict(table) for table in tables]}))
        return
    print(f"snapshot {ts}")
    width = max((len(table.name) for table in tables), default=0)
    for table in tables:
        print(f"{table.name:{width}}  {table.version}  {table.where}")
