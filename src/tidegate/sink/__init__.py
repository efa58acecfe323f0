"""Delivery: batches in, durable downstream out.

Reading order: base (what a sink must be able to do), kafka (one room with all of it), registry, lakehouse.
Every file but base is an edge.
"""
