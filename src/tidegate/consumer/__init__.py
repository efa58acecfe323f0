"""Kafka topics to a transactionally consistent downstream: one Spark application, or a plain process.

Reading order: `job` (the loop), `fetcher` (fetches in Spark tasks or in worker processes of our own),
`source` (offset ranges to staged Arrow), `watermark` and `assembler` (what may be applied, and up to when),
`net_effect` (many changes of a row to one), `change_rows` (each of them as a row of a log), `parted` (tables
whose changes do not fit into memory), `definition` and `ddl_plan` (what a table looks like at the target, and
the steps of a DDL: `ddl_steps`; `ddl_text_plan` plans a DDL known only by its text), `apply` (rows and DDLs
to a target's verbs), `target` (the verbs), `delta`, `iceberg`, `parquet` and `mysql` (the targets),
`snapshots` (how to read Delta and Iceberg targets), `parquet.reading` (how to read a change log). Pure:
watermark, assembler, net_effect, change_rows, definition, convert, `ddl_*`, position. Edges: source,
bad_rows, delta, iceberg, parquet, mysql, job, snapshots.
"""
