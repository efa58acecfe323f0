"""`format("tidegate")` without a register call: Spark looks for modules named `pyspark_*`.

It imports them in every application that uses any Python data source, so this one is light.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """The name that Spark looks for; an instance is one of `TidegateTables`."""

    def __new__(cls, options: dict[str, str]) -> Any:
        # Half a second of imports, for those who read tables or changes.
        from tidegate.tables.source import TidegateTables

        return TidegateTables(options)

    @classmethod
    def name(cls) -> str:
        return "tidegate"
