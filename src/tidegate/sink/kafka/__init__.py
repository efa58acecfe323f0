"""Kafka as a sink: client (settings, topics), slot (the transactional writer), pace (how large its
transactions become), owner_sink (Resolved and DDL), sink (implements the sink contract with these).
"""
