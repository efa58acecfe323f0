"""Delta tables on a local disk or in S3 as a target of the consumer.

`target` (the verbs, on one page), `definitions` and `journal` (what is kept beside the tables), `rewrite`
(rows in a table's new columns), `lock` (one process a target), `maintenance` (what may be deleted).
"""
