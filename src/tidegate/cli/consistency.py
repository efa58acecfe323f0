"""The guarantees of the consistency levels: a table for people, a line for logs, JSON for programs."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.table import Table

    from tidegate.codec.base import CodecOptions
    from tidegate.config.settings import ReplicaConfig
    from tidegate.consumer.applying.target import Address
    from tidegate.consumer.reading.source import Topic
    from tidegate.dispatcher.consistency import Order, Setting, Visibility

WIDTH: Final = 160
"""The width of the table if there is no terminal."""


def of_changefeed(config: ReplicaConfig) -> Setting | None:
    """The setting known when a changefeed is created, without the target. None: it has keys, not rows."""
    if not config.has_tables:
        return None
    from tidegate.codec.registry import options_of
    from tidegate.dispatcher.consistency import Visibility, order_of

    pieces = config.scheduler.enable_table_across_nodes or bool(config.tidegate.table_cuts)
    apart = any(rule.topic for rule in config.sink.dispatchers)
    order, options = order_of(config.sink.dispatchers), options_of(config)
    return _setting(order, options, Visibility.UNKNOWN, pieces=pieces, topics=apart)


def of_consumer(topic: Topic, address: Address) -> Setting:
    """The setting known when a consumer begins, without the dispatch rules."""
    from tidegate.dispatcher.consistency import Order

    found = _setting(
        *(Order.UNKNOWN, topic.options, address.seen),
        pieces=True,
        topics=len(topic.names) > 1,
        row_mode=address.row_mode,
    )
    # Messages may have watermarks even if the source URI does not say so.
    return dataclasses.replace(found, marks=not topic.by_offset)


def _setting(
    order: Order,
    options: CodecOptions,
    seen: Visibility,
    *,
    pieces: bool,
    topics: bool,
    row_mode: bool = True,
) -> Setting:
    from tidegate.codec.registry import codec, has_marks
    from tidegate.dispatcher.consistency import Ddls, Setting

    ddls = Ddls(codec(options.protocol).ddl_to.value)
    return Setting(order, pieces, topics, has_marks(options), ddls, seen, row_mode)


def as_dict(setting: Setting) -> dict[str, dict[str, str]]:
    """For each possible level, its statement about each subject."""
    from tidegate.dispatcher.consistency import ROW, TABLE, TRANSACTION, promises, refusals

    refused = refusals(setting)
    found = promises(setting)
    cells = {
        ROW: {one.about: one.row for one in found},
        TABLE: {one.about: one.table for one in found},
        TRANSACTION: {one.about: one.transaction for one in found},
    }
    return {level: promise for level, promise in cells.items() if level not in refused}


def line(setting: Setting, mode: str) -> str:
    """The most important facts about the chosen level, for logs."""
    promises = as_dict(setting).get(mode, {})
    parts = [
        f"{about}: {promises[about]}"
        for about in ("one transaction", "a partition that lags")
        if about in promises
    ]
    return f"mode {mode}" + (f" ({'; '.join(parts)})" if parts else "")


def print_table(setting: Setting, chosen: str = "") -> None:
    """Print a table on standard error: the levels side by side, and why some of them are not possible.

    `chosen`: the level in use. Nothing is printed if no level is possible.
    """
    from rich.console import Console
    from rich.text import Text

    from tidegate.dispatcher.consistency import refusals

    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=WIDTH)
    if not as_dict(setting):  # in this case a note says that no level is possible
        return
    sys.stdout.flush()  # keeps the order of output if both streams go to one file
    console.print(_table(setting, chosen))
    for level, why in refusals(setting).items():
        console.print(Text(f"{level}: cannot be had: {why}"), soft_wrap=True)


def _table(setting: Setting, chosen: str) -> Table:
    from rich.table import Table

    levels = as_dict(setting)
    shown = Table("IF APPLIED BY", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for level in levels:
        shown.add_column(f"{level.upper()} (in use)" if level == chosen else level.upper())
    for about in next(iter(levels.values())):
        shown.add_row(about, *(promises[about] for promises in levels.values()))
    return shown
