"""Decides which rows and DDLs may be applied, and up to which ts. Pure.

`fetched` (what comes in), `assembler` (rows that wait), `watermark` (how far partitions are complete),
`flow` with `ddl_queue` and `meetings`, and `offset_flow` (the state machines), `position` (what a target
stores), `places` (numbers of partitions), `row_clock` (how exactly rows carry their ts).
"""
