"""Delivery: batches in, durable downstream out.

Reading order: base (the contract of a sink), registry, a subpackage for each sink. The tables of a Delta
target: snapshot_table (the commit point), own_tables (the guards before each commit), takeover, lakehouse.
Every file but base does I/O.
"""
