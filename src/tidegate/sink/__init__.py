"""Delivery: batches in, durable downstream out; one downstream per file.

Reading order: kafka (settings, topics, the transactional writer of a slot), kafka_owner (Resolved and
DDL), lakehouse. Every file here is an edge.
"""
