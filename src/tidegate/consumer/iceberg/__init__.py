"""Iceberg tables as a target: a directory with a SQL catalog on SQLite, written through pyiceberg.

`target` is the target, `lake` its tables, `catalog` the catalog and its fence, `snapshots` is for readers.
"""
