"""Decode: entry and schema in, row change or DDL event out. Pure: no I/O, clock or thread."""
