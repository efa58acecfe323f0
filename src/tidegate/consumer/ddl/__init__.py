"""The steps of a DDL, from its TableInfo or from its text. Pure.

`ddl_steps` (the steps, data alone), `ddl_plan` (planned from the TableInfo), `ddl_text` and `ddl_text_plan`
(from the text), `schema_changes` (the user's policy), `sql_replay` and `sql_columns` (texts for another
database), `rewrite` (rows in a table's new columns).
"""
