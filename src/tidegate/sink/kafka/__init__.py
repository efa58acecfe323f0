"""Kafka as a sink: client (settings, topics), slot (the transactional writer), pace (how large its
transactions become), owner (Resolved and DDL), sink (all that behind the contract of sinks).
"""
