"""The tables of a lakehouse, for the consumer, which writes them, and `verify`. No changefeed uses them.

Reading order: store (where the files are), object_store, snapshot_rows, snapshot_table (the commit point),
delta_commit, open_tables, takeover (which process may write an object store), own_tables (the guards before
each commit), deletion_vectors (their bytes), live_files (what the log says of them), vector_tables (rows and
commits of tables that have them), delta_log, table_files (deletes the files that no needed version has),
tables (a target as one class). Iceberg shares store and snapshot_rows; all else is about Delta tables.
deletion_vectors, delta_log and snapshot_rows are pure; the others do I/O.
"""
