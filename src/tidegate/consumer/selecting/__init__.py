"""Which tables and columns are applied, and under which names. Pure.

`rules` (what the user gives), `table_rules` (each table), `selection` (rows and DDLs under the rules),
`selected_sql` (texts under the rules), `selection_refusals` (why they cannot be followed).
"""
