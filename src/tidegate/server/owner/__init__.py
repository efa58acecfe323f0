"""The owner of one changefeed: grants ranges, sends DDL and Resolved, stores the checkpoint.

`feed` (a changefeed as others see it), `life` (runs, pauses, fails), `record` (as it is stored),
`replication` (one incarnation after another), with `effects`, `ddl`, `sink_lifetime`, `layout` (partitions),
`load_end`, `tick_pause` and `shares`; `sharing`, `delivered_spans` and `able_captures` (who gets which
ranges); `peers`, `processor_link` and `processor_reports` (its processors, known only by messages);
`ended_spans`; `range_facts` and `words` (for users).
"""
