"""Regions, and the ordered apply of commands to them. There is one copy of the data, so no separate raft log.

Reading order: `region`, `region_table` (regions by id and key; refusal of requests), `region_change` and
`conf_change` (changes of regions; pure), `region_meta` (on disk), `raftstore` (ordered apply, observers).
"""
