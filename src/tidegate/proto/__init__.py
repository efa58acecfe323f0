"""Wire messages of PD, TiKV and its CDC service, generated from `/proto`; never edited, never linted.

`metapb` (regions), `errorpb` (region errors), `kvrpcpb` (transactional requests), `tikvpb` (the store's
service), `pdpb` (the placement driver), `cdcpb` (change data), `etcdserverpb` (two etcd calls on PD's
address), `tidegate` (what only the embedded upstream offers). Only the fields that Tidegate uses are
declared; names and numbers are the public ones. Compile with `python proto/compile.py`.
"""
