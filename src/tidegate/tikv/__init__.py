"""The embedded upstream: a small TiKV and PD in one process, for development, tests and the demo.

Read in this order: `keys` (encodings), `mvcc` (records and the reader over them), `percolator` (commands
in, write batch out; pure), `engine` (ordered, durable column families), `region`, `raftstore` (ordered
apply, observers), `scheduler` (latches), `tso`, `gc`, `pd`, `cdc/` (change data capture), and `server`:
the gRPC face and the only network edge of this folder. `tikv` does not know its clients.
"""
