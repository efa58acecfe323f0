"""The options of a stream of changes, checked when the DataFrame is made. `tables.stream` explains each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.access import TOKEN_FILE
from tidegate.config.sink_uri import ROWS
from tidegate.config.values import nearest
from tidegate.errors import InvalidInput, cut

STREAM_OPTIONS: Final = (
    "server",
    "tables",
    "rows",
    "start-ts",
    "reader",
    "token-file",
    "max-bytes",
    "max-kept",
    "hold",
    "after-ddl",
)
TYPED: Final = "typed"
MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The user's options. Pickled to all executors, so it has the path of the token's file, not the token."""

    server: str
    tables: tuple[str, ...]
    rows: str = TYPED
    start_ts: int = 0
    """0: now."""
    reader: str = ""
    token_file: str = ""
    max_bytes: int = MAX_BYTES
    max_kept: int = 0
    """0: the server's default; also for `hold_s`."""
    hold_s: int = 0
    after_ddl: int = 0
    """0: none."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamOptions:
        """Options of Spark, whose names are in lower case. Raises InvalidInput."""
        for given in options:
            if given.lower() not in STREAM_OPTIONS:
                raise refused(f"there is no option '{given}'", nearest(given, STREAM_OPTIONS))
        tables = tuple(sorted({name.strip() for name in options.get("tables", "").split(",")} - {""}))
        rows = options.get("rows", TYPED)
        if not tables:
            raise refused(
                "format tidegate needs the option 'tables'", 'give .option("tables", "shop.orders")'
            )
        if rows not in ROWS:
            raise refused(f"option rows cannot be '{rows}'", nearest(rows, ROWS))
        if rows == TYPED and len(tables) > 1:
            raise refused(
                f"typed rows are of one table, not of {len(tables)}",
                "start a query for each table, or set rows to generic",
            )
        start = options.get("start-ts", "now")
        return cls(
            server=options["server"],
            tables=tables,
            rows=rows,
            start_ts=0 if start == "now" else _number("start-ts", start),
            reader=options.get("reader", ""),
            token_file=options.get("token-file", "") or os.environ.get(TOKEN_FILE, ""),
            max_bytes=_number("max-bytes", options.get("max-bytes", str(MAX_BYTES))),
            max_kept=_number("max-kept", options["max-kept"]) if "max-kept" in options else 0,
            hold_s=_number("hold", options["hold"]) if "hold" in options else 0,
            after_ddl=_number("after-ddl", options["after-ddl"]) if "after-ddl" in options else 0,
        )


def refused(what: str, fix: str) -> InvalidInput:
    """The error for an option that cannot be used."""
    return InvalidInput(what, where="format tidegate", fix=fix)


def _number(name: str, text: str) -> int:
    if not text.isdigit() or not int(text):
        raise refused(f"option {name} is not a positive number: '{cut(text)}'", "give a number")
    return int(text)
