"""From staged rows and DDLs to the verbs of a target.

`target` (the verbs), `changes` (staged rows as changes), `net_effect` (many changes of a row to one),
`parted` (tables that do not fit into memory, with `part_file`, `row_codes` and `row_runs`), `apply` (rows
and DDLs), `ddl_planner` (a DDL's steps), `commit` (up to a named snapshot), `ddl_floors`, `bad_rows`,
`known_places`, `set_aside` (tables that stay as they are), `partition_checks`, `change_rows` (every change,
for a change log), `stats`, `own_folder`.
"""
