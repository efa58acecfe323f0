"""The tables of an upstream, and which of them a changefeed follows.

`catalogues` (the tables of a capture's upstream at every ts), `schema_tracker` and `key_tracker` (a
changefeed's view), `stripes`, `table_cuts` and `hot_cuts` (how tables and their pieces are put into spans),
`target_text` (the text of a DDL for targets).
"""
