"""The placement driver: ids, time, safepoints, stores, keyspaces, and operators on regions. No network.

Reading order: `tso` (timestamps), `gc` (safepoints), `keyspace`, `stores`, `operators` (split, merge, move),
`splitter` (splits regions that have grown too large), `regions` and `placement_driver`: the service
`pdpb.PD`.
"""
