"""A change log: every change of every table in Parquet files, named by a chain of manifests.

`target` has the verbs, `manifests` the chain, `steps` what the log says of a DDL, `upkeep` the removal of
files that nothing names, `reading` what readers use. `consumer.applying.change_rows` says what the rows are.
"""
