"""Regions, and the order in which commands are applied to them. One copy, so there is no log of its own.

Reading order: `region`, `region_table` (regions by id and key; why a request is refused), `region_change`
and `conf_change` (how they change; pure), `region_meta` (on disk), `raftstore` (ordered apply, observers).
"""
