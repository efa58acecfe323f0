"""The form of a table at the target: columns, key, values, partitions. Pure.

`definition` (one table), `convert` and `modify` (values in its types), `partitioning` (which rows belong
to a partition), `partition_spec` (how a table's files are divided), `soft_delete` (rows that stay after
their deletion), `timestamp_zone`.
"""
