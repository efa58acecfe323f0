"""Delivery: batches in, durable downstream out.

Reading order: base (the contract of a sink), registry, a subpackage for each sink. `lakehouse` is no sink: it
has the tables that a consumer writes.
"""
