"""The embedded upstream: a small TiKV and PD in one process, for development, tests and the demo.

Rooms, each above those before it: `keys`, `mvcc`, `reader` and `engine` (encodings, records, ordered durable
column families), `raft/` (regions, ordered apply), `pd/` (time, safepoints, orders to regions),
`percolator/` (a command in, a write batch out; pure), `txn/` (who may write when; reads), `raw/` (requests
without transactions), `cdc/` (change data capture), `rpc/` (gRPC and HTTP, the network edge). `collector`
removes old versions, `node` is one store with its own parts, and `server` puts everything together. `faults`
says what may be made to go wrong. `tikv` does not know its clients.
"""
