"""A directory of tables as a target: what Delta and Iceberg share.

`lake` (the interface to a format), `lake_target` (the verbs), `lake_steps` (steps of DDLs), `write_mode`,
`changed_keys` and `compaction` (which files a merge and a compaction touch), `journal` and
`definition_files` (what is stored with the data), `directory_lock`, `upkeep` and `thinning` (what is kept).
"""
