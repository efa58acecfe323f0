"""Delta tables on a local disk or in S3 as a target of the consumer.

`target` (how a Delta target is opened), `lake` (its tables), `merging` and `data_files` (merges that rewrite
few files, with deletion vectors), `lock` (one process per target), `maintenance` (what may be deleted). The
verbs are those of `consumer.lakehouse.lake_target`, which Iceberg shares.
"""
