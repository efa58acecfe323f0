"""Which tables a changefeed replicates: TiDB's table filter, whose rules dispatchers read too."""

from __future__ import annotations

from tidegate.tidb.table_filter import SYSTEM_SCHEMAS, TableFilter, is_system_schema

__all__ = ["SYSTEM_SCHEMAS", "TableFilter", "is_system_schema"]
