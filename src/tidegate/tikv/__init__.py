"""The embedded upstream: a small TiKV and PD in one process, for development, tests and the demo.

The layers, each above those before it: `keys`, `mvcc`, `reader` and `engine` (encodings, records, ordered
durable column families), `raft/` (regions, ordered apply), `pd/` (time, safepoints, operators on regions),
`percolator/` (turns a command into a write batch; pure), `txn/` (latches and scheduling of writes; reads),
`raw/` (requests without transactions), `cdc/` (change data capture), `rpc/` (gRPC and HTTP, the network
edge). `collector` removes old versions, `node` is one store with its own parts, and `server` puts everything
together. `faults` has the faults that can be injected. `tikv` does not know its clients.
"""
