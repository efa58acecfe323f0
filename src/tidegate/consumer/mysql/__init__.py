"""A MySQL, MariaDB or TiDB database as a target of the consumer.

`target` (the verbs), `lanes` (the connections that write), `rendering` (rows as statements), `parts` (batches
larger than memory), `progress` (what the database stores about the consumer, and the fence), `hold` (the
control connection and the token), `guard` (what ends an earlier consumer: `named_locks`, and at TiDB
`tidb_sessions` and `takeover`), `session` (connections and their errors), `literals` (values as SQL). DDL:
`ddl` (each statement once), `tables` (CREATE and ALTER), `described` (what a table looks like), `recast`
(converted columns), `prune`.
"""
