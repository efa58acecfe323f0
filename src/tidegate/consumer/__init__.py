"""Kafka topics to a transactionally consistent downstream: one Spark application, or a plain process.

At the top is what a user or the command line calls: `job` (the loop), `settings`, `targets`, `snapshots`
(how to read Delta and Iceberg targets), `named_tables`, `peek`, `topic_check`, `comparison`, `replay`,
`sql_text`.

Rooms, in reading order: `running` (one run: its beginning, its rounds, its checks), `reading` (topics to
staged rows), `engine` (what may be applied, and up to when), `selecting` (the user's rules), `applying`
(staged rows and DDLs to a target's verbs), `table` and `ddl` (what a table looks like, and the steps of a
DDL), `lakehouse` (what Delta and Iceberg share), `delta`, `iceberg`, `mysql` and `parquet` (the targets),
`contract` (whether a topic keeps its contract). Pure: engine, selecting, table, ddl.
"""
