"""The embedded upstream: a small TiKV and PD in one process, for development, tests and the demo.

Read in this order: `keys` (encodings), `mvcc` (records), `reader` (over them), `concurrency` (max_ts and
in-memory locks), `percolator/` (commands in, write batch out; pure), `engine` (ordered, durable column
families), `region`, `region_table`, `region_change` (what regions are, why a request is refused, how they
change; pure), `region_meta` (on disk), `raftstore` (ordered apply, observers), `latches`, `deadlock`,
`lock_waiting`, `scheduler` (who may write when), `max_ts`, `api_version`, `rawkv`, `snapshot` (reads),
`store` (requests to handlers), `tso`, `gc`, `collector`, `keyspace`, `stores`, `operators`, `splitter`,
`pd_regions`, `pd`, `cdc/` (change data capture), `faults`, `node` (a store's own parts), `services`,
`upstream_service` and `server`: the gRPC face, the only network edge of this folder. `tikv` does not know its
clients.
"""
