"""The placement driver: ids, time, safepoints, stores, keyspaces, and orders to regions. No network.

Reading order: `tso` (timestamps), `gc` (safepoints), `keyspace`, `stores`, `operators` (split, merge, move),
`splitter` (regions that have grown too large), `regions` and `placement_driver`: the answers to `pdpb.PD`.
"""
