"""Delivery: batches in, durable downstream out.

Reading order: base (what a sink must be able to do), kafka (one room with all of it), registry. The tables of
a Delta target: snapshot_table (the commit point), own_tables (what stands before each commit), takeover,
lakehouse.
Every file but base is an edge.
"""
