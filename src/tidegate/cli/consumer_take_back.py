"""`tidegate consumer take-back`: continue a table that was set aside, after it was loaded again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.client import reported


def take_back(
    tables: Annotated[list[str], typer.Argument(help="Tables as `consumer status` shows them: shop.orders.")],
    target: Annotated[str, typer.Option(help="The database, as for `consumer run`.")],
    name: Annotated[str, typer.Option(help="The consumer's name.")] = "",
    folder: Annotated[
        Path | None, typer.Option(help="Its folder; default: ./tidegate-consumer-NAME.")
    ] = None,
) -> None:
    """Continue tables that were set aside and are loaded again.

    They are tables of a database, and were set aside by `consumer run --set-aside`. First stop the consumer,
    then load each table from upstream, as it is now or later. After this command start the consumer with
    --adopt: it applies the changes from its position on, and those that the copy has already change nothing
    in the end. A target of files cannot take a table back.
    """
    from tidegate.consumer.applying.set_aside import name_of
    from tidegate.consumer.lakehouse.upkeep import Upkeep
    from tidegate.consumer.mysql.session import SCHEMES
    from tidegate.consumer.targets import DatabaseSettings, address_of
    from tidegate.errors import InvalidInput

    with reported():
        names = [name_of(table) for table in tables]
        if target.partition("://")[0] not in SCHEMES:
            # Before the target is opened: a prefix of a bucket cannot be opened without a takeover.
            raise InvalidInput(
                "a table of files cannot be taken back",
                where=", ".join(tables),
                why="nobody but the consumer can bring the missing rows into its files",
                fix="begin a new target, for example with --include for these tables",
            )
        address = address_of(target, Upkeep(), DatabaseSettings(name, folder))
        if holder := address.look().holder:
            raise InvalidInput(
                "a table cannot be taken back while its consumer runs",
                where=str(address),
                why=f"{holder} writes it; the copy must be from after its end",
                fix="stop the consumer, load the table again, and repeat this command",
            )
        with address.opened() as opened:
            opened.recover()
            opened.take_back(names)
    for table in tables:
        print(f"taken back: {table}; start the consumer with --adopt")
