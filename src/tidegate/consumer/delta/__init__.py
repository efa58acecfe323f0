"""Delta tables on a local disk or in S3 as a target of the consumer.

`target` (how a Delta target is opened), `lake` (its tables), `lock` (one process per target), `maintenance`
(what may be deleted). The verbs are those of `consumer.lakehouse.lake_target`, which Iceberg shares.
"""
